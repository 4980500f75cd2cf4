//! Errors of the store: of an operation, of a listing, of a row.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::usage::Exceeded;

/// Reason why the store could not do an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum StoreError {
    /// The disk or the database takes no writes now: nothing was changed; try again later.
    #[error("the store refuses writes now; the log says why")]
    Unavailable,
    /// The data file is missing, replaced or overwritten: nothing was changed.
    #[error("the store accepts no changes: its data file is missing, replaced or overwritten")]
    FileLost,
    /// No answer came in time: the change may have been made, or may still be made.
    #[error("the store did not answer in time, so the change may or may not have been made")]
    OutcomeOpen,
    #[error("a row of the store is damaged and cannot be read; the log says which")]
    Damaged,
}

/// Reason why messages were not accepted: none of them is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum AcceptError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The API key that they came with was revoked or has expired, or its organisation was removed.
    #[error("the API key is not valid any more")]
    KeyEnded,
    /// They would exceed a limit of their organisation.
    #[error("a limit of the organisation is reached")]
    LimitReached(Exceeded),
    #[error("the domain {domain} is not verified any more")]
    UnverifiedDomain {
        /// The message's position among those of the request.
        index: usize,
        domain: DomainName<'static>,
    },
}

/// Reason why messages could not be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too many listings of the same organisation, or of the operators, wait already.
    #[error("too many list requests are waiting; try again later")]
    TooMany,
}

/// A row that cannot be read.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error, Serialize, Deserialize,
)]
#[error("row {id} of table {table}: {reason}")]
pub struct DamagedRow {
    /// Name of its table.
    pub table: String,
    /// Its key, for people: a message's id for example.
    pub id: String,
    /// The recipient's address in its key, if there is one. It is not part of `id`, because it is
    /// not for the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Reason why it cannot be read.
    pub reason: String,
}

/// Reason why a row cannot be read: the file is damaged, or of a version that this one does not
/// know.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    #[error("it has version {0}, which this pillarbox does not know")]
    Version(u8),
    #[error("it cannot be decoded: {0}")]
    Damaged(#[from] postcard::Error),
    #[error("it is not valid: {0}")]
    Invalid(&'static str),
}

impl DamagedRow {
    /// The row of this table and key, for people, that cannot be read for this reason.
    pub(super) fn new(table: &str, id: impl Display, reason: impl Display) -> Self {
        let (id, reason) = (id.to_string(), reason.to_string());
        Self { table: table.to_owned(), id, address: None, reason }
    }

    pub(super) fn log(&self) {
        let Self { table, id, address, reason } = self;
        tracing::error!(table, id, reason, "a row of the store cannot be read");
        if let Some(address) = address {
            tracing::debug!(table, id, address, "the address of the row that cannot be read");
        }
    }
}
