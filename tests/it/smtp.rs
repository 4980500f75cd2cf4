//! SMTP submission: the contract's codes over real sockets against the real process.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillarbox_judge::history::{Event, Post};
use pillarbox_simulator::{Fault, Faults, Options};
use rustls::HandshakeKind;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::behaviour::tls::{self, Certificate};
use crate::kit::{
    self, History, LocalService, NOON, ORGANISATION, PATIENCE, Server, Site, SmtpClient,
    accepted_id, auth_plain, codes, message_with,
};

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_hours(24);
const LISTEN: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";
const MESSAGE: &str = "From: Ann <ann@example.com>\r\nTo: bob@example.org\r\nSubject: Hello\r\n\
                       Message-ID: <1@example.com>\r\n\r\nHow are you?\r\n";

/// A session that must do as it is asked: a test fails if its connection ends.
struct Client<S = TcpStream>(SmtpClient<S>);

impl Client {
    async fn connect(address: &str) -> Self {
        Self(SmtpClient::connect(address).await.unwrap())
    }

    async fn login(address: &str, key: &str) -> Self {
        Self(SmtpClient::login(address, key).await.unwrap())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    fn of(stream: S) -> Self {
        Self(SmtpClient::of(stream))
    }

    async fn authenticate(&mut self, key: &str) {
        self.0.authenticate(key).await.unwrap();
    }

    async fn write(&mut self, text: &str) {
        self.0.write(text).await.unwrap();
    }

    async fn reply(&mut self) -> String {
        self.0.reply().await.unwrap()
    }

    async fn ask(&mut self, line: &str) -> String {
        self.0.ask(line).await.unwrap()
    }

    async fn submit(&mut self, recipients: &[&str], message: &str) -> String {
        self.0.submit(recipients, message).await.unwrap()
    }

    /// Asserts that nothing more comes.
    async fn assert_closed(&mut self) {
        let rest = tokio::time::timeout(PATIENCE, self.0.last_words());
        // A reset is an end, too.
        if let Ok((rest, _)) = rest.await.expect("the connection ends") {
            assert_eq!(rest, "");
        }
    }
}

/// The id in a reply to a message that was accepted.
fn id(reply: &str) -> String {
    accepted_id(reply).unwrap_or_else(|| panic!("{reply}")).to_owned()
}

async fn start() -> (Site, Server, String) {
    start_with("").await
}

async fn start_with(more: &str) -> (Site, Server, String) {
    let site = Site::with(&format!("{more}\n{LISTEN}"), Options::default()).await;
    let server = site.start();
    let address = server.process.smtp_listening();
    (site, server, address)
}

#[tokio::test]
async fn a_message_goes_the_whole_way_byte_for_byte() {
    let (site, server, address) = start().await;
    let mut client = Client::login(&address, &server.key).await;
    let kept = "Received: from x\r\n by y\r\nSender: bob@example.com\r\n\
                Resent-From: eve@example.com\r\nResent-To: dan@example.org\r\n\
                From: =?utf-8?q?J=C3=BCrgen?= <ann@example.com>\r\nTo: undisclosed\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed;\r\n boundary=b\r\n";
    let body = "\r\n--b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nGr\u{fc}\u{df}e\r\n.\r\n..\r\n\
                --b\r\nContent-Type: text/csv; name=a.csv\r\nContent-Disposition: attachment; \
                filename=a.csv\r\nContent-Transfer-Encoding: base64\r\n\r\nMTsy\r\n--b--\r\n";
    let stuffed = body.replace("\r\n.", "\r\n..");
    let message = format!(
        "Bcc: eve@example.org,\r\n dan@example.org\r\n{kept}X-SES-CONFIGURATION-SET: other\r\n\
         Return-Path: <x@example.com>\r\nResent-Bcc: eve@example.org\r\n{stuffed}"
    );
    let id = id(&client.submit(&["bob@example.org", "cy@example.org"], &message).await);
    let record = server.wait_for(&id, "sent").await;
    let listed = site.done(&["message", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["messages"][0]["from"], "J\u{fc}rgen <ann@example.com>");
    assert_eq!(record["to"], serde_json::json!(["bob@example.org", "cy@example.org"]));
    assert_eq!(record["subject"], "(no subject)");
    let [sent] = &site.simulator.messages()[..] else { panic!("one message") };
    let raw = String::from_utf8(sent.raw.as_ref().unwrap().to_vec()).unwrap();
    assert_eq!(raw, format!("{kept}{body}"));
    assert_eq!(sent.to, ["bob@example.org", "cy@example.org"]);
    assert_eq!((&sent.cc, &sent.bcc), (&Vec::new(), &Vec::new()));
    assert!(sent.from.ends_with("<ann@example.com>"), "{}", sent.from);
    assert_eq!(sent.text.as_deref().map(str::trim_end), Some("Gr\u{fc}\u{df}e\r\n.\r\n.."));
    let [file] = &sent.attachments[..] else { panic!("one file") };
    assert_eq!((file.filename.as_str(), &*file.content), ("a.csv", &b"1;2"[..]));
    // The session goes on.
    let reply = client.submit(&["bob@example.org"], MESSAGE).await;
    server.wait_for(&self::id(&reply), "sent").await;
    assert!(client.ask("QUIT").await.starts_with("221 2.0.0 "));
    client.assert_closed().await;
    let log = server.terminate().await;
    assert!(!log.contains("Gr\u{fc}") && !log.contains("MTsy"), "a body is in the log");
}

#[tokio::test]
async fn one_organisation_keeps_no_more_sessions_than_are_free() {
    let (site, server, address) = start_with("max_connections = 8").await;
    let other = site.add_organisation("beta", "beta.example");
    let mut kept = Vec::new();
    for _ in 0..4 {
        kept.push(Client::login(&address, &server.key).await);
    }
    let mut fifth = Client::connect(&address).await;
    fifth.ask("EHLO client.example.org").await;
    let refusal = fifth.ask(&auth_plain(&server.key)).await;
    assert!(refusal.starts_with("421 4.3.2 "), "{refusal}");
    drop(Client::login(&address, &other).await);
    assert!(kept[0].ask("NOOP").await.starts_with("250 "), "those that are there stay");
    kept.truncate(1);
    let end = Instant::now() + PATIENCE;
    while SmtpClient::login(&*address, &server.key).await.is_err() {
        assert!(Instant::now() < end, "what was closed is counted for ever");
        tokio::time::sleep(20 * MILLISECOND).await;
    }
}

#[tokio::test]
async fn extensions_are_announced_and_a_group_of_commands_is_answered_in_order() {
    let (_site, server, address) = start().await;
    let mut client = Client::connect(&address).await;
    let extensions = client.ask("EHLO client.example.org").await;
    let size = 10 * 1024 * 1024 / 4 * 3;
    for line in [
        &format!("250-SIZE {size}"),
        "250-8BITMIME",
        "250-PIPELINING",
        "250-AUTH PLAIN LOGIN",
        "250 ENHANCEDSTATUSCODES",
    ] {
        assert!(extensions.lines().any(|one| one == line), "{extensions}");
    }
    assert!(!extensions.contains("STARTTLS"), "there is no certificate");
    assert_eq!(codes(&client.ask("AUTH LOGIN").await), "334 VXNlcm5hbWU6");
    assert_eq!(codes(&client.ask(&STANDARD.encode("anybody")).await), "334 UGFzc3dvcmQ6");
    assert_eq!(codes(&client.ask(&STANDARD.encode(&server.key)).await), "235 2.7.0");
    client
        .write(&format!(
            "MAIL FROM:<> SIZE=100 BODY=8BITMIME\r\nRCPT TO:<bob@example.org>\r\nDATA\r\n{MESSAGE}.\r\n\
             NOOP\r\nQUIT\r\n"
        ))
        .await;
    let mut codes = Vec::new();
    for _ in 0..6 {
        codes.push(client.reply().await[..3].to_owned());
    }
    assert_eq!(codes, ["250", "250", "354", "250", "250", "221"]);
    client.assert_closed().await;
}

#[tokio::test]
async fn each_refusal_has_the_contracts_codes() {
    let (site, server, address) = start_with("max_request_bytes = 4096").await;
    site.done(&["suppression", "add", "--org", "acme", "gone@example.org"]);
    let mut client = Client::connect(&address).await;
    assert_eq!(codes(&client.ask("MAIL FROM:<ann@example.com>").await), "530 5.7.0");
    assert_eq!(codes(&client.ask("EHLO client").await).split(' ').next(), Some("250-pillarbox"));
    for line in ["MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.org>", "DATA"] {
        assert_eq!(codes(&client.ask(line).await), "530 5.7.0", "{line}");
    }
    assert_eq!(codes(&client.ask(&auth_plain("pb_wrong")).await), "535 5.7.8");
    assert_eq!(codes(&client.ask("AUTH PLAIN ???").await), "501 5.5.4");
    assert_eq!(codes(&client.ask("AUTH PLAIN").await), "334");
    assert_eq!(codes(&client.ask("*").await), "501 5.7.0");
    assert_eq!(codes(&client.ask("AUTH CRAM-MD5").await), "504 5.5.4");
    assert_eq!(codes(&client.ask("STARTTLS").await), "503 5.5.1");
    assert_eq!(codes(&client.ask(&auth_plain(&server.key)).await), "235 2.7.0");
    let steps = [
        (auth_plain(&server.key).as_str().to_owned(), "503 5.5.1"),
        ("XYZ".to_owned(), "500 5.5.1"),
        ("BDAT 5 LAST".to_owned(), "502 5.5.1"),
        ("VRFY ann".to_owned(), "252 2.1.5"),
        ("RCPT TO:<bob@example.org>".to_owned(), "503 5.5.1"),
        ("DATA".to_owned(), "503 5.5.1"),
        ("MAIL FROM:<ann@example.net>".to_owned(), "550 5.7.1"),
        ("MAIL FROM:<ann@sub.example.com>".to_owned(), "550 5.7.1"),
        ("MAIL FROM:<ann>".to_owned(), "501 5.1.7"),
        ("MAIL FROM:ann@example.com".to_owned(), "501 5.5.4"),
        ("MAIL FROM:<ann@example.com> SMTPUTF8".to_owned(), "555 5.5.4"),
        ("MAIL FROM:<ann@example.com> SIZE=3073".to_owned(), "552 5.3.4"),
        ("MAIL FROM:<ann@example.com> SIZE=3072".to_owned(), "250 2.1.0"),
        ("MAIL FROM:<ann@example.com>".to_owned(), "503 5.5.1"),
        ("DATA".to_owned(), "554 5.5.1"),
        ("RCPT TO:<gone@example.org>".to_owned(), "550 5.1.1"),
        ("RCPT TO:<bob@[127.0.0.1]>".to_owned(), "501 5.1.3"),
    ];
    for (line, expected) in steps {
        assert_eq!(codes(&client.ask(&line).await), expected, "{line}");
    }
    let reply = client.ask("RCPT TO:<bob>").await;
    assert_eq!(
        reply,
        "501 5.1.3 the recipient is not a valid address: must have an @ between its two parts\r\n"
    );
    for number in 0..50 {
        let reply = client.ask(&format!("RCPT TO:<bob{number}@example.org>")).await;
        assert_eq!(codes(&reply), "250 2.1.5");
    }
    assert_eq!(codes(&client.ask("RCPT TO:<bob@example.org>").await), "452 4.5.3");
    assert!(client.ask("DATA").await.starts_with("354 "));
    client.write(&format!("{MESSAGE}.\r\n")).await;
    let record = server.record(&id(&client.reply().await)).await;
    assert_eq!(record["to"].as_array().unwrap().len(), 50, "the other recipients are served");
    // The same message goes to the last one in a second transaction.
    let last = id(&client.submit(&["bob@example.org"], MESSAGE).await);
    assert_eq!(server.record(&last).await["to"], serde_json::json!(["bob@example.org"]));

    let from = "From: ann@example.com\r\n";
    for (message, expected) in [
        (format!("Subject: none\r\n\r\n{MESSAGE}"), "550 5.6.0"),
        (format!("{from}{from}\r\n"), "550 5.6.0"),
        ("From: ann@example.com, eve@example.com\r\n\r\n".to_owned(), "550 5.6.0"),
        (format!("{from}no field\r\n\r\n"), "550 5.6.0"),
        (format!("From: {} <ann@example.com>\r\n\r\n", "Ann\r\n ".repeat(300)), "550 5.6.0"),
        ("From: ann@example.net\r\n\r\n".to_owned(), "550 5.7.1"),
        (format!("{from}\r\n{}", "a line of text\r\n".repeat(300)), "552 5.3.4"),
        (format!("{from}\r\n"), "250 2.0.0"),
    ] {
        let reply = client.submit(&["bob@example.org"], &message).await;
        assert_eq!(codes(&reply), expected, "{message:.60}");
    }
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    for line in [
        "pillarbox_smtp_refusals_total{code=\"501 5.1.3\"} 2",
        "pillarbox_smtp_refusals_total{code=\"552 5.3.4\"} 2",
        "pillarbox_smtp_refusals_total{code=\"other\"} 0",
        "pillarbox_smtp_connections 1.0",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}");
    }
}

#[tokio::test]
async fn wrong_keys_and_errors_end_a_session_and_a_revoked_key_its_rights() {
    let (site, server, address) = start().await;
    let mut client = Client::connect(&address).await;
    client.ask("EHLO client").await;
    for _ in 0..2 {
        assert_eq!(codes(&client.ask(&auth_plain("wrong")).await), "535 5.7.8");
    }
    let login = format!("AUTH LOGIN {}", STANDARD.encode("anybody"));
    assert_eq!(codes(&client.ask(&login).await), "334 UGFzc3dvcmQ6");
    assert_eq!(codes(&client.ask(&STANDARD.encode("wrong")).await), "535 5.7.8");
    client.assert_closed().await;
    let mut client = Client::connect(&address).await;
    for _ in 0..21 {
        assert_eq!(codes(&client.ask("NONSENSE").await), "500 5.5.1");
    }
    assert_eq!(codes(&client.reply().await), "421 4.7.0");
    client.assert_closed().await;

    let mut client = Client::login(&address, &server.key).await;
    id(&client.submit(&["bob@example.org"], MESSAGE).await);
    let keys = site.done(&["key", "list", "--json"]);
    let keys: Value = serde_json::from_slice(&keys.stdout).unwrap();
    let number = keys["keys"][0]["id"].to_string();
    assert_eq!(codes(&client.ask("MAIL FROM:<ann@example.com>").await), "250 2.1.0");
    site.done(&["key", "revoke", number.trim_matches('"')]);
    assert_eq!(codes(&client.ask("RCPT TO:<bob@example.org>").await), "530 5.7.0");
}

#[tokio::test]
async fn whatever_could_smuggle_a_message_ends_the_session() {
    let (site, server, address) = start().await;
    let smuggled = "MAIL FROM:<eve@example.com>\r\nRCPT TO:<eve@example.org>\r\nDATA\r\n\
                    From: eve@example.com\r\n\r\nsmuggled\r\n.\r\n";
    let long = "x".repeat(999);
    for end in
        ["\n.\n", "\n.\r\n", "\r\n.\n", "\r.\r", "\r.\r\n", "\r\n.\r", "\r\n\0.\r\n", "\0", &long]
    {
        let mut client = Client::login(&address, &server.key).await;
        for line in ["MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.org>"] {
            assert!(client.ask(line).await.starts_with("250 "));
        }
        assert!(client.ask("DATA").await.starts_with("354 "));
        client.write(&format!("{MESSAGE}text{end}{smuggled}")).await;
        let reply = client.reply().await;
        assert_eq!(codes(&reply), "521 5.5.2", "{}: {reply}", end.escape_debug());
        client.assert_closed().await;
    }
    for line in ["NOOP\nNOOP\r\n", "NOOP\rNOOP\r\n", "NO\0OP\r\n", &format!("NOOP {long}")] {
        let mut client = Client::login(&address, &server.key).await;
        client.write(&format!("{line}\r\n{smuggled}")).await;
        assert_eq!(codes(&client.reply().await), "521 5.5.2", "{}", line.escape_debug());
        client.assert_closed().await;
    }
    // AUTH ends a group of commands.
    let mut client = Client::connect(&address).await;
    client.ask("EHLO client").await;
    client.write(&format!("{}\r\nMAIL FROM:<ann@example.com>\r\n", auth_plain(&server.key))).await;
    assert_eq!(codes(&client.reply().await), "503 5.5.1");
    assert_eq!(codes(&client.reply().await), "530 5.7.0");
    assert_eq!(site.simulator.messages().len(), 0);
}

#[tokio::test]
async fn a_client_that_repeats_gets_the_same_id_and_no_second_message() {
    let (site, server, address) = start().await;
    let mut client = Client::login(&address, &server.key).await;
    let to = ["bob@example.org", "cy@example.org"];
    let first = id(&client.submit(&to, MESSAGE).await);
    let mut other = Client::login(&address, &server.key).await;
    assert_eq!(id(&other.submit(&["CY@example.org", to[0]], MESSAGE).await), first);
    let mut ids = vec![first.clone()];
    for (recipients, message) in [
        (&to[..1], MESSAGE.to_owned()),
        (&to[..], MESSAGE.replace("How", "Who")),
        (&to[..], MESSAGE.replace("1@", "2@")),
        (&to[..], MESSAGE.replace("Message-ID", "X-Id")),
        (&to[..], MESSAGE.replace("Message-ID", "X-Id")),
    ] {
        ids.push(id(&other.submit(recipients, &message).await));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6, "each other message is another one");
    // A key of the API never meets one of SMTP.
    ids.push(server.send(&message_with("idempotencyKey", "<1@example.com>".into())).await);
    for id in &ids {
        server.wait_for(id, "sent").await;
    }
    assert_eq!(site.simulator.accepted_total(), 7);
    let other = site.add_organisation("other", "example.net");
    let mut other = Client::login(&address, &other).await;
    assert_eq!(codes(&other.ask("MAIL FROM:<ann@example.com>").await), "550 5.7.1");
}

/// A service on a manual clock that takes submissions, and its address.
async fn start_local() -> (LocalService, String) {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let local =
        LocalService::start(Options::default(), |config, _| config.smtp.listen = listen).await;
    let address = local.service.smtp_addresses()[0].to_string();
    (local, address)
}

#[tokio::test]
async fn a_submission_is_known_until_24_hours_are_over() {
    let (local, address) = start_local().await;
    let mut client = Client::login(&address, local.key.reveal()).await;
    let to = ["bob@example.org"];
    let first = id(&client.submit(&to, MESSAGE).await);
    local.clock.advance(DAY.saturating_sub(MILLISECOND));
    assert_eq!(id(&client.submit(&to, MESSAGE).await), first);
    local.clock.advance(MILLISECOND);
    let second = id(&client.submit(&to, MESSAGE).await);
    assert_ne!(second, first);
    assert_eq!(id(&client.submit(&to, MESSAGE).await), second);
    local.service.stop().await;
    assert_eq!(local.simulator.accepted_total(), 2);
}

#[tokio::test]
async fn a_submission_is_known_to_its_own_organisation_alone() {
    let (local, address) = start_local().await;
    let other = kit::add_organisation(local.service.store(), "other", NOON).await;
    let of_other = kit::add_api_key(local.service.store(), other, NOON).await;
    let mut ids = Vec::new();
    for key in [&local.key, &of_other] {
        let mut client = Client::login(&address, key.reveal()).await;
        let first = id(&client.submit(&["bob@example.org"], MESSAGE).await);
        assert_eq!(id(&client.submit(&["bob@example.org"], MESSAGE).await), first);
        ids.push(first);
    }
    assert_ne!(ids[0], ids[1]);
    // A second key of the same organisation is the same organisation.
    let second_key = kit::add_api_key(local.service.store(), other, NOON).await;
    let mut client = Client::login(&address, second_key.reveal()).await;
    assert_eq!(id(&client.submit(&["bob@example.org"], MESSAGE).await), ids[1]);
    local.service.stop().await;
    assert_eq!(local.simulator.accepted_total(), 2);
}

/// Starts the service with both SMTP listeners; gives the addresses of that with STARTTLS and of that
/// with TLS from the first byte.
fn start_both(site: &Site) -> (Server, [String; 2]) {
    site.reconfigure("[ses]", &format!("{LISTEN}tls_listen = \"127.0.0.1:0\"\n[ses]"));
    let server = site.start();
    let log = server.log();
    let addresses: Vec<_> =
        log.lines().filter_map(|line| line.split_once("SMTP submission at ")).collect();
    let [(_, plain), (_, secure)] = addresses[..] else { panic!("{log}") };
    let addresses = [plain.to_owned(), secure.to_owned()];
    (server, addresses)
}

#[tokio::test]
async fn with_a_certificate_a_key_is_taken_after_tls_alone() {
    let certificate = Certificate::new();
    let (site, _files) = tls::site(&certificate).await;
    let (server, [plain, secure]) = start_both(&site);
    let (plain_address, secure_address) = (plain.as_str(), secure.as_str());
    let mut client = Client::connect(plain_address).await;
    let extensions = client.ask("EHLO client").await;
    assert!(extensions.contains("STARTTLS") && !extensions.contains("AUTH"), "{extensions}");
    assert_eq!(codes(&client.ask(&auth_plain(&server.key)).await), "538 5.7.11");
    assert_eq!(codes(&client.ask("MAIL FROM:<ann@example.com>").await), "530 5.7.0");
    // What comes with STARTTLS is not obeyed after the handshake.
    client.write("STARTTLS\r\nEHLO eve\r\nNOOP\r\n").await;
    assert!(client.reply().await.starts_with("220 "));
    let stream = certificate.secure(client.0.into_stream()).await.unwrap();
    let mut client = Client::of(stream);
    assert_eq!(codes(&client.ask(&auth_plain(&server.key)).await), "503 5.5.1", "EHLO comes first");
    client.authenticate(&server.key).await;
    let first = id(&client.submit(&["bob@example.org"], MESSAGE).await);

    let stream = TcpStream::connect(secure_address).await.unwrap();
    let mut client = Client::of(certificate.secure(stream).await.unwrap());
    assert!(client.reply().await.starts_with("220 "));
    client.authenticate(&server.key).await;
    assert_eq!(id(&client.submit(&["bob@example.org"], MESSAGE).await), first);
    server.terminate().await;
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_tells_every_session_and_sends_what_was_accepted() {
    let (site, server, address) = start().await;
    let mut idle = Client::login(&address, &server.key).await;
    let mut client = Client::login(&address, &server.key).await;
    let mut half = Client::login(&address, &server.key).await;
    for line in ["MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.org>"] {
        assert!(half.ask(line).await.starts_with("250 "));
    }
    assert!(half.ask("DATA").await.starts_with("354 "));
    site.simulator.set_latency(Duration::from_millis(500));
    id(&client.submit(&["bob@example.org"], MESSAGE).await);
    let stopping = tokio::spawn(server.terminate());
    assert_eq!(codes(&idle.reply().await), "421 4.3.2");
    idle.assert_closed().await;
    assert_eq!(codes(&client.reply().await), "421 4.3.2");
    half.write(&format!("{}.\r\n", MESSAGE.replace("1@", "2@"))).await;
    assert_eq!(codes(&half.reply().await), "421 4.3.2", "nothing new is taken");
    stopping.await.unwrap();
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_a_reason_to_come_back() {
    let more = "max_request_bytes = 4096\nmax_reading_bytes = 65536";
    let sending = "[sending]\nmax_pending_bytes = 16384";
    let site = Site::with(&format!("{more}\n{LISTEN}{sending}"), Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let server = site.start();
    let mut client = Client::login(&server.process.smtp_listening(), &server.key).await;
    let message = |number| {
        let id = format!("{number}@");
        format!("{}{}", MESSAGE.replace("1@", &id), "a line of text\r\n".repeat(100))
    };
    let mut accepted = Vec::new();
    loop {
        let reply = client.submit(&["bob@example.org"], &message(accepted.len())).await;
        if codes(&reply) == "451 4.3.1" {
            break;
        }
        accepted.push(id(&reply));
        assert!(accepted.len() < 20, "the queue never fills");
    }
    let again = client.submit(&["bob@example.org"], &message(0)).await;
    assert_eq!(id(&again), accepted[0], "a replay needs no room");
}

#[tokio::test]
async fn a_message_that_finds_no_memory_is_a_reason_to_come_back() {
    let (_site, server, address) =
        start_with("max_request_bytes = 65536\nmax_reading_bytes = 262144").await;
    let long = format!("From: ann@example.com\r\n\r\n{}", "a line of text\r\n".repeat(2_500));
    let mut half = Client::login(&address, &server.key).await;
    half.0.begin(&["bob@example.org"]).await.unwrap();
    half.write(&long).await;
    let mut client = Client::login(&address, &server.key).await;
    let end = Instant::now() + PATIENCE;
    loop {
        let reply = client.submit(&["bob@example.org"], &long).await;
        if codes(&reply) == "451 4.3.1" {
            break;
        }
        // The service has yet to read the other one.
        id(&reply);
        assert!(Instant::now() < end, "there is always memory");
    }
    half.write(".\r\n").await;
    id(&half.reply().await);
    id(&client.submit(&["bob@example.org"], &long).await);
}

#[tokio::test]
async fn a_session_too_many_is_told_to_come_back() {
    let (_site, _server, address) = start_with("max_connections = 1").await;
    let mut client = Client::connect(&address).await;
    // One that has said nothing would make room.
    client.ask("EHLO client.example.org").await;
    let mut other = Client::of(TcpStream::connect(&address).await.unwrap());
    assert_eq!(codes(&other.reply().await), "421 4.3.2");
    other.assert_closed().await;
    drop(client);
    let end = Instant::now() + PATIENCE;
    while SmtpClient::connect(&address).await.is_err() {
        assert!(Instant::now() < end, "nobody new is served");
    }
}

#[tokio::test]
async fn what_is_meant_for_http_is_not_spoken_to_smtp_nor_the_other_way_round() {
    let certificate = Certificate::new();
    let (site, _files) = tls::site(&certificate).await;
    let (server, [plain, secure]) = start_both(&site);
    let (plain, secure) = (plain.as_str(), secure.as_str());
    let http = server.base.strip_prefix("http://").unwrap();
    for offer in [&b"h2"[..], b"http/1.1", b"imap"] {
        assert!(certificate.connect(secure, offer).await.is_err(), "{offer:?}");
    }
    assert!(certificate.connect(http, b"smtp").await.is_err());
    // A client of SMTP may say so, or nothing.
    let stream = certificate.connect(secure, b"smtp").await.unwrap();
    assert!(Client::of(stream).reply().await.starts_with("220 "));
    let stream = TcpStream::connect(secure).await.unwrap();
    let stream = certificate.secure(stream).await.unwrap();
    assert!(Client::of(stream).reply().await.starts_with("220 "));
    let mut client = Client::connect(plain).await;
    client.ask("EHLO client.example.org").await;
    assert_eq!(codes(&client.ask("STARTTLS").await), "220 2.0.0");
    let stream = certificate.secure_offering(client.0.into_stream(), b"h2").await;
    assert!(stream.is_err());
}

#[tokio::test]
async fn a_tls_session_of_http_is_not_resumed_by_smtp_nor_the_other_way_round() {
    use HandshakeKind::{Full, Resumed};
    let certificate = Certificate::new();
    let (site, _files) = tls::site(&certificate).await;
    let (server, [_, secure]) = start_both(&site);
    let http = server.base.strip_prefix("http://").unwrap();
    let browser = certificate.offering(&[b"http/1.1"]);
    let mut mailer = browser.clone();
    mailer.alpn_protocols = vec![b"smtp".to_vec()];
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for (address, client, says, expected) in [
        (http, &browser, request, Full),
        (http, &browser, request, Resumed),
        (&secure, &mailer, "QUIT\r\n", Full),
        (&secure, &mailer, "QUIT\r\n", Resumed),
        (http, &browser, request, Full),
    ] {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = tls::secure_with(client.clone(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(expected), "{says}");
        // The server's tickets come before its answer.
        stream.write_all(says.as_bytes()).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_reached_is_a_reason_to_come_back() {
    let (site, server, address) = start().await;
    let mut client = Client::login(&address, &server.key).await;
    site.take_store_away();
    let until = async |client: &mut Client<TcpStream>, expected: &str| {
        let end = Instant::now() + PATIENCE;
        loop {
            let reply = client.submit(&["bob@example.org"], "From: ann@example.com\r\n\r\n").await;
            if codes(&reply) == expected {
                return;
            }
            assert!(Instant::now() < end, "{reply}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until(&mut client, "451 4.3.0").await;
    site.give_store_back();
    until(&mut client, "250 2.0.0").await;
}

#[tokio::test]
async fn a_client_that_takes_too_long_is_told_so_and_cut_off() {
    let (local, address) = start_local().await;
    let key = local.key.reveal();
    let mut silent = Client::connect(&address).await;
    let mut stalled = Client::login(&address, key).await;
    for (line, expected) in [
        ("MAIL FROM:<ann@example.com>", "250 "),
        ("RCPT TO:<bob@example.org>", "250 "),
        ("DATA", "354 "),
    ] {
        assert!(stalled.ask(line).await.starts_with(expected), "{line}");
    }
    stalled.write("From: ").await;
    let mut idle = Client::login(&address, key).await;
    tokio::time::pause();
    let (silent, stalled, idle) =
        tokio::join!(silent.0.last_words(), stalled.0.last_words(), idle.0.last_words());
    let seconds = |words: std::io::Result<(String, Duration)>| {
        let (words, after) = words.unwrap();
        assert_eq!(codes(&words), "421 4.4.2", "{words}");
        after.as_secs()
    };
    assert!((25..60).contains(&seconds(silent)), "30 s up to AUTH");
    assert!((5..60).contains(&seconds(stalled)), "4 KiB/s, averaged over 10 s");
    assert!((295..330).contains(&seconds(idle)), "5 minutes up to the next command");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_slow_and_half_open_sessions_delay_nobody() {
    let (_site, server, address) = start().await;
    let mut others = Vec::new();
    for number in 0..300 {
        let mut client = Client::connect(&address).await;
        match number % 3 {
            0 => {}
            1 => client.write("EHL").await,
            _ => {
                client.authenticate(&server.key).await;
                client.ask("MAIL FROM:<ann@example.com>").await;
                client.ask("RCPT TO:<bob@example.org>").await;
                client.ask("DATA").await;
                client.write("From: ").await;
            }
        }
        others.push(client);
    }
    let start = Instant::now();
    let mut client = Client::login(&address, &server.key).await;
    for number in 0..20 {
        let message = MESSAGE.replace("1@", &format!("{number}@"));
        id(&client.submit(&["bob@example.org"], &message).await);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(others);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_repeat_after_kills_lose_nothing_and_double_nothing() {
    const MESSAGES: usize = 60;
    let (site, mut server, mut address) = start().await;
    let history = History::by_default("smtp", &site.simulator);
    let mut ids: Vec<Option<String>> = vec![None; MESSAGES];
    let mut kills = 0;
    while ids.iter().any(Option::is_none) {
        let (key, at, told) = (server.key.clone(), address.clone(), history.clone());
        let mut known = ids.clone();
        let client = tokio::spawn(async move {
            let Ok(mut client) = SmtpClient::login(&at, &key).await else { return known };
            for (number, id) in known.iter_mut().enumerate().filter(|(_, id)| id.is_none()) {
                match submit_and_tell(&mut client, number, false, &told).await {
                    Some(accepted) => *id = Some(accepted),
                    None => break,
                }
            }
            known
        });
        if kills < 4 {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(5..60))).await;
            server.kill();
            history.write(&Event::Killed { at: history.now() });
            kills += 1;
            server = site.start();
            address = server.process.smtp_listening();
        }
        ids = client.await.unwrap();
    }
    let mut client = SmtpClient::login(&address, &server.key).await.unwrap();
    for (number, id) in ids.iter().enumerate() {
        server.record(id.as_ref().unwrap()).await;
        assert_eq!(&submit_and_tell(&mut client, number, true, &history).await, id);
    }
    let listed = site.done(&["message", "list", "--limit", "100", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["messages"].as_array().unwrap().len(), MESSAGES, "none is doubled");
    let summary = history.finish(&server.base, &server.key, &site.simulator).await;
    println!("{summary:?}");
    assert_eq!((summary.messages, summary.killed), (MESSAGES, kills));
}

/// Submits the message of this number and records the reply; returns the id if it is accepted. The
/// message's own id is its key. A reply does not say that it is a replay: the client knows it, if
/// it has had one before.
async fn submit_and_tell(
    client: &mut SmtpClient,
    number: usize,
    is_known: bool,
    history: &History,
) -> Option<String> {
    let message = MESSAGE.replace("1@", &format!("{number}@"));
    let message = message.replace("Subject: Hello", &format!("Subject: Hello {number}"));
    let began = history.now();
    let reply = client.submit(&["bob@example.org"], &message).await.ok();
    let id = reply.as_deref().and_then(accepted_id).map(str::to_owned);
    let refused = || reply.as_ref().map(|reply| reply[..3].parse().unwrap());
    history.write(&Event::Post(Post {
        began,
        ended: history.now(),
        organisation: ORGANISATION.to_owned(),
        key: Some(format!("{number}@example.com")),
        subject: format!("Hello {number}"),
        status: if id.is_some() { Some(200) } else { refused() },
        id: id.clone(),
        replayed: is_known,
    }));
    id
}
