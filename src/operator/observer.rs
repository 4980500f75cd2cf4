//! One snapshot a second of the running service, shared by all readers; and more of them for a
//! reader that cannot wait for the next.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::Parts;
use crate::captured_mail::Catcher;
use crate::history::RecentHistory;
use crate::live::LiveUpdate;
use crate::trends::Trends;
use pillarbox_admin::conditions::{self, Condition, LATELY, STORE_FAILED};
use pillarbox_admin::live::{Cancelling, LiveView, Looking, Pausing};
use pillarbox_admin::process::Process;
use pillarbox_admin::snapshot::{
    CertificateState, Connections, Snapshot, Stored, TakenIn, TaskFaults, Totals,
};
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::event::EventType;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::Cancellation;
use pillarbox_domain::organisation::{Organisation, OrganisationKind};
use pillarbox_domain::outcome::MessageOutcome;
use pillarbox_domain::time::Timestamp;
use pillarbox_events::metrics::DocumentType;
use pillarbox_http::connections::Closed;
use pillarbox_queue::{DrainForecast, Live, Pending, Selection};
use pillarbox_runtime::tasks::{Faults, Task};
use pillarbox_store::organisation_counts::OrganisationCounts;
use pillarbox_store::{DrainOrder, NodeLoad, SeenFrom};
use pillarbox_webhooks::Webhooks;

const PERIOD: Duration = Duration::from_secs(1);
/// Longest wait of an operator for new answers of the store.
const PATIENCE: Duration = Duration::from_secs(1);
/// Snapshots without a message after which other nodes may have this one's part of the rate.
const IDLE_LOOKS: usize = 10;

/// Maker of snapshots of the running service.
#[derive(Debug)]
pub struct Observer {
    pub(super) parts: Parts,
    pub(super) history: RecentHistory,
    trends: Mutex<Trends>,
    /// Answers of the store, when it was last asked.
    stored: ArcSwap<Stored>,
}

impl Observer {
    /// Observer of these parts.
    pub fn new(parts: Parts) -> Self {
        Self {
            history: RecentHistory::new(parts.clock.now()),
            trends: Mutex::new(Trends::new(Instant::now())),
            stored: ArcSwap::default(),
            parts,
        }
    }

    /// Has the page show what a stand-in for the provider catches. The one that came first stays.
    pub fn show_caught(&self, catcher: Arc<dyn Catcher>) {
        let _ = self.parts.catcher.set(catcher);
    }

    /// Makes a snapshot a second for as long as it is polled, and publishes it to its watchers.
    pub(super) async fn run(self: Arc<Self>, told: watch::Sender<LiveUpdate>) {
        let parts = &self.parts;
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = (Instant::now(), self.whole());
        let mut demand = Demand { idle_looks: IDLE_LOOKS };
        loop {
            ticks.tick().await;
            self.ask_store().await;
            // After the store's answers, which may take long: the counts are of this moment.
            let now = Instant::now();
            let mut snapshot = self.whole();
            self.history.look(snapshot.at, &snapshot.organisations());
            self.trends().look(now, &snapshot);
            let mut conditions = conditions::all(&snapshot);
            self.count_waiting(&mut conditions);
            parts.alerts.observe(conditions.iter().map(Condition::observed));
            let accepted = snapshot.accepted_in_production() > before.1.accepted_in_production();
            // Before the nodes are read: this one's line is of the same moment.
            parts.store.say_load(NodeLoad {
                pending: snapshot.sending.pending.messages as u64,
                conditions: conditions.iter().map(|one| one.code.clone()).collect(),
                demand: demand.look(&snapshot.sending.pending, accepted),
            });
            snapshot.nodes = parts.store.nodes();
            let caught = parts.catcher.get().map(|catcher| catcher.total());
            let passed = now - before.0;
            told.send_modify(|told| told.take(&snapshot, &before.1, passed, &conditions, caught));
            before = (now, snapshot);
        }
    }

