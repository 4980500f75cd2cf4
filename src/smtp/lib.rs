//! SMTP submission (RFC 6409): applications that speak no HTTP hand over whole messages.
//!
//! An edge beside `api`. The way behind it is the same: a message becomes a `SendRequest` and goes
//! through `intake`. TLS, deadlines, body limits and the drain are those of `http`.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};

use pillarbox_api::Budgets;
use pillarbox_api::metrics::ClientMetrics;
use pillarbox_domain::id::OrganisationId;
use pillarbox_http::body::BodyReader;
use pillarbox_http::connections::{Activity, CROWDED_PAUSE, ClientConnections};
use pillarbox_http::drain::{DrainPhase, DrainSignal};
use pillarbox_http::limits::Limits;
use pillarbox_http::refusal_log::RefusalLog;
use pillarbox_http::request_id::RequestIds;
use pillarbox_http::tls::Tls;
use pillarbox_http::{ACCEPT_BACKOFF, Drained, is_of_one_connection, note_end};
use pillarbox_intake::Intake;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::shared_limits::Budget;
use pillarbox_store::Store;

use metrics::SmtpMetrics;
use reply::Reply;

pub mod address_field;
pub mod command;
mod connection;
pub mod fields;
pub mod line;
pub mod metrics;
mod reply;
mod session;
mod submission;

/// Protection of a listener's connections.
#[derive(Debug, Clone)]
pub enum Security {
    /// None: for a loopback address without a certificate.
    None,
    /// TLS after STARTTLS (RFC 3207).
    StartTls(Arc<Tls>),
    /// TLS from the first byte (RFC 8314).
    Tls(Arc<Tls>),
}

impl Security {
    /// Protection of a listener on this address that begins in plain text. `None` without a
    /// certificate on an address that others can reach: keys would travel in clear.
    pub fn of_plain(address: SocketAddr, tls: Option<&Arc<Tls>>) -> Option<Self> {
        match tls {
            Some(tls) => Some(Self::StartTls(Arc::clone(tls))),
            None => address.ip().is_loopback().then_some(Self::None),
        }
    }
}

/// Largest message of a submission, in bytes, if a request has at most so many: in base64, as it
/// goes to SES, it is a third larger.
pub const fn max_message_bytes(max_request_bytes: usize) -> usize {
    max_request_bytes / 4 * 3
}

/// Submission over SMTP. Clones share everything.
#[derive(Debug, Clone)]
pub struct Smtp {
    shared: Arc<Shared>,
}

/// Parts that all sessions share.
#[derive(Debug)]
struct Shared {
    intake: Arc<Intake>,
    store: Store,
    clock: Clock,
    bodies: BodyReader<OrganisationId>,
    max_message_bytes: usize,
    limits: Limits,
    clients: Arc<ClientMetrics>,
    metrics: Arc<SmtpMetrics>,
    /// Connections of all clients, those of HTTP too.
    all_connections: ClientConnections,
    /// Connections of clients that have authenticated.
    connections: Budget<OrganisationId>,
    ids: RequestIds,
    refusals: RefusalLog,
}

impl Smtp {
    /// Submission over these parts. Messages and sessions take their room from `budgets`, as those of
    /// HTTP do, and messages are counted in `clients`.
    pub fn new(
        intake: &Arc<Intake>,
        store: &Store,
        clock: &Clock,
        budgets: &Budgets,
        limits: &Limits,
        clients: &Arc<ClientMetrics>,
    ) -> Result<Self, getrandom::Error> {
        let max_message_bytes = max_message_bytes(limits.max_request_bytes);
        let shared = Shared {
            intake: Arc::clone(intake),
            store: store.clone(),
            clock: clock.clone(),
            bodies: budgets.bodies.of_at_most(max_message_bytes),
            max_message_bytes,
            limits: limits.clone(),
            clients: Arc::clone(clients),
            metrics: Arc::default(),
            all_connections: limits
                .clients
                .clone()
                .unwrap_or_else(|| ClientConnections::new(limits.max_connections, Vec::new())),
            connections: budgets.connections.clone(),
            ids: RequestIds::new()?,
            refusals: RefusalLog::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Metrics of connections and refusals.
    pub fn metrics(&self) -> &Arc<SmtpMetrics> {
        &self.shared.metrics
    }

    /// Serves a listener until the drain stops it; ends when every session has ended.
    pub async fn serve(
        self,
        listener: TcpListener,
        security: Security,
        drain: DrainSignal,
    ) -> Drained {
        let mut sessions = JoinSet::new();
        let mut watched = drain.clone();
        let stopped = drain.clone().stopped();
        tokio::pin!(stopped);
        let deadline = loop {
            let phase = watched.phase();
            let is_crowded = self.shared.all_connections.is_crowded();
            tokio::select! {
                biased;
                deadline = &mut stopped => break deadline,
                () = watched.left(phase) => {}
                Some(ended) = sessions.join_next() => note_end(ended),
                () = sleep(CROWDED_PAUSE), if is_crowded => {}
                accepted = listener.accept(), if !is_crowded && phase != DrainPhase::Holding => match accepted {
                    Ok((stream, peer)) => {
                        self.admit((stream, peer.ip()), &security, &drain, &mut sessions);
                    }
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        tracing::error!(%error, "SMTP connections cannot be accepted for now");
                        sleep(ACCEPT_BACKOFF).await;
                    }
                },
            }
        };
        drop(listener);
        let ended = timeout_at(deadline, async {
            while let Some(ended) = sessions.join_next().await {
                note_end(ended);
            }
        });
        // Within its time or not, the rest is counted and cut off.
        let _ = ended.await;
        let cut_off = sessions.len();
        sessions.shutdown().await;
        Drained { cut_off }
    }

    fn admit(
        &self,
        (stream, address): (TcpStream, IpAddr),
        security: &Security,
        drain: &DrainSignal,
        sessions: &mut JoinSet<()>,
    ) {
        let shared = Arc::clone(&self.shared);
        // Small replies must not wait for the client's acknowledgements. If it cannot be set, the
        // connection is gone already.
        let _ = stream.set_nodelay(true);
        let Some(client) = shared.all_connections.admit(Some(address), Activity::Handshake) else {
            return refuse(&stream, security, &shared);
        };
        let mark = shared.metrics.connections.enter();
        let (security, drain) = (security.clone(), drain.clone());
        sessions.spawn(async move {
            session::serve(stream, client, security, shared, drain).await;
            drop(mark);
        });
    }
}

/// Sends a client the reply that there are too many, if no handshake comes first.
fn refuse(stream: &TcpStream, security: &Security, shared: &Shared) {
    shared.metrics.refuse(Reply::TOO_MANY_CONNECTIONS.codes());
    match security {
        Security::Tls(_) => {}
        Security::None | Security::StartTls(_) => {
            // A new socket has room for a line. If not, closing at once is all that can be done.
            let _ =
                stream.try_write(format!("{}\r\n", Reply::TOO_MANY_CONNECTIONS.line()).as_bytes());
        }
    }
}
