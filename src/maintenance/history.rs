//! History: has the counts of each hour stored, so that a restart does not empty the charts.
//!
//! It counts nothing itself: the counts of organisations are in memory already. Their growth is
//! added to the hour's row once a minute, so acceptance pays nothing, and a crash costs the counts
//! of a minute at most. The last day is read back as often: it has the counts of processes before
//! this one, and of other nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::warn;

use pillarbox_domain::history::{Hour, HourSteps};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;
use pillarbox_store::organisation_counts::OrganisationCounts;
use pillarbox_store::{CountsByOrganisation, History, ListError, Store, StoreError};

/// Longest pause between two times that counts are stored. A crash forgets at most what came since
/// the last one.
pub const INTERVAL: Duration = Duration::from_mins(1);
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Hours of the last day: the one that has begun, and 24 whole ones.
const HOURS_OF_DAY: u32 = 25;

/// Keeper of a file's history.
#[derive(Debug)]
pub struct HistoryKeeper {
    store: Store,
    clock: Clock,
    kept: Mutex<Kept>,
    day: Mutex<StoredDay>,
}

/// The last day as it was stored at one moment.
#[derive(Debug, Default)]
struct StoredDay {
    counts: CountsByOrganisation,
    /// Counts of this process since its start that were stored by then.
    own: CountsByOrganisation,
}

/// Stored part of the counts since the start.
#[derive(Debug)]
struct Kept {
    counts: CountsByOrganisation,
    looked_at: Timestamp,
}

impl HistoryKeeper {
    /// A keeper of the history of a store that was just opened.
    pub fn new(store: Store, clock: Clock) -> Self {
        let kept = Mutex::new(Kept { counts: BTreeMap::new(), looked_at: clock.now() });
        Self { store, clock, kept, day: Mutex::default() }
    }

    /// Stores what is new at least every [`INTERVAL`] and at each full hour, for as long as it is
    /// polled.
    pub async fn run(self: Arc<Self>) {
        loop {
            if let Err(error) = self.read_day().await {
                warn!(%error, "the counts of the last day could not be read; pillarbox tries again");
            }
            let now = self.clock.now();
            let pause = INTERVAL.min(Hour::of(now).left_at(now)).max(SHORTEST_PAUSE);
            tokio::time::sleep(pause).await;
            if let Err(error) = self.keep().await {
                warn!(%error, "the history could not be stored; pillarbox tries again");
            }
        }
    }

    /// Stores what is new.
    pub async fn keep(&self) -> Result<(), StoreError> {
        let (hour, new) = {
            let mut kept = self.lock();
            let (hour, new) = self.unstored(&kept);
            // Counted as stored from here on: if the task is stopped at the write below, the write
            // still happens, and must not be repeated.
            for (organisation, counts) in &new {
                let stored = kept.counts.entry(*organisation).or_default();
                *stored = stored.plus(counts);
            }
            kept.looked_at = self.clock.now();
            (hour, new)
        };
        if new.is_empty() {
            return Ok(());
        }
        let stored = self.store.add_to_history(hour, new.clone()).await;
        if stored.is_err() {
            let mut kept = self.lock();
            for (organisation, counts) in &new {
                let stored = kept.counts.entry(*organisation).or_default();
                *stored = stored.since(counts);
            }
        }
        stored
    }

    /// Returns the counts of each step, with the organisations that had the most mail, at most
    /// `most`. Counts that are being stored at this moment may be missing.
    pub async fn read(&self, steps: HourSteps, most: usize) -> Result<History, ListError> {
        let mut history = self.store.history(steps, most).await?;
        // Not before: what was stored in between would count twice.
        let (hour, new) = self.unstored(&self.lock());
        let Some(step) = steps.position_of(hour) else { return Ok(history) };
        for (organisation, counts) in new {
            history.total[step] = history.total[step].plus(&counts);
            let has_room = history.organisations.len() < most;
            if has_room || history.organisations.contains_key(&organisation) {
                let own = history.organisations.entry(organisation);
                let own = own.or_insert_with(|| vec![OrganisationCounts::default(); steps.count()]);
                own[step] = own[step].plus(&counts);
            }
        }
        Ok(history)
    }

    /// Returns the counts of the last 24 to 25 hours by organisation, those of processes before this
    /// one and of other nodes included. Of hours in which more organisations had mail than the
    /// history keeps apart, some may be missing.
    pub fn last_day(&self) -> CountsByOrganisation {
        let day = self.day.lock().unwrap_or_else(PoisonError::into_inner);
        // Not before: the counts that are stored by then would not be among them.
        let now = self.store.metrics().organisations.get();
        let mut counts = day.counts.clone();
        for (organisation, new) in grown(now, &day.own) {
            let sum = counts.entry(organisation).or_default();
            *sum = sum.plus(&new);
        }
        counts
    }

