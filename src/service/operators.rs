//! The operator listener in the service: bound with the others, and the last to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::error;

use crate::admin::Admin;
use crate::http;
use crate::http::drain::Drain;
use crate::operator::captured_mail::Catcher;
use crate::operator::key::PageKey;
use crate::operator::{Operator, Parts};
use crate::service::ServiceError;

/// How long requests in flight have at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The operator listener, served.
#[derive(Debug)]
pub(super) struct Operators {
    /// Its address, with the port that it was given.
    pub(super) address: SocketAddr,
    parts: Arc<Parts>,
    drain: Drain,
    serving: JoinHandle<()>,
    looking: JoinHandle<()>,
}

/// A listener's address, with the port that it was given.
pub(super) fn address_of(listener: &TcpListener) -> Result<SocketAddr, ServiceError> {
    let what = "the operator listener has no address";
    listener.local_addr().map_err(|source| ServiceError::System { what, source })
}

/// Binds its address.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, ServiceError> {
    let failed = |source| ServiceError::Listen { address, source };
    TcpListener::bind(address).await.map_err(failed)
}

impl Operators {
    /// Serves a bound listener.
    pub(super) fn start(
        listener: TcpListener,
        parts: Parts,
        admin: Arc<Admin>,
        key: PageKey,
    ) -> Result<Self, ServiceError> {
        let address = address_of(&listener)?;
        let (drain, signal) = Drain::new();
        let parts = Arc::new(parts);
        let (operator, looking) = Operator::new(Arc::clone(&parts), admin, key);
        let looking = tokio::spawn(looking);
        let serving = tokio::spawn(async move {
            if let Err(error) = http::serve(listener, operator, Operator::limits(), signal).await {
                error!(%error, "the operator listener ended");
            }
        });
        Ok(Self { address, parts, drain, serving, looking })
    }

    /// Has the page show what a stand-in for the provider catches, from now on.
    pub(super) fn show_caught(&self, catcher: Arc<dyn Catcher>) {
        // The one that came first stays.
        let _ = self.parts.catcher.set(catcher);
    }

    /// Ends it.
    pub(super) async fn stop(self) {
        // With its end, all streams of events end.
        self.looking.abort();
        self.drain.stop(Instant::now() + LAST_ANSWERS);
        if let Err(error) = self.serving.await {
            error!(%error, "the operator listener's task failed");
        }
    }
}
