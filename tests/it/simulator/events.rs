//! Events: the ones of an accepted message, in the form of SES's.
//!
//! The documents in `events/` are the examples of the Amazon SES Developer Guide (repository
//! awsdocs/amazon-ses-developer-guide), under the MIT-style licence of its LICENSE-SAMPLECODE.

#![expect(clippy::unwrap_used, reason = "a test's own code; clippy knows only its functions")]

use std::time::{Duration, SystemTime};

use pillarbox_domain::time::Timestamp;
use pillarbox_simulator::{
    Envelope, EventOptions, EventRoute, Events, Fault, Options, QueueOptions, Simulator,
};
use serde_json::{Value, json};

use super::client::{Client, message, message_with, start, start_with};

const DOCUMENTS: [(&str, &str); 4] = [
    ("Send", include_str!("events/send.json")),
    ("Delivery", include_str!("events/delivery.json")),
    ("Bounce", include_str!("events/bounce.json")),
    ("Complaint", include_str!("events/complaint.json")),
];
/// Tags in the documents that are their sender's own.
const CUSTOM_TAGS: [&str; 2] = ["myCustomTag1", "myCustomTag2"];

async fn start_on(events: EventOptions) -> (Simulator, Client) {
    let queue = QueueOptions { name: "pillarbox-events".to_owned(), ..QueueOptions::default() };
    start_with(Options { events: Events::On(events), queue, ..Options::default() }).await
}

/// Everything that is in the queue now.
async fn bodies(client: &Client) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let answer = client.sqs("ReceiveMessage", json!({ "MaxNumberOfMessages": 10 })).await;
        let Some(messages) = answer.body["Messages"].as_array() else { return all };
        let texts = messages.iter().map(|message| message["Body"].as_str().unwrap());
        all.extend(texts.map(|text| serde_json::from_str::<Value>(text).unwrap()));
    }
}

async fn raw_events(request: &Value) -> Vec<Value> {
    let options = EventOptions { envelope: Envelope::Raw, ..EventOptions::default() };
    let (_simulator, client) = start_on(options).await;
    assert_eq!(client.send(request).await.status, 200);
    bodies(&client).await
}

fn to(recipients: &Value) -> Value {
    message_with("/Destination/ToAddresses", recipients.clone())
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["eventType"].as_str().unwrap()).collect()
}

/// Asserts that `event` has everything that `document` has, in the same types.
fn assert_shape(event: &Value, document: &Value, path: &str) {
    match (event, document) {
        (Value::Object(event), Value::Object(document)) => {
            for (name, value) in document.iter().filter(|(n, _)| !CUSTOM_TAGS.contains(&n.as_str()))
            {
                let path = format!("{path}/{name}");
                let found = event.get(name).unwrap_or_else(|| panic!("no {path} in {event:?}"));
                assert_shape(found, value, &path);
            }
        }
        (Value::Array(event), Value::Array(document)) => {
            let (Some(found), Some(value)) = (event.first(), document.first()) else {
                panic!("{path} is empty")
            };
            assert_shape(found, value, &format!("{path}/0"));
        }
        _ => assert_eq!(
            std::mem::discriminant(event),
            std::mem::discriminant(document),
            "{path}: {event} for {document}"
        ),
    }
}

#[tokio::test]
async fn every_event_has_the_shape_of_its_document() {
    let mut request =
        to(&json!(["complaint@simulator.amazonses.com", "bounce@simulator.amazonses.com",]));
    request["ConfigurationSetName"] = json!("ConfigSet");
    let options = Options {
        configuration_sets: vec!["ConfigSet".to_owned()],
        events: Events::On(EventOptions { envelope: Envelope::Raw, ..EventOptions::default() }),
        ..Options::default()
    };
    let (_simulator, client) = start_with(options).await;
    client.send(&request).await;
    let events = bodies(&client).await;
    assert_eq!(types(&events), ["Send", "Delivery", "Bounce", "Complaint"]);
    for (event_type, document) in DOCUMENTS {
        let event = events.iter().find(|event| event["eventType"] == event_type).unwrap();
        assert_shape(event, &serde_json::from_str(document).unwrap(), event_type);
        assert_eq!(event["mail"]["tags"]["ses:configuration-set"], json!(["ConfigSet"]));
    }
}

