//! What the calls so far say of how fast and how many may go.

use std::time::Duration;

use tokio::time::Instant;

use crate::dispatch::Wait;
use crate::dispatch::health::{Cause, Health, Permit};
use crate::dispatch::pace::{Pace, Rate};
use crate::domain::retry::Backoff;

/// How much room for calls beyond what rate and latency need, so that jitter does not starve the
/// pace.
const CONCURRENCY_HEADROOM: f64 = 2.0;
/// How quickly the measured latency follows a new one.
const SMOOTHING: f64 = 0.05;
/// The latency, in seconds, before any was measured.
const EXPECTED_LATENCY: f64 = 0.05;

/// Pace, health and latency, which change together.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) pace: Pace,
    pub(super) health: Health,
    /// Smoothed duration of a call, in seconds.
    latency: f64,
    quota: Option<DailyQuota>,
}

/// How many recipients the account may send to in 24 hours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DailyQuota {
    /// In all.
    pub max: f64,
    /// Of these, what is left.
    pub left: f64,
}

impl Flow {
    pub(super) fn new(rate: Rate, backoff: Backoff, now: Instant) -> Self {
        Self {
            pace: Pace::new(rate, now),
            health: Health::new(backoff, now),
            latency: EXPECTED_LATENCY,
            quota: None,
        }
    }

    /// What the next call has to wait for, with `under_way` of at most `max`; `None` where it
    /// may start.
    pub(super) fn wait(&mut self, now: Instant, under_way: usize, max: usize) -> Option<Wait> {
        if under_way >= self.concurrency(max) {
            return Some(Wait::ForACall);
        }
        match self.health.permit(now, under_way) {
            Permit::Now => {}
            Permit::At(later) => return Some(Wait::Until(later)),
            Permit::AfterACall => return Some(Wait::ForACall),
        }
        let ready = self.pace.ready_at(now);
        (ready > now).then_some(Wait::Until(ready))
    }

    /// How many calls the rate needs at the observed latency, were each to one recipient.
    fn concurrency(&self, max: usize) -> usize {
        let Rate::PerSecond(rate) = self.pace.rate() else { return max };
        let calls = rate * self.latency * CONCURRENCY_HEADROOM;
        // A float beyond the range saturates.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let calls = calls.ceil().max(0.0) as usize;
        calls.min(max).max(1)
    }

    pub(super) fn learn(&mut self, latency: Duration) {
        self.latency += SMOOTHING * (latency.as_secs_f64() - self.latency);
    }

    /// Takes over the daily quota by the provider's own count.
    pub(super) fn set_quota(&mut self, quota: Option<DailyQuota>, now: Instant) {
        self.quota = quota;
        self.stop_at_quota(now);
    }

    /// The daily quota as far as it is known.
    pub(super) fn quota(&self) -> Option<DailyQuota> {
        self.quota
    }

    /// Counts a call's recipients against the daily quota as it starts, so that sending pauses
    /// before the provider has to refuse.
    pub(super) fn spend(&mut self, recipients: u32, now: Instant) {
        if let Some(quota) = &mut self.quota {
            quota.left -= f64::from(recipients);
        }
        self.stop_at_quota(now);
    }

    /// Takes back what a call that the provider did not accept was charged.
    pub(super) fn refund(&mut self, recipients: u32) {
        if let Some(quota) = &mut self.quota {
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
