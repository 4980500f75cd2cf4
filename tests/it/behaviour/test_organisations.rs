//! Test organisations: their mail never reaches the provider, and everything else is as it is for
//! others.

use std::time::{Duration, Instant};

use pillarbox_ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};
use pillarbox_simulator::{EventOptions, Events, Fault, Faults, Options};
use serde_json::{Value, json};

use crate::behaviour::operator::metrics;
use crate::events::document;
use crate::kit::{
    Finished, Manager, PATIENCE, Receiver, Reply, Server, Site, SmtpClient, accepted_id, answer,
    message, message_with, refusal,
};

const BOUNCE: &str = "bounce@simulator.amazonses.com";
const SMTP: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";

/// Adds a test organisation with a domain; gives its key.
fn add_test_organisation(site: &Site, name: &str, domain: &str) -> String {
    site.done(&["org", "add", name, "--test"]);
    site.done(&["domain", "add", "--org", name, domain]);
    let output = site.done(&["key", "add", "--org", name, "--json"]);
    let key: Value = serde_json::from_slice(&output.stdout).unwrap();
    key["key"].as_str().unwrap().to_owned()
}

/// The service as the owner of another key sees it.
struct Client {
    base: String,
    key: String,
    http: reqwest::Client,
}

impl Client {
    fn of(server: &Server, key: &str) -> Self {
        Self { base: server.base.clone(), key: key.to_owned(), http: crate::kit::http_client() }
    }

