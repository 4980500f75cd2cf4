//! Book: all alerts as this node knows them, with the changes that the store does not have yet.
//!
//! If the store refuses, alerts live here alone until it takes them.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox_domain::alert::{
    Alert, AlertChange, AlertDelivery, AlertKey, NextAttempt, ReportedCondition,
};
use pillarbox_domain::time::Timestamp;
use pillarbox_store::MAX_ALERTS;

/// Alerts, those that are being posted, and changes to be stored.
#[derive(Debug, Default)]
pub(super) struct Book {
    alerts: BTreeMap<AlertKey, Alert>,
    unstored: BTreeMap<AlertKey, AlertChange>,
    in_flight: BTreeSet<AlertKey>,
}

impl Book {
    /// Takes over what the store has, and what it does not have yet on top of that.
    pub(super) fn read(&mut self, rows: Vec<(AlertKey, Alert)>) {
        self.alerts = rows.into_iter().collect();
        for (key, change) in &self.unstored {
            apply(&mut self.alerts, key, change);
        }
    }

    /// Changes an alert, here and, later, in the store. A new one needs room.
    pub(super) fn change(&mut self, key: AlertKey, change: AlertChange) {
        if !self.alerts.contains_key(&key) && self.alerts.len() >= MAX_ALERTS {
            return;
        }
        apply(&mut self.alerts, &key, &change);
        self.unstored.entry(key).or_default().merge(change);
    }

    /// Changes that the store does not have.
    pub(super) fn unstored(&self) -> Vec<(AlertKey, AlertChange)> {
        self.unstored.iter().map(|(key, change)| (key.clone(), change.clone())).collect()
    }

    /// Notes that the store has all changes.
    pub(super) fn stored(&mut self) {
        self.unstored.clear();
    }

    pub(super) fn alerts(&self) -> impl Iterator<Item = (&AlertKey, &Alert)> {
        self.alerts.iter()
    }

    /// The condition, if it was raised and not cleared.
    pub(super) fn holding(&self, key: &AlertKey) -> Option<&ReportedCondition> {
        self.alerts.get(key)?.holding()
    }

    /// All conditions that were raised and not cleared.
    pub(super) fn all_holding(&self) -> Vec<(AlertKey, ReportedCondition)> {
        let holding =
            |(key, alert): (&AlertKey, &Alert)| Some((key.clone(), alert.holding()?.clone()));
        self.alerts.iter().filter_map(holding).collect()
    }

    /// Alerts that are still to be taken by the receiver.
    pub(super) fn waiting(&self) -> usize {
        self.alerts.values().filter(|alert| alert.is_waiting()).count()
    }

    /// Takes the next alert to be posted, the oldest news first, of those that this node posts. None is
    /// posted twice at one time, so the posts of one subject come in order.
    pub(super) fn begin_next(
        &mut self,
        now: Timestamp,
        is_ours: impl Fn(&AlertKey) -> bool,
    ) -> Option<(AlertKey, Alert)> {
        let due = self.alerts.iter().filter(|(key, alert)| {
            alert.is_due(now) && !self.in_flight.contains(key) && is_ours(key)
        });
        let (key, alert) = due.min_by_key(|(_, alert)| alert.news.at)?;
        let (key, alert) = (key.clone(), alert.clone());
        self.in_flight.insert(key.clone());
        Some((key, alert))
    }

    /// Notes that a post has ended.
    pub(super) fn end(&mut self, key: &AlertKey) {
        self.in_flight.remove(key);
    }

    /// Has all that waits be tried now, because the receiver takes posts again.
    pub(super) fn hurry(&mut self, now: Timestamp) {
        let waits = |(key, alert): (&AlertKey, &Alert)| match alert.delivery.next {
            NextAttempt::At(due) if due > now && !self.in_flight.contains(key) => {
                let delivery = AlertDelivery { next: NextAttempt::At(now), ..alert.delivery };
                Some((key.clone(), AlertChange::delivery(delivery)))
            }
            _ => None,
        };
        let waiting: Vec<_> = self.alerts.iter().filter_map(waits).collect();
        for (key, change) in waiting {
            self.change(key, change);
        }
    }
}

