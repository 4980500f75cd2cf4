//! Addresses that programs read differently: one rule for every field and both ways in.

use pillarbox_simulator::Options;
use serde_json::json;

use crate::kit::{Site, SmtpClient, accepted_id, codes, message_with, refusal};

/// Local parts that are refused everywhere.
const AMBIGUOUS: [&str; 12] = [
    "=?utf-8?q?bob?=",
    "=?utf-8?B?Ym9i?=",
    "=?ISO-8859-1*en?Q?bob?=",
    "x.=?utf-8?q?bob?=.y",
    "\"=?utf-8?q?bob?=\"",
    "\"=\\?utf-8?q?bob?=\"",
    "\"a@b\"",
    "\"a\\@b\"",
    "\"a<b\"",
    "\"a>b\"",
    "\"a,b\"",
    "\"a;b\"",
];
/// Local parts that resemble rejected ones and are accepted.
const PLAIN: [&str; 7] = ["bob", "o'hara+x=y?z", "=?x", "x?=", "\"a b\"", "\"a.b\"", "?=x=?"];

#[tokio::test]
async fn an_address_that_others_read_differently_is_refused_in_every_field_of_json() {
    let site = Site::new().await;
    let server = site.start();
    for local in AMBIGUOUS {
        let from = json!(format!("{local}@example.com"));
        for (field, value, at) in [
            ("from", from.clone(), "from"),
            ("from", json!(format!("Ann <{local}@example.com>")), "from"),
            ("to", json!(["ann@example.org", format!("{local}@example.org")]), "to[1]"),
            ("to", json!([format!("\"B, ob\" <{local}@example.org>")]), "to[0]"),
            ("cc", json!([format!("{local}@example.org")]), "cc[0]"),
            ("bcc", json!([format!("{local}@example.org")]), "bcc[0]"),
            ("reply_to", json!(format!("{local}@example.org")), "reply_to"),
        ] {
            let response = server.post(&message_with(field, value)).send().await.unwrap();
            let refused = refusal(response).await;
            let expected = (422, "ValidationError".to_owned(), Some(at.to_owned()));
            assert_eq!(refused, expected, "{local} in {field}");
        }
    }
    for local in PLAIN {
        for (field, value) in [
            ("from", json!(format!("{local}@example.com"))),
            ("to", json!([format!("{local}@example.org")])),
            ("reply_to", json!(format!("{local}@example.org"))),
        ] {
            server.send(&message_with(field, value)).await;
        }
    }
}

#[tokio::test]
async fn an_address_that_others_read_differently_is_refused_over_smtp() {
    let site = Site::with("[smtp]\nlisten = \"127.0.0.1:0\"\n", Options::default()).await;
    let server = site.start();
    let address = server.process.smtp_listening();
    for local in AMBIGUOUS {
        // A session ends after many errors.
        let mut client = SmtpClient::login(&address, &server.key).await.unwrap();
        let reply = client.ask(&format!("MAIL FROM:<{local}@example.com>")).await.unwrap();
        assert_eq!(codes(&reply), "501 5.1.7", "{local}");
        client.ask_for("MAIL FROM:<ann@example.com>", "250 ").await.unwrap();
        let reply = client.ask(&format!("RCPT TO:<{local}@example.org>")).await.unwrap();
        assert_eq!(codes(&reply), "501 5.1.3", "{local}");
        client.ask_for("RSET", "250 ").await.unwrap();
        for fields in [
            format!("From: {local}@example.com\r\n"),
            format!("From: Ann <{local}@example.com>\r\n"),
            format!("From: ann@example.com\r\nSender: {local}@example.com\r\n"),
            format!("From: ann@example.com\r\nResent-From: Ann <{local}@example.com>\r\n"),
            format!("From: ann@example.com\r\nResent-Sender: {local}@example.com\r\n"),
        ] {
            let message = format!("{fields}\r\nHi\r\n");
            let reply = client.submit(&["bob@example.org"], &message).await.unwrap();
            assert_eq!(codes(&reply), "550 5.6.0", "{fields}");
        }
    }
    let mut client = SmtpClient::login(&address, &server.key).await.unwrap();
    for local in PLAIN {
        client.ask_for(&format!("MAIL FROM:<{local}@example.com>"), "250 ").await.unwrap();
        client.ask_for(&format!("RCPT TO:<{local}@example.org>"), "250 ").await.unwrap();
        client.ask_for("RSET", "250 ").await.unwrap();
    }
    let message = "From: \"a b\"@example.com\r\n\r\nHi\r\n";
    let reply = client.submit(&["\"a b\"@example.org"], message).await.unwrap();
    assert!(accepted_id(&reply).is_some(), "{reply}");
    assert!(site.simulator.messages().iter().all(|sent| sent.to == ["\"a b\"@example.org"]));
}

#[tokio::test]
async fn a_suppression_is_of_an_address_that_can_be_written_to() {
    let site = Site::new().await;
    let _server = site.start_for_commands();
    for local in AMBIGUOUS {
        let address = format!("{local}@example.org");
        let output = site.run(&["suppression", "add", "--org", "acme", &address]);
        assert_eq!(output.status.code(), Some(1), "{local}: {output:?}");
        // One of an earlier version can still be named and removed.
        let output = site.run(&["suppression", "remove", "--org", "acme", &address]);
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!shown.contains("is not an address"), "{local}: {shown}");
    }
}

#[tokio::test]
async fn a_mailbox_as_given_has_a_thousand_characters() {
    let site = Site::new().await;
    let server = site.start();
    let of = |length: usize| {
        let name = "\u{e9}".repeat(length - "  <bob@example.org> ".len());
        format!(" {name} <bob@example.org> ")
    };
    server.send(&message_with("to", json!([of(1_000)]))).await;
    let response = server.post(&message_with("to", json!([of(1_001)]))).send().await.unwrap();
    assert_eq!(refusal(response).await.2.as_deref(), Some("to[0]"));
    let padded = |domain: &str, spaces: usize| format!("bob@{domain}{}", " ".repeat(spaces));
    let one = padded("example.org", 986);
    for (field, value, at) in [
        ("to", json!([one.as_str()]), "to[0]"),
        ("cc", json!([one.as_str()]), "cc[0]"),
        ("bcc", json!(["ann@example.org", one.as_str()]), "bcc[1]"),
        ("reply_to", json!(one.as_str()), "reply_to"),
        ("from", json!(padded("example.com", 986)), "from"),
        ("to", json!(vec![padded("example.org", 8_192); 50]), "to[0]"),
    ] {
        let response = server.post(&message_with(field, value)).send().await.unwrap();
        assert_eq!(refusal(response).await.2.as_deref(), Some(at), "{field}");
    }
    // Nothing is folded: the record has what was given.
    let one = padded("example.org", 985);
    let id = server.send(&message_with("to", json!([one.as_str()]))).await;
    assert_eq!(server.record(&id).await["to"], json!([one]));
}
