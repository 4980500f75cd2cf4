//! Requests to the provider, as mail software that was not written here reads them: Python's email
//! package finds every name, address and header that was posted, over generated messages, and
//! botocore's model of SES every file.
//!
//! `SEED` repeats a run; `MAIL_MESSAGES` sets the number of its messages.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pillarbox_simulator::Options;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

use crate::kit::{PATIENCE, Site, SmtpClient, accepted_id, number};

const MESSAGES: u64 = if cfg!(feature = "long") { 20_000 } else { 500 };
/// Number of messages that are posted before the test waits for the provider to have them all.
const AT_ONCE: u64 = 500;

/// A mailbox as it is posted, and what it says.
struct Generated {
    text: String,
    name: String,
    local: String,
    domain: String,
}

/// Parts of names: characters that mean something in mail, scripts, and plain words.
const PIECES: [&str; 34] = [
    "Ann",
    "Lee",
    "van der",
    " ",
    " ",
    "  ",
    "O'Hara",
    ".",
    "(",
    ")",
    "[",
    "]",
    ":",
    ";",
    ",",
    "@",
    "<",
    ">",
    "\"",
    "\\",
    "=",
    "?",
    "_",
    "=?utf-8?q?a?=",
    "?=",
    "\u{e9}",
    "\u{df}",
    "\u{1f4ee}",
    "\u{4f60}\u{597d}",
    "\u{5d0}\u{5d1}",
    "\u{202e}",
    "e\u{301}",
    "\u{a0}",
    "\u{1f468}\u{200d}\u{1f469}",
];
const LOCALS: [(&str, &str); 10] = [
    ("ann", "ann"),
    ("Ann.Lee", "Ann.Lee"),
    ("a+b=c/d", "a+b=c/d"),
    ("!#$%&'*-/=?^_`{|}~", "!#$%&'*-/=?^_`{|}~"),
    ("\"ann lee\"", "ann lee"),
    ("\"a(b\"", "a(b"),
    ("\"a:b\"", "a:b"),
    ("\"a\\\"b\"", "a\"b"),
    ("\"a..b\"", "a..b"),
    ("0", "0"),
];
const DOMAINS: [(&str, &str); 6] = [
    ("example.org", "example.org"),
    ("EXAMPLE.org", "example.org"),
    ("b\u{fc}cher.example", "xn--bcher-kva.example"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("a-b.c0.example", "a-b.c0.example"),
    ("\u{4f8b}\u{3048}.example", "xn--r8jz45g.example"),
];

fn name(random: &mut fastrand::Rng) -> String {
    let text: String =
        (0..random.usize(..8)).map(|_| PIECES[random.usize(..PIECES.len())]).collect();
    text.trim_matches(' ').to_owned()
}

/// A mailbox at one of the domains, or at `only`.
fn mailbox(random: &mut fastrand::Rng, only: Option<&str>) -> Generated {
    let name = name(random);
    let (local_text, local) = LOCALS[random.usize(..LOCALS.len())];
    let (domain_text, domain) = match only {
        Some(domain) => (domain, domain),
        None => DOMAINS[random.usize(..DOMAINS.len())],
    };
    let address = format!("{local_text}@{domain_text}");
    let needs_quotes = name.contains(['@', ',', ';', '<', '>', '"', '\\']) || random.bool();
    let text = if name.is_empty() {
        address
    } else if needs_quotes {
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{escaped}\" <{address}>")
    } else {
        format!("{name} <{address}>")
    };
    Generated { text, name, local: local.to_owned(), domain: domain.to_owned() }
}

/// A message, and what has to be found in it.
fn message(number: u64, random: &mut fastrand::Rng) -> (Value, Value) {
    let from = mailbox(random, Some("example.com"));
    let reply_to = mailbox(random, None);
    let mut lists = Vec::new();
    for least in [1, 0, 0] {
        let count = random.usize(least..5);
        lists.push((0..count).map(|_| mailbox(random, None)).collect::<Vec<_>>());
    }
    let mut subject = format!("{number} ");
    let mut value = String::new();
    for _ in 0..random.usize(1..10) {
        let _ = write!(subject, "{}", PIECES[random.usize(..PIECES.len())]);
        value.push(char::from(random.u8(b'!'..=b'~')));
    }
    let texts = |list: &[Generated]| list.iter().map(|m| m.text.clone()).collect::<Vec<_>>();
    let found = |list: &[Generated]| {
        list.iter().map(|m| json!([m.name, m.local, m.domain])).collect::<Vec<_>>()
    };
    let headers = json!({ "X-Number": number.to_string(), "X-Value": value,
        "List-Unsubscribe": format!("<https://example.com/u?{value}>") });
    let posted = json!({
        "from": from.text, "reply_to": reply_to.text, "to": texts(&lists[0]),
        "cc": texts(&lists[1]), "bcc": texts(&lists[2]), "subject": subject, "text": subject,
        "headers": headers,
    });
    let expected = json!({
        "From": found(&[from]), "Reply-To": found(&[reply_to]), "To": found(&lists[0]),
        "Cc": found(&lists[1]), "Bcc": found(&lists[2]), "Subject": subject, "headers": headers,
    });
    (posted, expected)
}

