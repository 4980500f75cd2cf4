//! Listeners of the service: every address is bound before anything is served, so that a start that
//! cannot have one of them fails whole. The operators' listener is the last to end. Clients get as
//! many connections as the file descriptors allow.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{error, warn};

use crate::ServiceError;
use crate::error::ListenerName;
use crate::inherited::{self, Inherited};
use crate::reload::load_tls;
use pillarbox_admin::Admin;
use pillarbox_admin::status::{self, SessionStart, SocketOpener};
use pillarbox_api::Api;
use pillarbox_config::Config;
use pillarbox_http::Handler;
use pillarbox_http::drain::{Drain, DrainSignal};
use pillarbox_http::limits::Limits;
use pillarbox_http::tls::Tls;
use pillarbox_operator::Operator;
use pillarbox_operator::captured_mail::Catcher;
use pillarbox_operator::key::PageKey;
use pillarbox_operator::observer::Observer;
use pillarbox_resend_api::ResendApi;
use pillarbox_runtime::tasks::Task;
use pillarbox_smtp::{Security, Smtp};

/// Time limit of operators' requests in flight at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// File descriptors that are needed beside clients and calls to the provider: operators'
/// connections, refusals, administration, files.
const OTHERS: usize = 600;

/// Opener of a listener's socket, which keeps it when this process ends: connections may wait in a
/// supervisor's for the next process.
fn opener(inherited: Option<&std::net::TcpListener>) -> SocketOpener {
    inherited.map_or(SocketOpener::Service, |_| SocketOpener::Supervisor)
}

/// Listeners of the service, bound and not yet served.
pub(super) struct Listeners {
    /// Listener of the API.
    pub(super) clients: TcpListener,
    /// TLS of the client listeners; `None` if they have none.
    pub(super) tls: Option<Arc<Tls>>,
    /// The address of that, with the port that it was given.
    pub(super) address: SocketAddr,
    pub(super) owner: SocketOpener,
    /// Listener of the API in Resend's shape and its address; `None` if it is off.
    pub(super) resend: Option<(TcpListener, SocketAddr)>,
    /// Listeners of SMTP submission.
    pub(super) smtp: Vec<SmtpListener>,
    /// Listener of the operators' page, and its address with the port in use.
    pub(super) operators: (TcpListener, SocketAddr),
    /// Copies of all of them.
    pub(super) copies: ListenerCopies,
}

/// Copies of the listening sockets, by their names for the program that goes on with them. While one
/// is open, connections can come in.
#[derive(Debug, Default)]
pub(super) struct ListenerCopies(pub(super) Vec<(String, OwnedFd)>);

impl ListenerCopies {
    fn add(
        &mut self,
        name: &str,
        opener: SocketOpener,
        (listener, address): (&TcpListener, SocketAddr),
        of: ListenerName,
    ) -> Result<(), ServiceError> {
        let copy = listener.as_fd().try_clone_to_owned();
        let copy = copy.map_err(|source| ServiceError::Listen { listener: of, address, source })?;
        self.0.push((inherited::socket_name(name, opener), copy));
        Ok(())
    }
}

/// A listener of SMTP submission.
pub(super) struct SmtpListener {
    pub(super) listener: TcpListener,
    /// Its address, with the port that it was given.
    pub(super) address: SocketAddr,
    pub(super) security: Security,
    pub(super) owner: SocketOpener,
}

impl SmtpListener {
    /// Facts about it that commands receive.
    pub(super) fn told(&self) -> status::SmtpListener {
        status::SmtpListener {
            address: self.address,
            begins: match self.security {
                Security::None | Security::StartTls(_) => SessionStart::PlainText,
                Security::Tls(_) => SessionStart::Tls,
            },
            opened_by: self.owner,
        }
    }
}