    /// Returns a snapshot, with new answers of the store. If these do not come in time, it has the
    /// last ones.
    pub(super) async fn observe(&self) -> Snapshot {
        let is_silent = timeout(PATIENCE, self.ask_store()).await.is_err();
        let mut snapshot = self.whole();
        snapshot.stored.is_silent = is_silent;
        snapshot
    }

    /// Returns what nothing has to be waited for: no answer of the store, no file.
    pub fn immediate(&self) -> Snapshot {
        let parts = &self.parts;
        let (store, now) = (&parts.store, parts.clock.now());
        let this = store.nodes().into_iter().find(|node| node.seen_from == SeenFrom::Itself);
        let this = this.map_or_else(|| "NODE".to_owned(), |node| node.name);
        let organisations = store.organisations();
        let is_test = |one: &&Organisation| one.kind == OrganisationKind::Test;
        Snapshot {
            at: now,
            is_stopping: parts.intake.is_closed(),
            draining: (*store.drains().borrow() == DrainOrder::Begin).then_some(this),
            store: store.health().into(),
            has_store_failed: store.metrics().has_failed_within(STORE_FAILED),
            silent_connections: store.silent_connections(),
            sending: parts.dispatcher.status(),
            impaired_for: parts.dispatcher.impaired_for(),
            account: parts.account.borrow().clone(),
            clock_jump: parts.clock.jump(),
            events_trouble: parts.events.trouble(),
            certificate: parts.tls.as_ref().map(|tls| CertificateState {
                expires_at: tls.expires_at(),
                renew_by: tls.renew_by(),
                is_refused: tls.is_refused(),
                troubles: tls.troubles(now),
            }),
            tests: organisations.iter().filter(is_test).map(|one| one.id).collect(),
            names: organisations.iter().map(|one| (one.id, one.name.as_str().to_owned())).collect(),
            ..Snapshot::default()
        }
    }

    /// Returns everything, with the last answers of the store.
    fn whole(&self) -> Snapshot {
        let parts = &self.parts;
        let (store, ses) = (&parts.store, parts.dispatcher.provider().ses());
        let mut snapshot = Snapshot {
            stored: Stored::clone(&self.stored.load()),
            damaged: store.damaged(),
            journal_bytes: store.journal_bytes(),
            is_shared: store.is_shared(),
            nodes: store.nodes(),
            database: store.database(),
            totals: self.totals(),
            task_faults: Task::ALL.iter().map(|task| faults_of(*task)).collect(),
            endpoints: parts.webhooks.all_statuses(),
            alerts: parts.alerts.show(),
            bodies: Some(parts.bodies.show()),
            configured_pending_bytes: parts.configured_pending_bytes.load(Ordering::Relaxed),
            tracking: ses.tracking_override(),
            went_without_override: ses.went_without_override(),
            connections: Connections {
                http: parts.clients.connections.count(),
                smtp: parts.smtp.connections.count(),
                max: parts.max_connections,
                keyless: parts.connections.keyless(),
                closed: Closed::ALL.map(|reason| parts.connections.closed(reason)),
            },
            paused_by_operators: parts.dispatcher.paused_by_operators(),
            process: Process::now(),
            started: parts.started,
            taken_in: parts.has_events.then(|| self.taken_in()),
            ..self.immediate()
        };
        let named = snapshot.names.keys().map(|id| (*id, OrganisationCounts::default()));
        snapshot.organisations = named.collect();
        snapshot.organisations.extend(store.metrics().organisations.get());
        snapshot.recent = self.trends().recent(&snapshot, &parts.history.last_day());
        snapshot
    }

    fn totals(&self) -> Totals {
        let (clients, store) = (&self.parts.clients, self.parts.store.metrics());
        let sending = self.parts.dispatcher.metrics();
        Totals {
            accepted: clients.accepted.get(),
            refused: clients.all_refused(),
            refused_for_room: clients.refused("QueueFull"),
            internal_errors: clients.refused("InternalError"),
            calls: sending.calls(),
            call_micros: sending.call_micros(),
            throttled: sending.not_sent(ProblemKind::Throttled),
            commits: store.commits(),
            slow_commits: store.slow_commits(),
        }
    }

