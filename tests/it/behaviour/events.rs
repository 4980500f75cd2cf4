//! Delivery events and suppressions for operators, on the real binary and the simulator's real
//! events.

use std::time::Instant;

use pillarbox_simulator::{EventOptions, Events, Fault, FaultScope, Faults, Options};
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Site, message, message_with, refusal};

/// A site whose simulator publishes events into a queue that the service polls.
async fn site_with_events() -> Site {
    let events = Events::On(EventOptions::default());
    let site = Site::with("", Options { events, ..Options::default() }).await;
    let queue = site.simulator.queue_url();
    site.reconfigure("[ses]\n", &format!("[ses.events]\nqueue_url = \"{queue}\"\n[ses]\n"));
    site
}

fn text(site: &Site, arguments: &[&str]) -> String {
    String::from_utf8(site.done(arguments).stdout).unwrap()
}

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(site, &[arguments, &["--json"]].concat())).unwrap()
}

/// Waits until the status is so, and gives it.
async fn status_that(site: &Site, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = json_of(site, &["status"]);
        if is_so(&status["events"]) {
            return status;
        }
        assert!(Instant::now() < end, "{what} takes too long: {status}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_messages_recipients_are_shown_with_their_own_events() {
    let site = site_with_events().await;
    let server = site.start();
    let mut body = message();
    body["to"] = json!(["Bob <bounce@simulator.amazonses.com>"]);
    body["cc"] = json!(["complaint@simulator.amazonses.com", "ooto@simulator.amazonses.com"]);
    let id = server.send(&body).await;
    status_that(&site, "the complaint", |events| events["takenIn"]["complaint"] == 1).await;

    let record = json_of(&site, &["message", "show", &id]);
    let types = |timeline: &Value| -> Vec<String> {
        let events = timeline["events"].as_array().unwrap();
        events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    };
    let timelines = record["timelines"].as_array().unwrap();
    assert_eq!(timelines[0]["recipient"], "Bob <bounce@simulator.amazonses.com>");
    assert_eq!(types(&timelines[0]), ["bounce"]);
    assert_eq!(timelines[0]["events"][0]["detail"]["bounceType"], "Permanent");
    assert_eq!(types(&timelines[1]), ["delivery", "complaint"]);
    assert_eq!(types(&timelines[2]), ["delivery"]);

    let shown = text(&site, &["message", "show", &id]);
    let lines: Vec<&str> =
        shown.lines().skip_while(|line| !line.starts_with("RECIPIENT")).collect();
    assert!(lines[1].starts_with("Bob <bounce@") && lines[1].contains("bounceSubType=General"));
    assert!(lines[2].starts_with("complaint@") && lines[2].contains("  delivery  "), "{shown}");
    assert!(lines[3].starts_with("  ") && lines[3].contains("  complaint  "), "{shown}");
    assert!(lines[4].starts_with("ooto@") && lines.len() == 5, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_without_events_is_shown_too() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    let shown = text(&site, &["message", "show", &id]);
    assert!(shown.contains("(none yet)"), "{shown}");
    let status = text(&site, &["status"]);
    assert!(status.contains("Set ses.events.queue_url"), "{status}");
    assert_eq!(json_of(&site, &["status"])["events"]["takenIn"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_or_matched_shows_in_the_status_and_can_be_cleared() {
    let site = site_with_events().await;
    let _server = site.start();
    site.simulator.publish("\u{1b}[2J no document").unwrap();
    site.simulator.publish("{}").unwrap();
    let open =
        r#"{"eventType":"Open","mail":{"messageId":"ses-1","timestamp":"2026-11-21T09:30:00Z"}}"#;
    site.simulator.publish_notification(open).unwrap();
    let unknown = r#"{"eventType":"Delivery","mail":{"messageId":"ses-1",
        "timestamp":"2026-11-21T09:30:00Z"},"delivery":{"timestamp":"2026-11-21T09:30:00Z",
        "recipients":["bob@example.org"]}}"#;
    site.simulator.publish_notification(unknown).unwrap();
    let status = status_that(&site, "the intake", |events| {
        let taken_in = &events["takenIn"];
        // The stored ones are counted once a second.
        (&taken_in["unreadable"], &taken_in["ignored"], &taken_in["unmatched"])
            == (&json!(2), &json!(1), &json!(1))
            && events["stored"] == json!({"unmatchedWaiting": 1, "deadLetters": 2})
    })
    .await;
    assert!(status["events"]["takenIn"]["secondsSinceLast"].is_u64(), "{status}");
    assert_eq!(status["events"]["takenIn"]["delivery"], 1);
    let shown = text(&site, &["status"]);
    assert!(shown.contains("1 delivery") && shown.contains("1 ignored"), "{shown}");
    assert!(shown.contains("pillarbox dead-letter list"), "{shown}");

    let listed = json_of(&site, &["dead-letter", "list"]);
    let letters = listed["deadLetters"].as_array().unwrap();
    assert_eq!(letters.len(), 2, "{listed}");
    let escape = letters.iter().find(|letter| letter["length"] == 16).unwrap();
    let id = escape["id"].as_str().unwrap();
    let table = text(&site, &["dead-letter", "list"]);
    assert!(table.contains(&id[..12]), "{table}");
    let shown = text(&site, &["dead-letter", "show", &id[..12]]);
    assert!(shown.ends_with("\n\\u{1b}[2J no document\n"), "{shown:?}");
    assert_eq!(json_of(&site, &["dead-letter", "show", id])["document"], "\u{1b}[2J no document");

    assert_eq!(json_of(&site, &["dead-letter", "clear", id])["cleared"], 1);
    assert_eq!(json_of(&site, &["dead-letter", "clear", "--all"])["cleared"], 1);
    assert_eq!(text(&site, &["dead-letter", "list"]), "no dead letters\n");
    let gone = site.run(&["dead-letter", "show", id]);
    assert_eq!(gone.status.code(), Some(1));
    assert_eq!(site.run(&["dead-letter", "clear"]).status.code(), Some(2));
}

/// The events of a message come after the store was put back to a time before the message.
#[tokio::test(flavor = "multi_thread")]
async fn events_suppress_for_their_organisation_alone_also_after_a_restoration() {
    let site = site_with_events().await;
    let other = site.add_organisation("other", "example.com");
    let backup = site.directory().join("backup");
    site.back_up(&backup);
    let unreadable = Faults::always(Fault::AccessDenied).with_scope(FaultScope::QueueCalls);
    site.simulator.set_faults(unreadable);
    let server = site.start();
    let mut body = message();
    let recipients = ["bounce@simulator.amazonses.com", "complaint@simulator.amazonses.com"];
    body["to"] = json!([recipients[0], recipients[1], "ooto@simulator.amazonses.com"]);
    let id = server.send(&body).await;
    server.wait_for(&id, "sent").await;
    server.terminate().await;

    site.restore(&backup);
    site.simulator.set_faults(Faults::none());
    let mut server = site.start();
    status_that(&site, "the complaint", |events| {
        (&events["takenIn"]["bounce"], &events["takenIn"]["complaint"]) == (&json!(1), &json!(1))
    })
    .await;
    let listed = json_of(&site, &["suppression", "list"]);
    let listed: Vec<[&str; 3]> = listed["suppressions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| ["organisation", "address", "message"].map(|name| row[name].as_str().unwrap()))
        .collect();
    assert_eq!(listed, recipients.map(|recipient| ["acme", recipient, id.as_str()]));
    for recipient in recipients {
        let message = message_with("to", json!([recipient]));
        let (status, code, field) = refusal(server.post(&message).send().await.unwrap()).await;
        assert_eq!((status, &*code, field.as_deref()), (422, "Suppressed", Some("to[0]")));
    }
    server.send(&message_with("to", json!(["ooto@simulator.amazonses.com"]))).await;
    server.key = other;
    server.send(&message_with("to", json!(recipients))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_cannot_be_read_shows_in_the_status_with_what_to_do() {
    let site = site_with_events().await;
    let faults = Faults::always(Fault::AccessDenied).with_scope(FaultScope::QueueCalls);
    site.simulator.set_faults(faults);
    let _server = site.start();
    status_that(&site, "the trouble", |events| events["takenIn"]["trouble"].is_string()).await;
    let shown = text(&site, &["status"]);
    assert!(shown.contains("sqs:ReceiveMessage"), "{shown}");
    site.simulator.set_faults(Faults::none());
    // A receive that finds nothing takes its time; this one ends at once.
    site.simulator.publish("{}").unwrap();
    status_that(&site, "its end", |events| events["takenIn"]["trouble"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_taken_from_sess_own_list_where_that_is_asked_for() {
    let site = Site::new().await;
    let at_ses = |more: &[&str]| {
        let remove = ["suppression", "remove", "--org", "acme", "--at-ses", "--json"];
        let output = site.run_alone(&[&remove, more].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), answer["addresses"].clone())
    };
    site.done(&["suppression", "add", "--org", "acme", "bob+1@example.org"]);
    site.simulator.suppress("Bob+1@Example.org");
    assert_eq!(at_ses(&["bob+1@example.org"]), (1, Value::Null), "no service runs");
    assert!(text(&site, &["suppression", "list"]).contains("bob+1@example.org"));

    let _server = site.start();
    let (code, addresses) = at_ses(&["Bob+1@example.org", "eve@example.org"]);
    assert_eq!(code, 0, "{addresses}");
    let first = json!({"address": "bob+1@example.org", "outcome": "removed", "atSes": "cleared"});
    let second = json!({"address": "eve@example.org", "outcome": "notThere", "atSes": "notThere"});
    assert_eq!(addresses, json!([first, second]));
    let (_, addresses) = at_ses(&["bob+1@example.org"]);
    assert_eq!(addresses[0]["atSes"], "notThere", "it was cleared before");

    site.done(&["suppression", "add", "--org", "acme", "bob+1@example.org"]);
    let faults = Faults::always(Fault::AccessDenied).with_scope(FaultScope::AllCalls);
    site.simulator.set_faults(faults);
    let (code, addresses) = at_ses(&["bob+1@example.org"]);
    assert_eq!((code, &addresses[0]["outcome"]), (1, &json!("removed")), "{addresses}");
    assert!(addresses[0]["atSes"]["failed"]["message"].is_string(), "{addresses}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_cannot_be_read_is_a_condition_that_names_the_document() {
    let site = site_with_events().await;
    let server = site.start();
    let id = server.send(&message()).await;
    let record = server.wait_for(&id, "sent").await;
    let document = json!({
        "eventType": "Bounce",
        "mail": {
            "messageId": record["sesMessageId"],
            "timestamp": "2026-11-24T18:23:58.779-07:00",
            "tags": { "pillarbox-message-id": [id], "pillarbox-organisation": ["acme"] },
        },
        "bounce": {
            "bounceType": "Permanent",
            "bounceSubType": "General",
            "timestamp": "2099-11-24T18:23:59.779-07:00",
            "bouncedRecipients": [{ "emailAddress": "bob@example.org; eve@example.org" }],
        },
    });
    site.simulator.publish_notification(&document.to_string()).unwrap();
    status_that(&site, "the document", |events| events["stored"]["deadLetters"] == 1).await;
    let listed = json_of(&site, &["dead-letter", "list"]);
    let letter = listed["deadLetters"][0]["id"].as_str().unwrap().to_owned();
    let end = Instant::now() + PATIENCE;
    loop {
        let status = json_of(&site, &["status"]);
        let conditions = status["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|one| one["code"] == "events_unreadable");
        if let Some(found) = found {
            let text = found["message"].as_str().unwrap();
            assert!(text.contains(&letter[..12]) && text.contains("recipient"), "{text}");
            break;
        }
        assert!(Instant::now() < end, "{status}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let record = server.record(&id).await;
    assert_eq!(record["lastEvent"]["occurredAt"], "2099-11-25T01:23:59.779Z", "{record}");
}
