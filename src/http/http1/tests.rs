use std::time::Duration;

use http_body_util::Full;
use proptest::prelude::*;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, copy, duplex, split};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::drain::Drain;
use crate::request_id::{RequestId, RequestIds};
use crate::serve_secure;

/// Bytes that a client reads that sends `bytes` and ends its side.
async fn answers(bytes: &[u8]) -> String {
    let (_drain, signal) = Drain::new();
    let handler =
        |_: Request<Incoming>, _: RequestId| async { Response::new(Full::from("handled")) };
    let ids = RequestIds::new().unwrap();
    let shared = Shared::new(Box::new(handler), Limits::default(), signal, ids);
    let (mut client, server) = duplex(64 * 1024);
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    let mut read = Vec::new();
    let both = async {
        tokio::join!(serve(Box::new(server), &shared, None, None), client.read_to_end(&mut read))
    };
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

    /// Requests that pass the guard are never refused by hyper, whose own refusals have no body.
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

/// TLS of a server and of a client.
fn handshakes() -> (TlsAcceptor, TlsConnector) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)))
}

/// Bytes that a slow network takes at one time.
const DROP: usize = 1_024;

/// Carries bytes by drops with a pause after each.
async fn drip(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pause: Duration,
) -> io::Result<()> {
    let mut bytes = [0; DROP];
    loop {
        match from.read(&mut bytes).await? {
            0 => return to.shutdown().await,
            count => to.write_all(&bytes[..count]).await?,
        }
        tokio::time::sleep(pause).await;
    }
}

/// Here, because a kernel passes on tens of kilobytes at one time.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_less_than_a_record_in_a_writes_time_gets_everything_over_tls() {
    const BODY: usize = 100 * 1024;
    let handler =
        |_: Request<Incoming>, _: RequestId| async { Response::new(Full::from(vec![b'x'; BODY])) };
    let (_drain, signal) = Drain::new();
    let limits = Limits { head_timeout: Duration::from_hours(1), ..Limits::default() };
    let pause = limits.write_timeout * 2 / 3;
    let shared = Shared::new(Box::new(handler), limits, signal, RequestIds::new().unwrap());
    let (acceptor, connector) = handshakes();
    let (near, server) = duplex(DROP);
    let (client, far) = duplex(64 * 1024);
    tokio::spawn(serve_secure(Box::new(server), acceptor, Arc::new(shared), None));
    let ((from_server, mut to_server), (mut from_client, to_client)) = (split(near), split(far));
    tokio::spawn(drip(from_server, to_client, pause));
    tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, client).await.unwrap();
    let ask = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got).await;
    assert!(got.len() > BODY, "{} bytes, then {end:?}", got.len());
}
