//! Alerts: an endpoint of the operators receives conditions, sender domains and API keys that end
//! soon.
//!
//! The conditions come in once a second, as they were found for everything else. A raised alert is
//! a row of the store until it is cleared. Of several nodes, one posts for all; while the store
//! refuses, each posts its own. Knows nothing of how conditions are found.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use tracing::{debug, error, warn};

use pillarbox_domain::alert::{Alert, AlertChange, AlertKey, NextAttempt};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{SigningSecret, WebhookUrl};
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::ProxyRule;
use pillarbox_store::{Alerting, Duty, Store, StoreError};
use pillarbox_webhooks::{
    Answer, Attempt, BadEndpoint, Delivery, LastAnswer, OperatorReceiver, TestAnswer,
};

use book::Book;
use watcher::{View, Watcher};

pub use watcher::{FoundBy, Observed};

mod book;
mod payload;
mod watcher;

/// The most posts under way at one time: a receiver that hangs takes so many connections.
const MAX_IN_FLIGHT: usize = 4;
/// Alerts do not get through from so many failed attempts in a row on.
const FAILING_FROM: u32 = 3;
/// Interval between two checks of the ends of API keys.
const EXPIRY_LOOK: Duration = Duration::from_mins(1);

/// Sends alerts to the operators' receiver.
#[derive(Debug)]
pub struct Alerts {
    store: Store,
    clock: Clock,
    /// Name of this node; empty if it is the only one.
    node: String,
    /// `None` if operators have none.
    receiver: watch::Sender<Option<Arc<OperatorReceiver>>>,
    observed: watch::Sender<Arc<[Observed]>>,
    status: Mutex<AlertsStatus>,
}

/// State of the posts: the source for conditions and metrics. It is in memory alone.
#[derive(Debug, Clone, Default)]
pub struct AlertsStatus {
    /// Last answer, or what came in its place.
    pub last: Option<LastAnswer>,
    /// Attempts that failed since the last that did not.
    pub failures_in_a_row: u32,
    /// Events that the receiver has not taken yet.
    pub waiting: usize,
    /// Posts that were taken.
    pub delivered: u64,
    /// Attempts that failed and are followed by another.
    pub retried: u64,
    /// Events whose last attempt failed.
    pub failed: u64,
}

impl AlertsStatus {
    /// True if alerts do not get through.
    pub const fn is_failing(&self) -> bool {
        self.failures_in_a_row >= FAILING_FROM
    }
}

/// A post that has ended.
struct Posted {
    key: AlertKey,
    alert: Alert,
    attempt: Attempt,
}

impl Alerts {
    /// Alerts of the node of this name, which is empty if there are no others. It has no receiver yet.
    pub fn new(store: Store, clock: Clock, node: String) -> Self {
        Self {
            store,
            clock,
            node,
            receiver: watch::Sender::new(None),
            observed: watch::Sender::new(Arc::default()),
            status: Mutex::default(),
        }
    }

    /// Posts to this receiver from now on, by this rule, or to none.
    pub fn set_receiver(
        &self,
        receiver: Option<(&WebhookUrl, &SigningSecret)>,
        proxy: &ProxyRule,
    ) -> Result<(), BadEndpoint> {
        let receiver =
            receiver.map(|(url, secret)| OperatorReceiver::new(url, secret.clone(), proxy));
        let receiver = receiver.transpose()?;
        self.store.set_alerting(if receiver.is_some() { Alerting::On } else { Alerting::Off });
        self.status().failures_in_a_row = 0;
        self.receiver.send_replace(receiver.map(Arc::new));
        Ok(())
    }

    /// State of the posts; `None` if there is no receiver.
    pub fn show(&self) -> Option<AlertsStatus> {
        self.receiver.borrow().is_some().then(|| self.status().clone())
    }

    /// Takes the conditions that hold now.
    pub fn observe(&self, conditions: impl Iterator<Item = Observed>) {
        if self.receiver.borrow().is_some() {
            self.observed.send_replace(conditions.collect());
        }
    }

    /// Posts a test and waits for the answer; `None` if there is no receiver.
    pub async fn test(&self) -> Option<TestAnswer> {
        let receiver = self.receiver.borrow().clone()?;
        let delivery = payload::test(self.clock.machine_time());
        Some(receiver.post(delivery, &self.clock).await.into())
    }

    fn status(&self) -> MutexGuard<'_, AlertsStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts for as long as it is polled.
    pub async fn run(self: Arc<Self>) {
        let mut observed = self.observed.subscribe();
        let mut work = Work::new(&self);
        let mut posts = FuturesUnordered::new();
        loop {
            tokio::select! {
                changed = observed.changed() => {
                    changed.expect("the sender is in use");
                    let conditions = observed.borrow_and_update().clone();
                    work.look(&conditions).await;
                }
                Some(posted) = posts.next(), if !posts.is_empty() => work.posted(posted),
            }
            work.write().await;
            let Some(receiver) = self.receiver.borrow().clone() else { continue };
            while posts.len() < MAX_IN_FLIGHT
                && let Some((key, alert, delivery)) = work.next()
            {
                let (receiver, clock) = (Arc::clone(&receiver), self.clock.clone());
                posts.push(async move {
                    let attempt = receiver.post(delivery, &clock).await;
                    Posted { key, alert, attempt }
                });
            }
        }
    }
}

