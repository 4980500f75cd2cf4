//! The end of the dispatcher's life: when it has come, and what is left to record.

use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{error, warn};

use crate::dispatch::circuit_breaker::BreakerState;
use crate::dispatch::{Dispatcher, Phase};
use crate::domain::attempt::Provider;
use crate::domain::message::{Acceptance, Transition};
use crate::domain::time::Timestamp;
use crate::queue::{DrainForecast, Next};
use crate::store::Health as StoreHealth;

/// How many lost messages are recorded together.
const RECORDING_STEP: usize = 1_000;

impl<P: Provider> Dispatcher<P> {
    /// Enters a phase: at the start of a drain every waiting retry is brought forward, once,
    /// unless the provider is known not to take it.
    pub(super) fn enter(&self, before: Phase, now: Phase) {
        if before == Phase::Running
            && now != Phase::Running
            && self.throttle().health.condition() == BreakerState::Closed
        {
            self.queue.bring_forward(Instant::now());
        }
    }

    /// Whether nothing is left that this process can still send before `until`.
    pub(super) fn is_drained(&self, until: Instant) -> bool {
        let now = Instant::now();
        let next = match self.queue.next(now, self.settings().max_in_flight) {
            _ if self.queue.pending().in_flight > 0 => now,
            Next::Now | Next::AfterACall(_) => self.throttle().health.permitted_at(now),
            Next::At(due) => due,
            Next::Never => return true,
        };
        next >= until
    }

    /// Forecasts what a stop at this moment would leave unsent. Takes time in proportion to what is
    /// pending.
    pub fn forecast_stop(&self) -> DrainForecast {
        let drain = self.settings().drain;
        let (is_up, rate, quota) = {
            let throttle = self.throttle();
            (throttle.health.is_up(), throttle.bucket.rate(), throttle.quota())
        };
        if !is_up || self.store.health() == StoreHealth::Refusing {
            let provider = self.queue.pending().messages;
            return DrainForecast { provider, ..DrainForecast::default() };
        }
        let by_pace = rate.limit().map_or(f64::INFINITY, |rate| rate * drain.as_secs_f64());
        let recipients = quota.map_or(by_pace, |quota| by_pace.min(quota.left));
        self.queue.forecast_drain(Instant::now() + drain, recipients)
    }

    /// Ends what is still under way and records every message that is left as lost.
    pub(super) async fn abandon(&self, mut attempts: JoinSet<()>) {
        // An outcome that is known by now is in the store's queue, before what follows.
        attempts.shutdown().await;
        let left = self.queue.remaining();
        if left.is_empty() {
            return;
        }
        warn!(
            messages = left.len(),
            "messages are left unsent; their bodies end with this process"
        );
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
                    Ok(_) => self.queue.settle(id),
                    // The pending mark stays, and the next start settles it.
                    Err(error) => error!(%id, %error, "an unsent message could not be recorded"),
                }
            }
        }
    }
}

fn lost(acceptance: Acceptance, found_at: Timestamp) -> Transition {
    let message = match acceptance {
        Acceptance::Possible => {
            "the service stopped while the outcome of a call to the provider was open, so whether \
             the message was accepted is unknown"
        }
        Acceptance::Excluded => {
            "the service stopped before the message was sent, and bodies are kept in memory only; \
             no call to the provider was under way"
        }
    };
    Transition::BodyLost { acceptance, message, found_at }
}
