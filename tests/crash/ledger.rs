//! Answers that clients and the operator received.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Last record that was read of a message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) status: String,
    pub(crate) has_event: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Every id that was answered with 200.
    pub(crate) ids: BTreeMap<String, Seen>,
    /// Those of the round at hand.
    pub(crate) fresh: Vec<String>,
    /// Every key that was answered with 200, and the id.
    pub(crate) keys: BTreeMap<String, String>,
    /// Keys whose answer did not come.
    pub(crate) unanswered: BTreeSet<String>,
    /// Addresses whose suppression the operator's command has confirmed.
    pub(crate) suppressed: Vec<String>,
    /// Entries that a reader has followed of the feed, with its cursor.
    pub(crate) told: Vec<Value>,
    pub(crate) cursor: Option<String>,
    /// Number of requests that were answered with 200.
    pub(crate) answers: u64,
}

impl Ledger {
    /// Notes an answer of 200.
    pub(crate) fn answered(&mut self, key: Option<&str>, id: &str) {
        self.answers += 1;
        if self.ids.insert(id.to_owned(), Seen::default()).is_none() {
            self.fresh.push(id.to_owned());
        }
        if let Some(key) = key {
            self.unanswered.remove(key);
            let first = self.keys.entry(key.to_owned()).or_insert_with(|| id.to_owned());
            assert_eq!(first, id, "the key {key} has two ids");
        }
    }

    /// Compares what a reader has followed, life by life, with all of the feed, which is the same,
    /// and with what was read of each message.
    pub(crate) fn compare_feed(&self, all: &[Value]) {
        let differs = self.told.iter().zip(all).position(|(told, now)| told != now);
        if let Some(at) = differs {
            panic!("the feed told {} and tells {} at {at}", self.told[at], all[at]);
        }
        assert_eq!(self.told.len(), all.len(), "what was followed, and the feed");
        let mut of_message: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for event in all {
            let id = event["data"]["id"].as_str().unwrap();
            of_message.entry(id).or_default().push(event["type"].as_str().unwrap());
        }
        for (id, seen) in &self.ids {
            let told = of_message.get(&**id).cloned().unwrap_or_default();
            let expected: &[&[&str]] = match &*seen.status {
                "sent" => &[
                    &["email.sent", "email.delivery"],
                    &["email.sent", "email.bounce"],
                    // Its outcome was lost, and an event proved it.
                    &["email.failed", "email.sent", "email.delivery"],
                    &["email.failed", "email.sent", "email.bounce"],
                ],
                "failed" => &[&["email.failed"]],
                "suppressed" => &[&["email.suppressed"]],
                other => panic!("{id} is {other}"),
            };
            assert!(expected.contains(&told.as_slice()), "{id} is {seen:?}; the feed: {told:?}");
        }
    }

    /// Notes what was read of a message, which must go on from what was read before.
    pub(crate) fn read(&mut self, id: &str, now: Seen) {
        let before = self.ids.get_mut(id).unwrap();
        assert!(!before.has_event || now.has_event, "{id} has lost its event: {before:?} {now:?}");
        assert!(
            before.status != "sent" || now.status == "sent",
            "{id} is not sent any more: {before:?} {now:?}"
        );
        *before = now;
    }
}
