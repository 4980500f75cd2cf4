//! Transfer of a data file into a database: the rows on their way from one engine to the other, and
//! its result. Both engines store the same bytes, so most rows pass as they are.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::directory::KeyUses;
use crate::error::StoreError;
use crate::rows::{Counter, Key, NewRow, Table};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::request::OwnedIdempotencyKey;
use pillarbox_domain::usage::Usage;

pub(super) const CHUNK_ROWS: usize = 1_000;
/// Number of chunks that wait between the reader and the writer.
pub(super) const CHUNKS_AHEAD: usize = 4;

/// Rows of one table.
#[derive(Debug)]
pub(super) enum Chunk {
    /// Of a table that rules know.
    Rows(Table, Vec<(Key, NewRow)>),
    Pending(Vec<MessageId>),
    /// Keys, each with the message that it made, and the time. The engine hashes keys in its own
    /// way.
    IdempotencyKeys(Vec<(OrganisationId, OwnedIdempotencyKey, MessageId, u64)>),
    /// Usage of organisations by month.
    Usage(Vec<(OrganisationId, Usage)>),
    /// Provider's ids of messages, and the times at which they were sent.
    Sent(Vec<(String, MessageId, u64)>),
}

#[derive(Debug)]
pub(super) struct Facts {
    pub(super) counters: BTreeMap<Counter, u64>,
    pub(super) id_lead: u64,
    pub(super) feed_id: u64,
    /// Last position in the feed that an endpoint has reached.
    pub(super) last_cursor: u64,
    pub(super) time_record: Option<Vec<u8>>,
    /// True if `pillarbox dev` made the data file.
    pub(super) made_by_dev: bool,
    pub(super) key_uses: KeyUses,
    /// Number of rows that were left out, because a value that the database searches by cannot be
    /// read.
    pub(super) left_out: u64,
}

/// Result of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub struct Imported {
    pub messages: u64,
    /// Number of imported messages that were pending: the first node that joins fails them.
    pub pending: u64,
    pub organisations: u64,
    pub keys: u64,
    pub suppressions: u64,
    pub rows: u64,
    /// Rows that could not be read, and were left out.
    pub left_out: u64,
}

/// Reason why nothing was imported.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ImportError {
    #[error("the data file cannot be read: {0}")]
    File(#[from] StoreError),
    #[error("the database still has nodes: {}", .0.join(", "))]
    Nodes(Vec<String>),
    #[error("the database has organisations, messages or suppressions already")]
    NotEmpty,
    #[error("PostgreSQL: {0}")]
    Server(String),
    #[error("the database did not confirm that it and its standby stored everything")]
    Unanswered,
    #[error("the source is not a data file")]
    SameEngine,
}
