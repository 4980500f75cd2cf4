//! Alerts: posts to a receiver that inform operators, and the times at which a post is tried.
//!
//! Pure values: who posts, and where, is not known here.

use std::time::Duration;

use crate::id::{KeyId, OrganisationId};
use crate::time::Timestamp;

/// Time for which a condition holds before operators are informed of it. Most conditions that end
/// sooner need nobody's action.
pub const LASTING: Duration = Duration::from_mins(1);

/// Waits after the first, the second … failed attempt. Later attempts are [`LATER_DELAY`] apart.
const FIRST_DELAYS: [Duration; 5] = [
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_mins(2),
    Duration::from_mins(5),
    Duration::from_mins(10),
];
/// A receiver that was down for an hour gets the last state a quarter of an hour later at most.
const LATER_DELAY: Duration = Duration::from_mins(15);
/// Number of attempts in 24 hours. News of a condition that has ended is given up after the last of
/// them.
pub const MAX_ATTEMPTS: u32 = 100;
/// Wait after that many attempts for a condition that still holds.
const HOURLY: Duration = Duration::from_hours(1);
/// The largest random addition to a wait, as a part of it.
const JITTER: f64 = 0.1;

/// Subject of an alert. Newer news of it replaces older news that was not posted yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlertKey {
    /// Condition of a node. The name is empty if the condition is one of all nodes, or if there is
    /// one node.
    Condition {
        /// Name of the node.
        node: String,
        /// Code of the condition.
        code: String,
        /// Organisation, domain, endpoint or other subject of the condition, if it names one.
        about: String,
    },
    /// Verification of a sender domain.
    Domain {
        /// Organisation of the domain.
        organisation: OrganisationId,
        /// Name of the domain, as A-labels.
        name: String,
    },
    /// End of an API key.
    KeyExpiry(KeyId),
    /// Start of a node; the name is empty if there is one node.
    Start {
        /// Name of the node.
        node: String,
    },
}

impl AlertKey {
    /// Returns the node of the subject; `None` if it is of none, or of all.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Condition { node, .. } | Self::Start { node } => {
                Some(node.as_str()).filter(|node| !node.is_empty())
            }
            Self::Domain { .. } | Self::KeyExpiry(_) => None,
        }
    }
}

/// Condition as the operators' page and alerts show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedCondition {
    /// Word for how bad it is.
    pub severity: String,
    /// Sentence that says what is wrong.
    pub message: String,
    /// Sentence that says what to do next.
    pub advice: String,
    /// Time since which the condition holds.
    pub since: Timestamp,
}

/// Event that operators are informed of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlertEvent {
    /// The condition began to hold.
    Raised(ReportedCondition),
    /// The condition has ended.
    Cleared(ReportedCondition),
    /// SES lets the account send from the domain.
    DomainVerified,
    /// SES has given up on the domain's records, or does not accept the domain any more.
    DomainFailed,
    /// The key ends within [`EXPIRY_NOTICE`](crate::api_key::EXPIRY_NOTICE).
    KeyExpiring {
        /// Organisation of the key.
        organisation: OrganisationId,
        /// Label that the operator gave to the key.
        label: String,
        /// Time from which the key lets nobody in.
        expires_at: Timestamp,
    },
    /// The node has started: all conditions that hold are listed.
    Started,
}

/// Latest event of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Time of the event. It distinguishes the event from others of the same subject.
    pub at: Timestamp,
    /// Latest event of the subject.
    pub event: AlertEvent,
}

/// Progress of the posts of some news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlertDelivery {
    /// Time of the news that is posted.
    pub of: Timestamp,
    /// Number of attempts that failed.
    pub attempts: u32,
    /// The next attempt, or the end of them.
    pub next: NextAttempt,
}

/// Next attempt after those so far, or the end of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAttempt {
    /// Another one at this time.
    At(Timestamp),
    /// None: the receiver took the news.
    Taken,
    /// None: all of them failed.
    GivenUp,
}

/// Subject with its latest event and the progress of the posts about that event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Latest event, with its time.
    pub news: News,
    /// Posts. If they are of older news, the latest was not posted yet.
    pub delivery: AlertDelivery,
}

impl Alert {
    /// Returns an alert with no post so far.
    pub const fn new(news: News) -> Self {
        let at = news.at;
        let delivery = AlertDelivery { of: at, attempts: 0, next: NextAttempt::At(at) };
        Self { news, delivery }
    }

    /// Returns the condition, if it holds.
    pub const fn holding(&self) -> Option<&ReportedCondition> {
        match &self.news.event {
            AlertEvent::Raised(condition) => Some(condition),
            _ => None,
        }
    }

    /// Returns true if a post is due: the first one at once. After a clock was set back, none waits
    /// for much longer than it would have.
    pub fn is_due(&self, now: Timestamp) -> bool {
        match self.delivery.next {
            _ if self.delivery.of != self.news.at => true,
            NextAttempt::At(_) if self.delivery.attempts == 0 => true,
            NextAttempt::At(due) => due <= now || due > now.plus(2 * HOURLY),
            NextAttempt::Taken | NextAttempt::GivenUp => false,
        }
    }

