//! Clients over TLS: the certificate that they trust, and those that behave, of both versions of
//! HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pillarbox_http::tls::TlsFiles;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::message;
use crate::patrons::Figures;
use crate::site::Target;

pub(crate) const HTTP_2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";
/// Number of well-behaved clients of each version.
const PATRONS: usize = 3;
/// After so many messages each makes a new connection.
const STAY: usize = 10;
/// Pause of each between two messages.
const PAUSE: Duration = Duration::from_millis(5);

/// A certificate for `localhost` in files.
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    pub(crate) files: TlsFiles,
    _directory: TempDir,
}

impl Certificate {
    pub(crate) fn new() -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles {
            certificate: directory.path().join("crt"),
            key: directory.path().join("key"),
        };
        std::fs::write(&files.certificate, cert.pem()).unwrap();
        std::fs::write(&files.key, signing_key.serialize_pem()).unwrap();
        Self { der: cert.der().clone(), files, _directory: directory }
    }

    /// The configuration that has the service show it.
    pub(crate) fn configuration(&self) -> String {
        let TlsFiles { certificate, key } = &self.files;
        format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n", certificate.display(), key.display())
    }

    /// A connection by a client that trusts this certificate alone.
    pub(crate) async fn connect(
        &self,
        target: &Target,
        offer: &[u8],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![offer.to_vec()];
        let stream = TcpStream::connect(target.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(offer));
        Ok(stream)
    }

    /// Clients of both versions send messages and read them back for a while; each request is
    /// answered with success.
    pub(crate) async fn serve(self: &Arc<Self>, target: &Target, length: Duration) -> Figures {
        let end = Instant::now() + length;
        let mut patrons = JoinSet::new();
        for offer in [HTTP_1_1, HTTP_2].repeat(PATRONS) {
            let (certificate, target) = (Arc::clone(self), target.clone());
            patrons.spawn(async move {
                let mut taken = Vec::new();
                while taken.is_empty() || Instant::now() < end {
                    let mut sender = Sender::connect(&certificate, &target, offer).await;
                    for _ in 0..STAY {
                        taken.extend(sender.visit(&target).await);
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                taken
            });
        }
        Figures::of(patrons.join_all().await.concat())
    }
}

/// A connection in either version.
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn connect(certificate: &Certificate, target: &Target, offer: &[u8]) -> Self {
        let stream = TokioIo::new(certificate.connect(target, offer).await.unwrap());
        if offer == HTTP_2 {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            Self::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            Self::One(sender)
        }
    }

    /// Sends a message and reads it; how long each took.
    async fn visit(&mut self, target: &Target) -> [Duration; 2] {
        let start = Instant::now();
        let accepted = self.ask(target, "POST", "/emails", message("Hello")).await;
        let posted = start.elapsed();
        let path = format!("/emails/{}", accepted["id"].as_str().unwrap());
        let start = Instant::now();
        self.ask(target, "GET", &path, String::new()).await;
        [posted, start.elapsed()]
    }

    async fn ask(&mut self, target: &Target, method: &str, path: &str, body: String) -> Value {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", target.key))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = match self {
            Self::One(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
            Self::Two(sender) => sender.send_request(request).await,
        };
        let response = response.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, 200, "{body:?}");
        serde_json::from_slice(&body).unwrap()
    }
}
