//! TLS on the listeners of clients: certificates, handshakes, and the protocol of a client.
//!
//! HTTP/2 if the client offers it in the handshake (ALPN), HTTP/1.1 otherwise; SMTP has handshakes
//! of its own. Knows nothing of requests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, ServerConfig};
use tokio_rustls::TlsAcceptor;

use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::pem;

use validity::{Validity, Version};

mod validity;

/// The protocols that are offered (RFC 7301, RFC 9113 section 3.2), the preferred first.
pub(super) const HTTP_2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";
const SMTP: &[u8] = b"smtp";
/// TLS sessions that are kept to be resumed, for each protocol: as many as rustls keeps.
const SESSIONS: usize = 256;

/// Paths of a certificate and its key, both as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those of its issuers.
    pub certificate: PathBuf,
    /// File of the private key, as PEM.
    pub key: PathBuf,
}

/// Reason why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate's file is not usable.
    #[error("the certificate {} cannot be used: {reason}", path.display())]
    Certificate {
        /// Path of the file.
        path: PathBuf,
        /// Reason why it is not usable.
        reason: String,
    },
    /// The key's file is not usable. The error never repeats its content.
    #[error("the key {} cannot be used: {reason}", path.display())]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Reason why it is not usable.
        reason: String,
    },
    /// The two do not go together.
    #[error("the certificate {} and the key {} cannot be used together: {reason}",
        files.certificate.display(), files.key.display())]
    Pair {
        /// Files of the certificate and the key.
        files: TlsFiles,
        /// Reason why they do not go together.
        reason: &'static str,
    },
}

/// Certificate and key for handshakes. Connections keep those that they began with.
pub struct Tls(RwLock<Current>);

struct Current {
    acceptor: TlsAcceptor,
    smtp_acceptor: TlsAcceptor,
    validity: Option<Validity>,
    /// The reason why newer files are not in use.
    refused: Option<String>,
}

/// Something that is wrong with the certificate, or soon will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateTrouble {
    /// Kind of the fault.
    pub fault: CertificateFault,
    /// Text of the problem, for the log and the status.
    pub message: String,
}

/// Fault of the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateFault {
    /// It is past its end.
    Expired,
    /// It is near its end.
    Expires,
    /// The new one cannot be used.
    Refused,
}

impl CertificateFault {
    /// Every fault.
    pub const ALL: [Self; 3] = [Self::Expired, Self::Expires, Self::Refused];

    /// A name for programs.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Expired => "certificate_expired",
            Self::Expires => "certificate_expires",
            Self::Refused => "certificate_refused",
        }
    }

    /// Meaning, and what to do.
    pub const fn explained(self) -> (&'static str, &'static str) {
        const RENEW: &str = "Renew it, replace the files and send SIGHUP (systemctl \
                             reload pillarbox)";
        match self {
            Self::Expired => ("The certificate expired; clients refuse it", RENEW),
            Self::Expires => ("The certificate expires soon", RENEW),
            Self::Refused => (
                "The new certificate cannot be used; the old one stays in use",
                "Correct the files and send SIGHUP again (systemctl reload pillarbox)",
            ),
        }
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// Reads a certificate and its key.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self(RwLock::new(current(files)?)))
    }

    /// Reads a certificate and its key for the handshakes from now on. If they are not usable, the
    /// ones before stay.
    pub fn replace(&self, files: &TlsFiles) -> Result<(), TlsError> {
        match current(files) {
            Ok(current) => {
                *self.write() = current;
                Ok(())
            }
            Err(error) => {
                self.write().refused = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Returns the end of the certificate in use, or `None` if it does not say so.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.read().validity.map(|validity| validity.until)
    }

    /// Returns the latest time to renew it, or `None` if it does not say when it ends.
    pub fn renew_by(&self) -> Option<Timestamp> {
        self.read().validity.map(Validity::renew_by)
    }

    /// Returns true if the files were refused when they were last read.
    pub fn is_refused(&self) -> bool {
        self.read().refused.is_some()
    }

    /// Returns what is wrong with the certificate now.
    pub fn troubles(&self, now: Timestamp) -> Vec<CertificateTrouble> {
        let current = self.read();
        let mut troubles = Vec::new();
        if let Some(validity) = current.validity {
            let until = validity.until;
            if now >= until {
                let message = format!("The certificate expired at {until}; clients refuse it");
                troubles.push(CertificateTrouble { fault: CertificateFault::Expired, message });
            } else if now >= validity.renew_by() {
                let message = format!("The certificate expires at {until}");
                troubles.push(CertificateTrouble { fault: CertificateFault::Expires, message });
            }
        }
        if let Some(reason) = &current.refused {
            let (what, _) = CertificateFault::Refused.explained();
            let message = format!("{what}: {reason}");
            troubles.push(CertificateTrouble { fault: CertificateFault::Refused, message });
        }
        troubles
    }

    /// Returns what makes handshakes of HTTP with the certificate in use.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.read().acceptor.clone()
    }

    /// Returns the same for SMTP. A client that wants to speak HTTP is refused there, and one of SMTP
    /// at the other: what is meant for one protocol must not be read as another (ALPACA, RFC 9325
    /// section 3.7).
    pub fn smtp_acceptor(&self) -> TlsAcceptor {
        self.read().smtp_acceptor.clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Current> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Current> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn current(files: &TlsFiles) -> Result<Current, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = key(&files.key)?;
    let validity = chain.first().and_then(|leaf| Validity::of(leaf));
    let failed = |error: rustls::Error| TlsError::Certificate {
        path: files.certificate.clone(),
        reason: error.to_string(),
    };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified(files, chain, &key)?)));
    let acceptor = |protocols: &[&[u8]]| {
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        // A ticket of one protocol must not be taken for another.
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        TlsAcceptor::from(Arc::new(config))
    };
    let (acceptor, smtp_acceptor) = (acceptor(&[HTTP_2, HTTP_1_1]), acceptor(&[SMTP]));
    Ok(Current { acceptor, smtp_acceptor, validity, refused: None })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read =
        fs::read(path).map_err(|error| unread(&error)).and_then(|file| pem::certificates(&file));
    read.map_err(|reason| TlsError::Certificate { path: path.to_owned(), reason })
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let read =
        fs::read(path).map_err(|error| unread(&error)).and_then(|file| pem::private_key(&file));
    read.map_err(|reason| TlsError::Key { path: path.to_owned(), reason })
}

