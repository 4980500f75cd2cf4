//! Ends messages before their attempt is due: an operator cancels them, or their time is over. Both
//! work in every condition of the provider.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;
use tracing::info;

use crate::Dispatcher;
use pillarbox_domain::attempt::Provider;
use pillarbox_domain::message::{Cancellation, Recorded, Transition};
use pillarbox_queue::{Claim, Selected, Selection};
use pillarbox_store::{Health as StoreHealth, StoreError};

/// Interval between two searches for messages past their time.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of them that are given up in one step.
const EXPIRY_STEP: usize = 1_000;

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cancelled {
    /// Messages that were queued and have failed now.
    pub cancelled: usize,
    /// Messages whose call to the provider was under way; they are not tried again after it.
    pub calls_under_way: usize,
    /// Messages that were named and are not pending.
    pub not_pending: usize,
}

impl<P: Provider> Dispatcher<P> {
    /// Cancels the selected messages. When this returns, the end of those that were queued is
    /// durable. A message whose call is under way keeps the call's outcome, unless that would be
    /// another attempt. If the caller stops waiting, the messages are cancelled nevertheless.
    pub async fn cancel(
        self: &Arc<Self>,
        selection: &Selection,
        why: Cancellation,
    ) -> Result<Cancelled, StoreError> {
        let (reply, done) = oneshot::channel();
        let (dispatcher, selection) = (Arc::clone(self), selection.clone());
        {
            let mut cancelling = self.cancelling();
            while let Some(ended) = cancelling.try_join_next() {
                Self::ended(ended);
            }
            cancelling.spawn(async move {
                // The caller may have disconnected.
                let _ = reply.send(dispatcher.cancel_all(&selection, why).await);
            });
        }
        // A stop has ended it before its end.
        done.await.unwrap_or(Err(StoreError::Unavailable))
    }

    /// Ends the cancellations under way. The messages that they have taken out wait again.
    pub(super) async fn end_cancellations(&self) {
        let mut cancelling = std::mem::take(&mut *self.cancelling());
        cancelling.shutdown().await;
    }

    fn cancelling(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.cancelling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn cancel_all(
        self: &Arc<Self>,
        selection: &Selection,
        why: Cancellation,
    ) -> Result<Cancelled, StoreError> {
        let mut all = Cancelled::default();
        let mut after = None;
        loop {
            // What is taken out would wait for the store outside of the queue.
            if self.store.health() == StoreHealth::Refusing {
                return Err(StoreError::Unavailable);
            }
            let selected = {
                let _none_starts = self.starting.lock().await;
                self.queue.cancel(selection, after, why)
            };
            let Selected { taken, calls_under_way, not_pending, next } = selected;
            all.calls_under_way += calls_under_way;
            all.not_pending += not_pending;
            all.cancelled += self.end_all(taken, |claim| why.transition(claim.acceptance)).await;
            if next.is_none() {
                break;
            }
            after = next;
            yield_now().await;
        }
        let Cancelled { cancelled, calls_under_way, .. } = all;
        info!(cancelled, calls_under_way, ?why, "pending messages were cancelled");
        Ok(all)
    }

    /// Ends claimed messages, and waits until that is recorded; says how many were not final
    /// before.
    pub(super) async fn end_all(
        self: &Arc<Self>,
        claims: Vec<Claim>,
        transition: impl Fn(&Claim) -> Transition,
    ) -> usize {
        let mut steps = JoinSet::new();
        for claim in claims {
            let (dispatcher, transition) = (Arc::clone(self), transition(&claim));
            steps.spawn(async move { dispatcher.finish(claim, transition).await });
        }
        let mut ended = 0;
        while let Some(step) = steps.join_next().await {
            match step {
                Ok(Recorded::Changed) => ended += 1,
                Ok(Recorded::AlreadyFinal) => {}
                Err(error) => Self::ended(Err(error)),
            }
        }
        ended
    }

    /// Fails messages past their time for as long as it is polled.
    pub(super) async fn expire(self: &Arc<Self>) {
        let mut tick = tokio::time::interval(EXPIRY_INTERVAL);
        loop {
            tick.tick().await;
            // Those whose time is over meanwhile are in the first batch that it takes.
            self.store.takes_outcomes().await;
            while self.expire_step().await == EXPIRY_STEP {}
        }
    }

    async fn expire_step(self: &Arc<Self>) -> usize {
        // Claimed messages would wait for the store in memory; in the queue they wait as well.
        if self.store.health() == StoreHealth::Refusing {
            return 0;
        }
        let now = Instant::now();
        let mut claims = self.queue.claim_expired(now, EXPIRY_STEP);
        if let Some(end) = now.checked_sub(self.settings().retry_for) {
            claims.extend(self.queue.claim_older_than(end, EXPIRY_STEP - claims.len()));
        }
        let count = claims.len();
        self.end_all(claims, |claim| self.time_over(claim)).await;
        count
    }
}
