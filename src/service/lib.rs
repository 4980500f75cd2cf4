//! The service: everything opened in start-up order, run together, and drained in reverse.
//!
//! The composition root: the one place that knows all parts, and no rule of any of them.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::fs::File;
use std::mem::take;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use secrecy::SecretString;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{error, info, warn};

use pillarbox_admin::bodies::BodyFacts;
use pillarbox_admin::identity::Identity;
use pillarbox_admin::process::unix_seconds;
use pillarbox_admin::restart::Restarts;
use pillarbox_admin::socket::Socket;
use pillarbox_admin::status::SocketOpener;
use pillarbox_admin::{Admin, ServiceFacts};
use pillarbox_alerts::Alerts;
use pillarbox_api::{Api, Budgets};
use pillarbox_config::{Config, KeepBodies};
use pillarbox_dispatch::quota;
use pillarbox_dispatch::{Dispatcher, LAST_CALLS, Phase, Rest, Settings};
use pillarbox_domain::retry::WAIT_FOR_PROOF;
use pillarbox_events::EventProcessor;
use pillarbox_http::connections::ClientConnections;
use pillarbox_http::drain::Drain;
use pillarbox_http::limits::Limits;
use pillarbox_intake::Intake;
use pillarbox_maintenance::history::HistoryKeeper;
use pillarbox_maintenance::timekeeper::Timekeeper;
use pillarbox_operator::Parts;
use pillarbox_operator::key::PageKey;
use pillarbox_operator::observer::Observer;
use pillarbox_providers::Providers;
use pillarbox_queue::MessageQueue;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::ProxyRule;
use pillarbox_ses::credentials::Credentials;
use pillarbox_ses::send::RequestOptions;
use pillarbox_ses::sqs::SqsQueue;
use pillarbox_ses::{SesClient, SesError, SesOptions};
use pillarbox_smtp::Smtp;
use pillarbox_store::{Duty, FILE_NAME, Store, StoreOwner};
use pillarbox_webhooks::Webhooks;

use administration::{Administration, MessageCanceller};
use background::{
    Delivering, alert, answer_others, deliver, follow_quota, process_events, receive, send, upkeep,
};
use hand_over::{Arena, HandOver};
use listeners::{ListenerCopies, Listeners, Operators, Submitting};
use reload::Changeable;
use store::Opened;
use supervisor::Vitals;

pub use check::check;
pub use dev::{DevOptions, check_dev, dev};
pub use error::{ListenerName, ServiceError};
pub use failed_starts::HandedBodies;
pub use fd_store::{Kept, NotKept};
pub use hand_over::NextProgram;
pub use inherited::Inherited;
pub use kept_bodies::drop_bodies;
pub use reload::load_tls;
pub use run::{Ended, serve, simulate};
pub use store::postgres_server;

mod administration;
mod background;
mod captured;
mod check;
mod dev;
mod error;
mod failed_starts;
mod fd_store;
mod hand_over;
mod inherited;
mod kept_bodies;
mod listeners;
mod memory_limit;
mod node_drain;
mod reload;
mod run;
mod signals;
mod store;
mod supervisor;

/// The longest that connecting to SES may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for which responses ask clients to come back elsewhere before connections are
/// closed, so that none is closed under a request that is on its way. It ends early if no client is
/// connected.
const LONGEST_CLOSING: Duration = Duration::from_secs(1);
/// Shortest time for which connections that are on their way are accepted, even if none is open.
const SHORTEST_CLOSING: Duration = Duration::from_millis(20);
/// Longest wait of new connections in a supervisor's socket while this process drains.
const LONGEST_HOLD: Duration = Duration::from_secs(5);
/// Time limit of requests in flight once connections are closed.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Time limit of a stop after its drain.
const LONGEST_END: Duration = Duration::from_secs(9);

