//! Every message turns SES's open and click tracking off for itself, from every way in.

use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::json;

use crate::kit::{PATIENCE, Server, Site, SmtpClient, accepted_id, message, message_with};

const SMTP: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";
const RAW: &str = "From: Ann <ann@example.com>\r\nTo: bob@example.org\r\nSubject: Hello\r\n\r\n\
                   <https://example.org>\r\n";

/// Sends a message over SMTP; gives its id.
async fn submit(server: &Server) -> String {
    let address = server.process.smtp_listening();
    let mut client = SmtpClient::login(&address, &server.key).await.unwrap();
    let reply = client.submit(&["bob@example.org"], RAW).await.unwrap();
    accepted_id(&reply).unwrap().to_owned()
}

/// Settings for open and click tracking in each message that the simulator has.
fn tracking(site: &Site) -> Vec<[Option<String>; 2]> {
    let messages = site.simulator.messages();
    messages.iter().map(|one| [one.open_tracking.clone(), one.click_tracking.clone()]).collect()
}

fn set_override(site: &Site, value: &str) {
    site.reconfigure("[ses]\n", &format!("[ses]\ntracking_override = {value}\n"));
}

/// Waits until the condition is there or not.
async fn told(site: &Site, is_there: bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = crate::kit::status(site);
        let mut conditions = status["conditions"].as_array().unwrap().iter();
        if conditions.any(|one| one["code"] == "tracking_not_overridden") == is_there {
            return;
        }
        assert!(Instant::now() < end, "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_turns_tracking_off_simple_and_raw() {
    let site = Site::with(SMTP, Options::default()).await;
    let server = site.start();
    let html = message_with("html", json!("<a href=\"https://example.org\">x</a>"));
    let file = json!([{ "filename": "a.txt", "content": "QUJD" }]);
    for id in [
        server.send(&message()).await,
        server.send(&html).await,
        server.send(&message_with("attachments", file)).await,
        submit(&server).await,
    ] {
        server.wait_for(&id, "sent").await;
    }
    let off = Some("DISABLED".to_owned());
    assert_eq!(tracking(&site), vec![[off.clone(), off]; 4]);
    assert_eq!(site.simulator.messages().iter().filter(|one| one.raw.is_some()).count(), 1);
    told(&site, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_does_not_know_it_gets_messages_without_it_if_that_is_allowed() {
    let site = Site::with(SMTP, Options::default()).await;
    set_override(&site, "\"auto\"");
    let server = site.start();
    let first = server.send(&message()).await;
    server.wait_for(&first, "sent").await;
    told(&site, false).await;
    site.simulator.set_faults(Faults::always(Fault::UnknownMember));
    for id in [server.send(&message()).await, submit(&server).await] {
        let record = server.wait_for(&id, "sent").await;
        assert_eq!(record["attempts"], 1, "{record}");
    }
    let off = Some("DISABLED".to_owned());
    assert_eq!(tracking(&site), [[off.clone(), off], [None, None], [None, None]]);
    told(&site, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_a_condition_and_doctor_say_so() {
    let site = Site::with(SMTP, Options::default()).await;
    set_override(&site, "false");
    let server = site.start();
    for id in [server.send(&message()).await, submit(&server).await] {
        server.wait_for(&id, "sent").await;
    }
    assert_eq!(tracking(&site), [[None, None], [None, None]]);
    told(&site, true).await;
    let doctor = site.run(&["doctor", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let mut checks = document["checks"].as_array().unwrap().iter();
    let found = checks.find(|check| check["about"] == "tracking override").unwrap();
    assert_eq!(found["verdict"], "warning", "{found}");
    assert!(found["advice"].as_str().unwrap().contains("ses.tracking_override"), "{found}");
}
