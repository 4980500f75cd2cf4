//! `aws setup` against moto, twice, and events that go the way which it made.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::MotoSite;
use crate::kit::{Finished, PATIENCE, answer};

impl MotoSite {
    async fn set_up(&self) -> (Finished, Vec<(String, String)>) {
        let finished = Finished::run(self.site.command(&["aws", "setup", "--json"])).await;
        let answer: Value =
            serde_json::from_str(&finished.out).unwrap_or_else(|_| panic!("{finished:?}"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let steps = answer["steps"].as_array().unwrap();
        let steps = steps.iter().map(|step| (text(&step["what"]), text(&step["result"])));
        (finished, steps.collect())
    }

    fn configuration(&self) -> String {
        std::fs::read_to_string(self.site.config()).unwrap()
    }

    /// Ends the service and starts it on the configuration as it is now.
    fn restart(&mut self) {
        drop(self.server.take());
        self.server = Some(self.site.start());
    }

    /// Publishes through moto's SNS, as SES would.
    async fn publish(&self, event: &Value) {
        let form = format!(
            "Action=Publish&Version=2010-03-31&TopicArn={}&Message={}",
            "arn%3Aaws%3Asns%3Aeu-west-1%3A123456789012%3Apillarbox",
            form_urlencoded::byte_serialize(event.to_string().as_bytes()).collect::<String>()
        );
        let answer = self
            .client
            .post(&self.moto)
            .header("content-type", "application/x-www-form-urlencoded")
            // moto finds the service and the region here, and checks nothing.
            .header(
                "authorization",
                "AWS4-HMAC-SHA256 Credential=interop/20261121/eu-west-1/sns/aws4_request, \
                 SignedHeaders=host, Signature=0",
            )
            .body(form)
            .send()
            .await
            .unwrap();
        let status = answer.status();
        assert!(status.is_success(), "{status}: {}", answer.text().await.unwrap());
    }

    async fn get(&self, path: &str) -> Value {
        answer(self.server().get(path).send().await.unwrap()).await.1
    }

    async fn post(&self, message: &Value) -> Value {
        answer(self.server().post(message).send().await.unwrap()).await.1
    }
}

#[tokio::test]
async fn events_arrive_by_the_way_that_aws_setup_made() {
    let mut place = MotoSite::new().await;
    // The identity is made at moto, which verifies no domain: the operator vouches for it.
    place.command(&["domain", "add", "--org", "acme", "example.com"]).await;
    place.command(&["domain", "add", "--org", "acme", "example.com", "--assume-verified"]).await;

    let (output, steps) = place.set_up().await;
    let lacking = ("event destination".to_owned(), "skipped".to_owned());
    for (what, result) in &steps {
        let lacks = *what == lacking.0;
        let done = matches!(result.as_str(), "found" | "created" | "completed");
        assert!(done != lacks, "{what}: {output:?}");
    }
    assert!(steps.contains(&lacking), "moto has no event destinations: {output:?}");
    assert_eq!(output.code, 1, "and so the set-up is not complete");
    let configuration = place.configuration();
    assert!(configuration.contains("queue_url = \"http://127.0.0.1:"), "{configuration}");

    let (output, steps) = place.set_up().await;
    for (what, result) in &steps {
        let expected = if what == "event destination" { "skipped" } else { "found" };
        assert_eq!(result, expected, "{what}: {output:?}");
    }
    assert_eq!(place.configuration(), configuration);

    place.restart();
    let message = json!({
        "from": "ann@example.com", "to": ["bob@example.org", "cy@example.org"],
        "subject": "Events", "text": "x",
    });
    let id = place.post(&message).await["id"].as_str().unwrap().to_owned();
    let path = format!("/emails/{id}");
    let record = until(|| place.get(&path), |it| it["status"] == "sent").await;
    let sent = place.sent.lock().unwrap().last().unwrap().clone();
    assert_eq!(sent["ConfigurationSetName"], "pillarbox");
    let mail = mail(&sent, &record);
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let delivery = json!({
        "eventType": "Delivery", "mail": mail,
        "delivery": {
            "timestamp": now, "processingTimeMillis": 11893, "recipients": ["bob@example.org"],
            "smtpResponse": "250 2.6.0 Message received", "reportingMTA": "mta.example.com",
        },
    });
    let bounce = json!({
        "eventType": "Bounce", "mail": mail,
        "bounce": {
            "bounceType": "Permanent", "bounceSubType": "General",
            "bouncedRecipients": [{
                "emailAddress": "cy@example.org", "action": "failed", "status": "5.1.1",
                "diagnosticCode": "smtp; 550 5.1.1 user unknown",
            }],
            "timestamp": now, "feedbackId": "01000157c44f053b-61b59c11-9236-11e6-8f96-000000",
            "reportingMTA": "dsn; mta.example.com",
        },
    });
    place.publish(&delivery).await;
    place.publish(&bounce).await;

    let count = |it: &Value| it["events"].as_array().map_or(0, Vec::len);
    let path = format!("/emails/{id}/events");
    let events = until(|| place.get(&path), |it| count(it) == 2).await;
    let recipients = |kind: &str| {
        let mut all = events["events"].as_array().unwrap().iter();
        all.find(|one| one["type"] == kind).map(|one| one["recipients"].clone())
    };
    assert_eq!(recipients("delivery"), Some(json!(["bob@example.org"])), "{events}");
    assert_eq!(recipients("bounce"), Some(json!(["cy@example.org"])), "{events}");
    let refused = place.post(&message).await;
    assert_eq!(refused["error"]["code"], "Suppressed", "{refused}");
    assert_eq!(refused["error"]["field"], "to[1]", "the one that bounced, alone: {refused}");
}

/// Field `mail` of each event of a message.
fn mail(sent: &Value, record: &Value) -> Value {
    let tags = sent["EmailTags"].as_array().unwrap().iter();
    let mut tags: serde_json::Map<String, Value> =
        tags.map(|tag| (tag["Name"].as_str().unwrap().to_owned(), json!([tag["Value"]]))).collect();
    tags.insert("ses:configuration-set".to_owned(), json!(["pillarbox"]));
    json!({
        "timestamp": record["sentAt"], "source": "ann@example.com",
        "sourceArn": "arn:aws:ses:eu-west-1:123456789012:identity/example.com",
        "sendingAccountId": "123456789012", "messageId": record["sesMessageId"],
        "destination": record["to"], "headersTruncated": false, "headers": [],
        "commonHeaders": { "subject": "Events" }, "tags": tags,
    })
}

/// Asks until the answer is as it should be.
async fn until<F: Future<Output = Value>>(
    ask: impl Fn() -> F,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if is_so(&answer) {
            return answer;
        }
        assert!(Instant::now() < end, "{answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
