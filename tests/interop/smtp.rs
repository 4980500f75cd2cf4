//! SMTP submission by clients that were not written here: Python's smtplib and curl, with STARTTLS and
//! with TLS from the first byte. What they build arrives byte for byte.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillarbox::simulator::Options;
use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::kit::{Server, Site};

/// Builds a mail as Django does, with alternatives and an attachment; sends it and prints its bytes.
const SMTPLIB: &str = r#"
import base64, os, smtplib, ssl, sys
from email import policy
from email.message import EmailMessage
host, port, ca, start = "localhost", int(sys.argv[1]), sys.argv[2], sys.argv[3]
message = EmailMessage(policy=policy.SMTP)
message["From"] = "J\u00fcrgen Gro\u00df <ann@example.com>"
message["To"] = "Bob <bob@example.org>, cy@example.org"
message["Subject"] = "Gr\u00fc\u00dfe \u2709 " + "long " * 30
message["Message-ID"] = "<%s@example.com>" % start
message.set_content("Gr\u00fc\u00dfe\n.\n..\nFrom here on\n")
message.add_alternative("<p>Gr\u00fc\u00dfe</p>", subtype="html")
message.add_attachment(bytes(range(256)) * 20, maintype="application", subtype="pdf", filename="r\u00e9sum\u00e9.pdf")
context = ssl.create_default_context(cafile=ca)
if start == "starttls":
    client = smtplib.SMTP(host, port)
    client.starttls(context=context)
else:
    client = smtplib.SMTP_SSL(host, port, context=context)
client.login("anybody", os.environ["KEY"])
recipients = ["bob@example.org", "cy@example.org", "hidden@example.org"]
client.sendmail("ann@example.com", recipients, b"Bcc: hidden@example.org\r\n" + message.as_bytes())
client.quit()
print(base64.b64encode(message.as_bytes()).decode())
"#;

/// A site with a certificate for `localhost`, the service, and the ports of SMTP.
struct Submitting {
    site: Site,
    server: Server,
    start_tls: String,
    tls: String,
}

impl Submitting {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap().keep();
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (directory.join("crt"), directory.join("key"));
        std::fs::write(&certificate, cert.pem()).unwrap();
        std::fs::write(&key, signing_key.serialize_pem()).unwrap();
        let more = format!(
            "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n[smtp]\nlisten = \"127.0.0.1:0\"\n\
             tls_listen = \"127.0.0.1:0\"",
            certificate.display(),
            key.display()
        );
        let site = Site::with(&more, Options::default()).await;
        std::fs::copy(&certificate, site.directory().join("ca.pem")).unwrap();
        let server = site.start();
        let log = server.log();
        let ports: Vec<_> = log
            .lines()
            .filter_map(|line| line.split_once("SMTP submission at 127.0.0.1:"))
            .map(|(_, port)| port.trim().to_owned())
            .collect();
        let [start_tls, tls] = &ports[..] else { panic!("{log}") };
        Self { start_tls: start_tls.clone(), tls: tls.clone(), site, server }
    }

    fn authority(&self) -> String {
        self.site.directory().join("ca.pem").display().to_string()
    }

    /// Runs a program that must succeed; gives what it prints.
    async fn run(&self, mut command: Command) -> String {
        command.env("KEY", &self.server.key);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until so many messages were sent; gives the last one's bytes and recipients.
    async fn sent(&self, count: usize) -> (Vec<u8>, Vec<String>) {
        let end = std::time::Instant::now() + crate::PATIENCE;
        loop {
            let messages = self.site.simulator.messages();
            if let (true, Some(last)) = (messages.len() == count, messages.last()) {
                return (last.raw.as_ref().unwrap().to_vec(), last.to.clone());
            }
            assert!(std::time::Instant::now() < end, "{} messages", messages.len());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_smtplib_builds_arrives_byte_for_byte() {
    let place = Submitting::new().await;
    for (count, start, port) in [(1, "starttls", &place.start_tls), (2, "tls", &place.tls)] {
        let mut python = Command::new("python3");
        python.args(["-c", SMTPLIB, port, &place.authority(), start]);
        let built = place.run(python).await;
        let (sent, to) = place.sent(count).await;
        assert_eq!(sent, STANDARD.decode(built.trim()).unwrap(), "{start}");
        assert_eq!(to, ["bob@example.org", "cy@example.org", "hidden@example.org"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_sends_with_starttls_and_with_tls() {
    let place = Submitting::new().await;
    let file = place.site.directory().join("message");
    for (count, url) in [
        (1, format!("smtp://localhost:{}", place.start_tls)),
        (2, format!("smtps://localhost:{}", place.tls)),
    ] {
        let message =
            format!("From: ann@example.com\r\nSubject: {count}\r\n\r\n.dot\r\n.\r\nend\r\n");
        std::fs::write(&file, &message).unwrap();
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--ssl-reqd", "--cacert", &place.authority(), &url]);
        curl.args(["--user", &format!("anybody:{}", place.server.key)]);
        curl.args(["--mail-from", "ann@example.com", "--mail-rcpt", "bob@example.org"]);
        curl.arg("--upload-file").arg(Path::new(&file));
        place.run(curl).await;
        let (sent, to) = place.sent(count).await;
        assert_eq!(String::from_utf8(sent).unwrap(), message);
        assert_eq!(to, ["bob@example.org"]);
    }
}
