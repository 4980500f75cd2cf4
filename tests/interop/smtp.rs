//! SMTP submission by clients that were not written here, with STARTTLS, with TLS from the first
//! byte and without TLS, by the recipes of `docs/smtp.md`. Their messages arrive byte for byte, but
//! for the fields that are removed. `applications` has the recipes of `docs/smtp-recipes.md`.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillarbox_simulator::Options;
use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::kit::{PATIENCE, Server, Site};

mod applications;

/// The page with the recipes for frameworks and languages.
const PAGE: &str = include_str!("../../docs/smtp.md");
/// The recipients of the mails that the programs build.
const RECIPIENTS: [&str; 3] = ["bob@example.org", "cy@example.org", "hidden@example.org"];
/// PHP, which heeds `assert` only with this option.
const PHP: [&str; 3] = ["php", "-d", "zend.assertions=1"];

/// Beginning of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beginning {
    StartTls,
    Tls,
    /// Without TLS, as in `dev`.
    Plain,
}

impl Beginning {
    /// Both beginnings with a certificate.
    const BOTH: [Self; 2] = [Self::StartTls, Self::Tls];
    const PLAIN: [Self; 1] = [Self::Plain];

    const fn name(self) -> &'static str {
        match self {
            Self::StartTls => "starttls",
            Self::Tls => "tls",
            Self::Plain => "plain",
        }
    }

    /// Port that the page has for this start.
    const fn port(self) -> &'static str {
        match self {
            Self::StartTls => "587",
            Self::Tls => "465",
            Self::Plain => "8587",
        }
    }

    /// Column of the page's table that has the words of this start.
    const fn column(self) -> usize {
        match self {
            Self::StartTls => 2,
            Self::Tls => 3,
            Self::Plain => 4,
        }
    }
}

/// A site, the service, and the ports of SMTP.
struct Submitting {
    site: Site,
    server: Server,
    starts: &'static [Beginning],
    ports: Vec<String>,
}

