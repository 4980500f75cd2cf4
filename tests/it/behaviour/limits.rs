//! Limits of organisations: HTTP, batch, SMTP, what is said of them, and the clock.

use std::time::Duration;

use pillarbox_domain::organisation::Limits;
use pillarbox_simulator::Options;
use reqwest::header::RETRY_AFTER;
use serde_json::{Value, json};

use crate::kit::{
    self, LocalService, NOON, Server, Site, SmtpClient, answer, codes, message, message_with,
};

const LISTEN: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";
const SECOND: Duration = Duration::from_secs(1);

fn to(count: usize) -> Value {
    let to: Vec<_> = (0..count).map(|number| format!("bob{number}@example.org")).collect();
    message_with("to", json!(to))
}

/// Posts to a path, and returns the status, the wait that the answer asks for, and the error.
async fn post(server: &Server, path: &str, body: &Value) -> (u16, Option<u64>, Value) {
    post_as(server, &server.key, path, body).await
}

async fn post_as(
    server: &Server,
    key: &str,
    path: &str,
    body: &Value,
) -> (u16, Option<u64>, Value) {
    let request = server.client.post(format!("{}{path}", server.base)).bearer_auth(key);
    let request = request.header("content-type", "application/json").body(body.to_string());
    let response = request.send().await.unwrap();
    let wait = response.headers().get(RETRY_AFTER);
    let wait = wait.map(|wait| wait.to_str().unwrap().parse().unwrap());
    let (status, body) = answer(response).await;
    (status.as_u16(), wait, body["error"].clone())
}

