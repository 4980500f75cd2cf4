//! Contents that must never be written down: bodies, API keys, AWS secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::kit::{AWS_SECRET, Site, message_with, refusal};

fn base64_of(text: &str) -> String {
    STANDARD.encode(text)
}

#[tokio::test]
async fn no_log_line_and_no_file_holds_a_body_a_key_or_a_secret() {
    let site = Site::new().await;
    let server = site.start();
    let marker = "PLANTED-BODY-d41d8cd98f00b204";
    let mut body = message_with("text", json!(format!("text {marker}")));
    body["html"] = json!(format!("<p>{marker}</p>"));
    let file = base64_of("PLANTED-FILE-d41d8cd98f00b204 and more");
    body["attachments"] = json!([
        { "filename": "PLANTED-NAME-d41d8cd98f00b204.pdf", "content": file },
        { "filename": "a.png", "content": file, "content_id": "PLANTED-ID-d41d8cd98f00b204" },
    ]);
    body["headers"] = json!({ "X-Header": "PLANTED-HEADER-d41d8cd98f00b204" });
    let id = server.send(&body).await;
    server.wait_for(&id, "sent").await;
    body["tag"] = json!("marketing");
    refusal(server.post(&body).send().await.unwrap()).await;
    let key = server.key.clone();
    body["attachments"] = json!([{ "filename": "PLANTED-NAME-d41d8cd98f00b204", "content": file }]);
    refusal(server.post(&body).send().await.unwrap()).await;
    let caught = &site.simulator.messages()[0];
    assert!(caught.text.as_ref().unwrap().contains(marker), "the message went through");
    assert!(caught.attachments[1].content.starts_with(b"PLANTED-FILE"), "so did the files");
    site.done(&["status"]);
    site.done(&["message", "show", &id]);
    let log = server.terminate().await;
    assert!(log.contains("listening"), "the log was read");
    let mut files = vec![("log", log.into_bytes())];
    for entry in std::fs::read_dir(site.data_dir()).unwrap() {
        files.push(("file", std::fs::read(entry.unwrap().path()).unwrap()));
    }
    assert!(files.len() > 1);
    for (kind, bytes) in files {
        for secret in [
            marker,
            "PLANTED-HEADER-d41d8cd98f00b204",
            "PLANTED-FILE-d41d8cd98f00b204",
            "PLANTED-NAME-d41d8cd98f00b204",
            "PLANTED-ID-d41d8cd98f00b204",
            &file[..24],
            &key[3..],
            AWS_SECRET,
        ] {
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{secret} is in a {kind}");
        }
    }
}