impl Submitting {
    /// With a certificate for `localhost`, and then without one.
    async fn each() -> [Self; 2] {
        let smtp = "[smtp]\nlisten = \"127.0.0.1:0\"";
        let site = Site::with(smtp, Options::default()).await;
        [Self::new().await, Self::start(site, &Beginning::PLAIN)]
    }

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
        Self::start(site, &Beginning::BOTH)
    }

    fn start(site: Site, starts: &'static [Beginning]) -> Self {
        let server = site.start();
        let log = server.log();
        let ports: Vec<_> = log
            .lines()
            .filter_map(|line| line.split_once("SMTP submission at 127.0.0.1:"))
            .map(|(_, port)| port.trim().to_owned())
            .collect();
        assert_eq!(ports.len(), starts.len(), "{log}");
        Self { site, server, starts, ports }
    }

    fn authority(&self) -> PathBuf {
        self.site.directory().join("ca.pem")
    }

    fn port(&self, start: Beginning) -> &str {
        let at = self.starts.iter().position(|one| *one == start).expect("a start of this site");
        &self.ports[at]
    }

    /// The recipe under a heading of the page, for this service.
    fn recipe(&self, heading: &str, start: Beginning) -> String {
        let (mut recipe, own) = recipe_of_page(heading);
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| {heading} | `")));
        if start != own
            && let Some(row) = row
        {
            // The row of the table: the words for each port.
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let code = |cell: &str| cell.trim_matches('`').replace("` `", "\n");
            let (from, to) = (code(cells[own.column()]), code(cells[start.column()]));
            assert!(recipe.contains(&from), "{from} is not in the recipe for {heading}");
            recipe = recipe.replace(&from, &to);
        }
        recipe.replace("mail.example.com", "localhost").replace(own.port(), self.port(start))
    }

    /// Writes a program in which a recipe takes the place of the word `RECIPE`.
    fn program(&self, name: &str, text: &str, recipe: &str) -> PathBuf {
        assert!(text.contains("RECIPE\n"));
        let path = self.site.directory().join(name);
        let recipe = recipe.replace("pb_…", &self.server.key);
        std::fs::write(&path, text.replace("RECIPE\n", &format!("{recipe}\n"))).unwrap();
        path
    }

    /// This command with a program that contains the recipe as its last argument.
    fn command(
        &self,
        command: &[&str],
        (name, text): (&str, &str),
        (recipe, own): (&str, Beginning),
    ) -> Command {
        let mut run = Command::new(command[0]);
        run.args(&command[1..]).arg(self.program(name, text, recipe));
        run.env("PORT_OF_PAGE", own.port());
        run
    }

    async fn output(&self, mut command: Command) -> Output {
        // For Python, Ruby, PHP and Go, and for Node.
        command.env("SSL_CERT_FILE", self.authority());
        command.env("NODE_EXTRA_CA_CERTS", self.authority());
        command.env("MAIL_KEY", &self.server.key);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Runs a program that must succeed; gives what it prints.
    async fn run(&self, command: Command) -> String {
        let output = self.output(command).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a program that prints in base64 what it gives, and waits until that has arrived.
    async fn run_and_compare(&self, command: Command, count: usize) {
        let printed = self.run(command).await;
        self.arrives(&STANDARD.decode(printed.trim()).unwrap(), &RECIPIENTS, count).await;
    }

    /// Has a program that contains the recipe under this heading send with each start, run by
    /// this command.
    async fn arrives_from(&self, heading: &str, program: (&str, &str), command: &[&str]) {
        self.keeps_its_key(heading, program, command).await;
        for (count, start) in (1..).zip(self.starts.iter().copied()) {
            let recipe = self.recipe(heading, start);
            let run = self.command(command, program, (&recipe, start));
            self.run_and_compare(run, count).await;
        }
    }

    /// Checks that the program sends no key to a server without TLS, and no mail to one whose
    /// certificate is for another name, by the recipe as the page has it. Needs a certificate.
    async fn keeps_its_key(&self, heading: &str, program: (&str, &str), command: &[&str]) {
        if self.starts != Beginning::BOTH {
            return;
        }
        let (recipe, own) = recipe_of_page(heading);
        let (without_tls, commands) = server_without_tls();
        let mut outputs = Vec::new();
        for (host, port) in [("localhost", &*without_tls), ("127.0.0.1", self.port(own))] {
            let recipe = recipe.replace("mail.example.com", host).replace(own.port(), port);
            let output = self.output(self.command(command, program, (&recipe, own))).await;
            assert!(!output.status.success(), "{heading} sends to {host}:{port}: {output:?}");
            outputs.push(output);
        }
        let commands = commands.lock().unwrap();
        assert!(!commands.is_empty(), "{heading} did not connect: {outputs:?}");
        assert!(!commands.iter().any(|line| line.starts_with("AUTH")), "{heading}: {commands:?}");
    }

    /// Waits until so many messages were sent; one must have these recipients, and the bytes that
    /// were given but for what is removed.
    async fn arrives(&self, given: &[u8], to: &[&str], count: usize) {
        let end = Instant::now() + PATIENCE;
        while self.site.simulator.messages().len() < count {
            let sent = self.site.simulator.messages().len();
            assert!(Instant::now() < end, "{sent} messages of {count}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let messages = self.site.simulator.messages();
        assert_eq!(messages.len(), count);
        let mut expected = without_removed(&String::from_utf8_lossy(given));
        let sent: Vec<_> = messages
            .iter()
            .filter(|message| message.to == to)
            .map(|message| String::from_utf8_lossy(message.raw.as_ref().unwrap()).into_owned())
            .collect();
        let last = sent.last().unwrap_or_else(|| panic!("no message to {to:?}"));
        // PHPMailer and swaks end a message with a line more.
        if last.ends_with("\r\n\r\n") && !expected.ends_with("\r\n\r\n") {
            expected.push_str("\r\n");
        }
        assert_eq!(last, &expected);
    }
}

/// The recipe under a heading of one of the pages, and the start that its port has.
fn recipe_of_page(heading: &str) -> (String, Beginning) {
    let block = first_block(PAGE, &format!("### {heading}"))
        .or_else(|| first_block(applications::PAGE, &format!("## {heading}")))
        .expect("a recipe");
    let own = Beginning::BOTH.into_iter().find(|start| block.contains(start.port()));
    (block.to_owned(), own.expect("a port"))
}

/// The first fenced block under a heading of a page.
fn first_block<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let (_, section) = page.split_once(&format!("\n{heading}\n"))?;
    let (_, block) = section.split_once("\n```").expect("a block");
    let (_, block) = block.split_once('\n').expect("its lines");
    let (block, _) = block.split_once("\n```").expect("its end");
    Some(block)
}

/// An attacker between client and service, who hides STARTTLS and still asks for the key. Returns
/// the port, and the commands as they come.
fn server_without_tls() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let commands = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&commands);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            heard.lock().unwrap().push("connection".to_owned());
            let lines = BufReader::new(connection.try_clone().unwrap()).split(b'\n');
            let _ = connection.write_all(b"220 localhost\r\n");
            for line in lines.map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                // Python's smtplib writes it in lower case.
                let reply = match line.get(..4) {
                    Some("EHLO" | "ehlo") => "250-localhost\r\n250 AUTH PLAIN LOGIN\r\n",
                    _ => "535 5.7.8 No\r\n",
                };
                heard.lock().unwrap().push(line);
                let _ = connection.write_all(reply.as_bytes());
            }
        }
    });
    (port, commands)
}