/// Running service, with all its parts.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    store: Store,
    queue: Arc<MessageQueue>,
    dispatcher: Arc<Dispatcher<Providers>>,
    intake: Arc<Intake>,
    api: Api,
    drain: Drain,
    operators: Operators,
    page: SecretString,
    phase: watch::Sender<Phase>,
    sending: JoinHandle<()>,
    /// The listeners of HTTP.
    answering: Vec<JoinHandle<()>>,
    resend_address: Option<SocketAddr>,
    submitting: Submitting,
    events: Arc<EventProcessor>,
    polling: Option<JoinHandle<()>>,
    delivering: Delivering,
    administration: Administration,
    background: JoinSet<()>,
    history: Arc<HistoryKeeper>,
    changeable: Changeable,
    config: Config,
    socket: SocketOpener,
    next: HandOver,
    clock: Clock,
    /// Keeps another process from this node's place.
    _node_lock: Option<File>,
}

impl Service {
    /// Opens and starts everything. When this returns, requests are being answered, and every
    /// message that the last process left pending is recovered.
    ///
    /// Clients are served on the sockets of `inherited` that a supervisor has handed over, and on
    /// the configured addresses otherwise. Sockets that the program before had bound there are
    /// used.
    pub async fn start(
        config: &Config,
        clock: Clock,
        credentials: Credentials,
        inherited: Inherited,
    ) -> Result<Self, ServiceError> {
        Self::start_as(StoreOwner::Service, config, clock, credentials, inherited).await
    }

