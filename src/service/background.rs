//! The service's background tasks, begun. `tasks` says what follows if one fails.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tracing::error;

use crate::{ServiceError, node_drain, store};
use pillarbox_admin::{Admin, all_nodes};
use pillarbox_alerts::Alerts;
use pillarbox_config::{Config, MaxRate, StoreConfig};
use pillarbox_dispatch::quota::{self, AccountCheck};
use pillarbox_dispatch::{Dispatcher, Phase};
use pillarbox_events::{EventProcessor, poll};
use pillarbox_http::drain::DrainSignal;
use pillarbox_intake::Intake;
use pillarbox_maintenance::history::HistoryKeeper;
use pillarbox_maintenance::timekeeper::Timekeeper;
use pillarbox_maintenance::{domain_verification, purge};
use pillarbox_providers::{Providers, SimulatedProvider};
use pillarbox_queue::MessageQueue;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::tasks::Task;
use pillarbox_ses::SesClient;
use pillarbox_ses::sqs::SqsQueue;
use pillarbox_store::Store;
use pillarbox_webhooks::Webhooks;

/// Sends until the service stops.
pub(super) fn send(
    dispatcher: &Arc<Dispatcher<Providers>>,
) -> (watch::Sender<Phase>, JoinHandle<()>) {
    let (phase, mut phases) = watch::channel(Phase::Running);
    let sending = Arc::clone(dispatcher).run(phases.clone());
    let stop = async move { phases.wait_for(|phase| *phase != Phase::Running).await.is_ok() };
    (phase, tokio::spawn(Task::Sending.once(stop, sending)))
}

/// Takes in the provider's events until the service stops.
pub(super) fn receive(
    sqs_queue: SqsQueue,
    events: &Arc<EventProcessor>,
    signal: DrainSignal,
) -> JoinHandle<()> {
    let events = Arc::clone(events);
    tokio::spawn(Task::Polling.again_until(signal.clone().stopped(), move || {
        poll::run(sqs_queue.clone(), Arc::clone(&events), signal.clone().stopped())
    }))
}

/// Returns what takes in events, and has it take in those of test organisations' messages as they
/// become due.
pub(super) fn process_events(
    tasks: &mut JoinSet<()>,
    store: &Store,
    queue: &Arc<MessageQueue>,
    clock: &Clock,
    simulated: &Arc<SimulatedProvider>,
) -> Arc<EventProcessor> {
    let events = Arc::new(EventProcessor::new(store.clone(), Arc::clone(queue), clock.clone()));
    let (simulated, taken_in) = (Arc::clone(simulated), Arc::clone(&events));
    tasks.spawn(
        Task::SimulatedEvents.again(move || Arc::clone(&simulated).run(Arc::clone(&taken_in))),
    );
    events
}

/// Delivery to endpoints.
#[derive(Debug)]
pub(super) struct Delivering {
    /// It stops once this is dropped.
    go_on: Option<watch::Sender<()>>,
    task: JoinHandle<()>,
}

impl Delivering {
    pub(super) async fn stop(&mut self) {
        self.go_on = None;
        if let Err(error) = (&mut self.task).await {
            error!(%error, "the webhooks' task failed");
        }
    }
}

/// Delivers as long as this node is the one that does so for all.
pub(super) fn deliver(webhooks: &Arc<Webhooks>, delivers: watch::Receiver<bool>) -> Delivering {
    let (go_on, stopped) = watch::channel(());
    let webhooks = Arc::clone(webhooks);
    let stop = dropped(stopped.clone());
    let begin =
        move || deliver_by_turns(Arc::clone(&webhooks), delivers.clone(), dropped(stopped.clone()));
    Delivering { go_on: Some(go_on), task: tokio::spawn(Task::Webhooks.again_until(stop, begin)) }
}

async fn deliver_by_turns(
    webhooks: Arc<Webhooks>,
    mut delivers: watch::Receiver<bool>,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    let mut is_stopped = false;
    while !is_stopped {
        tokio::select! {
            () = &mut stop => return,
            _ = delivers.wait_for(|delivers| *delivers) => {}
        }
        let mut lasts = delivers.clone();
        let over = async {
            tokio::select! {
                () = &mut stop => is_stopped = true,
                Ok(_) = lasts.wait_for(|delivers| !delivers) => {}
            }
        };
        Arc::clone(&webhooks).run(over).await;
    }
}

/// Ends once the sender is dropped.
async fn dropped(mut sender: watch::Receiver<()>) {
    while sender.changed().await.is_ok() {}
}

/// Passes on a value, and each that it changes to.
async fn follow<T: Copy>(mut values: watch::Receiver<T>, pass_on: impl Fn(T)) {
    loop {
        pass_on(*values.borrow_and_update());
        if values.changed().await.is_err() {
            return;
        }
    }
}

