//! Messages that the simulator of `dev` caught, on the operators' page from outside of a browser; a
//! service with a real provider shows none.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::behaviour::dev::Dev;
use crate::kit::{Site, answer, message};

const HTML: &str = "<p>Grüße</p><script>alert(1)</script><LINK rel=preconnect href=//a.example>";

fn get(dev: &Dev, path: &str) -> RequestBuilder {
    dev.client.get(format!("{}{path}", dev.page.0))
}

async fn read(dev: &Dev, path: &str) -> Value {
    let response = get(dev, path).bearer_auth(&dev.page.1).send().await.unwrap();
    let (status, body) = answer(response).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    body
}

async fn send(dev: &Dev, message: Value) -> Value {
    let (status, answered) = dev.post(message.to_string()).await;
    assert_eq!(status, 200, "{answered}");
    // Its event says that it was caught.
    dev.until_event(&answered["id"]).await
}

#[tokio::test]
async fn dev_shows_what_would_have_been_sent_the_newest_first() {
    let dev = Dev::start(&[]);
    assert_eq!(read(&dev, "/page/caught").await, json!({ "messages": [], "organisations": [] }));
    let first = send(
        &dev,
        json!({
            "from": "shop@example.com", "to": ["ada@example.net"], "cc": ["cy@example.net"],
            "bcc": ["bo@example.net"], "reply_to": "help@example.com", "subject": "First",
            "html": HTML, "text": "Grüße", "headers": { "X-Order": "17" },
        }),
    )
    .await;
    let second = send(
        &dev,
        json!({
            "from": "shop@example.com", "to": ["ada@example.net"], "subject": "Second", "text": "x",
        }),
    )
    .await;
    let list = read(&dev, "/page/caught").await;
    let ids: Vec<_> = list["messages"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, [&second["sesMessageId"], &first["sesMessageId"]]);
    assert_eq!(list["messages"][1]["subject"], "First");
    assert_eq!(list["messages"][1]["html"], Value::Null, "a list has no bodies");

    let id = ids[1].as_str().unwrap();
    let caught = read(&dev, &format!("/page/caught/{id}")).await;
    for (field, expected) in [
        ("from", json!("shop@example.com")),
        ("to", json!(["ada@example.net"])),
        ("cc", json!(["cy@example.net"])),
        ("bcc", json!(["bo@example.net"])),
        ("replyTo", json!(["help@example.com"])),
        ("headers", json!([["X-Order", "17"]])),
        ("text", json!("Grüße")),
        ("html", json!(HTML)),
        ("message", first["id"].clone()),
    ] {
        assert_eq!(caught[field], expected, "{field}");
    }
    let plain = read(&dev, &format!("/page/caught/{}", ids[0].as_str().unwrap())).await;
    assert_eq!((&plain["html"], &plain["frame"]), (&Value::Null, &Value::Null));
    let gone = get(&dev, "/page/caught/x").bearer_auth(&dev.page.1).send().await.unwrap();
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_frame_opens_by_its_ticket_alone_and_may_do_nothing() {
    let dev = Dev::start(&[]);
    let record = send(
        &dev,
        json!({
            "from": "shop@example.com", "to": ["ada@example.net"], "subject": "x", "html": HTML,
        }),
    )
    .await;
    let id = record["sesMessageId"].as_str().unwrap();
    let caught = read(&dev, &format!("/page/caught/{id}")).await;
    let frame = caught["frame"].as_str().unwrap();
    assert!(!frame.contains(&dev.page.1), "the key is in an address");

    let response = get(&dev, frame).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let headers = response.headers().clone();
    let policy = headers["content-security-policy"].to_str().unwrap();
    let mut rules: Vec<_> = policy.split(';').map(str::trim).collect();
    rules.sort_unstable();
    assert_eq!(
        rules,
        [
            "base-uri 'none'",
            "default-src 'none'",
            "form-action 'none'",
            "frame-ancestors 'self'",
            "img-src data:",
            "sandbox",
            "style-src 'unsafe-inline'",
        ]
    );
    assert_eq!(headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["referrer-policy"], "no-referrer");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["x-dns-prefetch-control"], "off");
    let html = response.text().await.unwrap();
    assert_eq!(html, HTML.replace("<LINK", "<basefont"));

    let (path, ticket) = frame.rsplit_once('/').unwrap();
    let other = if ticket.starts_with('A') { "B" } else { "A" };
    for wrong in [
        format!("{path}/"),
        format!("{path}/{other}{}", &ticket[1..]),
        format!("{path}/{}", dev.page.1),
        format!("/page/caught/x/{ticket}"),
    ] {
        let refused = get(&dev, &wrong).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{wrong}");
    }
    let rebound = get(&dev, frame).header("host", "evil.example").send().await.unwrap();
    assert_eq!(rebound.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_file_is_downloaded_by_its_ticket_alone_and_never_shown() {
    let dev = Dev::start(&[]);
    let page = "<script>alert(1)</script>";
    let record = send(
        &dev,
        json!({
            "from": "shop@example.com", "to": ["ada@example.net"], "subject": "x",
            "html": "<img src='cid:logo'>",
            "attachments": [
                { "filename": "\u{fc} \"; x.html", "content": STANDARD.encode(page) },
                { "filename": "logo.png", "content": "AP8Q", "content_id": "logo" },
            ],
        }),
    )
    .await;
    let id = record["sesMessageId"].as_str().unwrap();
    let caught = read(&dev, &format!("/page/caught/{id}")).await;
    let file = &caught["files"][0];
    assert_eq!((&file["name"], &file["size"]), (&json!("\u{fc} \"; x.html"), &json!(page.len())));
    assert_eq!(caught["files"][1]["contentId"], "logo");
    let download = file["download"].as_str().unwrap();
    assert!(!download.contains(&dev.page.1), "the key is in an address");
    let response = get(&dev, download).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment; filename*=UTF-8''%C3%BC%20%22%3B%20x%2Ehtml"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'; sandbox"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(response.headers()[name], value);
    }
    assert_eq!(response.text().await.unwrap(), page);
    let other = caught["files"][1]["download"].as_str().unwrap();
    assert_eq!(*get(&dev, other).send().await.unwrap().bytes().await.unwrap(), [0, 0xff, 0x10]);

    let (place, ticket) = download.rsplit_once('/').unwrap();
    let frame = caught["frame"].as_str().unwrap();
    let frames_ticket = frame.rsplit_once('/').unwrap().1;
    for wrong in [
        format!("{place}/"),
        format!("{place}/{frames_ticket}"),
        format!("{place}/{}", dev.page.1),
        format!("/page/caught/{id}/1/{ticket}"),
        format!("/page/caught/{id}/{ticket}"),
    ] {
        let refused = get(&dev, &wrong).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{wrong}");
    }
    // The message's own picture is in its frame.
    let html = get(&dev, frame).send().await.unwrap().text().await.unwrap();
    assert_eq!(html, "<img src='data:image/png;base64,AP8Q'>");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_shows_no_bodies() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    let record = server.wait_for(&id, "sent").await;
    let output = site.done(&["status", "--page"]);
    let url = String::from_utf8(output.stdout).unwrap();
    let key = url.trim().split_once('#').unwrap().1;
    let caught = record["sesMessageId"].as_str().unwrap();
    for path in ["/page/caught".to_owned(), format!("/page/caught/{caught}")] {
        let url = format!("{}{path}", server.operator);
        let response = server.client.get(url).bearer_auth(key).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
}