    /// Returns true if the news was not taken yet and is still tried.
    pub fn is_waiting(&self) -> bool {
        self.delivery.of != self.news.at || matches!(self.delivery.next, NextAttempt::At(_))
    }

    /// Returns true if nothing is left to be posted or kept.
    fn is_over(&self) -> bool {
        !self.is_waiting() && self.holding().is_none()
    }

    /// Failed attempts for the latest news.
    const fn attempts(&self) -> u32 {
        if self.delivery.of.unix_millis() == self.news.at.unix_millis() {
            self.delivery.attempts
        } else {
            0
        }
    }

    /// Returns the delivery after the receiver took the news.
    pub const fn taken(&self) -> AlertDelivery {
        let attempts = self.attempts();
        AlertDelivery { of: self.news.at, attempts, next: NextAttempt::Taken }
    }

    /// Returns the delivery after an attempt at `now` failed; `draw` is taken evenly from 0 to 1.
    /// The receiver may ask for a longer wait, up to an hour.
    pub fn failed(&self, now: Timestamp, draw: f64, asked: Option<Duration>) -> AlertDelivery {
        let attempts = self.attempts().saturating_add(1);
        let scheduled = if attempts < MAX_ATTEMPTS {
            let index = usize::try_from(attempts - 1).unwrap_or(usize::MAX);
            Some(FIRST_DELAYS.get(index).copied().unwrap_or(LATER_DELAY))
        } else {
            self.holding().map(|_| HOURLY)
        };
        let next = scheduled.map_or(NextAttempt::GivenUp, |scheduled| {
            let wait = asked.map_or(scheduled, |asked| asked.clamp(scheduled, HOURLY));
            NextAttempt::At(now.plus(wait.mul_f64(1.0 + JITTER * draw.clamp(0.0, 1.0))))
        });
        AlertDelivery { of: self.news.at, attempts, next }
    }
}

/// Change of an alert. A part that is `None` stays as it is, so that the node that finds news and
/// the one that posts it do not undo each other's changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlertChange {
    /// New latest event, if there is one.
    pub news: Option<News>,
    /// New progress of the posts, if there is any.
    pub delivery: Option<AlertDelivery>,
}

impl AlertChange {
    /// Returns the change for a new event.
    pub const fn news(at: Timestamp, event: AlertEvent) -> Self {
        Self { news: Some(News { at, event }), delivery: None }
    }

    /// Returns the change for new progress of the posts.
    pub const fn delivery(delivery: AlertDelivery) -> Self {
        Self { news: None, delivery: Some(delivery) }
    }

    /// Adds a later change, which replaces the parts that it has.
    pub fn merge(&mut self, later: Self) {
        self.news = later.news.or(self.news.take());
        self.delivery = later.delivery.or(self.delivery.take());
    }

