//! Timekeeper: renews the file's time stamp and ends doubts of the clock.
//!
//! A doubt ends only once its end is durable. A process that is killed right after it then starts
//! with the same idea of the age of its records.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};

use pillarbox_domain::clock_corrections::TimeRecord;
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::{Adoption, Clock, ConfirmedBy, Synchronisation};
use pillarbox_store::{Store, StoreError};

/// Pause between two checks of the clock.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);
/// Pause between two checks whether a doubt has begun or ended, if other nodes have the same clock:
/// one of them that starts learns of a jump only by the stored doubt.
const SHARED_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Age at which the file's time stamp is renewed.
const STAMP_INTERVAL: Duration = Duration::from_hours(1);

/// Task that keeps a file's time stamp and ends doubts.
#[derive(Debug, Clone)]
pub struct Timekeeper {
    store: Store,
    clock: Clock,
    /// Last stamp that was stored.
    stamp: Option<Timestamp>,
    logged: Logged,
}

/// State of the clock, as last logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logged {
    Trusted,
    InDoubt,
}

impl Timekeeper {
    /// Compares the clock with the file's record, and ends a doubt at once if the kernel says that
    /// its clock is synchronised. Call it before any window is judged.
    pub async fn start(store: Store, clock: Clock) -> Self {
        let confirmed_by = confirmation(&clock).await;
        let newest = store.newest().await.unwrap_or_else(|error| {
            error!(%error, "the newest message cannot be read");
            None
        });
        let record = store.time_record().await.unwrap_or_else(|error| {
            error!(
                %error,
                "the store's record of the clock cannot be read; pillarbox uses the time of \
                 the newest message instead"
            );
            newest.map(TimeRecord::at)
        });
        clock.open(record, newest, confirmed_by);
        let mut keeper = Self { store, clock, stamp: None, logged: Logged::Trusted };
        keeper.resolve(confirmed_by).await;
        keeper
    }

    /// Keeps time for as long as it is polled.
    pub async fn run(mut self) {
        loop {
            self.pause().await;
            self.step().await;
        }
    }

    /// Waits until the next check.
    async fn pause(&self) {
        if !self.store.is_shared() {
            return tokio::time::sleep(LOOK_INTERVAL).await;
        }
        let end = Instant::now() + LOOK_INTERVAL;
        let is_as_logged = || match self.logged {
            Logged::Trusted => self.clock.jump().is_none(),
            Logged::InDoubt => self.clock.jump().is_some(),
        };
        while is_as_logged() && Instant::now() < end {
            tokio::time::sleep(SHARED_LOOK_INTERVAL).await;
        }
    }

    /// Checks the clock once. Stores its record if the stamp is due or the clock is in doubt.
    pub async fn step(&mut self) {
        let recorded = self.clock.record_time();
        let is_due = self.stamp.is_none_or(|stamp| stamp.is_past(STAMP_INTERVAL, recorded));
        // Only a doubt that was stored can have been ended by others.
        if self.logged == Logged::InDoubt && self.clock.jump().is_some() && self.adopt_end().await {
            self.log();
            return;
        }
        if is_due || self.clock.jump().is_some() || self.logged == Logged::InDoubt {
            self.resolve(confirmation(&self.clock).await).await;
        }
    }

    /// Goes by the end of a doubt that another node has stored.
    async fn adopt_end(&self) -> bool {
        let record = if self.store.is_shared() { self.store.time_record().await } else { Ok(None) };
        record.ok().flatten().is_some_and(|record| self.clock.adopt_end(record))
    }

    async fn resolve(&mut self, confirmed_by: ConfirmedBy) {
        match resolve(&self.store, &self.clock, confirmed_by).await {
            Ok(stamp) => self.stamp = Some(stamp),
            Err(error) => {
                warn!(%error, "the store's time stamp could not be stored; pillarbox tries again");
            }
        }
        self.log();
    }

