//! Reports to systemd, by `sd_notify(3)`: that the service is ready, that it reloads or stops, its
//! state, and that it is alive.
//!
//! Reports nothing if no supervisor asks (`NOTIFY_SOCKET`). Alive means that the parts without
//! which nothing is accepted or sent answer, not merely that a timer goes off.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{error, warn};

use pillarbox_admin::snapshot::{Snapshot, StoreHealth};
use pillarbox_dispatch::Dispatcher;
use pillarbox_dispatch::circuit_breaker::BreakerState;
use pillarbox_domain::attempt::Provider;
use pillarbox_operator::observer::Observer;
use pillarbox_store::Store;

/// Interval between two updates of the status line.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// Window of "a minute" in the status line.
const MINUTE: Duration = Duration::from_mins(1);
/// Time that starting takes beyond the watch over another node.
const STARTING_MARGIN: Duration = Duration::from_mins(1);
/// Time that stopping takes beyond `sending.drain`: last answers, last events, closing the file.
const STOPPING_MARGIN: Duration = Duration::from_secs(40);

/// Supervisor that started this process and waits for its reports.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Time without a sign of life after which it takes this process for dead; `None` if it does
    /// not watch.
    watchdog: Option<Duration>,
}

/// Parts that show that the service is alive.
pub(super) struct Vitals<P> {
    pub(super) store: Store,
    pub(super) dispatcher: Arc<Dispatcher<P>>,
    /// Tasks that end with the service alone.
    pub(super) tasks: Vec<AbortHandle>,
}

impl Supervisor {
    /// The supervisor that the environment names, if any.
    pub(super) fn from_environment() -> Self {
        Self { watchdog: sd_notify::watchdog_enabled() }
    }

    /// Renews the status line, and gives signs of life for as long as there is life.
    pub(super) async fn watch<P: Provider>(
        &self,
        vitals: Vitals<P>,
        observer: Arc<Observer>,
    ) -> Infallible {
        // A sign at least every half of the watchdog's time, as sd_watchdog_enabled(3) asks for:
        // one part until it is due, and at most another for the answers.
        let patience = self.watchdog.map(|watchdog| watchdog / 4);
        let mut ticks = interval(patience.map_or(STATUS_INTERVAL, |p| p.min(STATUS_INTERVAL)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sent = LastMinute::default();
        let mut sign_due = Instant::now();
        loop {
            ticks.tick().await;
            let snapshot = observer.immediate();
            let sent = sent.count(snapshot.sending.sent, Instant::now());
            tell(&[NotifyState::Status(&line(&snapshot, sent))]);
            let Some(patience) = patience.filter(|_| sign_due <= Instant::now()) else { continue };
            sign_due = Instant::now() + patience;
            match timeout(patience, vitals.alive()).await {
                Ok(Ok(())) => tell(&[NotifyState::Watchdog]),
                Ok(Err(Ended)) => error!(
                    "a part of the service ended; the service manager will restart the service"
                ),
                Err(_) => error!("the dispatcher or the store makes no progress"),
            }
        }
    }
}

/// The service starts, and may first have to watch another node for `dead_after`, however long the
/// unit's own patience is.
pub(super) fn starting(dead_after: Duration) {
    tell(&[NotifyState::ExtendTimeoutUsec(micros(dead_after + STARTING_MARGIN))]);
}

/// Requests are answered from here on.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read again, until the next [`ready`].
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => warn!(%error, "the service manager could not be notified of the reload"),
    }
}

/// Another program goes on in this process, and says that it is ready. The watchdog's time begins
/// anew.
pub(super) fn handing_over() {
    tell(&[NotifyState::Watchdog, NotifyState::Status("restarting in place")]);
}

/// The service stops, and goes on sending for up to `drain`, however long the unit's own
/// patience is.
pub(super) fn stopping(drain: Duration) {
    let longest = micros(drain + STOPPING_MARGIN);
    tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(longest)]);
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// A task that only ends with the service has ended before it.
#[derive(Debug, PartialEq, Eq)]
struct Ended;

impl<P: Provider> Vitals<P> {
    /// Ends once every part has given a sign of life.
    async fn alive(&self) -> Result<(), Ended> {
        if self.tasks.iter().any(AbortHandle::is_finished) {
            return Err(Ended);
        }
        // A store that refuses, because the disk is full say, is alive: a restart would not help, and
        // could lose pending bodies.
        self.store.answered().await;
        if !self.tasks.is_empty() {
            self.dispatcher.turned().await;
        }
        Ok(())
    }

    /// The same once the service stops: its tasks end one by one.
    pub(super) fn stopping(self) -> Self {
        Self { tasks: Vec::new(), ..self }
    }
}