    /// As [`Service::start`], on a store of this owner.
    async fn start_as(
        owner: StoreOwner,
        config: &Config,
        clock: Clock,
        credentials: Credentials,
        mut inherited: Inherited,
    ) -> Result<Self, ServiceError> {
        let (started, (limits, clients)) = (unix_seconds(SystemTime::now()), limits(config));
        // First: a start that must not take another service's socket leaves nothing behind.
        let socket = Socket::take_or_bind(&config.admin_socket, inherited.own.admin.take()).await?;
        let Opened { store, lock: node_lock, bodies } =
            store::open(owner, config, &clock, take(&mut inherited.arenas)).await?;
        let keeper = Timekeeper::start(store.clone(), clock.clone()).await;
        let ses = ses_client(config, credentials, &clock, &store)?;
        let sqs_queue = sqs_queue(config, &ses)?;
        let queue = Arc::new(MessageQueue::new(bodies.store, memory_limit::pending_bytes(config)));
        let dispatcher = dispatcher(config, &store, &queue, &ses, &clock);
        let survived = dispatcher.take_up(bodies.survivors);
        let intake = intake(config, &store, &queue, &clock);
        let listeners = Listeners::bind(config, inherited).await?;
        // Nothing can fail any more but for a fault of the system's.
        let arena = Arena::store(queue.bodies().clone(), config.sending.keep_bodies, bodies.stored);
        let refused = Arc::new(Mutex::new(kept_bodies::without_unwanted(bodies.refused)));

        let (simulated, (phase, sending)) = (dispatcher.provider().simulated(), send(&dispatcher));
        let (mut background, history) = upkeep(keeper, &store, &dispatcher, &intake, &ses, &clock);
        let (max_rate, account) = follow_quota(&mut background, config, &ses, &dispatcher);
        let events = process_events(&mut background, &store, &queue, &clock, simulated);
        let webhooks = Arc::new(Webhooks::new(&store, &clock, &config.webhooks.proxy));
        let alerts = alert(&mut background, config, &store, &clock)?;
        let (key, page) = PageKey::for_listener(listeners.operators.1)?;
        let bodies_kept = hand_over::body_facts(&queue, survived, &clock, arena.as_ref(), &refused);
        let facts = facts(config, &listeners, &intake, &bodies_kept, &alerts, &page)?;
        let (budgets, restarts) = (Budgets::new(&limits), Arc::clone(&facts.restarts));
        let next = HandOver { listeners: listeners.copies, arena, refused, restarts };
        let api = Api::new(&intake, &store, &queue, &clock, &budgets);
        let smtp = Smtp::new(&intake, &store, &clock, &budgets, &limits, api.metrics())?;
        let configured_pending_bytes = Arc::new(config.sending.max_pending_bytes.into());
        let parts = Parts {
            store: store.clone(),
            clock: clock.clone(),
            intake: Arc::clone(&intake),
            dispatcher: Arc::clone(&dispatcher),
            bodies: bodies_kept,
            configured_pending_bytes: Arc::clone(&configured_pending_bytes),
            account,
            events: Arc::clone(&events),
            has_events: sqs_queue.is_some(),
            history: Arc::clone(&history),
            webhooks: Arc::clone(&webhooks),
            alerts: Arc::clone(&alerts),
            clients: Arc::clone(api.metrics()),
            smtp: Arc::clone(smtp.metrics()),
            connections: clients,
            max_connections: limits.max_connections,
            host_names: config.operator_hosts.clone(),
            sign_in: config.operator_sign_in.clone(),
            file: config.data_dir.join(FILE_NAME),
            started,
            tls: listeners.tls.clone(),
            catcher: OnceLock::new(),
        };
        let (observer, admin) = administration_of(config, &store, &clock, &ses, parts, facts);
        answer_others(&mut background, &admin);
        api.cancel_by(Arc::new(MessageCanceller(Arc::clone(&admin))));
        let administration = Administration::start(socket, &admin)?;
        let polling = sqs_queue.map(|queue| receive(queue, &events, administration.signal()));
        let delivering = deliver(&webhooks, store.has_duty(Duty::Webhooks));
        let operators = Operators::start(listeners.operators, observer, Arc::clone(&admin), key);
        captured::show(owner, &operators, simulated);
        let tls = listeners.tls.clone();
        let changeable =
            Changeable { max_rate, budgets, ses, tls, configured_pending_bytes, alerts };
        let (drain, signal) = Drain::new();
        let submitting = listeners::submit(listeners.smtp, &smtp, &signal);
        let (resend, resend_address) = listeners.resend.unzip();
        let clients = (listeners.clients, resend);
        let answering = listeners::answer(clients, listeners.tls, api.clone(), limits, signal);
        queue.bodies().own();
        drop(bodies.gone);
        Ok(Self {
            address: listeners.address,
            store,
            queue,
            dispatcher,
            intake,
            api,
            drain,
            operators,
            page,
            phase,
            sending,
            answering,
            resend_address,
            submitting,
            events,
            polling,
            delivering,
            administration,
            background,
            history,
            changeable,
            config: config.clone(),
            socket: listeners.owner,
            next,
            clock,
            _node_lock: node_lock,
        })
    }

    /// The client listener's address, with the port that it was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The addresses of SMTP submission, with the ports that they were given.
    pub fn smtp_addresses(&self) -> &[SocketAddr] {
        &self.submitting.addresses
    }

    /// The address of the API in Resend's shape, with the port that it was given.
    pub fn resend_address(&self) -> Option<SocketAddr> {
        self.resend_address
    }

    /// The operator listener's address, with the port that it was given.
    pub fn operator_address(&self) -> SocketAddr {
        self.operators.address
    }

    /// The address of the operators' page, with what opens it.
    pub fn page(&self) -> &SecretString {
        &self.page
    }

    /// Shows a page, as HTML, to a browser that opens the client listener's address.
    pub fn show_welcome(&self, page: String) {
        self.api.show_welcome(page);
    }

    /// Store of the service.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Queue of pending messages.
    pub fn queue(&self) -> &Arc<MessageQueue> {
        &self.queue
    }

    /// Dispatcher that sends them.
    pub fn dispatcher(&self) -> &Arc<Dispatcher<Providers>> {
        &self.dispatcher
    }

    /// Processor of delivery events.
    pub fn events(&self) -> &Arc<EventProcessor> {
        &self.events
    }

