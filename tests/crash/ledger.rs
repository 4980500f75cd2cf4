//! What clients and the operator were told.

use std::collections::{BTreeMap, BTreeSet};

/// What was last read of a message.
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
    /// How many requests were answered with 200.
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