/// Has the sending rate follow the quota that SES gives, and the configuration's. Returns the
/// sender for a new configuration's rate, and the receiver of the account's state.
pub(super) fn follow_quota(
    tasks: &mut JoinSet<()>,
    config: &Config,
    ses: &SesClient,
    dispatcher: &Arc<Dispatcher<Providers>>,
) -> (watch::Sender<MaxRate>, watch::Receiver<AccountCheck>) {
    let (max_rate, rates) = watch::channel(config.sending.max_rate);
    let (check, account) = watch::channel(AccountCheck::Unasked);
    let (ses, dispatcher) = (ses.clone(), Arc::clone(dispatcher));
    let told = watch::Sender::default();
    tasks.spawn(Task::Quota.again(move || {
        let dispatcher = Arc::clone(&dispatcher);
        quota::run(ses.clone(), dispatcher, rates.clone(), told.clone(), check.clone())
    }));
    (max_rate, account)
}

/// Tasks beside requests and sending: the file's time stamp, the purge, the use of keys, the state
/// of domains, and the history.
pub(super) fn upkeep(
    keeper: Timekeeper,
    store: &Store,
    dispatcher: &Arc<Dispatcher<Providers>>,
    intake: &Arc<Intake>,
    ses: &SesClient,
    clock: &Clock,
) -> (JoinSet<()>, Arc<HistoryKeeper>) {
    let mut tasks = JoinSet::new();
    let history = Arc::new(HistoryKeeper::new(store.clone(), clock.clone()));
    let kept = Arc::clone(&history);
    tasks.spawn(Task::History.again(move || Arc::clone(&kept).run()));
    tasks.spawn(Task::TimeRecord.again(move || keeper.clone().run()));
    if let Some(readings) = store.server_clock() {
        let (clock, dispatcher) = (clock.clone(), Arc::clone(dispatcher));
        let (shares, drains, intake) = (store.share(), store.drains(), Arc::clone(intake));
        tasks.spawn(Task::ServerClock.again(move || {
            let clock = clock.clone();
            follow(readings.clone(), move |reading| clock.follow(reading))
        }));
        tasks.spawn(Task::NodeShare.again(move || {
            let dispatcher = Arc::clone(&dispatcher);
            follow(shares.clone(), move |share| dispatcher.set_share(share))
        }));
        tasks.spawn(
            Task::NodeDrain.again(move || node_drain::follow(drains.clone(), Arc::clone(&intake))),
        );
        tasks.spawn(Task::Fence.again(of(store, store::end_if_fenced)));
        tasks.spawn(Task::EngineTasks.again(of(store, store::end_if_task_ends)));
    }
    tasks.spawn(Task::DataFile.again(of(store, store::watch_file)));
    tasks.spawn(Task::KeyUse.again(of(store, store::store_key_use)));
    let (purged, verified, ses) = (store.clone(), store.clone(), ses.clone());
    let (time, clock) = (clock.clone(), clock.clone());
    tasks.spawn(Task::Purge.again(move || purge::run(purged.clone(), time.clone())));
    tasks.spawn(
        Task::DomainVerification
            .again(move || domain_verification::run(verified.clone(), ses.clone(), clock.clone())),
    );
    (tasks, history)
}

/// Sends alerts to operators, if they have a receiver.
pub(super) fn alert(
    tasks: &mut JoinSet<()>,
    config: &Config,
    store: &Store,
    clock: &Clock,
) -> Result<Arc<Alerts>, ServiceError> {
    let node = match &config.store {
        StoreConfig::Redb => String::new(),
        StoreConfig::Postgres(postgres) => postgres.node.clone(),
    };
    let alerts = Arc::new(Alerts::new(store.clone(), clock.clone(), node));
    let receiver = config.alerts.as_ref().map(|alerts| (&alerts.url, &alerts.secret));
    alerts.set_receiver(receiver, &config.webhooks.proxy).map_err(ServiceError::Alerts)?;
    let running = Arc::clone(&alerts);
    tasks.spawn(Task::Alerts.again(move || Arc::clone(&running).run()));
    Ok(alerts)
}

/// Answers the other nodes.
pub(super) fn answer_others(tasks: &mut JoinSet<()>, admin: &Arc<Admin>) {
    let admin = Arc::clone(admin);
    let begin = move || all_nodes::answer_others(Arc::clone(&admin));
    tasks.spawn(Task::OtherNodesRequests.again(begin));
}

/// Begins a task that is of the store alone.
fn of<F>(store: &Store, run: fn(Store) -> F) -> impl FnMut() -> F + use<F> {
    let store = store.clone();
    move || run(store.clone())
}