    /// Returns the alert after the change; `None` if nothing is left of it.
    pub fn apply(&self, before: Option<Alert>) -> Option<Alert> {
        let mut alert = match (before, &self.news) {
            (Some(before), Some(news)) if before.news == *news => before,
            (Some(_) | None, Some(news)) => Alert::new(news.clone()),
            (Some(before), None) => before,
            (None, None) => return None,
        };
        if let Some(delivery) = self.delivery {
            alert.delivery = delivery;
        }
        (!alert.is_over()).then_some(alert)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn condition() -> ReportedCondition {
        ReportedCondition {
            severity: "critical".to_owned(),
            message: "The store refuses writes".to_owned(),
            advice: "Make room".to_owned(),
            since: NOON,
        }
    }

    fn raised(at: Timestamp) -> News {
        News { at, event: AlertEvent::Raised(condition()) }
    }

    fn cleared(at: Timestamp) -> News {
        News { at, event: AlertEvent::Cleared(condition()) }
    }

    /// Times of the attempts for some news at a receiver that takes nothing, up to this time.
    fn attempts(news: News, time: Duration) -> Vec<Duration> {
        let mut alert = Alert::new(news);
        let mut found = Vec::new();
        while let NextAttempt::At(due) = alert.delivery.next {
            let after = Duration::from_millis(due.unix_millis() - NOON.unix_millis());
            if after > time {
                break;
            }
            assert!(alert.is_due(due));
            found.push(after);
            alert.delivery = alert.failed(due, 0.0, None);
        }
        found
    }

    #[test]
    fn a_subject_names_its_node_if_it_is_of_one() {
        let start = |node: &str| AlertKey::Start { node: node.to_owned() };
        assert_eq!(start("a").node(), Some("a"));
        assert_eq!(start("").node(), None);
        assert_eq!(AlertKey::KeyExpiry(KeyId(1)).node(), None);
    }

    #[test]
    fn news_is_tried_for_a_day_and_a_condition_that_holds_once_an_hour_from_then_on() {
        let week = Duration::from_hours(7 * 24);
        let ended = attempts(cleared(NOON), week);
        let last = *ended.last().unwrap();
        assert!(last > Duration::from_hours(23) && last < Duration::from_hours(25), "{last:?}");
        assert!(ended.windows(2).all(|two| two[1] <= two[0] + LATER_DELAY), "{ended:?}");
        let holding = attempts(raised(NOON), week);
        assert_eq!(holding[..ended.len()], ended);
        let later = &holding[ended.len() - 1..];
        assert!(later.windows(2).all(|two| two[1] == two[0] + HOURLY), "{later:?}");
        assert!(*later.last().unwrap() + HOURLY > week);
    }

    #[test]
    fn a_receiver_may_ask_for_a_longer_wait_of_an_hour_at_most() {
        let wait = |asked: u64| {
            let asked = Some(Duration::from_secs(asked));
            let NextAttempt::At(due) = Alert::new(raised(NOON)).failed(NOON, 0.0, asked).next
            else {
                panic!("the first attempt of many");
            };
            (due.unix_millis() - NOON.unix_millis()) / 1_000
        };
        assert_eq!((wait(1), wait(60), wait(1_000_000)), (5, 60, 3_600));
    }

    #[test]
    fn an_attempt_is_never_earlier_than_its_delay() {
        let latest = FIRST_DELAYS[0].mul_f64(1.0 + JITTER);
        for (draw, delay) in [(0.0, FIRST_DELAYS[0]), (1.0, latest), (9.0, latest)] {
            let next = Alert::new(raised(NOON)).failed(NOON, draw, None).next;
            assert_eq!(next, NextAttempt::At(NOON.plus(delay)));
        }
    }

    #[test]
    fn news_that_is_known_undoes_no_progress() {
        let mut alert = Alert::new(raised(NOON));
        alert.delivery = alert.failed(NOON, 0.0, None);
        let again = AlertChange { news: Some(alert.news.clone()), delivery: None };
        assert_eq!(again.apply(Some(alert.clone())), Some(alert));
    }

    #[test]
    fn after_a_clock_was_set_back_no_post_waits_for_more_than_two_hours() {
        let mut alert = Alert::new(raised(NOON));
        alert.delivery =
            AlertDelivery { next: NextAttempt::At(NOON), attempts: 1, ..alert.delivery };
        let is_due = |before: Duration| alert.is_due(NOON.minus(before));
        let millisecond = Duration::from_millis(1);
        assert!(is_due(Duration::ZERO) && !is_due(millisecond));
        assert!(!is_due(HOURLY * 2) && is_due(HOURLY * 2 + millisecond));
    }

    #[test]
    fn newer_news_takes_the_place_of_older_and_is_due_at_once() {
        let later = NOON.plus(LASTING);
        let mut alert = Alert::new(raised(NOON));
        alert.delivery = alert.failed(NOON, 0.0, None);
        assert!(!alert.is_due(NOON));
        let change = AlertChange { news: Some(cleared(later)), delivery: None };
        let after = change.apply(Some(alert.clone())).unwrap();
        assert!(after.is_due(NOON) && after.holding().is_none());
        // The post of the older news was under way meanwhile, and ends now.
        let taken = AlertChange::delivery(alert.taken());
        let after = taken.apply(Some(after)).unwrap();
        assert!(after.is_due(later) && after.is_waiting());
        let taken = AlertChange::delivery(after.taken());
        assert_eq!(taken.apply(Some(after)), None, "nothing is left to be told");
        assert_eq!(taken.apply(None), None);
    }

    #[test]
    fn what_holds_stays_once_it_was_told_and_what_ended_goes_once_it_was_given_up() {
        let alert = Alert::new(raised(NOON));
        let taken = AlertChange::delivery(alert.taken());
        let told = taken.apply(Some(alert)).unwrap();
        assert!(!told.is_due(NOON.plus(Duration::from_hours(7 * 24))) && !told.is_waiting());
        let mut ended = Alert::new(cleared(NOON));
        ended.delivery.attempts = MAX_ATTEMPTS - 1;
        let given_up = AlertChange::delivery(ended.failed(NOON, 0.0, None));
        assert_eq!(given_up.apply(Some(ended)), None);
    }

    #[test]
    fn later_parts_of_a_change_count() {
        let mut change = AlertChange { news: Some(raised(NOON)), delivery: None };
        let delivery = Some(Alert::new(raised(NOON)).taken());
        change.merge(AlertChange { news: None, delivery });
        assert_eq!(change, AlertChange { news: Some(raised(NOON)), delivery });
        change.merge(AlertChange { news: Some(cleared(NOON)), delivery: None });
        assert_eq!(change, AlertChange { news: Some(cleared(NOON)), delivery });
    }
}