impl Listeners {
    /// Binds them all; those of clients come from `inherited` if a supervisor has handed sockets
    /// over.
    pub(super) async fn bind(config: &Config, inherited: Inherited) -> Result<Self, ServiceError> {
        let tls = load_tls(config)?;
        let own = inherited.own;
        let mut copies = ListenerCopies::default();
        let owner = opener(inherited.clients.as_ref());
        let socket = inherited.clients.or_else(|| inherited::fitting(own.clients, config.listen));
        let (clients, address) = bind_or_take(ListenerName::Clients, config.listen, socket).await?;
        copies.add(inherited::CLIENTS, owner, (&clients, address), ListenerName::Clients)?;
        if owner == SocketOpener::Supervisor && address != config.listen {
            warn!(%address, listen = %config.listen, "the service uses the service manager's socket instead of `listen`");
        }
        let plain = (config.smtp.listen, inherited.smtp);
        let secure = (config.smtp.tls_listen, inherited.smtp_tls);
        let owners = [&plain.1, &secure.1].map(|socket| opener(socket.as_ref()));
        let mut smtp = Vec::new();
        if let Some((listener, address)) =
            bind_optional(ListenerName::Smtp, plain.0, plain.1, own.smtp).await?
        {
            copies.add(inherited::SMTP, owners[0], (&listener, address), ListenerName::Smtp)?;
            let security = Security::of_plain(address, tls.as_ref());
            let security = security.ok_or(ServiceError::SmtpInClear { address })?;
            smtp.push(SmtpListener { listener, address, security, owner: owners[0] });
        }
        if let Some((listener, address)) =
            bind_optional(ListenerName::SmtpTls, secure.0, secure.1, own.smtp_tls).await?
        {
            copies.add(inherited::SMTPS, owners[1], (&listener, address), ListenerName::SmtpTls)?;
            let security = tls.clone().map(Security::Tls);
            let security = security.ok_or(ServiceError::SmtpInClear { address })?;
            smtp.push(SmtpListener { listener, address, security, owner: owners[1] });
        }
        let owner_of_resend = opener(inherited.resend.as_ref());
        let resend = (config.resend_listen, inherited.resend);
        let resend = bind_optional(ListenerName::Resend, resend.0, resend.1, own.resend).await?;
        if let Some((listener, address)) = &resend {
            if tls.is_none() && !address.ip().is_loopback() {
                return Err(ServiceError::ResendInClear { address: *address });
            }
            let (name, socket) = (inherited::RESEND, (listener, *address));
            copies.add(name, owner_of_resend, socket, ListenerName::Resend)?;
        }
        let socket = inherited::fitting(own.operators, config.operator_listen);
        let operators =
            bind_or_take(ListenerName::Operators, config.operator_listen, socket).await?;
        let (service, name) = (SocketOpener::Service, ListenerName::Operators);
        copies.add(inherited::OPERATORS, service, (&operators.0, operators.1), name)?;
        Ok(Self { clients, tls, address, owner, resend, smtp, operators, copies })
    }
}

/// Binds an address, or takes the socket that was handed over in its place; with the address, and
/// the port that it was given.
async fn bind_or_take(
    listener: ListenerName,
    address: SocketAddr,
    inherited: Option<std::net::TcpListener>,
) -> Result<(TcpListener, SocketAddr), ServiceError> {
    let failed = |source| ServiceError::Listen { listener, address, source };
    let socket = match inherited {
        Some(listener) => {
            listener.set_nonblocking(true).map_err(failed)?;
            TcpListener::from_std(listener).map_err(failed)?
        }
        None => TcpListener::bind(address).await.map_err(failed)?,
    };
    let address = socket.local_addr().map_err(failed)?;
    Ok((socket, address))
}

/// The same, if there is an address or a supervisor's socket. `own` takes the place of the address,
/// if it is bound to it.
async fn bind_optional(
    listener: ListenerName,
    address: Option<SocketAddr>,
    inherited: Option<std::net::TcpListener>,
    own: Option<std::net::TcpListener>,
) -> Result<Option<(TcpListener, SocketAddr)>, ServiceError> {
    let inherited =
        inherited.or_else(|| address.and_then(|address| inherited::fitting(own, address)));
    // The address of a socket that was handed over is its own.
    let inherited_address = inherited.as_ref().and_then(|listener| listener.local_addr().ok());
    match inherited_address.or(address) {
        Some(address) => bind_or_take(listener, address, inherited).await.map(Some),
        None => Ok(None),
    }
}

/// Answers clients until the drain stops it: in our own shape, and in Resend's if they have a listener.
pub(super) fn answer(
    (listener, resend): (TcpListener, Option<TcpListener>),
    tls: Option<Arc<Tls>>,
    api: Api,
    limits: Limits,
    drain: DrainSignal,
) -> Vec<JoinHandle<()>> {
    let mut answering = Vec::new();
    if let Some(listener) = resend {
        let api = ResendApi::new(&api);
        let serving = serve(listener, tls.clone(), api, limits.clone(), drain.clone());
        let stop = drain.clone().stopped();
        answering.push(tokio::spawn(Task::ResendListener.once(stop, serving)));
    }
    let stop = drain.clone().stopped();
    let serving = serve(listener, tls, api, limits, drain);
    answering.push(tokio::spawn(Task::ClientListener.once(stop, serving)));
    answering
}

