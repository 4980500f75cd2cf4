//! The pace of sending: a token bucket in recipients per second, because SES counts recipients.
//!
//! A message with more recipients than the bucket holds goes into debt, so it never starves. The
//! rate is cut when the provider throttles and climbs back by steps (additive increase,
//! multiplicative decrease).

use std::time::Duration;

use tokio::time::Instant;

/// What part of the limit is aimed at, and how much of a second's recipients may go beyond the
/// pace to make up for late wake-ups. The two together never exceed the limit: no second holds
/// more recipients than the limit allows, but for a last message with several. SES documents that
/// it lets short bursts over the limit pass, which is what such a message needs.
const AIM: f64 = 1.0 - BURST_SECONDS;
const BURST_SECONDS: f64 = 0.01;
/// What a throttled rate is cut to.
const DECREASE: f64 = 0.7;
/// What part of the limit a cut rate regains each second.
const INCREASE_PER_SECOND: f64 = 0.05;
/// The slowest rate, as a part of the limit: throttling never stops sending for good.
const FLOOR: f64 = 0.02;
/// What the bucket must hold for a message to go. Short of 1 by more than rounding errors come
/// to, so that a wait never ends a hair too early.
const ENOUGH: f64 = 1.0 - 1e-6;
/// Throttled answers within this time belong to one excess and cut the rate once.
const ONE_EXCESS: Duration = Duration::from_secs(1);

/// How fast recipients may be sent to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// As fast as calls return.
    Unlimited,
    /// Recipients per second; over zero.
    PerSecond(f64),
}

impl Rate {
    /// Recipients per second; `None` where there is no limit.
    pub const fn limit(self) -> Option<f64> {
        match self {
            Self::Unlimited => None,
            Self::PerSecond(rate) => Some(rate),
        }
    }
}

/// The token bucket.
#[derive(Debug)]
pub struct TokenBucket {
    limit: Rate,
    /// What part of the limit is used now, from [`FLOOR`] to 1.
    share: f64,
    /// Recipients that may go now; below zero is debt.
    tokens: f64,
    updated: Instant,
    cut_at: Option<Instant>,
}

impl TokenBucket {
    /// A pace of at most `limit`.
    pub fn new(limit: Rate, now: Instant) -> Self {
        Self { limit, share: 1.0, tokens: 1.0, updated: now, cut_at: None }
    }

    /// Changes the limit; a rate that was cut stays cut by the same part.
    pub fn set_limit(&mut self, limit: Rate, now: Instant) {
        self.refill(now);
        self.limit = limit;
    }

    /// The rate where nothing is throttled.
    pub fn limit(&self) -> Rate {
        self.limit
    }

    /// The rate now: the limit, or less after throttling.
    pub fn rate(&self) -> Rate {
        match self.limit {
            Rate::Unlimited => Rate::Unlimited,
            Rate::PerSecond(limit) => Rate::PerSecond(limit * self.share),
        }
    }

    /// When the next message may go: `now` or later.
    pub fn ready_at(&mut self, now: Instant) -> Instant {
        self.refill(now);
        let Rate::PerSecond(rate) = self.rate() else { return now };
        if self.tokens >= ENOUGH {
            return now;
        }
        let wait = (1.0 - self.tokens) / (rate * AIM);
        now + Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_hours(1))
    }

    /// Takes a message's recipients out of the bucket.
    pub fn take(&mut self, recipients: u32) {
        if self.limit != Rate::Unlimited {
            self.tokens -= f64::from(recipients);
        }
    }

    /// The provider said: too fast, of a call that began at `started`. Only a call from after the
    /// last cut says something of the rate since.
    pub fn throttled(&mut self, started: Instant, now: Instant) {
        self.refill(now);
        if self.cut_at.is_some_and(|cut| started < cut + ONE_EXCESS) {
            return;
        }
        self.cut_at = Some(now);
        self.share = (self.share * DECREASE).max(FLOOR);
        self.tokens = self.tokens.min(0.0);
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        if let Rate::PerSecond(rate) = self.rate() {
            let full = 1.0 + rate * BURST_SECONDS;
            self.tokens = (self.tokens + rate * AIM * seconds).min(full.max(self.tokens));
        }
        self.share = (self.share + INCREASE_PER_SECOND * seconds).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages of these sizes as fast as the pace allows, and returns how long it took.
    fn send_all(
        pace: &mut TokenBucket,
        start: Instant,
        sizes: impl Iterator<Item = u32>,
    ) -> Duration {
        let mut now = start;
        for recipients in sizes {
            now = pace.ready_at(now).max(now);
            assert!(pace.ready_at(now) <= now);
            pace.take(recipients);
        }
        now - start
    }

    #[test]
    fn the_rate_is_kept_in_recipients() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(500.0), start);
        let took = send_all(&mut pace, start, (1..=50).cycle().take(2_000)).as_secs_f64();
        let expected = 51_000.0 / (500.0 * AIM);
        assert!((expected * 0.995..expected * 1.005).contains(&took), "{took}");
    }

    #[test]
    fn fifty_recipients_go_out_at_one_a_second() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(1.0), start);
        assert_eq!(send_all(&mut pace, start, std::iter::once(50)), Duration::ZERO);
        let next = pace.ready_at(start) - start;
        assert!((50.0..51.0).contains(&next.as_secs_f64()), "{next:?}");
    }

    #[test]
    fn throttling_cuts_once_and_the_rate_climbs_back() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(100.0), start);
        for _ in 0..10 {
            pace.throttled(start, start);
        }
        assert_eq!(pace.rate(), Rate::PerSecond(70.0));
        pace.ready_at(start + Duration::from_secs(20));
        assert_eq!(pace.rate(), Rate::PerSecond(100.0));
    }

    #[test]
    fn an_idle_time_saves_up_no_more_than_a_burst() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(100.0), start);
        let later = start + Duration::from_hours(1);
        let took = send_all(&mut pace, later, std::iter::repeat_n(1, 100));
        assert!(took >= Duration::from_millis(980), "{took:?}");
    }

    #[test]
    fn no_limit_never_waits() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::Unlimited, start);
        assert_eq!(send_all(&mut pace, start, std::iter::repeat_n(50, 1_000)), Duration::ZERO);
    }
}
