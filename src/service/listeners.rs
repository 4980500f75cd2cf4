//! Every address of the service, bound before anything is served: a start that cannot have one of
//! them fails whole.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tracing::warn;

use crate::admin::socket::Socket;
use crate::clock::Clock;
use crate::config::Config;
use crate::service::{ServiceError, operators, sns};

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
    /// Where operators' commands come in.
    pub(super) admin: Socket,
    /// Where clients come in.
    pub(super) clients: TcpListener,
    /// The address of that, with the port that it was given.
    pub(super) address: SocketAddr,
    pub(super) owner: SocketOwner,
    /// Where SNS posts events, if it is to.
    pub(super) sns: Option<sns::Bound>,
    /// Where operators look.
    pub(super) operators: TcpListener,
}

impl Listeners {
    /// Binds them all; clients come in on `inherited` where a supervisor has handed it over.
    pub(super) async fn bind(
        config: &Config,
        clock: &Clock,
        inherited: Option<std::net::TcpListener>,
    ) -> Result<Self, ServiceError> {
        let admin = Socket::bind(&config.admin_socket)?;
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
        let sns = match &config.ses.events.sns {
            Some(sns) => Some(sns::Bound::new(sns, clock.clone()).await?),
            None => None,
        };
        let operators = operators::bind(config.operator_listen).await?;
        Ok(Self { admin, clients, address, owner, sns, operators })
    }
}
