//! Every address of the service, bound before anything is served: a start that cannot have one of
//! them fails whole.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tracing::{error, warn};

use crate::api::Api;
use crate::config::Config;
use crate::http;
use crate::http::drain::DrainSignal;
use crate::http::limits::Limits;
use crate::http::tls::Tls;
use crate::service::reload::load_tls;
use crate::service::{ServiceError, operators};

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
        let failed = |source| ServiceError::Listen { address: config.listen, source };
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
        let operators = operators::bind(config.operator_listen).await?;
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
