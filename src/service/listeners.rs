//! Listeners of the service: every address is bound before anything is served, so that a start that
//! cannot have one of them fails whole. The operators' listener is the last to end. Clients get as
//! many connections as the file descriptors allow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{error, warn};

use crate::admin::Admin;
use crate::api::Api;
use crate::config::Config;
use crate::http;
use crate::http::drain::{Drain, DrainSignal};
use crate::http::limits::Limits;
use crate::http::tls::Tls;
use crate::operator::captured_mail::Catcher;
use crate::operator::key::PageKey;
use crate::operator::{Operator, Parts};
use crate::service::ServiceError;
use crate::service::error::ListenerName;
use crate::service::reload::load_tls;

/// How long operators' requests in flight have at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// File descriptors that are needed beside clients and calls to the provider: operators'
/// connections, refusals, administration, files.
const OTHERS: usize = 600;

/// Who keeps the client listener's socket when this process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketOwner {
    /// It ends with this process.
    Ourselves,
    /// A supervisor, which hands it to the next process: connections may wait in it.
    Supervisor,
}

/// The listeners.
pub(super) struct Listeners {
    /// Where clients come in.
    pub(super) clients: TcpListener,
    /// What TLS is spoken with there, if it is.
    pub(super) tls: Option<Arc<Tls>>,
    /// The address of that, with the port that it was given.
    pub(super) address: SocketAddr,
    pub(super) owner: SocketOwner,
    /// Where operators look.
    pub(super) operators: TcpListener,
}

impl Listeners {
    /// Binds them all; clients come in on `inherited` where a supervisor has handed it over.
    pub(super) async fn bind(
        config: &Config,
        inherited: Option<std::net::TcpListener>,
    ) -> Result<Self, ServiceError> {
        let tls = load_tls(config)?;
        let listener = ListenerName::Clients;
        let failed = |source| ServiceError::Listen { listener, address: config.listen, source };
        let (clients, owner) = if let Some(listener) = inherited {
            listener.set_nonblocking(true).map_err(failed)?;
            (TcpListener::from_std(listener).map_err(failed)?, SocketOwner::Supervisor)
        } else {
            (TcpListener::bind(config.listen).await.map_err(failed)?, SocketOwner::Ourselves)
        };
        let address = clients.local_addr().map_err(failed)?;
        if owner == SocketOwner::Supervisor && address != config.listen {
            warn!(%address, listen = %config.listen, "the supervisor's socket is served, not `listen`");
        }
        let operators = bind_operators(config.operator_listen).await?;
        Ok(Self { clients, tls, address, owner, operators })
    }
}

/// Answers clients until the drain stops it.
pub(super) async fn answer(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    api: Api,
    limits: Limits,
    drain: DrainSignal,
) {
    let served = match tls {
        Some(tls) => http::serve_tls(tls, listener, api, limits, drain).await,
        None => http::serve(listener, api, limits, drain).await,
    };
    if let Err(error) = served {
        error!(%error, "the client listener ended");
    }
}

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

/// Binds the address where operators look.
async fn bind_operators(address: SocketAddr) -> Result<TcpListener, ServiceError> {
    let listener = ListenerName::Operators;
    let failed = |source| ServiceError::Listen { listener, address, source };
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

/// Raises the process's own limit of open files as far as it may go (nothing here uses `select(2)`,
/// which alone could not take more). Returns how many of the client connections that are wanted fit
/// into it: if clients that only connect could use all descriptors up, no call to the provider could
/// be made.
pub(super) fn room_for_clients(wanted: usize, max_in_flight: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Where it cannot be raised, it is as it was.
    let current =
        if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let Some(current) = current else { return wanted };
    let fitting = fitting(wanted, max_in_flight, usize::try_from(current).unwrap_or(usize::MAX));
    if fitting < wanted {
        warn!(
            max_connections = fitting,
            "the process may have {current} files open, too few for max_connections = {wanted}; \
             raise that limit (LimitNOFILE= of the unit, ulimit -Hn)"
        );
    }
    fitting
}

/// How many client connections fit: at least half of the limit is theirs.
fn fitting(wanted: usize, max_in_flight: usize, limit: usize) -> usize {
    let kept = OTHERS.saturating_add(max_in_flight).min(limit / 2);
    wanted.min(limit - kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_is_left_and_never_less_than_half() {
        assert_eq!(fitting(10_000, 256, 524_288), 10_000);
        assert_eq!(fitting(10_000, 256, 10_500), 9_644);
        assert_eq!(fitting(10_000, 256, 1_024), 512);
        assert_eq!(fitting(10, 256, 1_024), 10);
        assert_eq!(fitting(10_000, usize::MAX, 65), 33);
    }
}
