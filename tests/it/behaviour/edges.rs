//! Clients, probes and certificates of other makers: their input is read, or refused for its own
//! cause.

use std::process::Command;

use pillarbox_http::tls::TlsFiles;
use pillarbox_simulator::Options;
use reqwest::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::behaviour::tls::Certificate;
use crate::kit::{Finished, Site, SmtpClient, message, refusal};

async fn raw(address: &str, request: &str) -> String {
    let address = address.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_probe_of_http_1_0_needs_no_host() {
    let site = Site::new().await;
    let server = site.start();
    for path in ["/healthz", "/metrics"] {
        let answer = raw(&server.operator, &format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        assert!(
            answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"),
            "{answer}"
        );
        let other = format!("GET {path} HTTP/1.0\r\nHost: evil.example\r\n\r\n");
        assert!(raw(&server.operator, &other).await.contains(" 403 "), "{path}");
    }
    let without = raw(&server.operator, "GET /healthz HTTP/1.1\r\n\r\n").await;
    assert!(without.contains(" 400 "), "{without}");
}

#[tokio::test]
async fn a_body_is_refused_for_its_type_or_for_its_coding() {
    let site = Site::new().await;
    let server = site.start();
    let post = |content_type: &str, coding: &str| {
        let request = server.client.post(format!("{}/emails", server.base));
        let request = request.bearer_auth(&server.key).header("content-type", content_type);
        let request = match coding {
            "" => request,
            coding => request.header("content-encoding", coding),
        };
        request.body(message().to_string()).send()
    };
    for (content_type, coding) in [
        ("application/json; charset=utf8", ""),
        ("application/json; charset=\"UTF8\"", ""),
        ("application/json; charset=utf-8", "identity"),
        ("application/json", "Identity"),
    ] {
        let response = post(content_type, coding).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{content_type} {coding}");
    }
    for (content_type, coding, word) in [
        ("application/json", "gzip", "Content-Encoding"),
        ("application/json", "identity, br", "Content-Encoding"),
        ("text/plain", "gzip", "Content-Type"),
        ("application/json; charset=latin1", "", "Content-Type"),
    ] {
        let response = post(content_type, coding).await.unwrap();
        assert_eq!(response.status(), 415, "{content_type} {coding}");
        let body = response.text().await.unwrap();
        assert!(body.contains("UnsupportedMediaType") && body.contains(word), "{body}");
    }
    let response = post("application/json", "gzip").await.unwrap();
    assert_eq!(refusal(response).await.1, "UnsupportedMediaType");
}

#[tokio::test]
async fn bytes_that_are_no_ascii_are_taken_or_named_over_smtp() {
    let site = Site::with("[smtp]\nlisten = \"127.0.0.1:0\"\n", Options::default()).await;
    let server = site.start();
    let address = server.process.smtp_listening();
    for greeting in [&b"EHLO caf\xe9\r\n"[..], b"ehlo \xff\xfe\r\n", b"HELO B\xfcro-PC\r\n"] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(greeting).await.unwrap();
        stream.write_all(b"QUIT\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("\n250"), "{answer}");
    }
    // Anything else is no name that means nothing.
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(b"MAIL FROM:<caf\xe9@example.com>\r\nQUIT\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("\n501"), "{answer}");

    for field in ["From", "Sender", "Resent-From"] {
        let client = SmtpClient::login(&address, &site.key).await.unwrap();
        let mut stream = client.into_stream();
        let from = if field == "From" { "" } else { "From: a@example.com\r\n" };
        let mut session =
            b"MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n".to_vec();
        session.extend_from_slice(from.as_bytes());
        session.extend_from_slice(field.as_bytes());
        session.extend_from_slice(b": J\xf6rg <a@example.com>\r\n\r\nHello\r\n.\r\nQUIT\r\n");
        stream.write_all(&session).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let words = format!("the {field} field has bytes that are neither ASCII nor UTF-8");
        assert!(answer.contains("550 5.6.0") && answer.contains(&words), "{answer}");
    }
}

/// Runs OpenSSL, which makes what rcgen does not.
fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A site with the files of a certificate and its key.
struct Files {
    site: Site,
    crt: String,
    key: String,
    scratch: String,
}

impl Files {
    async fn new() -> Self {
        let site = Site::empty("", Options::default()).await;
        let file = |name: &str| site.directory().join(name).to_str().unwrap().to_owned();
        let [crt, key, scratch] = ["tls.crt", "tls.key", "scratch"].map(file);
        let more = format!("[tls]\ncertificate = \"{crt}\"\nkey = \"{key}\"\n");
        site.configure(&more, &format!("endpoint = \"{}\"\n", site.simulator.endpoint()));
        Self { site, crt, key, scratch }
    }

    /// Makes a certificate with a key of this kind.
    fn make(&self, kind: &[&str]) {
        let request = ["req", "-x509", "-nodes", "-subj", "/CN=localhost", "-days", "30"];
        let files = ["-keyout", &self.key, "-out", &self.crt];
        openssl(&[&request[..], kind, &files].concat());
    }

    fn make_good(&self) {
        self.make(&["-newkey", "rsa:2048"]);
    }

    /// Replaces a file by what OpenSSL makes of it.
    fn convert(&self, file: &str, arguments: &[&str]) {
        openssl(&[arguments, &["-in", file, "-out", &self.scratch]].concat());
        std::fs::rename(&self.scratch, file).unwrap();
    }

    fn put_mark_before(file: &str) {
        let text = std::fs::read(file).unwrap();
        std::fs::write(file, [b"\xef\xbb\xbf", &*text].concat()).unwrap();
    }

    async fn check(&self) -> (i32, String) {
        let command = self.site.command(&["serve", "--check"]);
        let Finished { code, err, .. } = Finished::run(command).await;
        (code, err)
    }

    /// A start would take the files.
    async fn are_read(&self) {
        let (code, err) = self.check().await;
        assert_eq!(code, 0, "{err}");
    }

    /// A start would refuse the files, with these words.
    async fn are_refused(&self, words: &str) {
        let (code, err) = self.check().await;
        assert!(code != 0 && err.contains(words) && err.contains("tls."), "{words}: {code} {err}");
    }
}

#[tokio::test]
async fn certificates_and_keys_of_other_makers_are_read() {
    let files = Files::new().await;
    files.make_good();
    files.are_read().await;
    Files::put_mark_before(&files.crt);
    Files::put_mark_before(&files.key);
    files.are_read().await;
    // Joined files, each with its mark.
    let marked = std::fs::read(&files.crt).unwrap();
    std::fs::write(&files.crt, [marked.clone(), marked].concat()).unwrap();
    files.are_read().await;
    files.make_good();
    files.convert(&files.key, &["rsa", "-traditional"]);
    files.are_read().await;
    files.make(&["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"]);
    files.are_read().await;
    files.make(&["-newkey", "ed25519"]);
    files.are_read().await;
}

#[tokio::test]
async fn certificates_and_keys_that_cannot_be_used_are_refused_for_their_own_cause() {
    const PASSWORD: [&str; 3] = ["-aes256", "-passout", "pass:PLANTED"];
    let files = Files::new().await;
    let Files { crt, key, scratch, .. } = &files;

    let request = ["req", "-new", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost"];
    openssl(&[&request[..], &["-keyout", key, "-out", scratch]].concat());
    openssl(&["x509", "-req", "-in", scratch, "-signkey", key, "-out", crt]);
    files.are_refused("version 1").await;
    files.make(&["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521"]);
    files.are_refused("P-521").await;
    files.make(&["-newkey", "rsa:1024"]);
    files.are_refused("RSA of 2048").await;
    files.make_good();
    files.convert(key, &[&["pkey"], &PASSWORD[..]].concat());
    files.are_refused("encrypted with a password").await;
    files.make_good();
    files.convert(key, &[&["rsa", "-traditional"], &PASSWORD[..]].concat());
    files.are_refused("encrypted with a password").await;

    files.make_good();
    let other = Certificate::new();
    other.write(&TlsFiles { certificate: scratch.into(), key: key.into() });
    files.are_refused("another certificate").await;
    let both = [crt, scratch].map(|file| std::fs::read(file).unwrap()).concat();
    std::fs::write(crt, both).unwrap();
    files.are_refused("put that one first").await;

    files.make_good();
    for (from, to) in [(crt, scratch), (key, crt), (scratch, key)] {
        std::fs::rename(from, to).unwrap();
    }
    files.are_refused("are the two files swapped?").await;
    files.make_good();
    files.convert(crt, &["x509", "-outform", "der"]);
    files.are_refused("openssl x509 -inform DER").await;
    files.make_good();
    let units: Vec<_> = std::fs::read_to_string(crt).unwrap().encode_utf16().collect();
    let bytes = units.into_iter().flat_map(u16::to_le_bytes);
    std::fs::write(crt, b"\xff\xfe".iter().copied().chain(bytes).collect::<Vec<_>>()).unwrap();
    files.are_refused("UTF-16").await;
}
