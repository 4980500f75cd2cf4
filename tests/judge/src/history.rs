//! A history: what each client, reader, operator and the provider saw, one JSON object a line.
//!
//! Must not know how pillarbox works. All times of a history are microseconds of one clock.

use serde::{Deserialize, Serialize};

/// Observation of one observer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// Set-up of the run. The first event of each history.
    Run(Run),
    /// A client posted a message, and had this answer.
    Post(Post),
    /// A client read a message's record.
    Read(Read),
    /// A reader of the feed got a page of it. Each reader begins with the oldest entry and follows
    /// the cursor.
    Feed(Page),
    /// A receiver of webhooks got an entry, perhaps not for the first time.
    Webhook(Delivery),
    /// The provider took a message, whether or not its answer arrived.
    Provider(Accepted),
    /// An operator's command to suppress an address was answered with success.
    Suppressed(Suppressed),
    /// An operator or a client received the answer that a message is cancelled.
    Cancelled(Cancelled),
    /// An operator limited an organisation.
    Limited(Limited),
    /// A process was killed.
    Killed {
        /// Time of the observation.
        at: u64,
    },
}

/// Set-up of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Run {
    /// Step after an attempt whose answer was lost.
    pub on_unknown: OnUnknown,
    /// Decision whether the provider's answers may be lost.
    pub answers: Answers,
    /// Meaning of a 503 for the message.
    pub refusal: Refusal,
    /// Longest time from a suppression's answer to the last attempt that does not know it.
    pub suppression_delay: u64,
}

/// Step after an attempt whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// The message gets another attempt.
    Retry,
    /// None: the message has failed.
    Fail,
}

/// Decision whether the provider's answers may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    /// Each arrives, unless the process is killed before.
    Arrive,
    /// Some answers do not arrive.
    MayBeLost,
}

/// Meaning of a 503 for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It was not accepted.
    Definite,
    /// It may have been accepted, as a store on several machines has it.
    MayBeOpen,
}

/// A post of one message. Each element of a batch is a post of its own, and so is a submission over
/// SMTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Post {
    /// Time at which the request began.
    pub began: u64,
    /// Time at which the answer was there, or the connection had failed.
    pub ended: u64,
    /// The organisation of the key.
    pub organisation: String,
    /// The idempotency key; over SMTP, the message's own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The subject, which distinguishes messages without a key.
    pub subject: String,
    /// The answer's status; none if no whole answer arrived. Over SMTP, it is 200 if the message is
    /// accepted, else the reply's code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The id, if the status is 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// True if the answer marked the request as a replay.
    #[serde(default)]
    pub replayed: bool,
}

/// A read of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Read {
    /// Time at which the request began.
    pub began: u64,
    /// Time at which the answer was there.
    pub ended: u64,
    /// Id of the message.
    pub id: String,
    /// The record's status; none if there is no such message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Number of attempts on the record.
    #[serde(default)]
    pub attempts: u64,
}

/// A page of the feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Page {
    /// Time at which the request began.
    pub began: u64,
    /// Time at which the answer was there.
    pub ended: u64,
    /// The organisation of the key.
    pub organisation: String,
    /// Name of the reader.
    pub reader: String,
    /// The entries, as they came.
    pub entries: Vec<Entry>,
}

/// An entry of the feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    /// Id of the entry.
    pub id: String,
    /// Its type, such as `email.sent`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The message that it is about.
    pub message: String,
}

/// A delivery of an entry to a receiver of webhooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delivery {
    /// Time at which it arrived.
    pub at: u64,
    /// The organisation of the endpoint. The endpoint gets all its entries.
    pub organisation: String,
    /// Name of the receiver.
    pub receiver: String,
    /// Entry of the feed that it carried.
    pub entry: Entry,
}

/// A message that the provider took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Accepted {
    /// Time of the acceptance.
    pub at: u64,
    /// The organisation that the call's tag names.
    pub organisation: String,
    /// The message that the call's tag names.
    pub id: String,
    /// Subject of the sent message.
    pub subject: String,
    /// The recipients' bare addresses.
    pub recipients: Vec<String>,
}

/// A suppression that was answered with success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Suppressed {
    /// Time at which the answer was there.
    pub ended: u64,
    /// Organisation that it applies to.
    pub organisation: String,
    /// Address without a display name.
    pub address: String,
}

/// A cancellation that was answered with success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cancelled {
    /// Time at which the answer was there.
    pub ended: u64,
    /// The message, of which no call was under way.
    pub id: String,
}

/// A limit of all messages that an organisation may have had accepted since the history began. Until
/// there is one, nothing limits it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limited {
    /// Time at which the operator's command began. The limit before it may hold for a while longer.
    pub began: u64,
    /// Name of the organisation.
    pub organisation: String,
    /// Limit of messages.
    pub most: u64,
}