#[tokio::test]
async fn the_address_decides_what_is_reported() {
    let one = async |address: &str| raw_events(&to(&json!([address]))).await;
    for address in ["bob@example.org", "success@simulator.amazonses.com"] {
        let events = one(address).await;
        assert_eq!(types(&events), ["Send", "Delivery"], "{address}");
        assert_eq!(events[1]["delivery"]["recipients"], json!([address]));
    }
    let events = one("ooto@simulator.amazonses.com").await;
    assert_eq!(types(&events), ["Send", "Delivery"]);

    let events = one("Bob <bounce+7@simulator.amazonses.com>").await;
    assert_eq!(types(&events), ["Send", "Bounce"]);
    let bounce = &events[1]["bounce"];
    assert_eq!(
        (&bounce["bounceType"], &bounce["bounceSubType"]),
        (&json!("Permanent"), &json!("General"))
    );
    let recipient = json!({
        "emailAddress": "bounce+7@simulator.amazonses.com", "action": "failed",
        "status": "5.1.1", "diagnosticCode": "smtp; 550 5.1.1 user unknown",
    });
    assert_eq!(bounce["bouncedRecipients"], json!([recipient]));

    let events = one("suppressionlist@simulator.amazonses.com").await;
    assert_eq!(types(&events), ["Send", "Bounce"]);
    let bounce = &events[1]["bounce"];
    assert_eq!(bounce["bounceType"], "Permanent");
    assert_eq!(bounce["bounceSubType"], "OnAccountSuppressionList");

    let events = one("complaint@simulator.amazonses.com").await;
    assert_eq!(types(&events), ["Send", "Delivery", "Complaint"]);
    let complaint = &events[2]["complaint"];
    assert_eq!(complaint["complaintFeedbackType"], "abuse");
    let named = json!([{ "emailAddress": "complaint@simulator.amazonses.com" }]);
    assert_eq!(complaint["complainedRecipients"], named);
}

#[tokio::test]
async fn recipients_with_one_fate_at_one_domain_share_an_event() {
    let mut request = to(&json!([
        "a@example.org",
        "B <b@Example.ORG>",
        "a@example.org",
        "c@example.net",
        "bounce+1@simulator.amazonses.com",
        "success@simulator.amazonses.com",
    ]));
    request["Destination"]["CcAddresses"] = json!(["bounce+2@simulator.amazonses.com"]);
    request["Destination"]["BccAddresses"] = json!([
        "C <complaint@simulator.amazonses.com>",
        "S <suppressionlist@simulator.amazonses.com>"
    ]);
    let events = raw_events(&request).await;
    let expected = ["Send", "Delivery", "Delivery", "Bounce", "Delivery", "Bounce", "Complaint"];
    assert_eq!(types(&events), expected);
    let delivered = |n: usize| &events[n]["delivery"]["recipients"];
    assert_eq!(delivered(1), &json!(["a@example.org", "b@Example.ORG"]));
    assert_eq!(delivered(2), &json!(["c@example.net"]));
    let simulator_domain =
        json!(["success@simulator.amazonses.com", "complaint@simulator.amazonses.com"]);
    assert_eq!(delivered(4), &simulator_domain);
    let bounced = |n: usize| -> Vec<&str> {
        let list = events[n]["bounce"]["bouncedRecipients"].as_array().unwrap();
        list.iter().map(|recipient| recipient["emailAddress"].as_str().unwrap()).collect()
    };
    let both = ["bounce+1@simulator.amazonses.com", "bounce+2@simulator.amazonses.com"];
    assert_eq!(bounced(3), both);
    // No mail server named this one, so it is named as it was given.
    assert_eq!(bounced(5), ["S <suppressionlist@simulator.amazonses.com>"]);
    let complained = &events[6]["complaint"]["complainedRecipients"];
    let named = json!([{ "emailAddress": "complaint@simulator.amazonses.com" }]);
    assert_eq!(complained, &named);
    let destination = events[0]["mail"]["destination"].as_array().unwrap();
    assert_eq!(destination.len(), 9, "to, cc and bcc as given");
}

