//! The end of the dispatcher's life: when it has come, and what is left to record.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::PoisonError;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::{error, warn};

use crate::attempt::{KnownOutcome, RECORD_AGAIN, offer};
use crate::{Dispatcher, Phase, TEST_CALLS};
use pillarbox_domain::attempt::Provider;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Acceptance, Transition};
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::time::Timestamp;
use pillarbox_queue::{DrainForecast, Next};
use pillarbox_store::Health as StoreHealth;

/// Time limit of the store for the last records of a process.
pub(super) const LAST_RECORDS: Duration = Duration::from_secs(5);
/// Number of lost messages that are recorded together.
const RECORDING_STEP: usize = 1_000;

impl<P: Provider> Dispatcher<P> {
    /// Enters a phase: at the start of a drain every waiting retry is brought forward, once. Those
    /// that are held up, all of them or one organisation's, are then due as soon as that ends:
    /// until then one call at a time goes out, as before.
    pub(super) fn enter(&self, before: Phase, now: Phase) {
        let drains = |phase| matches!(phase, Phase::Draining { .. });
        if !drains(before) && drains(now) {
            self.queue.bring_forward(Instant::now());
        }
    }

    /// Returns true once a phase has nothing more to wait for.
    pub(super) fn is_over(&self, phase: Phase, attempts: &JoinSet<()>) -> bool {
        let now = Instant::now();
        match phase.at(now) {
            Phase::Running => false,
            Phase::Draining { until, .. } => now >= until || self.is_drained(now, until),
            Phase::Handover { until } => now >= until || attempts.is_empty(),
        }
    }

    /// Returns true if nothing is left at `now` that this process can still send before `until`.
    fn is_drained(&self, now: Instant, until: Instant) -> bool {
        if self.queue.pending().in_flight > 0 {
            return now >= until;
        }
        let max = self.settings().max_in_flight;
        let production = match self.queue.next(OrganisationKind::Production, now, max) {
            Next::Now | Next::AfterACall(_) => Some(self.throttle().health.permitted_at(now)),
            Next::At(due) => Some(due),
            Next::Never => None,
        };
        let test = match self.queue.next(OrganisationKind::Test, now, TEST_CALLS) {
            Next::Now | Next::AfterACall(_) => Some(now),
            Next::At(due) => Some(due),
            Next::Never => None,
        };
        production.into_iter().chain(test).all(|next| next >= until)
    }

    /// Forecasts what a stop at this moment would leave unsent: by what holds up messages, and by
    /// the calls of the last minutes. Takes time in proportion to what is pending.
    pub fn forecast_stop(&self) -> DrainForecast {
        let (now, drain) = (Instant::now(), self.settings().drain);
        let (is_up, rate, quota, held_up) = {
            let throttle = self.throttle();
            let held_up: BTreeSet<_> =
                throttle.health.paused(now).into_iter().map(|one| one.id).collect();
            (throttle.health.is_up(), throttle.bucket.rate_at(now), throttle.quota(), held_up)
        };
        if !is_up || self.store.health() == StoreHealth::Refusing {
            let pending = self.queue.pending();
            let provider = match self.store.health() {
                StoreHealth::Refusing => pending.messages,
                // Messages of test organisations go.
                _ => pending.messages - pending.test_messages,
            };
            return DrainForecast { provider, ..DrainForecast::default() };
        }
        let prospects = self.recent.prospects(now, |organisation| held_up.contains(&organisation));
        let by_pace = rate
            .limit()
            .map_or(f64::INFINITY, |rate| rate * drain.as_secs_f64() * prospects.useful);
        let recipients = quota.map_or(by_pace, |quota| by_pace.min(quota.left));
        self.queue.forecast_drain(now + drain, recipients, |organisation| {
            held_up.contains(&organisation) || prospects.are_hopeless_for(organisation)
        })
    }

