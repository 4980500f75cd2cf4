use std::time::Duration;

use http_body_util::Full;
use proptest::prelude::*;
use tokio::io::duplex;

use super::*;
use crate::http::drain::Drain;
use crate::http::request_id::{RequestId, RequestIds};

/// What a client reads that sends `bytes` and ends its side.
async fn answers(bytes: &[u8]) -> String {
    let (_drain, signal) = Drain::new();
    let handler =
        |_: Request<Incoming>, _: RequestId| async { Response::new(Full::from("handled")) };
    let shared = Shared::new(handler, Limits::default(), signal, RequestIds::new().unwrap());
    let (mut client, server) = duplex(64 * 1024);
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    let mut read = Vec::new();
    let both = async { tokio::join!(serve(server, &shared, None), client.read_to_end(&mut read)) };
    tokio::time::timeout(Duration::from_mins(10), both).await.expect("an end").1.unwrap();
    String::from_utf8(read).unwrap()
}

/// A request that is valid but for some bytes put in at some place.
fn damaged_requests() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof!["GET", "HEAD", "POST", "CONNECT", "OPTIONS", "X-[!-~]"];
    let target = prop_oneof!["/", "\\*", "a:80", "http://a/b", "/[ -~]{0,4}", "[!-~]{1,4}"];
    let field = prop_oneof![
        4 => Just("Host: a\r\n"),
        1 => Just("Content-Length: 0\r\n"),
        1 => Just("Content-Length: 3\r\n"),
        1 => Just("Content-Length: 18446744073709551614\r\n"),
        1 => Just("Transfer-Encoding: chunked\r\n"),
        1 => Just("Connection: upgrade, close\r\n"),
        1 => Just("Upgrade: h2c\r\n"),
        1 => Just("Expect: 100-continue\r\n"),
        1 => Just("X: y\r\n"),
    ];
    let fields = prop::collection::vec(field, 0..4);
    let damage = prop::option::weighted(0.6, prop::collection::vec(any::<u8>(), 1..3));
    (method, target, fields, any::<prop::sample::Index>(), damage).prop_map(
        |(method, target, fields, index, damage)| {
            let fields = fields.concat();
            let text = format!("{method} {target} HTTP/1.1\r\n{fields}\r\nabc");
            let mut bytes = text.into_bytes();
            let at = index.index(bytes.len());
            bytes.splice(at..at, damage.unwrap_or_default());
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// What passes the guard is never refused by hyper, whose own refusals have no body.
    #[test]
    fn every_refusal_is_ours(bytes in damaged_requests()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let answers = runtime.block_on(answers(&bytes));
        let sent = String::from_utf8_lossy(&bytes);
        prop_assert!(answers.starts_with("HTTP/1.1 "), "{sent:?} is answered {answers:?}");
        prop_assert!(!answers.contains("content-length: 0"), "{sent:?} is answered {answers:?}");
        let refused = answers.matches("HTTP/1.1 4").count();
        let explained = answers.matches(r#"{"error":{"code":"#).count();
        prop_assert_eq!(refused, explained, "{:?} is answered {:?}", sent, answers);
    }
}
