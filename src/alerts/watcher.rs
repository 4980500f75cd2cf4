//! Watcher: out of the conditions that hold, again and again, which are raised and which have ended.
//!
//! Pure: time and conditions come in, changes of alerts come out.

use std::collections::{BTreeMap, BTreeSet};

use crate::book::Book;
use pillarbox_domain::alert::{AlertChange, AlertEvent, AlertKey, LASTING, ReportedCondition};
use pillarbox_domain::time::Timestamp;

/// Condition that holds, in the form that operators receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Code of the condition.
    pub code: String,
    /// Organisation, domain, endpoint or other subject; empty if it has none.
    pub about: String,
    /// Word for how bad it is.
    pub severity: &'static str,
    /// Sentence that says what is wrong. It has no words of others, which may name a recipient.
    pub message: String,
    /// Next step of the operator.
    pub advice: String,
    /// Nodes that find it.
    pub found_by: FoundBy,
}

/// Nodes that find a condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FoundBy {
    /// The one that suffers from it.
    #[default]
    OneNode,
    /// Each, because the finding is in what they share. The one with the duty reports it.
    EachNode,
}

/// State at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) now: Timestamp,
    /// Conditions that hold for this node.
    pub(super) conditions: &'a [Observed],
    /// Names of the nodes that work on the store; none if it is a file.
    pub(super) nodes: &'a [String],
    /// True if this node posts for all.
    pub(super) has_duty: bool,
}

/// Conditions that have had the time to be found again.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Those of this node.
    own: bool,
    /// Those that all nodes share; never without the duty.
    shared: bool,
}

/// Watcher of the conditions of one node, and of what all nodes share while it has the duty.
#[derive(Debug)]
pub(super) struct Watcher {
    /// Name of this node; empty if it is the only one.
    node: String,
    begun: Timestamp,
    /// Beginning of each condition that holds.
    since: BTreeMap<AlertKey, Timestamp>,
    /// Beginning of the duty.
    duty_since: Option<Timestamp>,
    /// Time at which each node with alerts was first found missing.
    missing_since: BTreeMap<String, Timestamp>,
    is_start_told: bool,
}

impl Watcher {
    /// Watcher of this node from now on.
    pub(super) fn new(node: &str, now: Timestamp) -> Self {
        Self {
            node: node.to_owned(),
            begun: now,
            since: BTreeMap::new(),
            duty_since: None,
            missing_since: BTreeMap::new(),
            is_start_told: false,
        }
    }

    /// Compares the conditions that hold now with the alerts in the book, and changes these.
    pub(super) fn look(&mut self, view: View<'_>, book: &mut Book) {
        let View { now, has_duty, .. } = view;
        // If the clock was set back, a minute begins anew.
        self.begun = self.begun.min(now);
        let duty_since = self.duty_since.filter(|_| has_duty).unwrap_or(now).min(now);
        self.duty_since = has_duty.then_some(duty_since);
        let before = std::mem::take(&mut self.since);
        for condition in view.conditions {
            let Some(key) = self.key(condition, has_duty) else { continue };
            let since = before.get(&key).copied().unwrap_or(now).min(now);
            if since.is_past(LASTING, now) && book.holding(&key).is_none() {
                book.change(key.clone(), raised(condition, since, now));
            }
            self.since.insert(key, since);
        }
        let knows_own = self.begun.is_past(LASTING, now);
        let known = Known {
            own: knows_own,
            shared: knows_own && has_duty && duty_since.is_past(LASTING, now),
        };
        self.clear(view, known, &before, book);
        if known.own && (known.shared || !has_duty) {
            self.tell_start(now, book);
        }
    }

    /// Returns the subject of a condition; `None` if another node reports it.
    fn key(&self, condition: &Observed, has_duty: bool) -> Option<AlertKey> {
        let node = match condition.found_by {
            FoundBy::OneNode => self.node.clone(),
            FoundBy::EachNode if has_duty => String::new(),
            FoundBy::EachNode => return None,
        };
        let (code, about) = (condition.code.clone(), condition.about.clone());
        Some(AlertKey::Condition { node, code, about })
    }

    /// Clears alerts whose conditions hold no more. Alerts that were raised before this process
    /// began, or before it had the duty, are cleared only after a while: most conditions take a
    /// moment to be found again.
    fn clear(
        &mut self,
        view: View<'_>,
        known: Known,
        before: &BTreeMap<AlertKey, Timestamp>,
        book: &mut Book,
    ) {
        let now = view.now;
        let mut missing = BTreeSet::new();
        for (key, condition) in book.all_holding() {
            if self.since.contains_key(&key) {
                continue;
            }
            let has_ended = match key.node() {
                Some(node) if node == self.node => known.own || before.contains_key(&key),
                // A node that restarts comes back.
                Some(node) if view.has_duty && !view.nodes.iter().any(|one| one == node) => {
                    let since = self.missing_since.entry(node.to_owned()).or_insert(now);
                    *since = (*since).min(now);
                    missing.insert(node.to_owned());
                    since.is_past(LASTING, now)
                }
                Some(_) => false,
                None => view.has_duty && (known.shared || before.contains_key(&key)),
            };
            if has_ended {
                let event = AlertEvent::Cleared(condition);
                book.change(key, AlertChange::news(now, event));
            }
        }
        self.missing_since.retain(|node, _| missing.contains(node));
    }