    /// Time for which it goes on sending once it stops.
    fn drain_time(&self) -> Duration {
        self.config.sending.drain
    }

    fn observer(&self) -> Arc<Observer> {
        Arc::clone(&self.operators.observer)
    }

    /// Logs which proxies are used, if any could be.
    fn tell_of_proxies(&self) {
        if self.config.ses.proxy != ProxyRule::Direct {
            info!("{}", self.changeable.ses.route());
        }
        match &self.config.webhooks.proxy {
            ProxyRule::Direct => {}
            rule => info!("proxy for webhooks and alerts: {rule}"),
        }
    }

    /// Parts that show that the service is alive.
    fn vitals(&self) -> Vitals<Providers> {
        Vitals {
            store: self.store.clone(),
            dispatcher: Arc::clone(&self.dispatcher),
            tasks: std::iter::once(&self.sending)
                .chain(&self.answering)
                .chain(&self.submitting.tasks)
                .map(JoinHandle::abort_handle)
                .collect(),
        }
    }

    /// Stops: refuses new messages, sends what can still be sent, records the rest as lost and
    /// closes the file. Ends soon after the drain, even if a part does not answer. Returns how many
    /// messages are lost.
    pub async fn stop(self) -> u64 {
        let (store, queue) = (self.store.clone(), Arc::clone(&self.queue));
        let lost_before = store.metrics().bodies_lost();
        let pending = self.queue.pending().messages;
        let drain = self.config.sending.drain;
        let rest = self.rest();
        let fate = run::fate(rest, "the messages that are left");
        if pending > 0 {
            info!(
                pending,
                ?drain,
                "stopping: pending messages are sent first. A second signal (Ctrl-C again) stops \
                 at once, and the next start {fate}"
            );
        } else {
            info!("stopping. A second signal (Ctrl-C again) stops at once");
        }
        let until = Instant::now() + drain;
        let end =
            until + if rest == Rest::Kept { LAST_CALLS } else { Duration::ZERO } + LONGEST_END;
        if timeout_at(end, self.stop_in_order(until, rest)).await.is_err() {
            error!("the stop took too long; the next start {fate}");
            if rest == Rest::Kept {
                queue.bodies().leave();
            }
        }
        let left = queue.pending().messages as u64;
        let (left_pending, unrecorded) = match rest {
            Rest::Kept => (left, 0),
            // What could not be recorded is lost all the same; the next start records it.
            Rest::Lost => (0, left),
        };
        let bodies_lost = store.metrics().bodies_lost() - lost_before + unrecorded;
        info!(bodies_lost, left_pending, "stopped");
        bodies_lost
    }

    /// Says if what is pending at the end is kept for the next start.
    fn rest(&self) -> Rest {
        self.next.arena.as_ref().map_or(Rest::Lost, |arena| arena.rest())
    }

    async fn stop_in_order(mut self, until: Instant, rest: Rest) {
        self.intake.close();
        // What was being accepted is answered with 200 and has to be sent as well.
        if timeout_at(until, self.intake.cleared()).await.is_err() {
            error!("messages are still being accepted; the next start {}", run::fate(rest, "them"));
        }
        // The dispatcher lives until its task ends, so the phase always has a reader.
        self.phase.send_replace(Phase::Draining { until, rest });
        match self.socket {
            SocketOpener::Service => self.drain.close_connections(),
            SocketOpener::Supervisor => self.drain.hold_connections(),
        }
        let drain = &self.drain;
        let (sent, ()) = tokio::join!(
            async {
                tokio::select! {
                    sent = &mut self.sending => sent,
                    never = answer_after_a_while(drain) => match never {},
                }
            },
            clients_left(&self.api)
        );
        if let Err(error) = sent {
            error!(%error, "the dispatcher's task failed");
        }
        if rest == Rest::Kept {
            self.queue.bodies().leave();
        }
        // With the copies open, connections would wait here until the end.
        self.next.listeners = ListenerCopies::default();
        self.administration.close_copy();
        self.drain.stop(Instant::now() + LAST_ANSWERS);
        self.end_answering().await;
        self.end_rest().await;
        // Last, so that the whole end can be watched.
        self.operators.stop().await;
        // A node that leaves holds nothing.
        if self.queue.pending().messages == 0 || rest == Rest::Lost {
            self.store.leave().await;
        }
    }