/// Counts what happened within the last minute from a number that only grows.
#[derive(Debug, Default)]
struct LastMinute(VecDeque<(Instant, u64)>);

impl LastMinute {
    fn count(&mut self, total: u64, now: Instant) -> u64 {
        self.0.push_back((now, total));
        // The newest that is a minute old stays: what came after it is what counts.
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= MINUTE) {
            self.0.pop_front();
        }
        total - self.0.front().map_or(total, |(_, before)| *before)
    }
}

/// The status line: `pending 12, sent 480/min`, and what is wrong, if anything is.
fn line(snapshot: &Snapshot, sent: u64) -> String {
    let mut line = format!("pending {}, sent {sent}/min", snapshot.sending.pending.messages);
    line.push_str(match snapshot.store {
        StoreHealth::Writable => "",
        StoreHealth::Refusing => "; the store accepts no writes, messages are refused",
        StoreHealth::FileGone | StoreHealth::FileReplaced => {
            "; the data file is not in its place, messages are refused"
        }
        StoreHealth::FileWrittenOver => "; the data file was overwritten, messages are refused",
    });
    if let BreakerState::Open { message, .. } = &snapshot.sending.condition {
        line.push_str("; sending is paused: ");
        // The provider's words: a line break in them would be a message of its own.
        line.extend(message.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    line
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "the service manager could not be notified of the service's state");
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use pillarbox_body_store::BodyStore;
    use pillarbox_config::Config;
    use pillarbox_dispatch::Phase;
    use pillarbox_dispatch::circuit_breaker::Cause;
    use pillarbox_dispatch::token_bucket::Rate;
    use pillarbox_domain::attempt::{Outcome, RequestBody};
    use pillarbox_domain::envelope::Envelope;
    use pillarbox_domain::organisation::OrganisationKind;
    use pillarbox_queue::MessageQueue;
    use pillarbox_runtime::clock::Clock;

    #[test]
    fn the_status_line_is_one_line_whatever_the_provider_says() {
        let message = "no\nWATCHDOG=1\r\nMAINPID=1".to_owned();
        let mut snapshot = Snapshot::default();
        snapshot.sending.pending.messages = 12;
        assert_eq!(line(&snapshot, 480), "pending 12, sent 480/min");
        snapshot.store = StoreHealth::FileGone;
        assert_eq!(
            line(&snapshot, 0),
            "pending 12, sent 0/min; the data file is not in its place, messages are refused"
        );
        snapshot.store = StoreHealth::Refusing;
        snapshot.sending.condition = BreakerState::Open { cause: Cause::Unreachable, message };
        assert_eq!(
            line(&snapshot, 0),
            "pending 12, sent 0/min; the store accepts no writes, messages are refused; \
             sending is paused: no WATCHDOG=1  MAINPID=1"
        );
    }

    struct Nobody;

    impl Provider for Nobody {
        async fn send(&self, _: OrganisationKind, _: &Envelope<'_>, _: RequestBody) -> Outcome {
            unreachable!("nothing is sent")
        }
    }

    #[tokio::test]
    async fn a_part_that_stands_still_or_has_ended_is_no_life() {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        let (store, _) = Store::open(directory.path(), clock.now()).unwrap();
        let config = Config::default();
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 20));
        let settings = crate::settings(&config);
        let dispatcher =
            Dispatcher::new(store.clone(), queue, Nobody, clock, settings, Rate::Unlimited);
        let (_phase, phases) = watch::channel(Phase::Running);
        let mut vitals = Vitals { store, dispatcher, tasks: Vec::new() };

        let other = tokio::spawn(std::future::pending::<()>());
        vitals.tasks.push(other.abort_handle());
        let moment = Duration::from_millis(300);
        assert!(timeout(moment, vitals.alive()).await.is_err(), "the dispatcher does not run");

        let running = tokio::spawn(Arc::clone(&vitals.dispatcher).run(phases));
        assert_eq!(timeout(Duration::from_secs(20), vitals.alive()).await, Ok(Ok(())));

        other.abort();
        assert!(other.await.unwrap_err().is_cancelled());
        assert_eq!(vitals.alive().await, Err(Ended));
        assert_eq!(vitals.stopping().alive().await, Ok(()), "the end of a task is as it must be");
        running.abort();
    }

    #[test]
    fn the_last_minute_counts_and_forgets() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut sent = LastMinute::default();
        assert_eq!(sent.count(0, at(0)), 0);
        assert_eq!(sent.count(100, at(5)), 100);
        assert_eq!(sent.count(480, at(60)), 480);
        assert_eq!(sent.count(480, at(65)), 380);
        assert_eq!(sent.count(480, at(120)), 0);
        assert_eq!(sent.count(480, at(1000)), 0);
    }
}
