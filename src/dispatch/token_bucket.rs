//! Rate of sending: a token bucket in recipients per second, because SES counts recipients.
//!
//! A message with more recipients than the bucket holds goes into debt, so it never starves. The
//! rate is cut when the provider throttles and climbs back by steps (additive increase,
//! multiplicative decrease).

use std::time::Duration;

use tokio::time::Instant;

/// Part of the limit that is the target rate. The other part, [`BURST_SECONDS`], is how much of a
/// second's recipients may go beyond the rate to make up for late wake-ups. The two together never
/// exceed the limit: no second holds more recipients than the limit allows, except for a last
/// message with several. SES documents that it lets short bursts over the limit pass, which is what
/// such a message needs.
const AIM: f64 = 1.0 - BURST_SECONDS;
const BURST_SECONDS: f64 = 0.01;
/// Factor that reduces a throttled rate.
const DECREASE: f64 = 0.7;
/// Part of the limit that a reduced rate regains each second.
const INCREASE_PER_SECOND: f64 = 0.05;
/// The slowest rate, as a part of the limit: throttling never stops sending for good.
const FLOOR: f64 = 0.02;
/// Content of the bucket that a message needs. Below 1 by more than the rounding errors, so that a
/// wait never ends slightly too early.
const ENOUGH: f64 = 1.0 - 1e-6;
/// Throttled answers within this time belong to one excess and cut the rate once.
const ONE_EXCESS: Duration = Duration::from_secs(1);

/// Limit of recipients per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Rate {
    /// As fast as calls return.
    #[default]
    Unlimited,
    /// Recipients per second; over zero.
    PerSecond(f64),
}

impl Rate {
    /// Recipients per second; `None` if there is no limit.
    pub const fn limit(self) -> Option<f64> {
        match self {
            Self::Unlimited => None,
            Self::PerSecond(rate) => Some(rate),
        }
    }
}

/// Token bucket that limits recipients per second.
#[derive(Debug)]
pub struct TokenBucket {
    limit: Rate,
    /// Part of the limit that is used now, from [`FLOOR`] to 1.
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
        // What a higher limit has saved up is more than a burst of a lower one.
        if let Rate::PerSecond(rate) = self.rate() {
            self.tokens = self.tokens.min(full(rate));
        }
    }

    /// The rate without throttling.
    pub fn limit(&self) -> Rate {
        self.limit
    }

    /// The rate at the last update: the limit, or less after throttling.
    pub fn rate(&self) -> Rate {
        self.rate_by(self.share)
    }

    /// The rate at `now`: a reduced rate climbs without updates.
    pub fn rate_at(&self, now: Instant) -> Rate {
        let seconds = now.saturating_duration_since(self.updated).as_secs_f64();
        self.rate_by(self.share_after(seconds))
    }

    fn rate_by(&self, share: f64) -> Rate {
        match self.limit {
            Rate::Unlimited => Rate::Unlimited,
            Rate::PerSecond(limit) => Rate::PerSecond(limit * share),
        }
    }

    /// Time at which the next message may go: `now` or later.
    pub fn ready_at(&mut self, now: Instant) -> Instant {
        self.refill(now);
        let Rate::PerSecond(limit) = self.limit else { return now };
        if self.tokens >= ENOUGH {
            return now;
        }
        let wait = self.seconds_until((1.0 - self.tokens) / (limit * AIM));
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
        let earned = self.earned_in(seconds);
        self.share = self.share_after(seconds);
        if let Rate::PerSecond(limit) = self.limit {
            let full = full(limit * self.share);
            self.tokens = (self.tokens + limit * AIM * earned).min(full.max(self.tokens));
        }
    }

    /// Part of the limit that is used so many seconds after the last update.
    fn share_after(&self, seconds: f64) -> f64 {
        (self.share + INCREASE_PER_SECOND * seconds).min(1.0)
    }

    /// Seconds from the last update until the share has climbed to 1.
    fn climb(&self) -> f64 {
        (1.0 - self.share) / INCREASE_PER_SECOND
    }

    /// Tokens that are earned in so many seconds after the last update, in seconds of the whole
    /// limit: the area below the share, which climbs in a straight line to 1.
    fn earned_in(&self, seconds: f64) -> f64 {
        let climbing = seconds.min(self.climb());
        climbing * (self.share + INCREASE_PER_SECOND * climbing / 2.0) + (seconds - climbing)
    }

    /// Seconds after the last update until so much is earned: the inverse of [`Self::earned_in`].
    fn seconds_until(&self, earned: f64) -> f64 {
        let climb = self.climb();
        let earned_climbing = self.earned_in(climb);
        if earned >= earned_climbing {
            return climb + (earned - earned_climbing);
        }
        let end_share = (self.share.powi(2) + 2.0 * INCREASE_PER_SECOND * earned).sqrt();
        2.0 * earned / (self.share + end_share)
    }
}