async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    handler: impl Handler,
    limits: Limits,
    drain: DrainSignal,
) {
    let served = match tls {
        Some(tls) => pillarbox_http::serve_tls(tls, listener, handler, limits, drain).await,
        None => pillarbox_http::serve(listener, handler, limits, drain).await,
    };
    if let Err(error) = served {
        error!(%error, "the client listener ended");
    }
}

/// The listeners of SMTP submission, served.
#[derive(Debug)]
pub(super) struct Submitting {
    /// Their addresses, with the ports that they were given.
    pub(super) addresses: Vec<SocketAddr>,
    /// Tasks that serve them.
    pub(super) tasks: Vec<JoinHandle<()>>,
}

/// Takes submissions on these listeners until the drain stops them.
pub(super) fn submit(listeners: Vec<SmtpListener>, smtp: &Smtp, drain: &DrainSignal) -> Submitting {
    let addresses = listeners.iter().map(|one| one.address).collect();
    let serve = |one: SmtpListener| {
        let serving = smtp.clone().serve(one.listener, one.security, drain.clone());
        tokio::spawn(Task::SmtpListener.once(drain.clone().stopped(), async move {
            // Sessions that are cut off have had the reply to what they submitted, or none.
            serving.await;
        }))
    };
    Submitting { addresses, tasks: listeners.into_iter().map(serve).collect() }
}

/// The operator listener, served.
#[derive(Debug)]
pub(super) struct Operators {
    /// Its address, with the port that it was given.
    pub(super) address: SocketAddr,
    /// Maker of the snapshots.
    pub(super) observer: Arc<Observer>,
    drain: Drain,
    serving: JoinHandle<()>,
    looking: JoinHandle<()>,
}

impl Operators {
    /// Serves a bound listener.
    pub(super) fn start(
        (listener, address): (TcpListener, SocketAddr),
        observer: Arc<Observer>,
        admin: Arc<Admin>,
        key: PageKey,
    ) -> Self {
        let (drain, signal) = Drain::new();
        let (operator, looking) = Operator::new(Arc::clone(&observer), admin, key);
        let looking = tokio::spawn(Task::OperatorsPage.again(looking));
        let stop = signal.clone().stopped();
        let serving = tokio::spawn(Task::OperatorListener.once(stop, async move {
            if let Err(error) =
                pillarbox_http::serve(listener, operator, Operator::limits(), signal).await
            {
                error!(%error, "the operator listener ended");
            }
        }));
        Self { address, observer, drain, serving, looking }
    }

    /// Has the page show what a stand-in for the provider catches, from now on.
    pub(super) fn show_caught(&self, catcher: Arc<dyn Catcher>) {
        self.observer.show_caught(catcher);
    }

    pub(super) async fn stop(self) {
        // With its end, all streams of events end.
        self.looking.abort();
        self.drain.stop(Instant::now() + LAST_ANSWERS);
        if let Err(error) = self.serving.await {
            error!(%error, "the operator listener's task failed");
        }
        // It has a hold on the data file until it has ended.
        let _ = self.looking.await;
    }
}

/// Returns how many of the client connections that are wanted fit into the process's limit of open
/// files, and warns if that is not all: if clients that only connect could use all descriptors up,
/// no call to the provider could be made.
pub(super) fn room_for_clients(wanted: usize, max_in_flight: usize) -> usize {
    let limit = raise_limit_of_open_files();
    let fitting = fitting(wanted, max_in_flight, limit);
    if fitting < wanted {
        warn!(
            max_connections = fitting,
            "the process can have at most {limit} files open, too few for max_connections = \
             {wanted}, which needs {}; raise that limit (LimitNOFILE= of the unit, ulimit -Hn)",
            wanted.saturating_add(OTHERS).saturating_add(max_in_flight)
        );
    }
    fitting
}

/// Returns the same without a warning.
pub(super) fn quiet_room_for_clients(wanted: usize, max_in_flight: usize) -> usize {
    fitting(wanted, max_in_flight, raise_limit_of_open_files())
}

/// Raises the process's own limit of open files as far as it may go (nothing here uses `select(2)`,
/// which alone could not take more), and returns it.
fn raise_limit_of_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If it cannot be raised, it stays unchanged.
    let current =
        if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.and_then(|current| usize::try_from(current).ok()).unwrap_or(usize::MAX)
}

/// Number of client connections that fit: at least half of the limit is theirs.
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
