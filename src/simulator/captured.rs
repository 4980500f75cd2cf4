//! Captured mail: the last accepted messages in full, and counts over all of them.
//!
//! Each message carries the report that SES would give for each of its recipients. Must not know
//! how messages arrive.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Serialize, Serializer};

use super::address::RecipientFate;
use pillarbox_domain::time::Timestamp;

/// Bytes of captured messages. Beyond it the oldest are dropped, in any number.
const MAX_CAPTURED_BYTES: usize = 256 * 1024 * 1024;

/// A message that SES would have sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CapturedMessage {
    /// The id that the caller was given, or would have been if the response had not been lost.
    pub id: String,
    /// Time at which it was accepted.
    #[serde(serialize_with = "as_text")]
    pub received_at: Timestamp,
    /// The sender as given.
    pub from: String,
    /// The recipients of `To`, as given.
    pub to: Vec<String>,
    /// The recipients of `Cc`, as given.
    pub cc: Vec<String>,
    /// The recipients of `Bcc`, as given.
    pub bcc: Vec<String>,
    /// The addresses for replies, as given.
    pub reply_to: Vec<String>,
    /// The subject, not encoded.
    pub subject: String,
    /// The plain text body.
    pub text: Option<String>,
    /// The HTML body.
    pub html: Option<String>,
    /// Custom headers in their order; all header fields of raw content.
    pub headers: Vec<NameValue>,
    /// Attachments in their order.
    pub attachments: Vec<CapturedAttachment>,
    /// Message tags in their order.
    pub tags: Vec<NameValue>,
    /// The message as it came, if its content was raw. JSON has it in base64.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_optional_base64")]
    pub raw: Option<Bytes>,
    /// The configuration set, if one was named.
    pub configuration_set: Option<String>,
    /// `ENABLED` or `DISABLED`, if the message overrides open tracking.
    pub open_tracking: Option<String>,
    /// The same of click tracking.
    pub click_tracking: Option<String>,
    /// The fate of each recipient: to, then cc, then bcc.
    pub recipients: Vec<CapturedRecipient>,
}

impl CapturedMessage {
    /// The value of a message tag.
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.tags.iter().find(|tag| tag.name == name).map(|tag| tag.value.as_str())
    }

    /// Bytes that it takes in memory, about.
    pub fn size_bytes(&self) -> usize {
        let given = [&self.to, &self.cc, &self.bcc, &self.reply_to].into_iter().flatten();
        let given = given.map(|text| size_of::<String>() + text.len());
        let tags = self.tags.iter().map(|tag| tag.name.len() + tag.value.len());
        let bodies = [&self.text, &self.html].into_iter().flatten().map(String::len);
        let headers = self.headers.iter().map(|header| header.name.len() + header.value.len());
        let addresses = self
            .recipients
            .iter()
            .map(|recipient| size_of::<CapturedRecipient>() + recipient.address.len());
        let files = self.attachments.iter().map(CapturedAttachment::size);
        let fixed =
            size_of::<Self>() + self.subject.len() + self.raw.as_ref().map_or(0, Bytes::len);
        let parts = bodies.chain(headers).chain(addresses).chain(files).chain(given).chain(tags);
        fixed + parts.sum::<usize>()
    }
}

/// A custom header or a message tag, with its name in the case given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NameValue {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A file that came with a captured message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CapturedAttachment {
    /// The file's name.
    pub filename: String,
    /// The file's bytes. JSON has them in base64.
    #[serde(serialize_with = "as_base64")]
    pub content: Bytes,
    /// The media type, if one was given.
    pub content_type: Option<String>,
    /// `ATTACHMENT` or `INLINE`, if one was given.
    pub disposition: Option<String>,
    /// The name by which HTML refers to it.
    pub content_id: Option<String>,
    /// The encoding in the message that SES makes of it, if one was given.
    pub transfer_encoding: Option<String>,
}

impl CapturedAttachment {
    fn size(&self) -> usize {
        size_of::<Self>() + self.filename.len() + self.content.len()
    }
}

/// One recipient of a captured message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CapturedRecipient {
    /// The bare address.
    pub address: String,
    /// The report that SES would give for this recipient.
    pub fate: RecipientFate,
}

/// A simulator's captured mail, in memory. Clones share the same messages and outlive the
/// simulator's handle.
#[derive(Debug, Clone)]
pub struct CapturedMail(Arc<Mutex<Log>>);