    /// Waits for the end of the clients' listeners.
    async fn end_answering(&mut self) {
        for answering in &mut self.answering {
            if let Err(error) = answering.await {
                error!(%error, "the client listener's task failed");
            }
        }
        for submitting in &mut self.submitting.tasks {
            if let Err(error) = submitting.await {
                error!(%error, "the task of an SMTP listener failed");
            }
        }
    }

    /// Ends what is neither clients' nor operators', and stores what it knows.
    async fn end_rest(&mut self) {
        self.administration.drain(Instant::now() + LAST_ANSWERS);
        if let Some(mut polling) = self.polling.take()
            && timeout(LAST_ANSWERS, &mut polling).await.is_err()
        {
            // What is not deleted from the queue comes again, and changes nothing then.
            polling.abort();
        }
        // Due or not: nothing keeps them for the next process.
        let reported = self.dispatcher.provider().simulated().report_all(&self.events);
        if timeout(LAST_ANSWERS, reported).await.is_err() {
            warn!("the store did not accept events of test organisations; they are lost");
        }
        self.administration.ended().await;
        self.delivering.stop().await;
        self.background.shutdown().await;
        if let Err(error) = self.store.store_key_use().await {
            warn!(%error, "the times of the last use of API keys could not be stored");
        }
        if let Err(error) = self.history.keep().await {
            warn!(%error, "the history of the last minute could not be stored");
        }
        store::save_lost_file(&self.store, &self.clock).await;
    }
}

/// Ends once no client is connected, or after [`LONGEST_CLOSING`].
async fn clients_left(api: &Api) {
    sleep(SHORTEST_CLOSING).await;
    let connections = &api.metrics().connections;
    // Clients that are still connected then are cut off when the listener stops.
    let _ = timeout(LONGEST_CLOSING, connections.cleared()).await;
}

/// The queue that brings the provider's events, if one is configured.
fn sqs_queue(config: &Config, ses: &SesClient) -> Result<Option<SqsQueue>, ServiceError> {
    let url = config.ses.events.queue_url.as_ref().map(ToString::to_string);
    Ok(url.map(|url| SqsQueue::new(ses, &url)).transpose()?)
}

/// Number of connections that clients may have.
fn room_for_clients(config: &Config) -> usize {
    listeners::room_for_clients(config.max_connections, config.sending.max_in_flight)
}

fn dispatcher(
    config: &Config,
    store: &Store,
    queue: &Arc<MessageQueue>,
    ses: &SesClient,
    clock: &Clock,
) -> Arc<Dispatcher<Providers>> {
    Dispatcher::new(
        store.clone(),
        Arc::clone(queue),
        Providers::new(ses.clone(), config.test.capture),
        clock.clone(),
        settings(config),
        quota::initial_rate(config.sending.max_rate),
    )
}

/// New connections wait in a supervisor's socket for the next process, but not for long: then they
/// are asked to come back.
async fn answer_after_a_while(drain: &Drain) -> std::convert::Infallible {
    sleep(LONGEST_HOLD).await;
    drain.close_connections();
    std::future::pending().await
}

