//! Why the service cannot start.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::admin::socket::BindError;
use crate::http::tls::TlsError;
use crate::ses::SesError;
use crate::ses::sqs::NotAQueue;
use crate::store::OpenError;

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The store cannot be opened.
    #[error("cannot open the store in {}: {source}", directory.display())]
    Store {
        /// The data directory.
        directory: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; another address can be given, with port 0 for a free one"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The administration socket cannot be made.
    #[error("cannot make the administration socket: {0}")]
    Socket(#[from] BindError),
    /// The SES client cannot be built.
    #[error(transparent)]
    Ses(#[from] SesError),
    /// The queue of events cannot be polled.
    #[error("ses.events.queue_url: {0}")]
    Queue(#[from] NotAQueue),
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// Something else of the operating system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}