#[tokio::test]
async fn events_tell_the_message_its_headers_and_its_tags() {
    let mut request = message();
    request["ReplyToAddresses"] = json!(["help@example.com"]);
    request["Destination"]["BccAddresses"] = json!(["hidden@example.org"]);
    request["Content"]["Simple"]["Headers"] = json!([{ "Name": "X-Case", "Value": "7" }]);
    request["EmailTags"] = json!([
        { "Name": "message", "Value": "m-1" }, { "Name": "organisation", "Value": "acme" },
    ]);
    let (_simulator, client) =
        start_on(EventOptions { envelope: Envelope::Raw, ..Default::default() }).await;
    let id = client.send(&request).await.body["MessageId"].clone();
    for event in bodies(&client).await {
        let mail = &event["mail"];
        assert_eq!(mail["messageId"], id);
        assert_eq!(mail["source"], "Ann <ann@example.com>");
        assert_eq!(mail["tags"]["message"], json!(["m-1"]));
        assert_eq!(mail["tags"]["organisation"], json!(["acme"]));
        assert_eq!(mail["tags"]["ses:from-domain"], json!(["example.com"]));
        assert_eq!(mail["tags"].get("ses:configuration-set"), None);
        let common = &mail["commonHeaders"];
        assert_eq!(
            (&common["subject"], &common["replyTo"]),
            (&json!("Hello"), &json!(["help@example.com"]))
        );
        let headers = mail["headers"].as_array().unwrap();
        assert!(headers.contains(&json!({ "name": "X-Case", "value": "7" })));
        assert!(!headers.iter().any(|header| header["value"].as_str().unwrap().contains("hidden")));
        assert_eq!(mail["headersTruncated"], false);
    }

    let header = |n: usize| json!({ "Name": format!("X-{n}"), "Value": "v".repeat(990) });
    let long: Vec<_> = (0..15).map(header).collect();
    let events = raw_events(&message_with("/Content/Simple/Headers", json!(long))).await;
    assert_eq!(events[0]["mail"]["headersTruncated"], true);
}

#[tokio::test]
async fn events_come_wrapped_as_asked() {
    let (_simulator, client) = start_on(EventOptions::default()).await;
    client.send(&message()).await;
    let wrapped = bodies(&client).await;
    assert_eq!(wrapped.len(), 2);
    assert_eq!(wrapped[0]["Type"], "Notification");
    assert_eq!(wrapped[0]["SignatureVersion"], "2");
    assert_eq!(wrapped[0]["TopicArn"], "arn:aws:sns:eu-west-1:000000000000:pillarbox-events");
    assert_ne!(wrapped[0]["MessageId"], wrapped[1]["MessageId"]);
    let inner: Value = serde_json::from_str(wrapped[1]["Message"].as_str().unwrap()).unwrap();
    assert_eq!(inner["eventType"], "Delivery");
    assert_eq!(wrapped[1]["Timestamp"], inner["delivery"]["timestamp"]);

    let options = EventOptions { envelope: Envelope::EventBridge, ..EventOptions::default() };
    let (_simulator, client) = start_on(options).await;
    client.send(&message()).await;
    let wrapped = bodies(&client).await;
    assert_eq!(wrapped[1]["source"], "aws.ses");
    assert_eq!(wrapped[1]["detail-type"], "Email Delivered");
    assert_eq!(wrapped[1]["detail"]["eventType"], "Delivery");
    assert_eq!(wrapped[1]["time"].as_str().unwrap().len(), 20);
}