/// Counts over every message accepted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Totals {
    pub(super) accepted: u64,
    pub(super) accepted_recipients: u64,
    pub(super) uncounted_tags: u64,
}

#[derive(Debug)]
struct Log {
    messages: VecDeque<Arc<CapturedMessage>>,
    max_messages: usize,
    bytes: usize,
    /// The number of messages by tag name and tag value.
    tags: HashMap<String, HashMap<String, u64>>,
    counted_tags: usize,
    max_counted_tags: usize,
    totals: Totals,
}

impl CapturedMail {
    pub(super) fn new(max_messages: usize, max_counted_tags: usize) -> Self {
        Self(Arc::new(Mutex::new(Log {
            messages: VecDeque::new(),
            max_messages,
            bytes: 0,
            tags: HashMap::new(),
            counted_tags: 0,
            max_counted_tags,
            totals: Totals::default(),
        })))
    }

    /// Messages accepted since the start, also those that were dropped since.
    pub fn accepted_total(&self) -> u64 {
        self.totals().accepted
    }

    /// The newest messages first, at most `limit`.
    pub fn newest(&self, limit: usize) -> Vec<Arc<CapturedMessage>> {
        self.find(limit, |_| true)
    }

    /// The message with this id, if it has not been dropped.
    pub fn message(&self, id: &str) -> Option<Arc<CapturedMessage>> {
        self.log().messages.iter().rfind(|message| message.id == id).cloned()
    }

    /// The newest messages that fit, at most `limit`.
    pub(super) fn find(
        &self,
        limit: usize,
        fits: impl Fn(&CapturedMessage) -> bool,
    ) -> Vec<Arc<CapturedMessage>> {
        let log = self.log();
        log.messages.iter().rev().filter(|message| fits(message)).take(limit).cloned().collect()
    }

    /// All messages, oldest first.
    pub(super) fn messages(&self) -> Vec<Arc<CapturedMessage>> {
        self.log().messages.iter().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.log().messages.len()
    }

    pub(super) fn totals(&self) -> Totals {
        self.log().totals
    }

    /// The number of accepted messages with this tag.
    pub(super) fn accepted_by_tag(&self, name: &str, value: &str) -> u64 {
        let log = self.log();
        log.tags.get(name).and_then(|values| values.get(value)).copied().unwrap_or(0)
    }

    /// The values of a tag that more than one accepted message carries, with their counts.
    pub(super) fn repeated_tags(&self, name: &str) -> Vec<(String, u64)> {
        let log = self.log();
        let values = log.tags.get(name).into_iter().flatten();
        let mut repeated: Vec<_> = values
            .filter(|(_, count)| **count > 1)
            .map(|(value, count)| (value.clone(), *count))
            .collect();
        repeated.sort();
        repeated
    }

    pub(super) fn add(&self, message: Arc<CapturedMessage>) {
        let mut log = self.log();
        log.totals.accepted += 1;
        log.totals.accepted_recipients += message.recipients.len() as u64;
        for tag in &message.tags {
            log.count_tag(tag);
        }
        log.bytes += message.size_bytes();
        log.messages.push_back(message);
        while log.messages.len() > log.max_messages || log.bytes > MAX_CAPTURED_BYTES {
            let Some(oldest) = log.messages.pop_front() else { break };
            log.bytes -= oldest.size_bytes();
        }
    }

    /// Drops the messages and the tag counts. The totals stay.
    pub(super) fn clear(&self) {
        let mut log = self.log();
        log.messages.clear();
        log.bytes = 0;
        log.tags.clear();
        log.counted_tags = 0;
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Log {
    fn count_tag(&mut self, tag: &NameValue) {
        let known = self.tags.get_mut(&tag.name);
        if let Some(count) = known.and_then(|values| values.get_mut(&tag.value)) {
            *count += 1;
        } else if self.counted_tags < self.max_counted_tags {
            self.tags.entry(tag.name.clone()).or_default().insert(tag.value.clone(), 1);
            self.counted_tags += 1;
        } else {
            self.totals.uncounted_tags += 1;
        }
    }
}

#[expect(clippy::ref_option, reason = "serde calls it with a reference")]
fn as_optional_base64<S: Serializer>(
    content: &Option<Bytes>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Base64Display::new(content.as_deref().unwrap_or_default(), &STANDARD))
}

fn as_base64<S: Serializer>(content: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Base64Display::new(content, &STANDARD))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn as_text<S: Serializer>(timestamp: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(timestamp)
}
