//! Encoded words in every charset that mail has, as Python's email package writes and reads them:
//! the record has what people read, and the provider gets the sender's own words.
//!
//! `SEED` repeats a run, `CHARSET_MESSAGES` says how many messages it has.

use std::collections::HashMap;
use std::process::Command;

use pillarbox_simulator::Options;
use serde_json::Value;

use crate::kit::{Site, SmtpClient, accepted_id, number};

const MESSAGES: u64 = if cfg!(feature = "long") { 8_000 } else { 400 };

#[tokio::test]
async fn python_and_the_record_read_the_same_names_and_subjects() {
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let messages = number("CHARSET_MESSAGES").unwrap_or(MESSAGES);
    println!("SEED={seed} CHARSET_MESSAGES={messages}");
    let output = Command::new("python3")
        .args(["-c", include_str!("charsets.py")])
        .args([seed.to_string(), messages.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let site = Site::with("[smtp]\nlisten = \"127.0.0.1:0\"\n", Options::default()).await;
    let server = site.start();
    let address = server.process.smtp_listening();
    let mut client = SmtpClient::login(address, &server.key).await.unwrap();
    let mut expected = HashMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (written, text) = (case["written"].as_str().unwrap(), case["text"].as_str().unwrap());
        let message =
            format!("From: {written} <ann@example.com>\r\nSubject: {written}\r\n\r\nHi\r\n");
        let reply = client.submit(&["bob@example.org"], &message).await.unwrap();
        let id = accepted_id(&reply).unwrap_or_else(|| panic!("{reply}: {message}"));
        let record = server.wait_for(id, "sent").await;
        assert_eq!(record["subject"], text, "{case}");
        let sent = site.simulator.messages().last().unwrap().clone();
        let own = written.replace("\r\n", "");
        assert_eq!(sent.from, format!("{own} <ann@example.com>"), "{case}");
        expected.insert(id.to_owned(), format!("{text} <ann@example.com>"));
    }
    assert_eq!(expected.len() as u64, messages);
    let listed = site.done(&["message", "list", "--limit", "1000", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let listed = listed["messages"].as_array().unwrap();
    assert!(listed.len() as u64 >= messages.min(1_000));
    for message in listed {
        assert_eq!(message["from"], expected[message["id"].as_str().unwrap()]);
    }
}
