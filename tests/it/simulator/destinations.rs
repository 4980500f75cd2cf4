//! Event destinations of configuration sets, as set-up commands make and read them.

#![expect(clippy::unwrap_used, reason = "a test's own code; clippy knows only its functions")]

use reqwest::Method;
use serde_json::{Value, json};

use super::client::{Client, start};

const SETS: &str = "/v2/email/configuration-sets";
const PATH: &str = "/v2/email/configuration-sets/set/event-destinations";
const TOPIC: &str = "arn:aws:sns:eu-west-1:000000000000:topic";

fn destination(name: &str) -> Value {
    json!({ "EventDestinationName": name, "EventDestination": {
        "Enabled": true,
        "MatchingEventTypes": ["SEND", "DELIVERY"],
        "SnsDestination": { "TopicArn": TOPIC },
    } })
}

async fn put(client: &Client, name: &str, body: &Value) -> (u16, String) {
    let body = serde_json::to_vec(body).unwrap();
    let answer = client.call(client.sign(Method::PUT, &format!("{PATH}/{name}"), &body)).await;
    (answer.status, answer.error.unwrap_or_default())
}

#[tokio::test]
async fn destinations_are_created_read_and_replaced() {
    let (_simulator, client) = start().await;
    let missing = client.post(PATH, &destination("events")).await;
    assert_eq!(missing.refusal(), (404, "NotFoundException"));
    client.post(SETS, &json!({ "ConfigurationSetName": "set" })).await;
    assert_eq!(client.get(PATH).await.body, json!({ "EventDestinations": [] }));

    assert_eq!(client.post(PATH, &destination("events")).await.status, 200);
    let again = client.post(PATH, &destination("events")).await;
    assert_eq!(again.refusal(), (400, "AlreadyExistsException"));
    let expected = json!({ "EventDestinations": [{
        "Name": "events",
        "Enabled": true,
        "MatchingEventTypes": ["SEND", "DELIVERY"],
        "SnsDestination": { "TopicArn": TOPIC },
    }] });
    assert_eq!(client.get(PATH).await.body, expected);

    let mut replaced = destination("events");
    replaced["EventDestination"]["MatchingEventTypes"] = json!(["BOUNCE"]);
    assert_eq!(put(&client, "events", &replaced).await, (200, String::new()));
    let read = client.get(PATH).await.body;
    assert_eq!(read["EventDestinations"][0]["MatchingEventTypes"], json!(["BOUNCE"]));
    let unknown = put(&client, "other", &replaced).await;
    assert_eq!(unknown, (404, "NotFoundException".to_owned()));
}

#[tokio::test]
async fn destinations_that_make_no_sense_are_bad_requests() {
    let (_simulator, client) = start().await;
    client.post(SETS, &json!({ "ConfigurationSetName": "set" })).await;
    let with = |pointer: &str, value: Value| {
        let mut body = destination("events");
        *body.pointer_mut(pointer).unwrap() = value;
        body
    };
    for bad in [
        with("/EventDestinationName", Value::Null),
        with("/EventDestinationName", json!("a b")),
        with("/EventDestination", Value::Null),
        with("/EventDestination/MatchingEventTypes", json!([])),
        with("/EventDestination/MatchingEventTypes", json!(["Bounce"])),
        with("/EventDestination/SnsDestination", Value::Null),
        with("/EventDestination/SnsDestination/TopicArn", json!("topic")),
    ] {
        let answer = client.post(PATH, &bad).await;
        assert_eq!(answer.refusal(), (400, "BadRequestException"), "{bad}");
    }
    for n in 0..10 {
        assert_eq!(client.post(PATH, &destination(&n.to_string())).await.status, 200);
    }
    let eleventh = client.post(PATH, &destination("10")).await;
    assert_eq!(eleventh.refusal(), (400, "LimitExceededException"));
}