fn apply(alerts: &mut BTreeMap<AlertKey, Alert>, key: &AlertKey, change: &AlertChange) {
    if let Some(after) = change.apply(alerts.remove(key)) {
        alerts.insert(key.clone(), after);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use pillarbox_domain::alert::AlertEvent;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn key(node: &str, code: &str) -> AlertKey {
        let (node, code) = (node.to_owned(), code.to_owned());
        AlertKey::Condition { node, code, about: String::new() }
    }

    fn condition() -> ReportedCondition {
        let text = String::new;
        ReportedCondition { severity: text(), message: text(), advice: text(), since: NOON }
    }

    fn raise(second: u64) -> AlertChange {
        let at = NOON.plus(Duration::from_secs(second));
        let event = AlertEvent::Raised(condition());
        AlertChange::news(at, event)
    }

    fn clear(second: u64) -> AlertChange {
        let at = NOON.plus(Duration::from_secs(second));
        let event = AlertEvent::Cleared(condition());
        AlertChange::news(at, event)
    }

    #[test]
    fn what_the_store_does_not_have_stays_until_it_takes_it() {
        let mut book = Book::default();
        book.change(key("", "a"), raise(0));
        book.read(Vec::new());
        assert_eq!(book.all_holding().len(), 1);
        let (found, alert) = book.begin_next(NOON, |_| true).unwrap();
        book.end(&found);
        let delivery = Some(alert.taken());
        book.change(found, AlertChange { news: None, delivery });
        // A row of it comes only once the store takes writes again.
        let changes = book.unstored();
        assert_eq!(changes, [(key("", "a"), AlertChange { delivery, ..raise(0) })]);
        book.stored();
        book.read(Vec::new());
        assert_eq!((book.unstored().len(), book.alerts().count()), (0, 0));
    }

    #[test]
    fn what_began_and_ended_while_the_store_refused_leaves_nothing_once_it_was_told() {
        let mut book = Book::default();
        book.change(key("", "a"), raise(0));
        book.change(key("", "a"), clear(1));
        let (found, alert) = book.begin_next(NOON, |_| true).unwrap();
        assert!(alert.holding().is_none(), "only the last state is told");
        book.end(&found);
        book.change(found, AlertChange::delivery(alert.taken()));
        assert_eq!((book.alerts().count(), book.waiting()), (0, 0));
        let (_, change) = book.unstored().remove(0);
        assert_eq!(change.apply(None), None);
    }

    #[test]
    fn posts_of_one_subject_do_not_overtake_each_other_and_older_news_comes_first() {
        let mut book = Book::default();
        book.change(key("", "b"), raise(0));
        book.change(key("", "a"), raise(1));
        let now = NOON.plus(Duration::from_secs(5));
        let (first, alert) = book.begin_next(now, |_| true).unwrap();
        assert_eq!(first, key("", "b"));
        book.change(first.clone(), clear(2));
        assert_eq!(book.begin_next(now, |_| true).unwrap().0, key("", "a"));
        assert_eq!(book.begin_next(now, |_| true), None, "both are under way");
        book.end(&first);
        book.change(first.clone(), AlertChange::delivery(alert.taken()));
        let (again, alert) = book.begin_next(now, |_| true).unwrap();
        assert!(again == first && alert.holding().is_none());
    }

    #[test]
    fn a_node_posts_only_what_is_its_own() {
        let mut book = Book::default();
        book.change(key("a", "x"), raise(0));
        let is_of = |node: &'static str| move |key: &AlertKey| key.node() == Some(node);
        assert_eq!(book.begin_next(NOON, is_of("b")), None);
        assert!(book.begin_next(NOON, is_of("a")).is_some());
    }

    #[test]
    fn all_that_waits_is_tried_once_the_receiver_is_back() {
        let mut book = Book::default();
        for code in ["a", "b"] {
            book.change(key("", code), raise(0));
            let (key, alert) = book.begin_next(NOON, |_| true).unwrap();
            book.end(&key);
            book.change(key, AlertChange::delivery(alert.failed(NOON, 0.0, None)));
        }
        assert_eq!(book.begin_next(NOON, |_| true), None);
        book.hurry(NOON);
        assert!(book.begin_next(NOON, |_| true).is_some());
        assert!(book.begin_next(NOON, |_| true).is_some());
    }

    #[test]
    fn there_are_no_more_alerts_than_the_store_takes() {
        let mut book = Book::default();
        for number in 0..=MAX_ALERTS {
            book.change(key("", &number.to_string()), raise(0));
        }
        assert_eq!((book.alerts().count(), book.unstored().len()), (MAX_ALERTS, MAX_ALERTS));
    }
}
