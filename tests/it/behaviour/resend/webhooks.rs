//! Endpoints that receive Resend's form.

use std::time::{Duration, Instant};

use pillarbox_simulator::{EventOptions, Events, Options};
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Receiver, Reply, Site, message_with};

async fn site() -> Site {
    let events = Events::On(EventOptions::after(Duration::from_millis(20)));
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    site
}

fn add(site: &Site, url: &str, more: &[&str]) -> Value {
    let command = ["webhook", "add", "--org", "acme", "--json", url];
    serde_json::from_slice(&site.done(&[&command[..], more].concat()).stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_gets_resends_events_and_headers_and_others_stay_as_they_are() {
    let site = site().await;
    let server = site.start();
    let (resend, own) =
        (Receiver::start(Reply::Status(200)).await, Receiver::start(Reply::Status(200)).await);
    let added =
        add(&site, &resend.url, &["--format", "resend", "--types", "email.bounced,email.failed"]);
    add(&site, &own.url, &["--types", "email.bounce"]);
    let listed: Value =
        serde_json::from_slice(&site.done(&["webhook", "list", "--json"]).stdout).unwrap();
    let formats: Vec<_> =
        listed["webhooks"].as_array().unwrap().iter().map(|one| &one["format"]).collect();
    assert_eq!(formats, ["resend", "standard"]);
    assert_eq!(
        listed["webhooks"][0]["types"],
        json!(["email.failed", "email.bounce", "email.reject"])
    );

    let to = json!(["success@simulator.amazonses.com", "bounce@simulator.amazonses.com"]);
    let mut body = message_with("to", to);
    body["metadata"] = json!({ "order": "1815" });
    let id = server.send(&body).await;
    let told = resend.wait_for(1).await.remove(0);
    assert_eq!(told.svix, [told.id.clone(), told.timestamp.clone(), told.signature.clone()]);
    assert!(told.is_signed_by(added["secret"].as_str().unwrap()));
    let event = told.event();
    assert_eq!(event["type"], "email.bounced");
    let data = &event["data"];
    assert_eq!((&data["email_id"], &data["tags"]), (&json!(id), &json!({ "order": "1815" })));
    assert_eq!(data["to"], json!(["bounce@simulator.amazonses.com"]));
    assert_eq!(data["bounce"]["type"], "Permanent");
    let own = own.wait_for(1).await.remove(0);
    assert_eq!(
        (own.event()["type"].clone(), own.svix),
        (json!("email.bounce"), <[String; 3]>::default())
    );
    let end = Instant::now() + PATIENCE;
    while resend.count() < 2 {
        site.done(&["webhook", "test", "1"]);
        assert!(Instant::now() < end);
    }
    let test = resend.received().pop().unwrap().event();
    assert_eq!((&test["type"], &test["data"]), (&json!("email.test"), &json!({})));
}

#[tokio::test]
async fn forms_and_types_that_do_not_exist_are_refused() {
    let site = Site::new().await;
    let add = |more: &[&str]| {
        let command = ["webhook", "add", "--org", "acme", "http://127.0.0.1:9/"];
        let output = site.run(&[&command[..], more].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = add(&["--format", "svix"]);
    assert!(code == 2 && said.contains("standard"), "{said}");
    assert_eq!(add(&["--format", "resend", "--types", "email.opened"]).0, 1);
    assert_eq!(add(&["--types", "email.bounced"]).0, 1);
}
