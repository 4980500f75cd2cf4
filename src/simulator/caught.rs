//! What the simulator accepted: the last messages in full, and counts over all of them.
//!
//! This is where events will come from: each message carries what SES would report for each of
//! its recipients, and is broadcast as it is accepted. Must not know how messages arrive.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::address::RecipientFate;
use crate::domain::time::Timestamp;

/// Bytes of kept messages, over which the oldest go whatever their number.
const KEPT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A message that SES would have sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaughtMessage {
    /// The id that the caller was given, or would have been if the answer had not been lost.
    pub id: String,
    /// When it was accepted.
    #[serde(serialize_with = "as_text")]
    pub received_at: Timestamp,
    /// The sender as given.
    pub from: String,
    /// As given.
    pub to: Vec<String>,
    /// As given.
    pub cc: Vec<String>,
    /// As given.
    pub bcc: Vec<String>,
    /// As given.
    pub reply_to: Vec<String>,
    /// The subject in clear.
    pub subject: String,
    /// The plain text body.
    pub text: Option<String>,
    /// The HTML body.
    pub html: Option<String>,
    /// Custom headers in their order.
    pub headers: Vec<Header>,
    /// Message tags in their order.
    pub tags: Vec<Tag>,
    /// The configuration set, where one was named.
    pub configuration_set: Option<String>,
    /// What SES would report for each recipient: to, then cc, then bcc.
    pub recipients: Vec<RecipientOutcome>,
}

impl CaughtMessage {
    /// The value of a message tag.
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.tags.iter().find(|tag| tag.name == name).map(|tag| tag.value.as_str())
    }

    fn size(&self) -> usize {
        let bodies = [&self.text, &self.html].into_iter().flatten().map(String::len);
        let headers = self.headers.iter().map(|header| header.name.len() + header.value.len());
        let addresses = self.recipients.iter().map(|outcome| 2 * outcome.address.len());
        let fixed = size_of::<Self>() + self.subject.len();
        fixed + bodies.chain(headers).chain(addresses).sum::<usize>()
    }
}

/// A custom header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Header {
    /// The header's name, in the case given.
    pub name: String,
    /// The header's value.
    pub value: String,
}

/// A message tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tag {
    /// The tag's name.
    pub name: String,
    /// The tag's value.
    pub value: String,
}

/// What SES would report for one recipient.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecipientOutcome {
    /// The bare address.
    pub address: String,
    /// What becomes of the message there.
    pub fate: RecipientFate,
}

/// Counts over everything accepted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Totals {
    pub(super) accepted: u64,
    pub(super) accepted_recipients: u64,
    pub(super) uncounted_tags: u64,
}

/// The kept messages and the counts.
#[derive(Debug)]
pub(super) struct Caught {
    kept: VecDeque<Arc<CaughtMessage>>,
    kept_max: usize,
    kept_bytes: usize,
    counted_tags_max: usize,
    tags: HashMap<String, HashMap<String, u64>>,
    counted_tags: usize,
    totals: Totals,
}

impl Caught {
    pub(super) fn new(kept_max: usize, counted_tags_max: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            kept_max,
            counted_tags_max,
            kept_bytes: 0,
            tags: HashMap::new(),
            counted_tags: 0,
            totals: Totals::default(),
        }
    }

    pub(super) fn add(&mut self, message: Arc<CaughtMessage>) {
        self.totals.accepted += 1;
        self.totals.accepted_recipients += message.recipients.len() as u64;
        for tag in &message.tags {
            self.count_tag(tag);
        }
        self.kept_bytes += message.size();
        self.kept.push_back(message);
        while self.kept.len() > self.kept_max || self.kept_bytes > KEPT_BYTES_MAX {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.kept_bytes -= oldest.size();
        }
    }

    fn count_tag(&mut self, tag: &Tag) {
        let room = self.counted_tags < self.counted_tags_max;
        let known = self.tags.get_mut(&tag.name);
        if let Some(count) = known.and_then(|values| values.get_mut(&tag.value)) {
            *count += 1;
        } else if room {
            self.tags.entry(tag.name.clone()).or_default().insert(tag.value.clone(), 1);
            self.counted_tags += 1;
        } else {
            self.totals.uncounted_tags += 1;
        }
    }

    /// How many messages with this tag were accepted.
    pub(super) fn accepted_by_tag(&self, name: &str, value: &str) -> u64 {
        self.tags.get(name).and_then(|values| values.get(value)).copied().unwrap_or(0)
    }

    /// The values of a tag that more than one accepted message carries, with their counts.
    pub(super) fn repeated_tags(&self, name: &str) -> Vec<(String, u64)> {
        let values = self.tags.get(name).into_iter().flatten();
        let mut repeated: Vec<_> = values
            .filter(|(_, count)| **count > 1)
            .map(|(value, count)| (value.clone(), *count))
            .collect();
        repeated.sort();
        repeated
    }

    /// The kept messages, oldest first.
    pub(super) fn kept(&self) -> &VecDeque<Arc<CaughtMessage>> {
        &self.kept
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Forgets the messages and the tag counts; the totals stay.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.kept_bytes = 0;
        self.tags.clear();
        self.counted_tags = 0;
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn as_text<S: Serializer>(timestamp: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(timestamp)
}