    /// Begins a sentence about the clock.
    fn name(&self) -> &'static str {
        if self.store.is_shared() { "the database's clock" } else { "the system's clock" }
    }

    fn log(&mut self) {
        match (self.clock.jump(), self.logged) {
            (Some(jump), Logged::Trusted) => {
                self.logged = Logged::InDoubt;
                error!(
                    since = %jump.since, expected = %jump.expected, clock = %jump.wall,
                    "{} {jump}. Nothing is purged and no idempotency key expires \
                     until the clock is trusted again. If it is wrong, set it; if it is right, run: \
                     pillarbox clock confirm",
                    self.name()
                );
            }
            (None, Logged::InDoubt) => {
                self.logged = Logged::Trusted;
                warn!(clock = %self.clock.now(), "{} is trusted again", self.name());
            }
            (Some(_), Logged::InDoubt) | (None, Logged::Trusted) => {}
        }
    }
}

async fn confirmation(clock: &Clock) -> ConfirmedBy {
    match clock.synchronisation().await {
        Synchronisation::Yes if clock.agrees_with_machine() => ConfirmedBy::Kernel,
        Synchronisation::Yes | Synchronisation::No | Synchronisation::Unknown { .. } => {
            ConfirmedBy::Nobody
        }
    }
}

/// Stores the clock's record and returns its stamp. If the clock is confirmed, a doubt is over when
/// this returns, and its end is durable.
pub async fn resolve(
    store: &Store,
    clock: &Clock,
    confirmed_by: ConfirmedBy,
) -> Result<Timestamp, StoreError> {
    loop {
        let proposal = clock.propose(confirmed_by);
        store.keep_time_record(proposal.record().clone()).await?;
        match clock.adopt(&proposal) {
            Adoption::Adopted => return Ok(proposal.record().stamp),
            Adoption::Outdated => info!("the clock changed meanwhile; its record is stored again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
    const DAY: Duration = Duration::from_hours(24);
    /// Far more than the keeper needs.
    const MAX_LOOKS: usize = 1_000;

    async fn stamp(store: &Store) -> Option<Timestamp> {
        store.time_record().await.unwrap().map(|record| record.stamp)
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_is_kept_and_ends_by_itself_once_the_kernel_calls_the_clock_synchronised() {
        let (store, ..) = Store::on_failing_disk(NOON);
        let clock = Clock::manual(NOON);
        let keeper = Timekeeper::start(store.clone(), clock.clone()).await;
        assert_eq!(stamp(&store).await, Some(NOON));
        let keeping = tokio::spawn(keeper.run());
        // The writer's thread does not wait for paused time.
        let looks = async || {
            tokio::time::sleep(LOOK_INTERVAL).await;
            store.answered().await;
        };
        clock.set(NOON.plus(DAY * 95));
        assert!(clock.jump().is_some());
        let is_durable = async || store.time_record().await.unwrap().unwrap().doubt.is_some();
        for _ in 0..MAX_LOOKS {
            if is_durable().await {
                break;
            }
            looks().await;
        }
        assert!(is_durable().await, "the doubt is not durable");
        assert!(clock.jump().is_some(), "nobody has said that it is right");
        clock.synchronise();
        for _ in 0..MAX_LOOKS {
            if clock.jump().is_none() {
                break;
            }
            looks().await;
        }
        assert!(clock.jump().is_none(), "the doubt does not end");
        assert_eq!(stamp(&store).await, Some(NOON.plus(DAY * 95)));
        keeping.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_stamp_is_renewed_every_hour_and_waits_for_a_failing_disk() {
        let (store, fail, work) = Store::on_failing_disk(NOON);
        let clock = Clock::manual(NOON);
        let mut keeper = Timekeeper::start(store.clone(), clock.clone()).await;
        clock.advance(STAMP_INTERVAL.saturating_sub(Duration::from_millis(1)));
        keeper.step().await;
        assert_eq!(stamp(&store).await, Some(NOON));
        fail();
        clock.advance(Duration::from_millis(1));
        keeper.step().await;
        clock.set(NOON.plus(DAY * 95));
        assert!(resolve(&store, &clock, ConfirmedBy::Operator).await.is_err());
        assert!(clock.jump().is_some(), "what is not durable does not count");
        work();
        clock.set(NOON.plus(STAMP_INTERVAL));
        store.writable().await;
        keeper.step().await;
        assert_eq!(stamp(&store).await, Some(NOON.plus(STAMP_INTERVAL)));
    }
}