    /// Ends what is still under way, and writes the outcomes that are known, also those that
    /// another attempt follows. Leaves everything else as it is, for the program that goes on with
    /// it. Stops waiting at `end`.
    pub(super) async fn let_go(&self, mut attempts: JoinSet<()>, end: Instant) {
        attempts.shutdown().await;
        let unwritten =
            std::mem::take(&mut *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner));
        self.write_known(unwritten, end).await;
    }

    /// Ends what is still under way, writes the outcomes that are known, and then records every
    /// other message that is left as lost. Stops waiting at `end`.
    pub(super) async fn abandon(&self, mut attempts: JoinSet<()>, end: Instant) {
        // An outcome that is known by now is in the store's queue, or left for this.
        attempts.shutdown().await;
        let unwritten =
            std::mem::take(&mut *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner));
        let (mut retries, mut known) = (HashMap::new(), Vec::new());
        for outcome in unwritten {
            match outcome.transition {
                // Its message is lost, and that is written.
                Transition::RetryLater { acceptance, .. } => {
                    retries.insert(outcome.id, acceptance);
                }
                _ => known.push(outcome),
            }
        }
        let unwritten = self.write_known(known, end).await;
        let mut left = self.queue.remaining();
        // What has happened at the provider has happened: nothing else is written in its place.
        left.retain(|(id, ..)| !unwritten.contains(id));
        for (id, _, acceptance) in &mut left {
            *acceptance = retries.get(id).copied().unwrap_or(*acceptance);
        }
        if left.is_empty() {
            return;
        }
        warn!(
            messages = left.len(),
            "messages were not sent before the stop; they fail, because their bodies are lost"
        );
        if timeout_at(end, self.record_lost(left)).await.is_err() {
            // The pending marks stay, and the next start recovers them.
            error!(
                "the store did not record in time which messages failed; the next start does so"
            );
        }
    }

    /// Writes known outcomes, as soon as the store takes them; returns whose it did not take.
    async fn write_known(&self, mut known: Vec<KnownOutcome>, end: Instant) -> HashSet<MessageId> {
        let mut unwritten: HashSet<MessageId> = known.iter().map(|outcome| outcome.id).collect();
        while !known.is_empty() {
            let mut offers = JoinSet::new();
            for outcome in known.drain(..) {
                let (store, stored_at) = (self.store.clone(), self.clock.record_time());
                offers.spawn(async move {
                    let recorded = offer(&store, &outcome, stored_at).await;
                    (outcome, recorded)
                });
            }
            let Ok(offered) = timeout_at(end, offers.join_all()).await else { break };
            for (outcome, recorded) in offered {
                if recorded.is_some() {
                    // What another attempt follows keeps its body.
                    if !matches!(outcome.transition, Transition::RetryLater { .. }) {
                        self.queue.finish(outcome.id);
                    }
                    unwritten.remove(&outcome.id);
                } else {
                    known.push(outcome);
                }
            }
            if !known.is_empty()
                && timeout_at(end, self.takes_outcomes_again(RECORD_AGAIN)).await.is_err()
            {
                break;
            }
        }
        if !unwritten.is_empty() {
            let messages = unwritten.len();
            error!(messages, "the store did not accept the outcomes of calls; they are lost");
        }
        unwritten
    }

    /// Records messages as lost.
    async fn record_lost(&self, left: Vec<(MessageId, u32, Acceptance)>) {
        let now = self.clock.now();
        for step in left.chunks(RECORDING_STEP) {
            let mut records = JoinSet::new();
            for &(id, attempts, acceptance) in step {
                let store = self.store.clone();
                let (lost, stored_at) = (lost(acceptance, now), self.clock.record_time());
                records
                    .spawn(async move { (id, store.record(id, attempts, lost, stored_at).await) });
            }
            for (id, recorded) in records.join_all().await {
                match recorded {
                    Ok(_) => self.queue.finish(id),
                    // The pending mark stays, and the next start recovers it.
                    Err(error) => error!(%id, %error, "an unsent message could not be recorded"),
                }
            }
        }
    }
}

fn lost(acceptance: Acceptance, found_at: Timestamp) -> Transition {
    let message = match acceptance {
        Acceptance::Possible => {
            "the service stopped while a call to the provider had no answer yet, so it is unknown \
             whether the message was accepted"
        }
        Acceptance::Excluded => {
            "the service stopped before the message was sent, and bodies are kept in memory only; \
             no call to the provider was under way"
        }
    };
    Transition::BodyLost { acceptance, message, found_at }
}