    /// Has the conditions listed once after the start.
    fn tell_start(&mut self, now: Timestamp, book: &mut Book) {
        if self.is_start_told {
            return;
        }
        self.is_start_told = true;
        let key = AlertKey::Start { node: self.node.clone() };
        book.change(key, AlertChange::news(now, AlertEvent::Started));
    }
}

fn raised(condition: &Observed, since: Timestamp, now: Timestamp) -> AlertChange {
    let condition = ReportedCondition {
        severity: condition.severity.to_owned(),
        message: condition.message.clone(),
        advice: condition.advice.clone(),
        since,
    };
    AlertChange::news(now, AlertEvent::Raised(condition))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use pillarbox_domain::alert::Alert;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn at(second: u64) -> Timestamp {
        NOON.plus(Duration::from_secs(second))
    }

    fn found(code: &str) -> Observed {
        Observed {
            code: code.to_owned(),
            about: String::new(),
            severity: "warning",
            message: format!("{code} holds"),
            advice: "Do something".to_owned(),
            found_by: FoundBy::OneNode,
        }
    }

    fn shared(code: &str) -> Observed {
        Observed { found_by: FoundBy::EachNode, ..found(code) }
    }

    /// A node on a file, or one of several.
    struct Node {
        watcher: Watcher,
        has_duty: bool,
        nodes: Vec<String>,
    }

    impl Node {
        fn alone(now: Timestamp) -> Self {
            Self { watcher: Watcher::new("", now), has_duty: true, nodes: Vec::new() }
        }

        fn one_of(names: &[&str], name: &str, has_duty: bool) -> Self {
            let nodes = names.iter().map(|&name| name.to_owned()).collect();
            Self { watcher: Watcher::new(name, NOON), has_duty, nodes }
        }

        /// Runs one check each second.
        fn look(&mut self, seconds: std::ops::Range<u64>, holds: &[Observed], book: &mut Book) {
            for second in seconds {
                let view = View {
                    now: at(second),
                    conditions: holds,
                    nodes: &self.nodes,
                    has_duty: self.has_duty,
                };
                self.watcher.look(view, book);
            }
        }
    }

    /// The conditions of the book, with the node, and whether each holds.
    fn told(book: &Book) -> Vec<String> {
        let conditions = book.alerts().filter_map(|(key, alert)| {
            let AlertKey::Condition { node, code, about } = key else { return None };
            let state = if alert.holding().is_some() { "raised" } else { "cleared" };
            Some(format!("{node} {code} {about} {state}").replace("  ", " ").trim().to_owned())
        });
        conditions.collect()
    }

    #[test]
    fn a_condition_is_raised_once_it_has_lasted_for_a_minute_and_cleared_when_it_ends() {
        let (mut book, mut node) = (Book::default(), Node::alone(NOON));
        node.look(0..60, &[found("a")], &mut book);
        assert_eq!(told(&book), [""; 0]);
        node.look(60..61, &[found("a")], &mut book);
        assert_eq!(told(&book), ["a raised"]);
        let (_, alert) = book.alerts().next().unwrap();
        assert_eq!((alert.news.at, alert.holding().unwrap().since), (at(60), NOON));
        let before: Alert = alert.clone();
        node.look(61..100, &[found("a")], &mut book);
        assert_eq!(book.alerts().next().unwrap().1, &before, "its news stays as it was");
        node.look(100..101, &[], &mut book);
        assert_eq!(told(&book), ["a cleared"]);
    }

    #[test]
    fn one_that_ends_sooner_is_not_told_of_and_one_that_returns_begins_anew() {
        let (mut book, mut node) = (Book::default(), Node::alone(NOON));
        node.look(0..59, &[found("a")], &mut book);
        node.look(59..60, &[], &mut book);
        node.look(60..119, &[found("a")], &mut book);
        assert_eq!(told(&book), [""; 0]);
        node.look(119..121, &[found("a")], &mut book);
        assert_eq!(told(&book), ["a raised"]);
    }

    #[test]
    fn conditions_about_different_things_are_told_of_one_by_one() {
        let about = |about: &str| Observed { about: about.to_owned(), ..found("paused") };
        let (mut book, mut node) = (Book::default(), Node::alone(NOON));
        node.look(0..61, &[about("acme"), about("other")], &mut book);
        node.look(61..62, &[about("other")], &mut book);
        assert_eq!(told(&book), ["paused acme cleared", "paused other raised"]);
    }

    #[test]
    fn after_a_start_what_holds_stays_raised_and_what_ended_is_cleared_after_a_minute() {
        let (mut book, mut node) = (Book::default(), Node::alone(NOON));
        node.look(0..61, &[found("a"), found("b")], &mut book);
        let mut node = Node::alone(at(100));
        node.look(100..130, &[], &mut book);
        assert_eq!(told(&book), ["a raised", "b raised"], "nothing is known yet");
        node.look(130..161, &[found("a")], &mut book);
        assert_eq!(told(&book), ["a raised", "b cleared"]);
        node.look(161..162, &[], &mut book);
        assert_eq!(told(&book), ["a cleared", "b cleared"]);
    }

    #[test]
    fn each_start_is_told_once_after_a_minute() {
        let start = |book: &Book| {
            let found = book.alerts().find(|(key, _)| matches!(key, AlertKey::Start { .. }));
            found.map(|(_, alert)| alert.news.at)
        };
        let (mut book, mut node) = (Book::default(), Node::alone(NOON));
        node.look(0..60, &[], &mut book);
        assert_eq!(start(&book), None);
        node.look(60..100, &[], &mut book);
        assert_eq!(start(&book), Some(at(60)));
        Node::alone(at(100)).look(100..161, &[], &mut book);
        assert_eq!(start(&book), Some(at(160)));
    }

    #[test]
    fn a_start_is_told_once_all_that_has_ended_is_cleared() {
        let (mut book, mut node) = (Book::default(), Node::alone(NOON));
        node.look(0..61, &[found("a")], &mut book);
        let mut watcher = Watcher::new("", at(100));
        let mut look = |millis: u64| {
            let now = at(100).plus(Duration::from_millis(millis));
            let view = View { now, conditions: &[], nodes: &[], has_duty: true };
            watcher.look(view, &mut book);
            let is_start = |key: &AlertKey| matches!(key, AlertKey::Start { .. });
            let is_told = |(key, alert): (&AlertKey, &Alert)| is_start(key) && alert.news.at == now;
            (book.alerts().any(is_told), book.all_holding().len())
        };
        // The first check comes a moment after the start, and the times count from there.
        assert_eq!(look(500), (false, 1));
        assert_eq!(look(60_400), (false, 1));
        assert_eq!(look(60_500), (true, 0));
    }

    #[test]
    fn a_clock_that_is_set_back_costs_a_minute_at_most() {
        let (mut book, mut node) = (Book::default(), Node::alone(at(10_000)));
        node.look(10_000..10_050, &[found("a")], &mut book);
        node.look(0..60, &[found("a")], &mut book);
        assert_eq!(told(&book), [""; 0]);
        node.look(60..61, &[found("a")], &mut book);
        assert_eq!(told(&book), ["a raised"]);
    }

    #[test]
    fn of_several_nodes_each_tells_of_its_own_and_one_of_what_they_share() {
        let mut book = Book::default();
        let names = ["a", "b"];
        let mut a = Node::one_of(&names, "a", true);
        let mut b = Node::one_of(&names, "b", false);
        for node in [&mut a, &mut b] {
            node.look(0..61, &[found("slow"), shared("letters")], &mut book);
        }
        assert_eq!(told(&book), ["letters raised", "a slow raised", "b slow raised"]);
        b.look(61..62, &[], &mut book);
        assert_eq!(told(&book), ["letters raised", "a slow raised", "b slow cleared"]);
        // The duty goes to the other one, which has found the shared one as well.
        (a.has_duty, b.has_duty) = (false, true);
        a.look(62..130, &[found("slow")], &mut book);
        b.look(62..122, &[], &mut book);
        assert_eq!(told(&book), ["letters raised", "a slow raised", "b slow cleared"]);
        b.look(122..123, &[], &mut book);
        assert_eq!(told(&book), ["letters cleared", "a slow raised", "b slow cleared"]);
    }

    #[test]
    fn what_a_node_raised_that_is_gone_is_cleared_but_not_while_it_restarts() {
        let mut book = Book::default();
        let mut a = Node::one_of(&["a", "b"], "a", true);
        Node::one_of(&["a", "b"], "b", false).look(0..61, &[found("slow")], &mut book);
        let restarts = |a: &mut Node, names: &[&str]| {
            a.nodes = names.iter().map(|&name| name.to_owned()).collect();
        };
        restarts(&mut a, &["a"]);
        a.look(61..100, &[], &mut book);
        restarts(&mut a, &["a", "b"]);
        a.look(100..200, &[], &mut book);
        restarts(&mut a, &["a"]);
        a.look(200..260, &[], &mut book);
        assert_eq!(told(&book), ["b slow raised"]);
        a.look(260..261, &[], &mut book);
        assert_eq!(told(&book), ["b slow cleared"]);
    }
}
