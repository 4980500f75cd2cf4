//! Files that go with a message: each arrives as it was, and a large one is held in memory once.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillarbox_simulator::{CapturedAttachment, Options};
use serde_json::{Value, json};

use crate::kit::{Server, Site, message_with};

const MIB: usize = 1 << 20;

/// Bytes of every value, in an order without a pattern.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(7).fill(&mut bytes);
    bytes
}

fn file(name: &str, content: &[u8]) -> Value {
    json!({ "filename": name, "content": STANDARD.encode(content) })
}

/// Sends a message and waits until the provider has it; gives the files that it got.
async fn sent(site: &Site, server: &Server, body: impl Into<String>) -> Vec<CapturedAttachment> {
    let response = server.post_bytes(body.into()).send().await.unwrap();
    let status = response.status();
    let answered: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(status, 200, "{answered}");
    let record = server.wait_for(answered["id"].as_str().unwrap(), "sent").await;
    let messages = site.simulator.messages();
    let message = messages.iter().find(|message| record["sesMessageId"] == message.id);
    message.unwrap().attachments.clone()
}

#[tokio::test]
async fn files_arrive_byte_for_byte_under_their_names() {
    let site = Site::new().await;
    let server = site.start();
    let all: Vec<u8> = (0..=255).collect();
    let names = [
        "Rechnung \u{fc}\u{df}.pdf",
        "\u{8acb}\u{6c42}\u{66f8}.xlsx",
        "\u{1f4ee} \"a\" 'b'; c=d.txt",
        "-.b",
    ];
    let mut files: Vec<_> = names.iter().map(|name| file(name, &all)).collect();
    files.push(json!({
        "filename": "logo.png", "content": STANDARD.encode(noise(1_001)),
        "content_type": "image/x-own", "content_id": "logo.1@example.com",
    }));
    let got = sent(&site, &server, message_with("attachments", json!(files)).to_string()).await;
    assert_eq!(got.len(), 5);
    for (name, got) in names.iter().zip(&got) {
        assert_eq!((&*got.filename, &*got.content), (*name, &*all));
        assert_eq!((got.disposition.as_deref(), &got.content_id), (Some("ATTACHMENT"), &None));
    }
    let types: Vec<_> = got.iter().map(|file| file.content_type.as_deref().unwrap()).collect();
    let sheet = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";
    let unknown = "application/octet-stream";
    assert_eq!(types, ["application/pdf", sheet, "text/plain", unknown, "image/x-own"]);
    let logo = &got[4];
    assert_eq!(*logo.content, *noise(1_001));
    assert_eq!(logo.disposition.as_deref(), Some("INLINE"));
    assert_eq!(logo.content_id.as_deref(), Some("logo.1@example.com"));
    // The provider's default loses a bit of each byte.
    assert!(got.iter().all(|file| file.transfer_encoding.as_deref() == Some("BASE64")));

    // As PHP writes it, and with every character escaped.
    let text =
        message_with("attachments", json!([file("a.bin", &all), file("b.bin", b"\xff\xff\xff")]));
    let php = text.to_string().replace("\"////\"", r#""\u002f\/\u002F\/""#).replace('/', "\\/");
    let php = php.replace("\\\\/", "\\/");
    assert!(php.contains(r#""\u002f\/\u002F\/""#), "{php}");
    let got = sent(&site, &server, php).await;
    assert_eq!((&*got[0].content, &*got[1].content), (&*all, &b"\xff\xff\xff"[..]));

    // An empty list is none.
    assert!(
        sent(&site, &server, message_with("attachments", json!([])).to_string()).await.is_empty()
    );
}

#[tokio::test]
async fn fifty_files_and_one_of_twenty_megabytes_arrive() {
    let more = "max_request_bytes = 33554432\nmax_reading_bytes = 268435456\n\
                [sending]\nmax_pending_bytes = 268435456";
    let site = Site::with(more, Options::default()).await;
    let server = site.start();
    let contents: Vec<_> = (0..50).map(|n| noise(n * 997 + 1)).collect();
    let files: Vec<_> = contents
        .iter()
        .enumerate()
        .map(|(n, content)| file(&format!("{n}.bin"), content))
        .collect();
    let got = sent(&site, &server, message_with("attachments", json!(files)).to_string()).await;
    assert_eq!(got.len(), 50);
    for (n, (got, content)) in got.iter().zip(&contents).enumerate() {
        assert_eq!((&*got.filename, &*got.content), (&*format!("{n}.bin"), &**content));
    }
    let large = noise(20 * MIB);
    let body = message_with("attachments", json!([file("large.bin", &large)])).to_string();
    let got = sent(&site, &server, body).await;
    assert!(*got[0].content == *large);
}

#[tokio::test]
async fn large_messages_in_flight_take_their_own_size_and_a_tenth_more_at_most() {
    const COUNT: usize = 6;
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let more = "max_request_bytes = 16777216\n[sending]\nmax_pending_bytes = 268435456";
    let site = Site::with(more, slow).await;
    let server = site.start();
    let body = message_with("attachments", json!([file("large.bin", &noise(10 * MIB * 3 / 4))]));
    let body = body.to_string();
    let pending = async || {
        let text = server.operator("/metrics").await.text().await.unwrap();
        let line = text.lines().find(|line| line.starts_with("pillarbox_queue_bytes ")).unwrap();
        line.split_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let send = async |count: usize| {
        for _ in 0..count {
            let response = server.post_bytes(body.clone()).send().await.unwrap();
            let answered: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
            server.wait_for(answered["id"].as_str().unwrap(), "sending").await;
        }
        // The provider answers late; by then it has read all that was written.
        tokio::time::sleep(Duration::from_secs(1)).await;
        (server.process.resident_bytes(), pending().await)
    };
    // What the process needs once, such as a body that is being read, is not the messages'.
    let (resident_before, pending_before) = send(2).await;
    let (resident, pending) = send(COUNT).await;
    let encoded = COUNT * body.len();
    let more = resident.saturating_sub(resident_before);
    let counted = pending - pending_before;
    println!("{encoded} bytes encoded, {more} more resident, {counted} counted");
    assert!(more <= encoded * 11 / 10, "{more} of {encoded} bytes");
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let counted = counted / encoded as f64;
    assert!((0.99..1.01).contains(&counted), "{counted}");
}
