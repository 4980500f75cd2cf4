//! One text finds a message by each of its names, on the command line and on the page; and
//! operators stay signed in.

use std::fs;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{COOKIE, HeaderMap, ORIGIN, RETRY_AFTER, SET_COOKIE};
use serde_json::{Value, json};

use crate::kit::{Server, Site, answer, is_on_postgres, message_with};

/// Reads what the page reads, by its key.
async fn read(site: &Site, server: &Server, path: &str) -> Value {
    let output = site.done(&["status", "--page"]);
    let url = String::from_utf8(output.stdout).unwrap();
    let key = url.trim().split_once('#').unwrap().1.to_owned();
    let request = server.client.get(format!("{}{path}", server.operator)).bearer_auth(key);
    let (status, body) = answer(request.send().await.unwrap()).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    body
}

fn ids(listing: &Value) -> Vec<String> {
    let messages = listing["messages"].as_array().unwrap().iter();
    messages.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_text_finds_a_message_by_each_of_its_names() {
    let site = Site::new().await;
    let server = site.start();
    for number in 0..5 {
        server.send(&message_with("subject", json!(format!("Other {number}")))).await;
    }
    let mut wanted = message_with("subject", json!("Your invoice 1815"));
    wanted["to"] = json!(["Ada <Ada@lost.example>"]);
    wanted["metadata"] = json!({ "order": "18:15" });
    wanted["idempotencyKey"] = json!("invoice/1815 of Ada");
    // The beginning of an id contains its millisecond.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let id = server.send(&wanted).await;
    let sent = server.wait_for(&id, "sent").await;
    let ses_id = sent["sesMessageId"].as_str().unwrap().to_owned();

    let exact = [id.clone(), id.to_uppercase(), id[..16].to_owned(), ses_id.clone()];
    let key = "invoice/1815 of Ada".to_owned();
    let scanned = [&id[28..], &id[20..], "ADA@LOST", "lost.example", "1815 invoice", "order:18:15"];
    let exact = exact.into_iter().chain([key]).map(|text| (text, true));
    let scanned = scanned.into_iter().map(|text| (text.to_owned(), false));
    for (text, is_exact) in exact.chain(scanned) {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("search", &text)
            .append_pair("organisation", "acme")
            .finish();
        let page = read(&site, &server, &format!("/page/messages?{query}")).await;
        assert_eq!(ids(&page), std::slice::from_ref(&id), "{text}: {page}");
        assert_eq!(page["exact"] == true, is_exact, "{text}: {page}");
        let output = site.done(&["message", "list", "--search", &text, "--json"]);
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(ids(&listed), std::slice::from_ref(&id), "{text}");
    }
    for none in ["invoice/1816", "order:18", &id[..13], "nobody@"] {
        let output = site.done(&["message", "list", "--search", none, "--json"]);
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!ids(&listed).contains(&id) || none == &id[..13], "{none}: {listed}");
    }
    // What begins alike, as the ids of a batch do, is a list, and is counted as one.
    let batch = json!({ "emails": vec![message_with("subject", json!("In a batch")); 3] });
    let request = server.client.post(format!("{}/emails/batch", server.base));
    let request = request.bearer_auth(&server.key).header("content-type", "application/json");
    let batch = answer(request.body(batch.to_string()).send().await.unwrap()).await.1;
    let batch = batch["emails"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap());
    let batch: Vec<_> = batch.collect();
    let begins = &batch[0][..16];
    let alike: Vec<_> = batch.iter().rev().filter(|id| id.starts_with(begins)).copied().collect();
    let page = read(&site, &server, &format!("/page/messages?search={begins}")).await;
    assert_eq!(ids(&page), alike, "{page}");
    assert_eq!(page["exact"] == true, alike.len() == 1, "{page}");
    let output = site.done(&["message", "list", "--count", "--search", begins, "--json"]);
    let counted: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = counted["counts"]["acme"].as_object().unwrap().values().filter_map(Value::as_u64);
    assert_eq!(all.sum::<u64>(), alike.len() as u64, "{counted}");
    // All are counted, by outcome.
    let output = site.done(&["message", "list", "--count", "--search", "example.com", "--json"]);
    let counted: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all: u64 =
        counted["counts"]["acme"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(all, 9, "{counted}");

    // The shown message has the key and the place of the match.
    let shown = read(&site, &server, &format!("/page/messages/{id}")).await;
    if !is_on_postgres() {
        assert_eq!(shown["idempotencyKey"], "invoice/1815 of Ada");
    }
    assert_eq!(shown["timeline"][0]["what"], "accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_opens_the_page_and_goes_on_doing_so_after_a_restart() {
    const PASSWORD: &str = "correct horse battery";
    let site = Site::new().await;
    let file = site.directory().join("password");
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let variables = [("PILLARBOX_OPERATOR_PASSWORD_FILE", file.to_str().unwrap())];
    let server = site.start_with(&variables);
    let session = format!("{}/page/session", server.operator);
    let state = async |server: &Server| {
        let url = format!("{}/page/session", server.operator);
        answer(server.client.get(url).send().await.unwrap()).await.1
    };
    assert_eq!(state(&server).await, json!({ "open": false, "password": true }));

    let try_one = async |password: &'static str, origin: &str| {
        let post = server.client.post(&session).header(ORIGIN, origin).body(password);
        post.send().await.unwrap()
    };
    let own = server.operator.clone();
    assert_eq!(try_one(PASSWORD, "http://elsewhere.example").await.status(), 403);
    let signed_in = try_one(PASSWORD, &own).await;
    assert_eq!(signed_in.status(), 200);
    let cookie = cookie_of(signed_in.headers());
    for _ in 0..10 {
        assert_eq!(try_one("a wrong password", &own).await.status(), 403);
    }
    let refused = try_one(PASSWORD, &own).await;
    assert_eq!(
        (refused.status(), &refused.headers()[RETRY_AFTER]),
        (StatusCode::TOO_MANY_REQUESTS, &"60".parse().unwrap())
    );

    let listed = async |server: &Server, cookie: &str| {
        let url = format!("{}/page/messages", server.operator);
        server.client.get(url).header(COOKIE, cookie).send().await.unwrap().status()
    };
    assert_eq!(listed(&server, &cookie).await, 200);
    assert_eq!(listed(&server, "pillarbox-page=1.a").await, 401);
    server.terminate().await;
    let server = site.start_with(&variables);
    assert_eq!(listed(&server, &cookie).await, 200, "a restart locks nobody out");
    server.terminate().await;

    // Off by default, and another password ends all sign-ins.
    let server = site.start();
    assert_eq!(state(&server).await, json!({ "open": false, "password": false }));
    assert_eq!(listed(&server, &cookie).await, 401);
    server.terminate().await;
    fs::write(&file, "another password than that").unwrap();
    let server = site.start_with(&variables);
    assert_eq!(listed(&server, &cookie).await, 401);
}

/// The cookie that an answer sets, as a browser sends it back.
fn cookie_of(headers: &HeaderMap) -> String {
    let set = headers[SET_COOKIE].to_str().unwrap();
    assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
    set.split(';').next().unwrap().to_owned()
}