#[tokio::test]
async fn events_come_late_on_request_and_say_so() {
    let delay = Duration::from_millis(400);
    let options = EventOptions { envelope: Envelope::Raw, ..EventOptions::after(delay) };
    let (simulator, client) = start_on(options).await;
    client.send(&to(&json!(["complaint@simulator.amazonses.com"]))).await;
    assert_eq!(types(&bodies(&client).await), ["Send"]);
    let counts = simulator.queue_counts();
    assert_eq!((counts.delayed, counts.in_flight), (2, 1));
    let next = async || {
        let wait = json!({ "WaitTimeSeconds": 2, "MaxNumberOfMessages": 10 });
        let answer = client.sqs("ReceiveMessage", wait).await;
        let body = answer.body["Messages"][0]["Body"].as_str().unwrap().to_owned();
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let time = |text: &Value| Timestamp::parse_rfc3339(text.as_str().unwrap()).unwrap();
    let delivery = next().await;
    let complaint = next().await;
    let sent = time(&delivery["mail"]["timestamp"]);
    assert_eq!(time(&delivery["delivery"]["timestamp"]), sent.plus(delay));
    assert_eq!(delivery["delivery"]["processingTimeMillis"], 400);
    assert_eq!(time(&complaint["complaint"]["timestamp"]), sent.plus(2 * delay));
    assert!(Timestamp::from(SystemTime::now()) >= sent.plus(2 * delay));
}

#[tokio::test]
async fn there_are_no_events_unless_asked_for_or_for_what_was_refused() {
    let (simulator, client) = start().await;
    client.send(&message()).await;
    assert_eq!(simulator.queue_counts().queued, 0);

    let (simulator, client) = start_on(EventOptions::default()).await;
    simulator.script(vec![Fault::Rejected, Fault::ResetAfter]);
    assert_eq!(client.send(&message()).await.status, 400);
    assert_eq!(simulator.queue_counts().queued, 0);
    client.try_send(&message()).await.unwrap_err();
    assert_eq!(simulator.queue_counts().queued, 2, "the answer was lost, the mail was not");
}

#[tokio::test]
async fn only_destinations_that_ask_for_a_type_get_it_on_request() {
    let options = EventOptions {
        envelope: Envelope::Raw,
        route: EventRoute::Destinations,
        ..EventOptions::default()
    };
    let (simulator, client) = start_on(options).await;
    client.post("/v2/email/configuration-sets", &json!({ "ConfigurationSetName": "set" })).await;
    let mut request = message();
    client.send(&request).await;
    request["ConfigurationSetName"] = json!("set");
    client.send(&request).await;
    assert_eq!(simulator.queue_counts().queued, 0, "no set, or one without a destination");

    let topic = "arn:aws:sns:eu-west-1:000000000000:pillarbox-events";
    let definition = |enabled: &Value| {
        json!({ "EventDestinationName": "events", "EventDestination": {
            "Enabled": enabled,
            "MatchingEventTypes": ["BOUNCE", "DELIVERY"],
            "SnsDestination": { "TopicArn": topic },
        } })
    };
    let path = "/v2/email/configuration-sets/set/event-destinations";
    client.post(path, &definition(&json!(false))).await;
    client.send(&request).await;
    assert_eq!(simulator.queue_counts().queued, 0, "not enabled");
    let body = serde_json::to_vec(&definition(&json!(true))).unwrap();
    let update = client.sign(reqwest::Method::PUT, &format!("{path}/events"), &body);
    assert_eq!(client.call(update).await.status, 200);
    client.send(&request).await;
    assert_eq!(types(&bodies(&client).await), ["Delivery"]);
}

#[tokio::test]
async fn documents_of_others_are_published_raw_or_as_notifications() {
    let (simulator, client) = start().await;
    simulator.publish(DOCUMENTS[2].1).unwrap();
    simulator.publish_notification(DOCUMENTS[2].1).unwrap();
    let published = bodies(&client).await;
    assert_eq!(published[0]["eventType"], "Bounce");
    assert_eq!(published[1]["Message"], DOCUMENTS[2].1);
}
