//! TLS on the client listener: both versions of HTTP, certificates that change, and clients that
//! do not do their part.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pillarbox_http::drain::Drain;
use pillarbox_http::limits::Limits;
use pillarbox_http::request_id::RequestId;
use pillarbox_http::tls::{Tls, TlsFiles};
use pillarbox_http::{serve, serve_tls};
use pillarbox_simulator::Options;
use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::kit::{DevProcess, PATIENCE, Server, Site, install_crypto, message};

const HTTP_2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// A certificate for `localhost`, as its client trusts it.
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    pem: String,
    key: String,
}

impl Certificate {
    pub(crate) fn new() -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self { der: cert.der().clone(), pem: cert.pem(), key: signing_key.serialize_pem() }
    }

    /// One that ends on the first of January of this year.
    pub(crate) fn until(year: i32) -> Self {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        Self { der, pem, key: key.serialize_pem() }
    }

    pub(crate) fn write(&self, files: &TlsFiles) {
        std::fs::write(&files.certificate, &self.pem).unwrap();
        std::fs::write(&files.key, &self.key).unwrap();
    }

    /// A connection by a client that trusts this certificate alone.
    pub(crate) async fn connect(
        &self,
        address: &str,
        offer: &[u8],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = self.secure_offering(TcpStream::connect(address).await?, offer).await?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(offer));
        Ok(stream)
    }

    /// A handshake that offers a protocol, on a connection that is there.
    pub(crate) async fn secure_offering(
        &self,
        stream: TcpStream,
        offer: &[u8],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        secure_with(self.offering(&[offer]), stream).await
    }

    /// The configuration of a client that offers these protocols. Its copies share their TLS sessions.
    pub(crate) fn offering(&self, offers: &[&[u8]]) -> ClientConfig {
        install_crypto();
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = offers.iter().map(|offer| offer.to_vec()).collect();
        config
    }

    /// A handshake on a connection that is there, without any byte of HTTP.
    pub(crate) async fn secure(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        secure_with(self.offering(&[]), stream).await
    }

    async fn http2(&self, address: &str) -> http2::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(self.connect(address, HTTP_2).await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn http1(&self, address: &str) -> http1::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(self.connect(address, HTTP_1_1).await.unwrap());
        let (sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

/// A site whose client listener speaks TLS.
pub(crate) async fn site(certificate: &Certificate) -> (Site, TlsFiles) {
    let directory = tempfile::tempdir().unwrap().keep();
    let files = TlsFiles { certificate: directory.join("crt"), key: directory.join("key") };
    certificate.write(&files);
    let more = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"",
        files.certificate.display(),
        files.key.display()
    );
    (Site::with(&more, Options::default()).await, files)
}

fn address(server: &Server) -> String {
    server.base.strip_prefix("http://").unwrap().to_owned()
}

fn post(server: &Server, body: String) -> Request<Full<Bytes>> {
    Request::post("https://localhost/emails")
        .header("host", "localhost")
        .header("authorization", format!("Bearer {}", server.key))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap()
}

async fn read(response: Response<Incoming>) -> (u16, Value) {
    assert!(response.headers().contains_key("x-request-id"), "{response:?}");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_have_the_same_routes_and_limits() {
    let certificate = Certificate::new();
    let (site, _files) = site(&certificate).await;
    let server = site.start();
    let address = address(&server);
    let mut first = certificate.http1(&address).await;
    let response = first.send_request(post(&server, message().to_string())).await.unwrap();
    let (status, body) = read(response).await;
    assert_eq!(status, 200, "{body}");

    let second = certificate.http2(&address).await;
    let many = (0..50).map(|_| {
        let (mut sender, request) = (second.clone(), post(&server, message().to_string()));
        tokio::spawn(async move { read(sender.send_request(request).await.unwrap()).await })
    });
    for answered in many.collect::<Vec<_>>() {
        let (status, body) = answered.await.unwrap();
        assert_eq!((status, body["id"].as_str().map(str::len)), (200, Some(36)), "{body}");
    }
    let mut sender = second.clone();
    let mut stranger = post(&server, message().to_string());
    stranger.headers_mut().remove("authorization");
    let (status, body) = read(sender.send_request(stranger).await.unwrap()).await;
    assert_eq!((status, &body["error"]["code"]), (401, &Value::from("Unauthorized")));
    let large = post(&server, " ".repeat(10 * 1024 * 1024 + 1));
    let (status, body) = read(sender.send_request(large).await.unwrap()).await;
    assert_eq!((status, &body["error"]["code"]), (413, &Value::from("PayloadTooLarge")));
    let mut long = post(&server, message().to_string());
    *long.uri_mut() = format!("https://localhost/emails?{}", "x".repeat(9_000)).parse().unwrap();
    let (status, body) = read(sender.send_request(long).await.unwrap()).await;
    assert_eq!((status, &body["error"]["code"]), (414, &Value::from("UriTooLong")));
    let too_large = |number: usize, bytes: usize| {
        let mut request = post(&server, message().to_string());
        for field in 0..number {
            let name: http::HeaderName = format!("x-{field}").parse().unwrap();
            request.headers_mut().insert(name, "x".repeat(bytes).parse().unwrap());
        }
        request
    };
    for flood in [too_large(1, 20_000), too_large(65, 1)] {
        let (status, body) = read(sender.send_request(flood).await.unwrap()).await;
        assert_eq!((status, &body["error"]["code"]), (431, &Value::from("HeadersTooLarge")));
    }
    match sender.send_request(too_large(5, 20_000)).await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(!error.is_canceled(), "{error:?}"),
    }
    let (status, _) =
        read(sender.send_request(post(&server, message().to_string())).await.unwrap()).await;
    assert_eq!(status, 200, "the connection outlives it");
    // It is asked to end, and does.
    server.terminate().await;
    assert!(poll_fn(|cx| sender.poll_ready(cx)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_organisation_keeps_no_more_connections_than_are_free() {
    let certificate = Certificate::new();
    let (site, _files) = site(&certificate).await;
    site.reconfigure("[tls]", "max_connections = 8\n[tls]");
    let other = site.add_organisation("beta", "beta.example");
    let server = site.start();
    let address = address(&server);
    let list = |key: &str| {
        let request = Request::get("https://localhost/emails").header("host", "localhost");
        let request = request.header("authorization", format!("Bearer {key}"));
        request.body(Full::new(Bytes::new())).unwrap()
    };
    // Whether the connection is kept after its response.
    let keeps = async |client: &mut http1::SendRequest<Full<Bytes>>, key: &str| {
        let response = client.send_request(list(key)).await.unwrap();
        let keeps = !response.headers().contains_key("connection");
        assert_eq!(read(response).await.0, 200);
        keeps
    };
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut client = certificate.http1(&address).await;
        assert!(keeps(&mut client, &server.key).await);
        kept.push(client);
    }
    let mut fifth = certificate.http1(&address).await;
    assert!(!keeps(&mut fifth, &server.key).await);
    let mut second_version = certificate.http2(&address).await;
    let response = second_version.send_request(list(&server.key)).await.unwrap();
    assert_eq!(read(response).await.0, 200);
    let end = Instant::now() + PATIENCE;
    while poll_fn(|cx| second_version.poll_ready(cx)).await.is_ok() {
        assert!(Instant::now() < end, "it is not told to end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let mut client = certificate.http1(&address).await;
    assert!(keeps(&mut client, &other).await, "who has none gets one");
    assert!(keeps(&mut kept[0], &server.key).await, "those that are there stay");
    kept.truncate(1);
    while !keeps(&mut certificate.http1(&address).await, &server.key).await {
        assert!(Instant::now() < end, "what was closed is counted for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_prints_lines_that_reach_its_listeners_over_tls() {
    install_crypto();
    let (certificate, directory) = (Certificate::new(), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name);
    certificate.write(&TlsFiles { certificate: path("crt"), key: path("key") });
    let (crt, key) = (path("crt"), path("key"));
    let tls = format!("[tls]\ncertificate = {crt:?}\nkey = {key:?}\n");
    std::fs::write(path("pillarbox.toml"), tls).unwrap();
    let mut dev = DevProcess::start(&["--config", path("pillarbox.toml").to_str().unwrap()]);
    let address = dev.told("address");
    let key = dev.line(|line| line.starts_with("  API key "));
    let pasted = dev.line(|line| line.starts_with("curl "));
    assert!(pasted.starts_with(&format!("curl -sS --insecure {address}/emails ")), "{pasted}");
    let address = address.strip_prefix("https://").expect("the scheme of the listener");
    let request = Request::get("https://localhost/emails").header("host", "localhost");
    let key = key.split_whitespace().last().unwrap();
    let request = request.header("authorization", format!("Bearer {key}"));
    let request = request.body(Full::default()).unwrap();
    let answered = certificate.http1(address).await.send_request(request).await.unwrap();
    assert_eq!(read(answered).await.0, 200);
    let submission = dev.line(|line| line.contains("curl -s "));
    assert!(submission.contains(" --ssl-reqd --insecure smtp://"), "{submission}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_taken_over_and_a_bad_one_is_not() {
    let (old, new) = (Certificate::new(), Certificate::new());
    let (site, files) = site(&old).await;
    let server = site.start();
    let address = address(&server);
    let mut kept = old.http2(&address).await;
    new.write(&files);
    server.signal("HUP");
    let end = Instant::now() + PATIENCE;
    while new.connect(&address, HTTP_2).await.is_err() {
        assert!(Instant::now() < end, "the new certificate is not taken over");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(old.connect(&address, HTTP_2).await.is_err());
    let response = kept.send_request(post(&server, message().to_string())).await.unwrap();
    assert_eq!(read(response).await.0, 200, "connections keep what they began with");

    std::fs::write(&files.key, Certificate::new().key).unwrap();
    server.signal("HUP");
    while !server.log().contains("the new certificate cannot be used") {
        assert!(Instant::now() < end, "nobody is told");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(new.connect(&address, HTTP_1_1).await.is_ok());
    let log = server.terminate().await;
    assert!(log.contains("cannot be used together"), "{log}");

    let output = site.run_alone(&["serve"]);
    assert_eq!(output.status.code(), Some(1), "a start has nothing to keep");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot be used together"), "{error}");
}

#[tokio::test]
async fn clients_that_do_not_come_to_the_point_are_let_go() {
    install_crypto();
    let certificate = Certificate::new();
    let directory = tempfile::tempdir().unwrap();
    let files =
        TlsFiles { certificate: directory.path().join("crt"), key: directory.path().join("key") };
    certificate.write(&files);
    let limits = Limits {
        head_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(300),
        write_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (drain, signal) = Drain::new();
    let echo = |request: Request<Incoming>, _: RequestId| async move {
        Response::new(Full::from(format!("{:?}", request.version())))
    };
    let tls = Arc::new(Tls::load(&files).unwrap());
    let serving = tokio::spawn(serve_tls(tls, listener, echo, limits, signal));

    // No handshake, half a handshake, no request after it, and none after the first.
    let mut buffer = Vec::new();
    for start in [&b""[..], b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(start).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut buffer)).await;
        assert!(ended.is_ok(), "{start:?} holds a connection");
    }
    for offer in [HTTP_1_1, HTTP_2] {
        let mut stream = certificate.connect(&address, offer).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut buffer)).await;
        assert!(ended.is_ok(), "silence holds a connection");
    }
    let mut sender = certificate.http2(&address).await;
    let request = Request::get("https://localhost/").body(Full::default()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "HTTP/2.0");
    tokio::time::timeout(PATIENCE, async {
        while !sender.is_closed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("an idle connection is closed");
    drain.stop(tokio::time::Instant::now() + PATIENCE);
    assert_eq!(serving.await.unwrap().unwrap().cut_off, 0);
}

/// A handshake of a client with this configuration.
pub(crate) async fn secure_with(
    config: ClientConfig,
    stream: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// A server that answers each request with so many bytes, over TLS or not.
async fn start_large(
    certificate: Option<&Certificate>,
    limits: Limits,
) -> (String, tokio::task::JoinHandle<()>, Drain) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (drain, signal) = Drain::new();
    let large = |_: Request<Incoming>, _: RequestId| async move {
        Response::new(Full::from(vec![b'x'; LARGE]))
    };
    let directory = tempfile::tempdir().unwrap();
    let tls = certificate.map(|certificate| {
        let files = TlsFiles {
            certificate: directory.path().join("crt"),
            key: directory.path().join("key"),
        };
        certificate.write(&files);
        Arc::new(Tls::load(&files).unwrap())
    });
    let serving = tokio::spawn(async move {
        match tls {
            Some(tls) => serve_tls(tls, listener, large, limits, signal).await.unwrap(),
            None => serve(listener, large, limits, signal).await.unwrap(),
        };
    });
    (address, serving, drain)
}

/// Bytes of a large response: twice what the kernel takes at once (`net.ipv4.tcp_wmem`).
const LARGE: usize = 8 * 1024 * 1024;
/// A slow client takes so much at one time, and pauses so long then.
const SIP: usize = 48 * 1024;
const SIP_PAUSE: Duration = Duration::from_millis(50);

/// A connection whose kernel takes little in advance.
async fn narrow(address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    socket.connect(address.parse().unwrap()).await.unwrap()
}

async fn sip(mut stream: impl AsyncRead + Unpin) -> usize {
    let (mut buffer, mut taken) = (vec![0; SIP], 0);
    loop {
        let mut in_sip = 0;
        while in_sip < SIP {
            match stream.read(&mut buffer[in_sip..]).await {
                Ok(0) | Err(_) => return taken + in_sip,
                Ok(read) => in_sip += read,
            }
        }
        taken += in_sip;
        tokio::time::sleep(SIP_PAUSE).await;
    }
}

/// Much shorter than a slow client needs for all of a response, and longer than it needs for a part.
fn impatient() -> Limits {
    let patience = Duration::from_millis(700);
    let head_timeout = Duration::from_secs(1);
    Limits { head_timeout, write_timeout: patience, idle_timeout: patience, ..Limits::default() }
}

const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_and_steadily_over_http_1_gets_everything() {
    let certificate = Certificate::new();
    let plain = async {
        let (address, _serving, _drain) = start_large(None, impatient()).await;
        let mut stream = narrow(&address).await;
        stream.write_all(ASK).await.unwrap();
        sip(stream).await
    };
    let secure = async {
        let (address, _serving, _drain) = start_large(Some(&certificate), impatient()).await;
        let mut stream = certificate.secure(narrow(&address).await).await.unwrap();
        stream.write_all(ASK).await.unwrap();
        sip(stream).await
    };
    let (plain, secure) = tokio::join!(plain, secure);
    assert!(plain > LARGE && secure > LARGE, "{plain} and {secure} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_and_steadily_over_http_2_gets_everything() {
    let certificate = Certificate::new();
    let (address, _serving, _drain) = start_large(Some(&certificate), impatient()).await;
    let stream = TokioIo::new(certificate.connect(&address, HTTP_2).await.unwrap());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let (mut sender, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/").body(Full::<Bytes>::default()).unwrap();
    let mut body = sender.send_request(request).await.unwrap().into_body();
    let (mut taken, mut in_sip) = (0, 0);
    while let Some(frame) = body.frame().await {
        let read = frame.expect("nobody cuts the response off").into_data().unwrap().len();
        (taken, in_sip) = (taken + read, in_sip + read);
        if in_sip >= SIP {
            in_sip = 0;
            tokio::time::sleep(SIP_PAUSE).await;
        }
    }
    assert_eq!(taken, LARGE);
}
