//! Transfer of a data file into a database: the rows on their way from one engine to the other, and
//! its result. Both engines store the same bytes, so most rows pass as they are.

use serde::Serialize;

use crate::domain::id::MessageId;
use crate::domain::request::OwnedIdempotencyKey;
use crate::store::error::StoreError;

/// Rows that travel together.
pub(super) const CHUNK_ROWS: usize = 1_000;
/// How many chunks wait between the reader and the writer.
pub(super) const CHUNKS_AHEAD: usize = 4;

/// Table that rows go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferTable {
    Organisations,
    ApiKeys,
    Domains,
    Suppressions,
    Messages,
    Pending,
    IdempotencyKeys,
    SentMessages,
    Events,
    Timeline,
    UnmatchedEvents,
    DeadLetters,
    OverturnedFailures,
    Feed,
    FeedEnds,
    Webhooks,
    WebhookCursors,
    WaitingDeliveries,
    FailedDeliveries,
    History,
}

/// Field of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Field {
    Number(u32),
    Large(u64),
    /// A number that may be missing.
    Optional(Option<u64>),
    Bytes(Vec<u8>),
    Text(String),
    Id(MessageId),
    /// Idempotency key. The engine hashes it in its own way.
    Key(OwnedIdempotencyKey),
}

/// Rows of one table.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) table: TransferTable,
    pub(super) rows: Vec<Vec<Field>>,
}

/// Single facts of a data file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) last_organisation: u64,
    pub(super) last_key: u64,
    pub(super) last_webhook: u64,
    pub(super) id_lead: u64,
    pub(super) lost_messages: u64,
    pub(super) lost_messages_at: u64,
    pub(super) feed_id: u64,
    /// Last position of the feed.
    pub(super) feed_last: u64,
    pub(super) time_record: Option<Vec<u8>>,
    /// True if `pillarbox dev` made it.
    pub(super) made_by_dev: bool,
    /// Rows that cannot be brought over, because what the database searches by cannot be read.
    pub(super) left_out: u64,
}

/// Result of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Imported {
    /// Message records.
    pub messages: u64,
    /// Of these, messages that were pending: the first node that joins fails them.
    pub pending: u64,
    /// Organisations.
    pub organisations: u64,
    /// API keys.
    pub keys: u64,
    /// Suppressed addresses.
    pub suppressions: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// Rows that could not be read, and were left out.
    pub left_out: u64,
}

/// Reason why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The data file cannot be read.
    #[error("the data file cannot be read: {0}")]
    File(#[from] StoreError),
    /// Nodes work on the database, and hold in memory what is in it.
    #[error("nodes work on the database, or did and are not forgotten yet: {}", .0.join(", "))]
    Nodes(Vec<String>),
    /// The database is not empty.
    #[error("the database has organisations, messages or suppressions already")]
    NotEmpty,
    /// The server refused it, or cannot be reached.
    #[error("PostgreSQL: {0}")]
    Server(String),
    /// The server did not say whether the import was made, or whether the standby has it.
    #[error("the database did not say whether it has everything, or whether its standby does")]
    Unanswered,
    /// The store of the configuration is a data file.
    #[error("the store is a data file itself")]
    SameEngine,
}