/// The message as it goes over the wire, without the fields that SES must not see.
fn without_removed(given: &str) -> String {
    let lines = given.lines().fold(String::new(), |mut lines, line| {
        write!(lines, "{line}\r\n").unwrap();
        lines
    });
    let (fields, body) = lines.split_once("\r\n\r\n").unwrap();
    let (mut kept, mut is_kept) = (Vec::new(), true);
    for line in fields.split("\r\n") {
        if !line.starts_with([' ', '\t']) {
            let name = line.split(':').next().unwrap().to_ascii_lowercase();
            is_kept = name != "bcc" && name != "return-path" && !name.starts_with("x-ses-");
        }
        if is_kept {
            kept.push(line);
        }
    }
    format!("{}\r\n\r\n{body}", kept.join("\r\n"))
}

/// A mail with lines of dots and a file, for a program that builds none. One of another start is
/// another mail.
fn mail(from: &str, start: Beginning) -> String {
    let id = start.name();
    let file = STANDARD.encode((0..=255).collect::<Vec<u8>>().repeat(20));
    let file: Vec<_> =
        file.as_bytes().chunks(76).map(|line| str::from_utf8(line).unwrap()).collect();
    format!(
        "Bcc: hidden@example.org,\r\n other@example.org\r\nFrom: =?utf-8?q?J=C3=BCrgen?= <{from}>\r\n\
         To: undisclosed\r\nX-SES-Configuration-Set: other\r\nSender: {from}\r\nSubject: Hello\r\n\
         Date: Mon, 23 Nov 2026 09:00:00 +0000\r\nMessage-ID: <{id}@example.com>\r\n\
         MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\r\nGr\u{fc}\u{df}e\r\n.\r\n..\r\n.dot\r\n\
         From here on\r\n--b\r\nContent-Type: application/pdf; name=a.pdf\r\n\
         Content-Disposition: attachment; filename=a.pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n\
         {}\r\n--b--\r\n",
        file.join("\r\n")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_smtplib_builds_arrives_byte_for_byte() {
    let program = ("mail.py", include_str!("smtp/smtplib.py"));
    for place in Submitting::each().await {
        place.keeps_its_key("Python's smtplib", program, &["python3"]).await;
        for (count, start) in (1..).zip(place.starts.iter().copied()) {
            let mut recipe = place.recipe("Python's smtplib", start);
            if start != Beginning::StartTls {
                let lines = recipe.lines().filter(|line| !line.contains("starttls"));
                recipe = lines.collect::<Vec<_>>().join("\n");
            }
            if start == Beginning::Tls {
                // The sentence below the recipe.
                let (_, after) = PAGE.split_once("begin with `smtplib.SMTP_SSL").expect("a line");
                let (arguments, _) = after.split_once('`').expect("its end");
                let arguments = arguments.replace("mail.example.com", "localhost");
                let port = place.port(start);
                let begin = format!("smtplib.SMTP_SSL{}", arguments.replace("465", port));
                let plain = format!("smtplib.SMTP(\"localhost\", {port})");
                assert!(recipe.contains(&plain), "{recipe}");
                recipe = recipe.replace(&plain, &begin);
            }
            let mut python = Command::new("python3");
            python.arg(place.program(program.0, program.1, &recipe));
            place.run_and_compare(python, count).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_django_builds_arrives_byte_for_byte() {
    let python = std::env::var("DJANGO_PYTHON").expect("a Python with: pip install django");
    let program = ("mail.py", include_str!("smtp/django.py"));
    for place in Submitting::each().await {
        place.arrives_from("Django", program, &[&python]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nodemailer_builds_arrives_byte_for_byte() {
    let modules = std::env::var("NODEMAILER").expect("a directory with: npm install nodemailer");
    let modules = Path::new(&modules).join("node_modules");
    let program = ("mail.mjs", include_str!("smtp/nodemailer.mjs"));
    for place in Submitting::each().await {
        // Node searches for a module beside the program.
        std::os::unix::fs::symlink(&modules, place.site.directory().join("node_modules")).unwrap();
        place.keeps_its_key("Nodemailer", program, &["node"]).await;
        for (count, start) in (1..).zip(place.starts.iter().copied()) {
            let recipe = place.recipe("Nodemailer", start);
            let mut node = Command::new("node");
            node.arg(place.program(program.0, program.1, &recipe));
            place.run_and_compare(node, 2 * count).await;
            let messages = place.site.simulator.messages();
            assert!(
                messages.iter().any(|message| message.to == ["ada@example.net"]),
                "the recipe's own"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rails_library_builds_arrives_byte_for_byte() {
    let program = ("mail.rb", include_str!("smtp/rails.rb"));
    for place in Submitting::each().await {
        place.arrives_from("Rails", program, &["ruby", "-W0", "-Ku"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_wordpress_library_builds_arrives_byte_for_byte() {
    let program = ("mail.php", include_str!("smtp/wordpress.php"));
    for place in Submitting::each().await {
        place.arrives_from("WordPress", program, &PHP).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_laravels_library_builds_arrives_byte_for_byte() {
    let program = ("mail.php", include_str!("smtp/laravel.php"));
    for place in Submitting::each().await {
        place.arrives_from("Laravel", program, &PHP).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_springs_library_builds_arrives_byte_for_byte() {
    const PASSWORD: &str = "trusted";
    let libraries = [
        "spring3-core",
        "spring3-beans",
        "spring3-context",
        "spring3-context.support",
        "commons-logging",
        "javax.mail",
        "javax.activation",
    ];
    let libraries = libraries.map(|name| format!("/usr/share/java/{name}.jar")).join(":");
    let program = ("Mail.java", include_str!("smtp/Mail.java"));
    for place in Submitting::each().await {
        let trusted = place.site.directory().join("trusted");
        if place.authority().exists() {
            let mut keytool = Command::new("keytool");
            keytool.args(["-importcert", "-noprompt", "-storepass", PASSWORD, "-keystore"]);
            keytool.arg(&trusted).arg("-file").arg(place.authority());
            place.run(keytool).await;
        }
        let options = [
            format!("-Djavax.net.ssl.trustStore={}", trusted.display()),
            format!("-Djavax.net.ssl.trustStorePassword={PASSWORD}"),
        ];
        let java = ["java", "-cp", &libraries, "-Dfile.encoding=UTF-8", &options[0], &options[1]];
        place.arrives_from("Spring", program, &java).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_swaks_and_msmtp_send_with_starttls_and_with_tls() {
    let place = Submitting::new().await;
    let key = &place.server.key;
    let file = place.site.directory().join("message");
    let mut count = 0;
    for start in Beginning::BOTH {
        let port = place.port(start);
        let given = mail("ann@example.com", start);
        std::fs::write(&file, &given).unwrap();
        let scheme = if start == Beginning::Tls { "smtps" } else { "smtp" };
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--ssl-reqd", &format!("{scheme}://localhost:{port}"), "--cacert"]);
        curl.arg(place.authority()).args(["--user", &format!("anybody:{key}")]);
        curl.args(["--mail-from", "ann@example.com", "--mail-rcpt", "curl@example.org"]);
        curl.arg("--upload-file").arg(&file);
        place.run(curl).await;
        count += 1;
        place.arrives(given.as_bytes(), &["curl@example.org"], count).await;

        let begin = if start == Beginning::Tls { "--tls-on-connect" } else { "--tls" };
        let mut swaks = Command::new("swaks");
        swaks.args(["--server", "localhost", "--port", port, begin, "--tls-verify"]);
        swaks.arg("--tls-ca-path").arg(place.authority());
        swaks.args(["--auth", "PLAIN", "--auth-user", "anybody", "--auth-password", key]);
        swaks.args(["--from", "ann@example.com", "--to", "swaks@example.org", "--data"]);
        swaks.arg(format!("@{}", file.display()));
        place.run(swaks).await;
        count += 1;
        place.arrives(given.as_bytes(), &["swaks@example.org"], count).await;

        count += 1;
        msmtp_sends(&place, start, count).await;
    }
    let [_, place] = Submitting::each().await;
    msmtp_sends(&place, Beginning::Plain, 1).await;
}

/// Sends a mail with msmtp, and waits until it has arrived as one of so many.
async fn msmtp_sends(place: &Submitting, start: Beginning, count: usize) {
    let key_file = place.site.directory().join("key");
    std::fs::write(&key_file, &place.server.key).unwrap();
    let recipe = place.recipe("msmtp, as sendmail", start);
    let recipe = recipe
        .replace("/etc/pillarbox-key", key_file.to_str().unwrap())
        .replace("tls on", &format!("tls on\ntls_trust_file {}", place.authority().display()));
    let msmtprc = place.site.directory().join("msmtprc");
    std::fs::write(&msmtprc, recipe).unwrap();
    let given = mail("noreply@example.com", start);
    let file = place.site.directory().join("mail");
    std::fs::write(&file, given.replace("\r\n", "\n")).unwrap();
    let mut msmtp = Command::new("msmtp");
    msmtp.arg("--file").arg(msmtprc).arg("msmtp@example.org");
    msmtp.stdin(std::fs::File::open(&file).unwrap());
    place.run(msmtp).await;
    place.arrives(given.as_bytes(), &["msmtp@example.org"], count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gos_library_sends_each_way() {
    for place in Submitting::each().await {
        let recipe = place.recipe("Go", place.starts[0]);
        let source = place.program("submit.go", include_str!("smtp/submit.go"), &recipe);
        let program = place.site.directory().join("submit");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(source);
        place.run(build).await;
        let file = place.site.directory().join("message");
        for (count, start) in (1..).zip(place.starts.iter().copied()) {
            let given = mail("orders@example.com", start);
            std::fs::write(&file, &given).unwrap();
            let mut submit = Command::new(&program);
            submit.args([start.name(), &format!("localhost:{}", place.port(start))]);
            submit.stdin(std::fs::File::open(&file).unwrap());
            place.run(submit).await;
            place.arrives(given.as_bytes(), &["ada@example.net"], count).await;
        }
    }
}