/// The most that a bucket saves up at a rate.
fn full(rate: f64) -> f64 {
    1.0 + rate * BURST_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages of these sizes as fast as the rate allows, and returns how long it took.
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
        assert_eq!((pace.rate().limit(), Rate::Unlimited.limit()), (Some(100.0), None));
    }

    #[test]
    fn a_call_from_a_second_after_a_cut_cuts_again() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(100.0), start);
        pace.throttled(start, start);
        let later = start + ONE_EXCESS;
        pace.throttled(later, later);
        assert!(pace.rate().limit().is_some_and(|rate| rate < 60.0), "{pace:?}");
    }

    #[test]
    fn no_more_than_a_hundredth_of_a_second_is_saved_up() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(1.0), start);
        let now = start + Duration::from_hours(1);
        assert_eq!(pace.ready_at(now), now);
        pace.take(1);
        let wait = pace.ready_at(now) - now;
        assert!(wait > Duration::from_millis(999), "{wait:?}");
    }

    /// A bucket that was throttled to a part of its limit, and then is `recipients` in debt.
    fn throttled_and_in_debt(limit: f64, recipients: u32, start: Instant) -> TokenBucket {
        let mut pace = TokenBucket::new(Rate::PerSecond(limit), start);
        for second in 0..20 {
            let now = start + Duration::from_secs(second);
            pace.throttled(now, now);
        }
        pace.take(recipients);
        pace
    }

    #[test]
    fn a_wait_is_as_long_as_it_takes_while_the_rate_climbs() {
        let start = Instant::now();
        let now = start + Duration::from_secs(19);
        for (limit, recipients) in [(1.0, 20), (1.0, 1), (5.0, 50), (500.0, 50), (0.1, 50)] {
            let mut pace = throttled_and_in_debt(limit, recipients, start);
            let told = pace.ready_at(now) - now;
            // A caller that updates it all the time gets the same result.
            let mut watched = throttled_and_in_debt(limit, recipients, start);
            let mut moment = now;
            while watched.ready_at(moment) > moment {
                moment += Duration::from_millis(1);
            }
            let waited = moment - now;
            let apart = told.abs_diff(waited);
            assert!(apart < Duration::from_millis(5) + waited / 500, "{told:?}, not {waited:?}");
            assert!(pace.ready_at(now + told) <= now + told, "and not a moment too short");
        }
    }

    #[test]
    fn a_rate_climbs_as_fast_whether_anybody_looks_or_not() {
        let start = Instant::now();
        let now = start + Duration::from_secs(19);
        let (mut one, mut other) =
            (throttled_and_in_debt(10.0, 500, start), throttled_and_in_debt(10.0, 500, start));
        for second in 0..30 {
            one.ready_at(now + Duration::from_secs(second));
        }
        let end = now + Duration::from_secs(30);
        let (one, other) = (one.ready_at(end), other.ready_at(end));
        let apart = if one > other { one - other } else { other - one };
        assert!(apart < Duration::from_millis(1), "{apart:?} apart");
    }

    #[test]
    fn a_lower_limit_leaves_no_burst_of_the_old_one() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(10_000.0), start);
        let later = start + Duration::from_secs(10);
        pace.set_limit(Rate::PerSecond(5.0), later);
        let took = send_all(&mut pace, later, std::iter::repeat_n(1, 6));
        assert!(took >= Duration::from_millis(990), "{took:?}");
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
    fn a_hundredth_of_a_second_is_saved_up() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::PerSecond(1_000.0), start);
        let later = start + Duration::from_hours(1);
        let took = send_all(&mut pace, later, std::iter::repeat_n(1, 11));
        assert_eq!(took, Duration::ZERO);
    }

    #[test]
    fn no_limit_never_waits() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(Rate::Unlimited, start);
        assert_eq!(send_all(&mut pace, start, std::iter::repeat_n(50, 1_000)), Duration::ZERO);
    }
}