/// Posts a test to a receiver that no service has yet.
pub async fn test(
    url: &WebhookUrl,
    secret: &SigningSecret,
    clock: &Clock,
    proxy: &ProxyRule,
) -> Result<TestAnswer, BadEndpoint> {
    let receiver = OperatorReceiver::new(url, secret.clone(), proxy)?;
    Ok(receiver.post(payload::test(clock.machine_time()), clock).await.into())
}

/// State of the alerts' task.
struct Work<'a> {
    alerts: &'a Alerts,
    watcher: Watcher,
    book: Book,
    has_duty: watch::Receiver<bool>,
    /// True if the store gave its rows and took all changes when it was last asked.
    is_stored: bool,
    expiries_looked_at: Option<Timestamp>,
}

impl<'a> Work<'a> {
    fn new(alerts: &'a Alerts) -> Self {
        Self {
            watcher: Watcher::new(&alerts.node, alerts.clock.now()),
            book: Book::default(),
            has_duty: alerts.store.has_duty(Duty::Alerts),
            is_stored: true,
            expiries_looked_at: None,
            alerts,
        }
    }

    /// Checks the conditions that hold, and the rows that other nodes wrote.
    async fn look(&mut self, conditions: &[Observed]) {
        let (store, now) = (&self.alerts.store, self.alerts.clock.now());
        let has_duty = *self.has_duty.borrow();
        self.tell_of_expiring_keys(has_duty, now).await;
        match store.alerts().await {
            Ok(rows) => {
                self.book.read(rows);
                self.is_stored = true;
            }
            Err(error) => self.refused(error),
        }
        let nodes: Vec<_> = store.nodes().into_iter().map(|node| node.name).collect();
        self.watcher.look(View { now, conditions, nodes: &nodes, has_duty }, &mut self.book);
        let mut status = self.alerts.status();
        status.waiting = self.book.waiting();
        if !has_duty && self.is_stored {
            // Another node posts: it knows better.
            status.failures_in_a_row = 0;
        }
    }

    async fn tell_of_expiring_keys(&mut self, has_duty: bool, now: Timestamp) {
        let is_time =
            self.expiries_looked_at.is_none_or(|last| last > now || last.is_past(EXPIRY_LOOK, now));
        if !has_duty || !is_time {
            return;
        }
        self.expiries_looked_at = Some(now);
        // If the clock is in doubt, no alert says that a key ends.
        let window_now = self.alerts.clock.window_time().now();
        if let Err(error) = self.alerts.store.tell_of_expiring_keys(window_now).await {
            debug!(%error, "the expiry of API keys could not be checked");
        }
    }

    /// Writes changes to the store. It gets those that it refuses again later.
    async fn write(&mut self) {
        let changes = self.book.unstored();
        if changes.is_empty() {
            return;
        }
        match self.alerts.store.change_alerts(changes).await {
            Ok(()) => self.book.stored(),
            Err(error) => self.refused(error),
        }
    }

    fn refused(&mut self, error: StoreError) {
        if self.is_stored {
            warn!(%error, "the store does not keep alerts for now; they are posted from memory");
        }
        self.is_stored = false;
    }

    /// Takes the next alert that is due and that this node posts.
    fn next(&mut self) -> Option<(AlertKey, Alert, Delivery)> {
        let (store, now) = (&self.alerts.store, self.alerts.clock.now());
        let (has_duty, is_stored) = (*self.has_duty.borrow(), self.is_stored);
        let node = self.alerts.node.as_str();
        let is_ours = |key: &AlertKey| has_duty || (!is_stored && key.node() == Some(node));
        let name = |id| store.organisation_by_id(id).map(|one| one.name.as_str().to_owned());
        while let Some((key, alert)) = self.book.begin_next(now, is_ours) {
            if let Some(delivery) = payload::delivery(&key, &alert, &self.book, name) {
                return Some((key, alert, delivery));
            }
            // Its subject was removed.
            self.book.end(&key);
            self.book.change(key, AlertChange::delivery(alert.taken()));
        }
        None
    }

    fn posted(&mut self, Posted { key, alert, attempt }: Posted) {
        let now = self.alerts.clock.now();
        let (answer, mut status) = (attempt.answer.to_string(), self.alerts.status());
        let delivery = match attempt.answer {
            Answer::Taken(_) => {
                if status.failures_in_a_row > 0 {
                    self.book.hurry(now);
                }
                status.failures_in_a_row = 0;
                status.delivered += 1;
                alert.taken()
            }
            Answer::Gone => alert.failed(now, fastrand::f64(), None),
            Answer::Failed { retry_after, .. } => alert.failed(now, fastrand::f64(), retry_after),
        };
        match delivery.next {
            NextAttempt::Taken => {}
            NextAttempt::At(_) => {
                status.failures_in_a_row = status.failures_in_a_row.saturating_add(1);
                status.retried += 1;
                debug!(answer, "an alert was not accepted; it is posted again");
            }
            NextAttempt::GivenUp => {
                status.failures_in_a_row = status.failures_in_a_row.saturating_add(1);
                status.failed += 1;
                error!(answer, "an alert was not accepted within a day and is given up");
            }
        }
        status.last = Some(LastAnswer { at: now, answer });
        drop(status);
        self.book.end(&key);
        self.book.change(key, AlertChange::delivery(delivery));
    }
}