/// A provider that takes all input, and keeps it byte for byte.
async fn start_provider() -> (String, Arc<Mutex<Vec<Bytes>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let got = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&got);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let kept = Arc::clone(&kept);
            let service = service_fn(move |request| take(Arc::clone(&kept), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    (address, got)
}

async fn take(
    kept: Arc<Mutex<Vec<Bytes>>>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let answer = if head.uri.path().ends_with("/outbound-emails") {
        let mut kept = kept.lock().unwrap();
        kept.push(body);
        json!({ "MessageId": format!("message-{}", kept.len()) })
    } else {
        let quota = json!({ "Max24HourSend": 1e7, "MaxSendRate": 1e5, "SentLast24Hours": 0 });
        json!({ "SendQuota": quota, "SendingEnabled": true, "ProductionAccessEnabled": true })
    };
    Ok(hyper::Response::new(Full::new(answer.to_string().into())))
}

#[tokio::test]
async fn python_reads_every_address_and_header_that_was_posted() {
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let messages = number("MAIL_MESSAGES").unwrap_or(MESSAGES);
    println!("SEED={seed} MAIL_MESSAGES={messages}");
    let (provider, got) = start_provider().await;
    let site = Site::with("", Options::default()).await;
    site.reconfigure(&site.simulator.endpoint(), &provider);
    let server = site.start_with(&[("RUST_LOG", "warn,pillarbox_service=info")]);

    let mut random = fastrand::Rng::with_seed(seed);
    let mut expected = Vec::new();
    for number in 0..messages {
        let (posted, found) = message(number, &mut random);
        expected.push(found);
        let response = server.post(&posted).send().await.unwrap();
        assert_eq!(response.status(), 200, "{posted}: {:?}", response.text().await);
        if (number + 1) % AT_ONCE == 0 || number + 1 == messages {
            let end = Instant::now() + PATIENCE;
            while (got.lock().unwrap().len() as u64) < number + 1 {
                assert!(Instant::now() < end, "the provider has {}", got.lock().unwrap().len());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    let expected_file = site.directory().join("expected.json");
    std::fs::write(&expected_file, Value::from(expected).to_string()).unwrap();
    let got = got.lock().unwrap().join(&b'\n');
    let got_file = site.directory().join("got.jsonl");
    std::fs::write(&got_file, got).unwrap();
    let output = Command::new("python3")
        .args(["-c", include_str!("mail.py")])
        .args([expected_file, got_file])
        .output()
        .unwrap();
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success(), "{err}");
    assert!(out.starts_with(&format!("{messages} messages, ")), "{out}");
    println!("{}", out.trim());
}

/// Bytes of every value, in an order without a pattern.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(7).fill(&mut bytes);
    bytes
}

/// A file to be posted, and what botocore has to find of it.
fn file(name: &str, media_type: &str, content_id: Option<&str>, content: &[u8]) -> (Value, Value) {
    let disposition = if content_id.is_some() { "INLINE" } else { "ATTACHMENT" };
    let digest = hex::encode(Sha256::digest(content));
    (
        json!({ "filename": name, "content": STANDARD.encode(content), "content_id": content_id }),
        json!([name, media_type, disposition, content_id, "BASE64", digest]),
    )
}

#[tokio::test]
async fn botocore_takes_every_request_and_every_file_that_was_posted() {
    const UNKNOWN: &str = "application/octet-stream";
    let (provider, got) = start_provider().await;
    let more = "max_request_bytes = 33554432\n[smtp]\nlisten = \"127.0.0.1:0\"\n\
                [sending]\nmax_pending_bytes = 268435456";
    let site = Site::with(more, Options::default()).await;
    site.reconfigure(&site.simulator.endpoint(), &provider);
    let server = site.start_with(&[("RUST_LOG", "warn,pillarbox_service=info")]);
    let long = format!("{}.pdf", "\u{e9}".repeat(251));
    let id = "i".repeat(78);
    let odd = vec![
        file("Rechnung \u{fc}\u{df} \u{1f4ee}.pdf", "application/pdf", None, &noise(1)),
        file("\u{8acb}\u{6c42}.x-y", UNKNOWN, None, &noise(2)),
        file("a\"b';=.txt", "text/plain", None, &noise(3)),
        file(&long, "application/pdf", None, &(0..=255).collect::<Vec<_>>()),
        file("logo.png", "image/png", Some("logo.1@example.com"), &noise(1_000)),
        file("logo.gif", "image/gif", Some(&id), &noise(1_001)),
    ];
    let fifty = (0..50).map(|n| file(&format!("{n}.bin"), UNKNOWN, None, &noise(n * 997 + 1)));
    let messages = [
        ("odd", odd),
        ("fifty", fifty.collect()),
        ("large", vec![file("large.bin", UNKNOWN, None, &noise(20 << 20))]),
        ("none", Vec::new()),
    ];
    let mut expected = serde_json::Map::new();
    for (subject, files) in messages {
        let (posted, found): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        expected.insert(subject.to_owned(), found.into());
        let id = server
            .send(&json!({
                "from": "ann@example.com", "to": ["bob@example.org"], "subject": subject,
                "html": "<img src=\"cid:logo.1@example.com\">", "attachments": posted,
            }))
            .await;
        server.wait_for(&id, "sent").await;
    }
    let address = server.process.smtp_listening();
    let mut client = SmtpClient::login(&address, &server.key).await.unwrap();
    let whole = "From: ann@example.com\r\nSubject: raw\r\n\r\nHi\r\n";
    let reply = client.submit(&["bob@example.org"], whole).await.unwrap();
    server.wait_for(accepted_id(&reply).unwrap(), "sent").await;
    let expected_file = site.directory().join("expected.json");
    std::fs::write(&expected_file, Value::from(expected).to_string()).unwrap();
    let got_file = site.directory().join("got.jsonl");
    std::fs::write(&got_file, got.lock().unwrap().join(&b'\n')).unwrap();
    let python = std::env::var("BOTOCORE_PYTHON");
    let output = Command::new(python.expect(".ci/run sets BOTOCORE_PYTHON"))
        .args(["-c", include_str!("attachments.py")])
        .args([expected_file, got_file])
        .output()
        .unwrap();
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success(), "{err}");
    assert_eq!(out.trim(), "4 messages, 57 files, 1 raw");
}