fn unread(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "the service's user is not allowed to read it".to_owned()
        }
        _ => format!("it cannot be read: {error}"),
    }
}

/// Puts a certificate, followed by those of its issuers, and its key together.
fn certified(
    files: &TlsFiles,
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
) -> Result<CertifiedKey, TlsError> {
    let signing = ring::sign::any_supported_type(key).map_err(|_| TlsError::Key {
        path: files.key.clone(),
        reason: pem::unsupported_key(key),
    })?;
    let others = chain.get(1..).unwrap_or_default().to_vec();
    let certified = CertifiedKey::new(chain, signing);
    let reason = match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            return Ok(certified);
        }
        Err(rustls::Error::InconsistentKeys(_)) => {
            let is_its = |other: &CertificateDer<'static>| {
                let alone = CertifiedKey::new(vec![other.clone()], Arc::clone(&certified.key));
                alone.keys_match().is_ok()
            };
            return Err(TlsError::Pair {
                files: files.clone(),
                reason: if others.iter().any(is_its) {
                    "the key belongs to a later certificate of the file; put that one first"
                } else {
                    "the key belongs to another certificate"
                },
            });
        }
        Err(_) if Version::of(&certified.cert[0]) == Some(Version::Old) => {
            "it is an X.509 certificate of version 1 or 2, which clients refuse; make one of version \
             3 with the host's name as subjectAltName"
                .to_owned()
        }
        Err(error) => error.to_string(),
    };
    Err(TlsError::Certificate { path: files.certificate.clone(), reason })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_is_told_in_time_and_by_what_part_of_a_life_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles {
            certificate: directory.path().join("crt"),
            key: directory.path().join("key"),
        };
        let day = |year, month, day| {
            Timestamp::parse_rfc3339(&format!("{year}-{month:02}-{day:02}T00:00:00Z")).unwrap()
        };
        // Certificates of a year, and of eight days.
        for (end, quiet, soon) in [
            ((2027, 1, 1), day(2026, 12, 17), day(2026, 12, 18)),
            ((2026, 1, 9), day(2026, 1, 7), day(2026, 1, 8)),
        ] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2026, 1, 1);
            params.not_after = date_time_ymd(end.0, end.1, end.2);
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            std::fs::write(&files.certificate, certificate.pem()).unwrap();
            std::fs::write(&files.key, key.serialize_pem()).unwrap();
            let tls = Tls::load(&files).unwrap();
            let codes =
                |now| tls.troubles(now).iter().map(|one| one.fault.code()).collect::<Vec<_>>();
            assert_eq!(codes(quiet), Vec::<&str>::new(), "{end:?}");
            assert_eq!(codes(soon), ["certificate_expires"], "{end:?}");
            let end = day(end.0, end.1, end.2);
            assert_eq!(codes(end.minus(Duration::from_millis(1))), ["certificate_expires"]);
            assert_eq!(codes(end), ["certificate_expired"]);
        }
    }
}
