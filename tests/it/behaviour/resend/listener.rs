//! The listener itself: off by default, handed over, kept over a restart, checked by `doctor`.

use std::net::TcpListener;

use pillarbox_simulator::Options;
use serde_json::{Value, json};

use super::{LISTENER, Resend};
use crate::behaviour::restart_in_place::restart;
use crate::kit::{Site, answer, message};

#[tokio::test]
async fn it_is_off_by_default() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    assert!(!server.terminate().await.contains("Resend"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisors_socket_is_served_and_doctor_asks_it() {
    let site = Site::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let server = site.start_on_named(&listener, "resend");
    let resend = Resend { server, base };
    resend.send(&message()).await;
    let examined = site.run(&["doctor", "--json"]).stdout;
    let examined: Value = serde_json::from_slice(&examined).unwrap();
    let checks = examined["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["about"] == "Resend-compatible listener").unwrap();
    assert_eq!(found["verdict"], "ok", "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_its_address() {
    let site = Site::with(LISTENER, Options::default()).await;
    let resend = Resend::start(&site);
    let post = || resend.post("/emails", &message()).header("Idempotency-Key", "k");
    let first = answer(post().send().await.unwrap()).await.1;
    let id = first["id"].as_str().unwrap();
    resend.server.wait_for(id, "sent").await;
    restart(&site).await;
    let again = post().send().await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(answer(again).await.1, first);
    // Answers after a drain has begun are in Resend's shape.
    assert_eq!(resend.get(&format!("/emails/{id}")).await["object"], json!("email"));
}