    async fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("{}{path}", self.base)).bearer_auth(&self.key);
        let (status, body) = answer(request.send().await.unwrap()).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    async fn respond(&self, path: &str, body: &Value) -> reqwest::Response {
        let request = self.http.post(format!("{}{path}", self.base)).bearer_auth(&self.key);
        let request = request.header("content-type", "application/json").body(body.to_string());
        request.send().await.unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, body) = answer(self.respond(path, body).await).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    async fn send(&self, body: &Value) -> String {
        self.post("/emails", body).await["id"].as_str().unwrap().to_owned()
    }

    /// Sends so many messages at once.
    async fn send_batch(&self, count: usize) -> Vec<String> {
        let body = json!({ "emails": vec![message(); count] });
        let answered = self.post("/emails/batch", &body).await;
        let all = answered["emails"].as_array().unwrap().iter();
        all.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until a record is as it must be.
    async fn until(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let record = self.get(&format!("/emails/{id}")).await;
            if is_so(&record) {
                return record;
            }
            assert!(Instant::now() < end, "{record}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn until_sent(&self, id: &str) -> Value {
        self.until(id, |record| record["status"] == "sent").await
    }
}

/// Address of the operators' page, and its key.
fn page_of(site: &Site) -> (String, String) {
    let shown = String::from_utf8(site.done(&["status", "--page"]).stdout).unwrap();
    let (page, key) = shown.trim().split_once("/#").unwrap_or_else(|| panic!("{shown}"));
    (page.to_owned(), key.to_owned())
}

/// No call for a test organisation reached the provider. Each real message reached it once.
fn assert_only_real_mail(site: &Site, real: u64) {
    assert_eq!(site.simulator.accepted_by_tag(ORGANISATION_TAG, "staging"), 0);
    assert_eq!(site.simulator.accepted_total(), real);
    assert_eq!(site.simulator.repeated_tags(MESSAGE_ID_TAG), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_of_a_test_organisation_never_reaches_the_provider() {
    let site = Site::with(SMTP, Options::default()).await;
    let key = add_test_organisation(&site, "staging", "example.com");
    let other = site.add_organisation("other", "example.com");
    let receiver = Receiver::start(Reply::Status(200)).await;
    site.done(&["webhook", "add", "--org", "staging", &receiver.url]);
    let server = site.start();
    let (staging, other) = (Client::of(&server, &key), Client::of(&server, &other));

    let id = staging.send(&message()).await;
    let record = staging.until(&id, |record| record["lastEvent"]["type"] == "delivery").await;
    assert_eq!((&record["status"], &record["test"]), (&json!("sent"), &json!(true)));
    let batch = staging.send_batch(20).await;
    let mut smtp = SmtpClient::login(server.process.smtp_listening(), &key).await.unwrap();
    let submission = "From: ann@example.com\r\nSubject: Hello\r\n\r\nHi\r\n";
    let reply = smtp.submit(&["bob@example.org"], submission).await.unwrap();
    let submitted = accepted_id(&reply).unwrap_or_else(|| panic!("{reply}")).to_owned();
    let real = server.send(&message()).await;
    let others = other.send(&message()).await;
    for id in batch.iter().chain([&submitted]) {
        assert_eq!(staging.until_sent(id).await["test"], true);
    }
    // Real mail goes out meanwhile, and has no mark.
    let record = server.wait_for(&real, "sent").await;
    assert_eq!(record.get("test"), None);
    assert_eq!(other.until_sent(&others).await.get("test"), None);
    assert_only_real_mail(&site, 2);

    let list = staging.get("/emails?limit=100").await;
    let all = list["emails"].as_array().unwrap();
    assert_eq!(all.len(), 22);
    assert!(all.iter().all(|record| record["test"] == true), "{list}");
    let feed = staging.get("/events?limit=100").await;
    let entries = feed["events"].as_array().unwrap();
    assert!(entries.iter().all(|entry| entry["test"] == true), "{feed}");
    let feed = answer(server.get("/events").send().await.unwrap()).await.1;
    let entries = feed["events"].as_array().unwrap();
    assert!(!entries.is_empty() && entries.iter().all(|entry| entry.get("test").is_none()));
    let told = receiver.wait_for(2).await;
    assert!(told.iter().all(|event| event.event()["test"] == true), "{told:?}");
    let shown = site.done(&["message", "show", &id, "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["test"], true);

    let metrics = metrics(&server).await;
    assert_eq!(metrics["pillarbox_attempts_total{outcome=\"sent\"}"].to_string(), "2");
    assert_eq!(metrics["pillarbox_test_calls_total"].to_string(), "22");
    let sent = "pillarbox_organisation_sent_messages_total";
    assert_eq!(
        metrics[&format!("{sent}{{organisation=\"staging\",test=\"true\"}}")].to_string(),
        "22"
    );
    assert_eq!(metrics[&format!("{sent}{{organisation=\"acme\"}}")].to_string(), "1");
    assert_eq!(metrics["pillarbox_event_documents_total{type=\"delivery\"}"].to_string(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_bounce_suppresses_in_its_organisation_alone() {
    let site = Site::new().await;
    let key = add_test_organisation(&site, "staging", "example.com");
    let server = site.start();
    let staging = Client::of(&server, &key);
    let id = staging.send(&message_with("to", json!([BOUNCE]))).await;
    staging.until(&id, |record| record["lastEvent"]["type"] == "bounce").await;
    let (status, code, field) =
        refusal(staging.respond("/emails", &message_with("to", json!([BOUNCE]))).await).await;
    assert_eq!((status, &*code, field.as_deref()), (422, "Suppressed", Some("to[0]")));
    let real = server.send(&message_with("to", json!([BOUNCE]))).await;
    server.wait_for(&real, "sent").await;
    // What it bounced concerns nothing at SES.
    let refused = site.run(&["suppression", "remove", "--org", "staging", "--at-ses", BOUNCE]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("is a test organisation"), "{said}");
    site.done(&["suppression", "remove", "--org", "staging", BOUNCE]);
    let again = staging.send(&message_with("to", json!([BOUNCE]))).await;
    staging.until_sent(&again).await;
    assert_only_real_mail(&site, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_up_the_account_does_not_hold_up_a_test_organisation() {
    let more = "[sending]\nmax_in_flight = 1\nretry_initial = \"1h\"\nretry_max = \"1h\"\n";
    let site = Site::with(more, Options::default()).await;
    let key = add_test_organisation(&site, "staging", "example.com");
    let server = site.start();
    let staging = Client::of(&server, &key);
    for fault in [Fault::SendingPaused, Fault::QuotaExhausted, Fault::ExpiredToken, Fault::Down] {
        site.simulator.set_faults(Faults::always(fault));
        let real = server.send(&message()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let test = staging.send(&message()).await;
        let record = staging.until_sent(&test).await;
        assert_eq!(record["error"], Value::Null);
        let record = server.record(&real).await;
        assert_ne!(record["status"], "sent", "{fault:?}: {record}");
    }
    assert_only_real_mail(&site, 0);
    let metrics = metrics(&server).await;
    assert_eq!(metrics["pillarbox_test_calls_total"].to_string(), "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn its_calls_take_none_of_the_slots_and_none_of_the_pace() {
    let more = "[sending]\nmax_in_flight = 2\nmax_rate = 2\n";
    let site = Site::with(more, Options::default()).await;
    let key = add_test_organisation(&site, "staging", "example.com");
    let second = site.add_organisation("second", "example.com");
    let server = site.start();
    let (staging, second) = (Client::of(&server, &key), Client::of(&server, &second));
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.extend(staging.send_batch(100).await);
    }
    let start = Instant::now();
    let (real, other) = (server.send(&message()).await, second.send(&message()).await);
    server.wait_for(&real, "sent").await;
    second.until_sent(&other).await;
    let took = start.elapsed();
    for id in &ids {
        staging.until_sent(id).await;
    }
    // At the account's pace it would be two and a half minutes.
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
    assert!(took < Duration::from_secs(5), "real mail waited for {took:?}");
    assert_only_real_mail(&site, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_pending_at_a_kill_or_a_restart_goes_to_the_simulator_all_the_same() {
    let site = Site::new().await;
    let key = add_test_organisation(&site, "staging", "example.com");
    let removed = add_test_organisation(&site, "removed", "example.com");
    let manager = Manager::of(&site, 2, Vec::new());
    let mut server = manager.start(&site);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let staging = Client::of(&server, &key);
        for _ in 0..3 {
            ids.extend(staging.send_batch(100).await);
        }
        server.kill();
        server = manager.start(&site);
    }
    let staging = Client::of(&server, &key);
    ids.extend(staging.send_batch(100).await);
    Finished::run(site.command(&["restart", "--json"])).await.json();
    for id in &ids {
        // A call that a kill cut off is one whose answer was lost.
        staging.until_sent(id).await;
    }
    // Those of an organisation that is removed end without a call.
    let gone = Client::of(&server, &removed);
    for _ in 0..5 {
        gone.send_batch(100).await;
    }
    site.done(&["org", "remove", "removed"]);
    server.kill();
    let server = manager.start(&site);
    let real = server.send(&message()).await;
    server.wait_for(&real, "sent").await;
    assert_eq!(site.simulator.accepted_by_tag(ORGANISATION_TAG, "removed"), 0);
    assert_only_real_mail(&site, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ses_is_asked_nothing_about_its_domains() {
    let site = Site::empty("", Options::default()).await;
    let server = site.start();
    server.ready().await;
    let calls = site.simulator.calls_total();
    site.done(&["org", "add", "staging", "--test"]);
    let added = site.done(&["domain", "add", "--org", "staging", "staging.example", "--json"]);
    let added: Value = serde_json::from_slice(&added.stdout).unwrap();
    assert_eq!((&added["state"], &added["test"]), (&json!("assumed"), &json!(true)));
    assert_eq!(added["dnsRecords"], json!([]));
    let run = |arguments: &[&str]| {
        let refused = site.run(arguments);
        assert!(!refused.status.success(), "{refused:?}");
        String::from_utf8(refused.stderr).unwrap()
    };
    let said = run(&["domain", "check", "staging.example"]);
    assert!(said.contains("only test organisations have the domain"), "{said}");
    let mail_from =
        ["domain", "add", "--org", "staging", "a.example", "--mail-from", "b.a.example"];
    assert!(run(&mail_from).contains("is a test organisation"));
    site.done(&["domain", "remove", "--org", "staging", "staging.example"]);
    assert_eq!(site.simulator.calls_total(), calls, "SES was asked");

    // Its domains show nothing of the set-up at SES.
    site.done(&["domain", "add", "--org", "staging", "example.com"]);
    let examined = Finished::run(site.command(&["doctor", "--json", "--send"])).await;
    let examined: Value = serde_json::from_str(&examined.out).unwrap();
    let checks = examined["checks"].as_array().unwrap();
    let of = |about: &str| checks.iter().find(|check| check["about"] == about);
    assert_eq!(of("domain example.com"), None, "{examined}");
    let sending = of("sending").unwrap()["message"].as_str().unwrap();
    assert!(sending.contains("there is no verified domain"), "{sending}");
    // A real organisation's domain of the same name is asked about, and changes nothing of it.
    site.done(&["org", "add", "acme"]);
    site.done(&["domain", "add", "--org", "acme", "example.com"]);
    site.simulator.remove_identity("example.com");
    let checked = site.done(&["domain", "check", "example.com", "--json"]);
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let states: Vec<_> = checked["domains"].as_array().unwrap().iter().collect();
    assert_eq!(states.len(), 2);
    for domain in states {
        let expected = if domain["organisation"] == "staging" { "assumed" } else { "pending" };
        assert_eq!(domain["state"], expected, "{domain}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_ses_with_its_tag_is_set_aside() {
    let events = Events::On(EventOptions::default());
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    let key = add_test_organisation(&site, "staging", "example.com");
    let server = site.start();
    let staging = Client::of(&server, &key);
    let id = staging.send(&message()).await;
    staging.until(&id, |record| record["lastEvent"]["type"] == "delivery").await;
    let mut complaint = document::about(id.parse().unwrap(), "event-complaint-record.json");
    complaint["mail"]["tags"][ORGANISATION_TAG] = json!(["staging"]);
    complaint["complaint"]["complainedRecipients"] = json!([{ "emailAddress": "bob@example.org" }]);
    site.simulator.publish(complaint.to_string()).unwrap();
    let end = Instant::now() + PATIENCE;
    let letters = loop {
        let listed = site.done(&["dead-letter", "list", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        let letters = listed["deadLetters"].as_array().unwrap().clone();
        if !letters.is_empty() {
            break letters;
        }
        assert!(Instant::now() < end, "{listed}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let reason = letters[0]["reason"].as_str().unwrap();
    assert!(reason.contains("names a test organisation"), "{reason}");
    let record = staging.get(&format!("/emails/{id}")).await;
    assert_eq!(record["lastEvent"]["type"], "delivery");
    let sent = staging.send(&message()).await;
    staging.until_sent(&sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_mail_is_shown_to_operators_if_they_ask_for_it() {
    let site = Site::with("[test]\ncapture = true\n", Options::default()).await;
    let key = add_test_organisation(&site, "staging", "example.com");
    let other = add_test_organisation(&site, "trial", "example.com");
    let server = site.start();
    let (staging, trial) = (Client::of(&server, &key), Client::of(&server, &other));
    let ids = staging.send_batch(100).await;
    let more = staging.send_batch(100).await;
    let last = staging.send(&message_with("subject", json!("The last"))).await;
    let others = trial.send(&message()).await;
    let real = server.send(&message()).await;
    server.wait_for(&real, "sent").await;
    for id in ids.iter().chain(&more).chain([&last]) {
        staging.until_sent(id).await;
    }
    trial.until_sent(&others).await;
    let (page, page_key) = page_of(&site);
    let read = |path: String| {
        let request = crate::kit::http_client().get(format!("{page}{path}"));
        let request = request.bearer_auth(&page_key);
        async move { answer(request.send().await.unwrap()).await.1 }
    };
    let list = read("/page/caught?organisation=staging".to_owned()).await;
    let messages = list["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 200);
    assert!(messages.iter().all(|one| one["organisation"] == "staging"));
    assert_eq!(list["organisations"], json!(["staging", "trial"]));
    let found = messages.iter().find(|one| one["message"] == last.as_str()).unwrap();
    assert_eq!(found["subject"], "The last");
    let caught = read(format!("/page/caught/{}", found["id"].as_str().unwrap())).await;
    assert_eq!(caught["text"], "How are you?");
    let list = read("/page/caught?organisation=trial".to_owned()).await;
    assert_eq!(list["messages"][0]["message"], others.as_str());
    let all = read("/page/caught".to_owned()).await;
    assert!(all["messages"].as_array().unwrap().iter().all(|one| one["message"] != real.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_captured_unless_it_is_asked_for() {
    let site = Site::new().await;
    let key = add_test_organisation(&site, "staging", "example.com");
    let server = site.start();
    let staging = Client::of(&server, &key);
    let id = staging.send(&message()).await;
    staging.until_sent(&id).await;
    let (page, page_key) = page_of(&site);
    let request = crate::kit::http_client().get(format!("{page}/page/caught"));
    let response = request.bearer_auth(&page_key).send().await.unwrap();
    assert_eq!(response.status(), 404);
}