async fn usage(server: &Server) -> Value {
    let (status, usage) = answer(server.get("/usage").send().await.unwrap()).await;
    assert_eq!(status, 200, "{usage}");
    usage
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_a_day_holds_for_every_way_in() {
    let site = Site::with(LISTEN, Options::default()).await;
    let server = site.start();
    let smtp = server.process.smtp_listening();
    let submit = async |recipients: &[&str]| {
        let mut client = SmtpClient::login(&smtp, &server.key).await.unwrap();
        let message = "From: ann@example.com\r\nSubject: Hello\r\n\r\nHi\r\n";
        let reply = client.submit(recipients, message).await.unwrap();
        codes(&reply)
    };
    let beta = site.add_organisation("beta", "beta.example");
    // What came before the limit counts.
    assert_eq!(post(&server, "/emails", &to(2)).await.0, 200);
    site.done(&["org", "limit", "acme", "--per-day", "10", "--per-month", "1000"]);
    let mut keyed = to(3);
    keyed["idempotencyKey"] = json!("once");
    assert_eq!(post(&server, "/emails", &keyed).await.0, 200);

    let (status, wait, error) = post(&server, "/emails", &to(6)).await;
    assert_eq!((status, error["code"].as_str()), (429, Some("QuotaExceeded")), "{error}");
    assert!(wait.is_some_and(|wait| (1..=3_600).contains(&wait)), "{wait:?}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("10 recipients in one day") && said.contains("5 left"), "{said}");
    assert!(said.contains("T00:00:00.000Z"), "it says when: {said}");
    let (status, wait, error) = post(&server, "/emails", &to(11)).await;
    assert_eq!((status, wait), (429, None), "alone larger than the limit: {error}");

    // A batch is one request: all of it or nothing.
    let batch = json!({ "emails": [to(3), to(3)] });
    let (status, wait, error) = post(&server, "/emails/batch", &batch).await;
    assert_eq!(
        (status, wait.is_some(), error["code"].as_str()),
        (429, true, Some("QuotaExceeded"))
    );
    assert!(error["field"].is_null(), "{error}");
    let batch = json!({ "emails": [keyed, to(2), to(1)] });
    assert_eq!(post(&server, "/emails/batch", &batch).await.0, 200, "a replay is free");
    assert_eq!(submit(&["a@x.org", "b@x.org", "c@x.org"]).await, "451 4.7.1");
    assert_eq!(submit(&["a@x.org", "b@x.org"]).await, "250 2.0.0");
    assert_eq!(submit(&["a@x.org"]).await, "451 4.7.1");
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("pillarbox_smtp_refusals_total{code=\"451 4.7.1\"} 2"), "{metrics}");
    let many: Vec<String> = (0..11).map(|number| format!("a{number}@x.org")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(submit(&many).await, "550 5.7.1");
    assert_eq!(post(&server, "/emails", &keyed).await.0, 200, "a replay at the limit");
    // What comes before the limit in the order of checks.
    let (status, _, error) =
        post(&server, "/emails", &message_with("from", json!("a@b.org"))).await;
    assert_eq!((status, error["code"].as_str()), (422, Some("UnverifiedDomain")));

    let used = usage(&server).await;
    assert_eq!(used["day"]["limit"], 10, "{used}");
    assert_eq!((&used["day"]["used"], &used["month"]["used"]), (&json!(10), &json!(10)));
    assert_eq!((&used["month"]["limit"], &used["hour"]["limit"]), (&json!(1000), &Value::Null));
    assert!(used["minute"]["endsAt"].is_string(), "{used}");
    // Others have nothing of it.
    let of_beta = message_with("from", json!("a@beta.example"));
    assert_eq!(post_as(&server, &beta, "/emails", &of_beta).await.0, 200);

    let status = site.run(&["status"]);
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(said.contains("acme has used 10 of the 10 recipients"), "{said}");
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    let ratio = "pillarbox_organisation_limit_ratio{organisation=\"acme\",period=\"day\"} 1";
    assert!(metrics.contains(ratio), "{metrics}");
    let listed = String::from_utf8(site.done(&["org", "list"]).stdout).unwrap();
    assert!(listed.contains("10/day, 1000/month"), "{listed}");
    let csv = String::from_utf8(site.done(&["org", "usage", "--csv"]).stdout).unwrap();
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines[0], "month,organisation,recipients");
    assert!(lines[1].ends_with(",acme,10") && lines[2].ends_with(",beta,1"), "{csv}");

    // One limit goes, the other stays; then both.
    site.done(&["org", "limit", "acme", "--per-day", "none"]);
    assert_eq!(post(&server, "/emails", &to(2)).await.0, 200);
    site.done(&["org", "limit", "acme", "--per-minute", "5", "--none"]);
    let json = site.done(&["org", "list", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["organisations"][0]["limits"], json!({ "perMinute": 5 }));
    site.done(&["org", "limit", "acme", "--none"]);
    assert_eq!(post(&server, "/emails", &to(50)).await.0, 200);
    for bad in [&["--per-day", "0"][..], &["--per-day", "-1"], &["--per-hour", "many"]] {
        let refused = site.run(&[&["org", "limit", "acme"], bad].concat());
        assert!(refused.status.code().is_some_and(|code| code > 0), "{bad:?}");
    }
    assert_eq!(site.run(&["org", "limit", "acme"]).status.code(), Some(2), "nothing is named");
    assert_eq!(site.run(&["org", "usage", "--month", "2026-13"]).status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_period_ends_when_the_answer_says_and_none_begins_twice() {
    let local = LocalService::start(Options::default(), |_, _| {}).await;
    let store = local.service.store();
    let acme = store.organisation(&"acme".parse().unwrap()).unwrap().id;
    let limits = Limits { per_minute: Some(2), per_month: Some(100), ..Limits::NONE };
    store.change_organisation(acme, move |one| one.limits = limits).await.unwrap().unwrap();
    let send = async || {
        let url = format!("http://{}/emails", local.service.address());
        let request = local.client.post(url).bearer_auth(local.key.reveal());
        let request = request.header("content-type", "application/json");
        let response = request.body(message().to_string()).send().await.unwrap();
        let wait = response.headers().get(RETRY_AFTER);
        let wait = wait.map(|wait| wait.to_str().unwrap().parse::<u64>().unwrap());
        (response.status().as_u16(), wait)
    };
    let used = async |period: &str| {
        let (_, usage) = kit::get(&local.client, &local.service, &local.key, "/usage").await;
        usage[period]["used"].as_u64().unwrap()
    };
    local.clock.advance(Duration::from_millis(12_300));
    assert_eq!((send().await.0, send().await.0), (200, 200));
    let (status, wait) = send().await;
    assert_eq!((status, wait), (429, Some(48)), "47.7 s to the minute's end");
    local.clock.advance(Duration::from_millis(47_699));
    assert_eq!(send().await, (429, Some(1)));
    local.clock.advance(Duration::from_millis(1));
    assert_eq!(send().await.0, 200);
    assert_eq!((used("minute").await, used("hour").await), (1, 3));
    // A clock that jumps by a week is in doubt: minutes go on, and the month's use stays.
    local.clock.set(NOON.plus(Duration::from_hours(7 * 24)));
    assert_eq!(send().await.0, 200);
    assert_eq!(send().await.0, 429);
    local.clock.advance(60 * SECOND);
    assert_eq!(send().await.0, 200, "a minute has passed, whatever the wall clock says");
    assert_eq!(used("month").await, 5);
}