    /// Reads what is stored of the last day. Nothing may be stored meanwhile.
    async fn read_day(&self) -> Result<(), StoreError> {
        let own = self.lock().counts.clone();
        let steps = HourSteps::until(Hour::of(self.clock.now()), 1, HOURS_OF_DAY);
        let counts = self.store.history_by_organisation(steps).await?;
        *self.day.lock().unwrap_or_else(PoisonError::into_inner) = StoredDay { counts, own };
        Ok(())
    }

    /// Returns what is not stored yet, and the hour in which it happened.
    fn unstored(&self, kept: &Kept) -> (Hour, CountsByOrganisation) {
        let now = self.store.metrics().organisations.get();
        let new = grown(now, &kept.counts).collect();
        (hour_between(kept.looked_at, self.clock.now()), new)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the growth of counts since they were as `before`, of those that have grown.
fn grown(
    now: CountsByOrganisation,
    before: &CountsByOrganisation,
) -> impl Iterator<Item = (OrganisationId, OrganisationCounts)> {
    now.into_iter().filter_map(|(id, counts)| {
        let new = before.get(&id).map_or(counts, |before| counts.since(before));
        (new != OrganisationCounts::default()).then_some((id, new))
    })
}

/// Returns the hour of the counts between two readings. There is one at each full hour, so it is
/// the hour of the earlier one, unless the clock was set or the machine slept.
fn hour_between(earlier: Timestamp, now: Timestamp) -> Hour {
    let is_near = earlier <= now && now.minus(INTERVAL * 2) <= earlier;
    Hour::of(if is_near { earlier } else { now })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::admission::admit;
    use pillarbox_domain::id::MessageIds;
    use pillarbox_domain::mailbox::DomainName;
    use pillarbox_domain::organisation::DomainState;
    use pillarbox_domain::request::{Draft, SendRequest};

    /// Beginning of an hour.
    const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
    const HOUR: Duration = Duration::from_hours(1);

    struct Place {
        store: Store,
        clock: Clock,
        keeper: HistoryKeeper,
        organisation: OrganisationId,
    }

    impl Place {
        async fn on(store: Store, now: Timestamp) -> Self {
            let name = "acme".parse().unwrap();
            let organisation = match store.organisation(&name) {
                Some(organisation) => organisation.id,
                None => store.add_organisation(name).await.unwrap().unwrap().id,
            };
            let domain = DomainName::parse("example.com").unwrap();
            store.put_domain(organisation, domain, DomainState::Assumed, now).await.unwrap();
            let clock = Clock::manual(now);
            let keeper = HistoryKeeper::new(store.clone(), clock.clone());
            Self { store, clock, keeper, organisation }
        }

        async fn accept(&self, count: usize) {
            let draft = Draft {
                from: Some("ann@example.com"),
                to: Some(vec!["bob@example.org"]),
                subject: Some("Hello"),
                text: Some("Hi".into()),
                ..Draft::default()
            };
            let request = SendRequest::parse(draft).unwrap();
            let admitted = admit(request, &self.store.facts(self.organisation)).await.unwrap();
            let (ids, now) = (MessageIds::new(), self.clock.now());
            for _ in 0..count {
                let id = ids.next(now);
                let accepted = self.store.accept(pillarbox_store::NewMessage::new(
                    id,
                    self.organisation,
                    &admitted,
                    now,
                    now,
                    || {},
                ));
                accepted.await.unwrap();
            }
        }

        /// The accepted messages of the last hours, by what is stored and what is not yet.
        async fn accepted(&self, hours: u32) -> Vec<u64> {
            let steps = HourSteps::until(Hour::of(self.clock.now()), 1, hours);
            let history = self.keeper.read(steps, 20).await.unwrap();
            let own = history.organisations.get(&self.organisation);
            let accepted = |steps: &[OrganisationCounts]| {
                steps.iter().map(|counts| counts.accepted).collect::<Vec<_>>()
            };
            let total = accepted(&history.total);
            assert_eq!(own.map_or(vec![0; total.len()], |own| accepted(own)), total);
            total
        }
    }

    #[tokio::test]
    async fn what_happened_last_week_is_there_after_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let open = |now| Store::open(directory.path(), now).unwrap().0;
        let place = Place::on(open(START), START).await;
        place.accept(3).await;
        assert_eq!(place.accepted(2).await, [0, 3], "what is not stored yet counts too");
        place.keeper.keep().await.unwrap();
        place.accept(2).await;
        place.keeper.keep().await.unwrap();
        assert_eq!(place.accepted(2).await, [0, 5]);
        drop(place);

        let later = START.plus(HOUR);
        let place = Place::on(open(later), later).await;
        place.accept(1).await;
        place.keeper.keep().await.unwrap();
        drop(place);

        let week = START.plus(HOUR * 24 * 7);
        let place = Place::on(open(week), week).await;
        let hours = place.accepted(24 * 7 + 1).await;
        assert_eq!((hours[0], hours[1], hours.iter().sum::<u64>()), (5, 1, 6));
        place.store.purge(START.plus(HOUR * 24 * 90), 1_000).await.unwrap();
        assert_eq!(place.accepted(24 * 7 + 1).await.iter().sum::<u64>(), 6, "it is 90 days old");
        place.store.purge(START.plus(HOUR * (24 * 90 + 1)), 1_000).await.unwrap();
        assert_eq!(place.accepted(24 * 7 + 1).await[..2], [0, 1]);
    }

    #[tokio::test]
    async fn the_last_day_has_the_counts_of_processes_before_and_each_once() {
        let directory = tempfile::tempdir().unwrap();
        let open = |now| Store::open(directory.path(), now).unwrap().0;
        let accepted = |place: &Place| {
            place.keeper.last_day().get(&place.organisation).map_or(0, |counts| counts.accepted)
        };
        let place = Place::on(open(START), START).await;
        place.accept(3).await;
        assert_eq!(accepted(&place), 3, "what is not stored yet counts too");
        place.keeper.keep().await.unwrap();
        assert_eq!(accepted(&place), 3);
        place.keeper.read_day().await.unwrap();
        assert_eq!(accepted(&place), 3);
        drop(place);

        let later = START.plus(HOUR);
        let place = Place::on(open(later), later).await;
        place.accept(2).await;
        assert_eq!(accepted(&place), 2, "it was not read yet");
        place.keeper.read_day().await.unwrap();
        assert_eq!(accepted(&place), 5);
        place.keeper.keep().await.unwrap();
        assert_eq!(accepted(&place), 5);

        place.clock.advance(HOUR * 23);
        place.keeper.read_day().await.unwrap();
        assert_eq!(accepted(&place), 5, "24 hours after the first");
        place.clock.advance(HOUR);
        place.keeper.read_day().await.unwrap();
        assert_eq!(accepted(&place), 2);
    }

    #[tokio::test]
    async fn what_came_before_the_full_hour_counts_in_its_own_hour() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), START).unwrap().0;
        let place = Place::on(store, START).await;
        place.clock.advance(HOUR.saturating_sub(Duration::from_secs(30)));
        place.keeper.keep().await.unwrap();
        place.accept(1).await;
        place.clock.advance(Duration::from_secs(31));
        assert_eq!(place.accepted(2).await, [1, 0]);
        place.keeper.keep().await.unwrap();
        place.accept(1).await;
        assert_eq!(place.accepted(2).await, [1, 1]);
    }

    #[tokio::test]
    async fn what_a_failing_disk_does_not_take_is_stored_later_and_once() {
        let (store, fail, work) = Store::on_failing_disk(START);
        let place = Place::on(store, START).await;
        place.accept(2).await;
        fail();
        assert!(place.keeper.keep().await.is_err());
        work();
        place.store.writable().await;
        place.accept(1).await;
        assert_eq!(place.accepted(1).await, [3]);
        place.keeper.keep().await.unwrap();
        place.keeper.keep().await.unwrap();
        assert_eq!(place.accepted(1).await, [3]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_new_is_stored_every_minute() {
        let (store, ..) = Store::on_failing_disk(START);
        let place = Place::on(store, START).await;
        place.accept(2).await;
        let keeper = Arc::new(HistoryKeeper::new(place.store.clone(), place.clock.clone()));
        let keeping = tokio::spawn(Arc::clone(&keeper).run());
        let steps = HourSteps::until(Hour::of(START), 1, 1);
        for _ in 0..1_000 {
            tokio::time::sleep(INTERVAL).await;
            if place.store.history(steps, 1).await.unwrap().total[0].accepted == 2 {
                keeping.abort();
                return;
            }
        }
        panic!("nothing is stored");
    }
}
