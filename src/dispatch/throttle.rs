//! Limits of sending that the calls so far imply.

use tokio::time::Instant;

use crate::Wait;
use crate::circuit_breaker::{Cause, Permit};
use crate::provider_health::ProviderHealth;
use crate::token_bucket::{Rate, TokenBucket};
use pillarbox_domain::message::Acceptance;
use pillarbox_domain::retry::Backoff;

/// A node with a smaller part of the rate practically stands still.
const LEAST_SHARE: f64 = 1e-6;

/// Token bucket, circuit breakers and quota, which change together.
#[derive(Debug)]
pub(super) struct Throttle {
    pub(super) bucket: TokenBucket,
    pub(super) health: ProviderHealth,
    quota: Option<DailyQuota>,
    /// Recipients of the calls under way.
    under_way: f64,
    /// Limit of the rate of all nodes together.
    pub(super) rate: Rate,
    /// This node's part of it, from 0 to 1.
    pub(super) share: f64,
}

/// Recipients that the account may send to in 24 hours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DailyQuota {
    /// Number in 24 hours, sent ones included.
    pub max: f64,
    /// Of these, what is left.
    pub left: f64,
}

impl Throttle {
    pub(super) fn new(rate: Rate, backoff: Backoff, now: Instant) -> Self {
        Self {
            bucket: TokenBucket::new(rate, now),
            health: ProviderHealth::new(backoff, now),
            quota: None,
            under_way: 0.0,
            rate,
            share: 1.0,
        }
    }

    /// Limits the rate to this node's part of it.
    pub(super) fn limit_pace(&mut self, now: Instant) {
        let Rate::PerSecond(all) = self.rate else {
            return self.bucket.set_limit(self.rate, now);
        };
        self.bucket.set_limit(Rate::PerSecond(all * self.share.max(LEAST_SHARE)), now);
    }

    /// Reason why the next call has to wait; `None` if it may start.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Wait> {
        match self.health.permit(now) {
            Permit::Now => {}
            Permit::At(later) => return Some(Wait::Until(later)),
            Permit::AfterACall => return Some(Wait::ForACall),
        }
        let ready = self.bucket.ready_at(now);
        (ready > now).then_some(Wait::Until(ready))
    }

    /// Takes over the daily quota by the provider's own count. The calls under way are charged to it,
    /// because it counts what the provider has accepted: each is taken back if it is not.
    pub(super) fn set_quota(&mut self, quota: Option<DailyQuota>, now: Instant) {
        let under_way = self.under_way;
        self.quota = quota.map(|quota| DailyQuota { left: quota.left - under_way, ..quota });
        self.stop_at_quota(now);
    }

    /// The daily quota as far as it is known.
    pub(super) fn quota(&self) -> Option<DailyQuota> {
        self.quota
    }

    /// Counts a call's recipients against the daily quota as it starts, so that sending pauses
    /// before the provider has to refuse.
    pub(super) fn spend(&mut self, recipients: u32, now: Instant) {
        self.under_way += f64::from(recipients);
        if let Some(quota) = &mut self.quota {
            quota.left -= f64::from(recipients);
        }
        self.stop_at_quota(now);
    }

    /// Takes back what a call was charged that has ended, if the provider cannot have accepted it.
    pub(super) fn call_ended(&mut self, recipients: u32, acceptance: Acceptance) {
        self.under_way -= f64::from(recipients);
        if let (Some(quota), Acceptance::Excluded) = (&mut self.quota, acceptance) {
            quota.left += f64::from(recipients);
        }
    }

    fn stop_at_quota(&mut self, now: Instant) {
        let Some(quota) = self.quota.filter(|quota| quota.left <= 0.0) else { return };
        if self.health.is_up() {
            // A probe that is accepted proves that there is quota again, however much.
            self.quota = None;
            let message =
                format!("the account's quota of {} recipients in 24 hours is used up", quota.max);
            self.health.impair(Cause::QuotaExhausted, &message, now);
        }
    }
}