/// Facts that the service reports to its commands. The data directory is there by now.
fn facts(
    config: &Config,
    listeners: &Listeners,
    intake: &Arc<Intake>,
    bodies: &Arc<BodyFacts>,
    alerts: &Arc<Alerts>,
    page: &SecretString,
) -> Result<ServiceFacts, ServiceError> {
    let what = "cannot check the data directory";
    let identity = Identity::of(&config.data_dir);
    Ok(ServiceFacts {
        clients: listeners.address,
        resend: listeners.resend.as_ref().map(|(_, address)| *address),
        smtp: listeners.smtp.iter().map(listeners::SmtpListener::told).collect(),
        intake: Arc::clone(intake),
        events_queue: events_queue(config),
        page: page.clone(),
        bodies: Arc::clone(bodies),
        alerts: Arc::clone(alerts),
        restarts: Arc::new(Restarts::new(
            config.sending.keep_bodies == KeepBodies::Yes,
            check::node_database(config),
        )?),
        identity: identity.map_err(|source| ServiceError::System { what, source })?,
    })
}

/// URL of the queue of events by this configuration, if it has one.
pub fn events_queue(config: &Config) -> Option<String> {
    config.ses.events.queue_url.as_ref().map(ToString::to_string)
}

/// The client of SES. Its calls other than `SendEmail` keep SES's limit together with other nodes'.
fn ses_client(
    config: &Config,
    credentials: Credentials,
    clock: &Clock,
    store: &Store,
) -> Result<SesClient, SesError> {
    let ses = SesClient::new(ses_options(config, credentials), clock.clone())?;
    store::share_call_slots(store, &ses);
    Ok(ses)
}

/// Options of the SES client by this configuration.
pub fn ses_options(config: &Config, credentials: Credentials) -> SesOptions {
    SesOptions {
        region: config.ses.region.clone(),
        endpoint: config.ses.endpoint.as_ref().map(ToString::to_string),
        configuration_set: config.ses.configuration_set.clone(),
        tracking_override: config.ses.tracking_override,
        proxy: config.ses.proxy.clone(),
        request_timeout: config.sending.request_timeout,
        connect_timeout: CONNECT_TIMEOUT.min(config.sending.request_timeout),
        credentials,
    }
}

/// Makes the intake, whose messages have what the configuration says.
fn intake(config: &Config, store: &Store, queue: &Arc<MessageQueue>, clock: &Clock) -> Arc<Intake> {
    let options = RequestOptions {
        configuration_set: config.ses.configuration_set.clone(),
        tracking_override: config.ses.tracking_override,
    };
    Arc::new(Intake::new(store.clone(), Arc::clone(queue), clock.clone(), options))
}

fn settings(config: &Config) -> Settings {
    let has_events = config.ses.events.queue_url.is_some();
    Settings {
        max_in_flight: config.sending.max_in_flight,
        backoff: config.sending.backoff,
        retry_for: config.sending.retry_for,
        on_unknown: config.sending.on_unknown,
        drain: config.sending.drain,
        unknown_wait: if has_events { WAIT_FOR_PROOF } else { Duration::ZERO },
    }
}

/// Returns the parts that observe the service and that answer operators, here and for other nodes.
fn administration_of(
    config: &Config,
    store: &Store,
    clock: &Clock,
    ses: &SesClient,
    parts: Parts,
    facts: ServiceFacts,
) -> (Arc<Observer>, Arc<Admin>) {
    let observer = Arc::new(Observer::new(parts));
    let live = Arc::<Observer>::clone(&observer);
    let mut admin = Admin::in_service(store.clone(), clock.clone(), ses.clone(), live, Some(facts));
    admin.webhooks_proxy = config.webhooks.proxy.clone();
    (observer, Arc::new(admin))
}

/// The limits of the client listeners, and their connections.
fn limits(config: &Config) -> (Limits, ClientConnections) {
    let max_connections = room_for_clients(config);
    let clients = ClientConnections::new(max_connections, config.trusted_proxies.clone());
    let limits = Limits {
        max_connections,
        clients: Some(clients.clone()),
        max_request_bytes: config.max_request_bytes,
        max_reading_bytes: config.max_reading_bytes,
        max_writing_bytes: config.max_writing_bytes,
        ..Limits::default()
    };
    (limits, clients)
}
