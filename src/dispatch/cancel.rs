//! Cancelling pending messages, as an operator wants it: at once, and not as each one's turn comes.

use std::sync::Arc;

use tokio::task::{JoinSet, yield_now};
use tracing::info;

use crate::dispatch::Dispatcher;
use crate::domain::attempt::Provider;
use crate::domain::message::{Cancellation, Recorded, Transition};
use crate::queue::{Claim, Selected, Selection};
use crate::store::{Health as StoreHealth, StoreError};

/// What a cancellation came to.
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
    /// durable. A message whose call is under way keeps what the call comes to, unless that would
    /// be another attempt.
    pub async fn cancel(
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
                let _none_starts = self.starting();
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
            steps.spawn(async move {
                dispatcher.finish(claim.parcel.id, claim.attempts, transition).await
            });
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
}
