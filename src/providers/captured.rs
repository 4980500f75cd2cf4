//! Captured mail of test organisations: the last messages of each, within a number and within bytes.
//!
//! In memory only. Knows neither how a message was sent nor who reads it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pillarbox_ses::send::ORGANISATION_TAG;
use pillarbox_simulator::CapturedMessage;

/// The most messages of one organisation.
const MAX_MESSAGES: usize = 200;
/// The most bytes of one organisation's messages.
const MAX_BYTES_OF_ONE: usize = 16 * 1024 * 1024;
/// The most bytes of all.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The last messages of each test organisation.
#[derive(Debug, Default)]
pub struct CapturedByOrganisation(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    organisations: BTreeMap<String, Kept>,
    bytes: usize,
    /// Messages that were captured since the start, also those that were dropped since.
    total: u64,
}

/// One organisation's messages, the oldest first. There is at least one.
#[derive(Debug, Default)]
struct Kept {
    messages: VecDeque<Arc<CapturedMessage>>,
    bytes: usize,
}

impl CapturedByOrganisation {
    /// Messages that were captured since the start, also those that were dropped since.
    pub fn total(&self) -> u64 {
        self.log().total
    }

    /// Names of the organisations that messages are kept of.
    pub fn organisations(&self) -> Vec<String> {
        self.log().organisations.keys().cloned().collect()
    }

    /// The newest messages first, of one organisation or of all, at most `limit`.
    pub fn newest(&self, organisation: Option<&str>, limit: usize) -> Vec<Arc<CapturedMessage>> {
        let log = self.log();
        let wanted = log.organisations.iter().filter(|(name, _)| {
            organisation.is_none_or(|organisation| organisation == name.as_str())
        });
        // Of each only as many as could be among the newest of all.
        let mut newest: Vec<_> =
            wanted.flat_map(|(_, kept)| kept.messages.iter().rev().take(limit).cloned()).collect();
        drop(log);
        newest.sort_by_key(|message| Reverse(message.received_at));
        newest.truncate(limit);
        newest
    }

    /// The message with this id of the provider, if it has not been dropped.
    pub fn message(&self, id: &str) -> Option<Arc<CapturedMessage>> {
        let log = self.log();
        let mut all = log.organisations.values().flat_map(|kept| &kept.messages);
        all.find(|message| message.id == id).cloned()
    }

    /// Keeps a message, in place of older ones if there is no room. One that is larger than all that
    /// its organisation may have is not kept.
    pub(super) fn add(&self, message: CapturedMessage) {
        let size = message.size_bytes();
        let Some(organisation) = message.tag(ORGANISATION_TAG).map(ToOwned::to_owned) else {
            return;
        };
        if size > MAX_BYTES_OF_ONE {
            return;
        }
        let mut log = self.log();
        log.total += 1;
        log.bytes += size;
        let kept = log.organisations.entry(organisation.clone()).or_default();
        kept.bytes += size;
        kept.messages.push_back(Arc::new(message));
        while log.is_over(&organisation) {
            log.drop_oldest_of(&organisation);
        }
        while log.bytes > MAX_BYTES {
            // Who has the most makes room, so that one busy organisation leaves others theirs.
            let most = log.organisations.iter().max_by_key(|(_, kept)| kept.bytes);
            let Some(most) = most.map(|(name, _)| name.clone()) else { break };
            log.drop_oldest_of(&most);
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    /// Returns true if an organisation has more than it may.
    fn is_over(&self, organisation: &str) -> bool {
        self.organisations
            .get(organisation)
            .is_some_and(|kept| kept.messages.len() > MAX_MESSAGES || kept.bytes > MAX_BYTES_OF_ONE)
    }

    fn drop_oldest_of(&mut self, organisation: &str) {
        let Some(kept) = self.organisations.get_mut(organisation) else { return };
        if let Some(oldest) = kept.messages.pop_front() {
            let size = oldest.size_bytes();
            kept.bytes -= size;
            self.bytes -= size;
        }
        if kept.messages.is_empty() {
            self.organisations.remove(organisation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::time::Timestamp;
    use pillarbox_simulator::NameValue;

    const MIB: usize = 1024 * 1024;

    fn message(organisation: &str, number: u64, bytes: usize) -> CapturedMessage {
        CapturedMessage {
            id: format!("{organisation}-{number}"),
            received_at: Timestamp::from_unix_millis(number),
            from: String::new(),
            to: Vec::new(),
            cc: Vec::new(),
            bcc: Vec::new(),
            reply_to: Vec::new(),
            subject: String::new(),
            text: Some("x".repeat(bytes)),
            html: None,
            headers: Vec::new(),
            attachments: Vec::new(),
            tags: vec![NameValue {
                name: ORGANISATION_TAG.to_owned(),
                value: organisation.to_owned(),
            }],
            raw: None,
            configuration_set: None,
            open_tracking: None,
            click_tracking: None,
            recipients: Vec::new(),
        }
    }

    fn ids(captured: &CapturedByOrganisation, of: Option<&str>, limit: usize) -> Vec<String> {
        captured.newest(of, limit).iter().map(|message| message.id.clone()).collect()
    }

    #[test]
    fn the_last_200_messages_of_each_organisation_are_kept() {
        let captured = CapturedByOrganisation::default();
        captured.add(message("b", 0, 1));
        for number in 1..=250 {
            captured.add(message("a", number, 1));
        }
        assert_eq!(captured.total(), 251);
        assert_eq!(captured.organisations(), ["a", "b"]);
        let kept = ids(&captured, Some("a"), usize::MAX);
        assert_eq!((kept.len(), &*kept[0], &*kept[199]), (200, "a-250", "a-51"));
        assert_eq!(ids(&captured, Some("b"), 10), ["b-0"]);
        assert_eq!(ids(&captured, None, 2), ["a-250", "a-249"]);
        assert!(captured.message("a-51").is_some() && captured.message("a-50").is_none());
    }

    #[test]
    fn one_organisation_has_16_mib_and_all_have_64_mib() {
        let captured = CapturedByOrganisation::default();
        captured.add(message("a", 0, 17 * MIB));
        assert_eq!(captured.total(), 0, "one that is too large is not kept");
        for name in ["a", "b", "c", "d", "e", "f"] {
            for number in 0..40 {
                captured.add(message(name, number, MIB / 2));
                let log = captured.log();
                assert!(log.bytes <= MAX_BYTES);
                assert!(log.organisations[name].bytes <= MAX_BYTES_OF_ONE);
                let sum: usize = log.organisations.values().map(|kept| kept.bytes).sum();
                assert_eq!(sum, log.bytes);
            }
        }
        let log = captured.log();
        assert_eq!(log.organisations.len(), 6, "a busy one does not take all of another's");
        let all: usize = log.organisations.values().map(|kept| kept.bytes).sum();
        assert!(all > MAX_BYTES - MIB, "{all}");
        drop(log);
        assert_eq!(ids(&captured, Some("f"), 1), ["f-39"]);
    }
}
