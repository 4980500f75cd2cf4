//! Attacks on the listener in Resend's shape: its own clients and those of the main listener are served
//! all the while, and both share one budget.

use serde_json::{Value, json};

use crate::attack::{Attack, Kind};
use crate::client::{Client, post_head_to};
use crate::patrons::Patrons;
use crate::site::{Running, Target};
use crate::{CONNECTIONS, HELD_UP, length};

const LISTENER: &str =
    "trusted_proxies = [\"127.0.0.0/8\"]\n[resend_api]\nlisten = \"127.0.0.1:0\"\n";

fn email() -> String {
    let email = json!({
        "from": "ann@example.com", "to": "bob@example.org", "subject": "Hello", "text": "Hi",
    });
    email.to_string()
}

fn post(target: &Target, body: &str) -> String {
    format!("{}Content-Length: {}\r\n\r\n{body}", post_head_to(target, "/emails"), body.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn its_clients_and_others_are_served_during_attacks_on_it() {
    for kind in [Kind::SlowHead, Kind::SlowBody, Kind::Unread, Kind::HalfClosed] {
        let site = Running::start(LISTENER, None).await;
        let resend = site.resend_target();
        let before = site.process.open_files();
        let mut served = Patrons::All.arrive(&site).await;
        let attack = Attack::begin(kind, CONNECTIONS, &resend).await;
        let figures = served.measure(length()).await;
        for _ in 0..20 {
            let mut client = Client::connect(&resend).await.unwrap();
            let answer = client.ask(post(&resend, &email())).await.unwrap();
            assert_eq!(answer.status, 200, "{kind:?}: {}", answer.body);
        }
        attack.end().await;
        println!("{kind:?} on the listener in Resend's shape: {figures}");
        assert!(figures.p99 < HELD_UP, "{kind:?}: {figures}");
        drop(served);
        site.until_open_files_are(before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_documents_are_refused_or_taken_and_none_takes_it_down() {
    let site = Running::start(LISTENER, None).await;
    let target = site.resend_target();
    let many = |unit: &str, count: usize| unit.repeat(count);
    let file = |content: &str| {
        format!(
            "{{\"from\":\"ann@example.com\",\"to\":\"b@example.org\",\"subject\":\"s\",\"text\":\"t\",\
             \"attachments\":[{{\"filename\":\"a.bin\",\"content\":{content}}}]}}"
        )
    };
    for (body, status) in [
        (file(&format!("[{}0]", many("255,", 1_000_000))), 200),
        (file(&format!("[{}0]", many("256,", 1_000_000))), 400),
        (file(&format!("[{}\"x\"]", many("1,", 1_000_000))), 400),
        (file(&format!("[{}", many("[1,", 100_000))), 400),
        (file(&format!("[{}", many(" ", 1_000_000))), 400),
        (format!("[{}", many("{\"tags\":[", 100_000)), 400),
        (format!("{{\"tags\":[{}{{}}]}}", many("{\"a\":\"b\"},", 50_000)), 422),
        (format!("{{\"to\":[{}\"\"]}}", many("\"a@b.c\",", 50_000)), 422),
        (format!("{{\"headers\":{{{}\"a\":\"b\"}}}}", many("\"x\":\"y\",", 1_000)), 400),
        ("\u{0}".to_owned(), 400),
    ] {
        let mut client = Client::connect(&target).await.unwrap();
        let answer = client.ask(post(&target, &body)).await.unwrap();
        let told: Value = serde_json::from_str(&answer.body).unwrap();
        let start: String = body.chars().take(160).collect();
        assert_eq!(answer.status, status, "{start} {told}");
        assert!(status == 200 || told["name"].is_string(), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_organisations_pending_messages_leave_room_for_another_over_it() {
    let more = format!(
        "max_request_bytes = 65536\nmax_reading_bytes = 16777216\n{LISTENER}[sending]\nmax_pending_bytes = 4194304\n"
    );
    let site = Running::start(&more, None).await;
    site.simulator()
        .set_faults(pillarbox_simulator::Faults::always(pillarbox_simulator::Fault::Down));
    let hostile = Target { key: site.add_organisation("hostile").key, ..site.resend_target() };
    let large = email().replace("\"Hi\"", &format!("\"{}\"", "x".repeat(20_000)));
    let mut client = Client::connect(&hostile).await.unwrap();
    let mut refused = 0;
    for _ in 0..300 {
        let answer = client.ask(post(&hostile, &large)).await.unwrap();
        if answer.status != 200 {
            let told: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((answer.status, told["name"].as_str()), (503, Some("application_error")));
            assert!(answer.header("retry-after").is_some());
            refused += 1;
        }
    }
    assert!(refused > 0, "all were accepted");
    let target = site.resend_target();
    let mut neighbour = Client::connect(&target).await.unwrap();
    for _ in 0..20 {
        assert_eq!(neighbour.ask(post(&target, &email())).await.unwrap().status, 200);
    }
}
