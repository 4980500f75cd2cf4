//! TLS on the client listener: certificates, handshakes, and which HTTP a client speaks then.
//!
//! HTTP/2 where the client offers it in the handshake (ALPN), HTTP/1.1 otherwise. Knows nothing of
//! requests.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::http::connection::{self, Shared};
use crate::http::{Handler, h2};

/// The protocols that are offered (RFC 7301, RFC 9113 section 3.2), the preferred first.
const HTTP_2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// Where a certificate and its key are, both as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those of its issuers.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate's file is no good.
    #[error("the certificate {} cannot be used: {reason}", path.display())]
    Certificate {
        /// Its path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The key's file is no good. What is in it is not told.
    #[error("the key {} cannot be used: {reason}", path.display())]
    Key {
        /// Its path.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// The two do not go together, or are of a kind that is not known.
    #[error("the certificate {} and the key {} cannot be used together: {source}",
        files.certificate.display(), files.key.display())]
    Pair {
        /// Both.
        files: TlsFiles,
        /// Why.
        source: rustls::Error,
    },
}

/// What handshakes are made with. Connections keep what they began with.
pub struct Tls(RwLock<TlsAcceptor>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// Reads a certificate and its key.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self(RwLock::new(acceptor(files)?)))
    }

    /// Reads a certificate and its key for the handshakes from now on. Where they are no good, the
    /// ones before stay.
    pub fn replace(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let acceptor = acceptor(files)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = key(&files.key)?;
    let failed = |source| TlsError::Pair { files: files.clone(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(failed)?;
    config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1_1.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |reason| TlsError::Certificate { path: path.to_owned(), reason };
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| failed(error.to_string()))?;
    if chain.is_empty() {
        return Err(failed("there is no certificate in it, as PEM".to_owned()));
    }
    Ok(chain)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let reason = match error {
            pem::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => {
                "there is no such file"
            }
            pem::Error::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "the service's user may not read it"
            }
            pem::Error::Io(_) => "it cannot be read",
            _ => "there is no private key in it, as PEM and without a password",
        };
        TlsError::Key { path: path.to_owned(), reason }
    })
}

/// Serves a connection until it is closed, once its handshake is done.
pub(super) async fn serve<H: Handler>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: Arc<Shared<H>>,
) {
    let handshake = timeout(shared.limits.head_timeout, acceptor.accept(stream)).await;
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took too long"),
    };
    if stream.get_ref().1.alpn_protocol() == Some(HTTP_2) {
        h2::serve(stream, shared).await;
    } else {
        connection::serve(stream, &shared).await;
    }
}