    fn taken_in(&self) -> TakenIn {
        let (events, now) = (&self.parts.events, self.parts.clock.now().unix_millis());
        let metrics = events.metrics();
        let documents = |event_type| metrics.documents(DocumentType::Event(event_type));
        let since = |at: Timestamp| now.saturating_sub(at.unix_millis()) / 1_000;
        TakenIn {
            send: metrics.documents(DocumentType::Send),
            delivery: documents(EventType::Delivery),
            bounce: documents(EventType::Bounce),
            complaint: documents(EventType::Complaint),
            reject: documents(EventType::Reject),
            delivery_delay: documents(EventType::DeliveryDelay),
            ignored: metrics.documents(DocumentType::Other),
            unmatched: metrics.unmatched.get(),
            foreign: metrics.foreign.get(),
            unreadable: metrics.documents(DocumentType::Unreadable),
            seconds_since_last: events.last_event_at().map(since),
            trouble: events.trouble(),
        }
    }

    /// Says how many messages wait because of each condition.
    fn count_waiting(&self, conditions: &mut [Condition]) {
        let queue = &self.parts.bodies.queue;
        let affected = conditions.iter_mut().filter_map(|one| one.affected.as_mut());
        for one in affected.filter(|one| one.outcome == MessageOutcome::Queued.as_str()) {
            let waiting = match (one.id, one.domain.as_deref().map(DomainName::parse)) {
                (None, _) => {
                    let pending = queue.pending();
                    pending.messages - pending.in_flight
                }
                (Some(organisation), None) => queue.backlog(organisation).waiting,
                (Some(organisation), Some(Ok(domain))) => queue.waiting_from(organisation, &domain),
                (Some(_), Some(Err(_))) => continue,
            };
            one.waiting = Some(waiting as u64);
        }
    }

    /// Asks the store, and keeps what it says for those who cannot wait for it.
    async fn ask_store(&self) {
        let before = self.stored.load_full();
        let stored = Stored::ask(&self.parts.store, &self.parts.clock, &before).await;
        self.stored.store(Arc::new(stored));
    }

    fn trends(&self) -> MutexGuard<'_, Trends> {
        self.trends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveView for Observer {
    fn snapshot(&self) -> Looking<'_> {
        Box::pin(self.observe())
    }

    fn forecast_stop(&self) -> DrainForecast {
        self.parts.dispatcher.forecast_stop()
    }

    fn webhooks(&self) -> Option<&Webhooks> {
        Some(&self.parts.webhooks)
    }

    fn message(&self, id: MessageId) -> Option<Live> {
        self.parts.bodies.queue.live(id)
    }

    fn count(&self, selection: &Selection) -> usize {
        self.parts.bodies.queue.count(selection)
    }

    fn cancel(&self, selection: Selection, why: Cancellation) -> Cancelling<'_> {
        Box::pin(async move { self.parts.dispatcher.cancel(&selection, why).await })
    }

    fn follow_pauses(&self, organisation: OrganisationId) -> Pausing<'_> {
        Box::pin(async move {
            self.parts.dispatcher.follow_pauses().await;
            self.parts.dispatcher.paused_messages(organisation)
        })
    }
}

fn faults_of(task: Task) -> TaskFaults {
    let Faults { count, last } = task.faults();
    let is_recent = last.is_some_and(|at| at.elapsed() < LATELY);
    TaskFaults { task: task.name(), count, is_recent }
}

/// Need of this node for the rate that all nodes share.
struct Demand {
    /// Snapshots since the last message.
    idle_looks: usize,
}

impl Demand {
    /// Takes in what is pending now, and whether messages were accepted since the last update.
    /// Returns the number of organisations that wait for the rate; at least 1 if a message has come
    /// within [`IDLE_LOOKS`].
    fn look(&mut self, pending: &Pending, accepted: bool) -> u32 {
        let is_busy = accepted || pending.open_messages > 0;
        self.idle_looks = if is_busy { 0 } else { self.idle_looks.saturating_add(1) };
        let waiting = u32::try_from(pending.due_organisations).unwrap_or(u32::MAX);
        waiting.max(u32::from(self.idle_looks < IDLE_LOOKS))
    }
}
