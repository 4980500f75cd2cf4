//! Batch: the write transaction that operations share, and the interface of an operation.

use crate::StoreError;
use crate::directory::OrganisationIndex;
use crate::organisation_counts::Increment;
use crate::redb::Shared;
use crate::redb::error::ReadError;
use crate::redb::idempotency::ClaimedKeys;
use crate::redb::tables::Tables;
use crate::redb::usage::ChangedUsage;
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::Exceeded;

/// Bytes of rows that take the writer about as long as a message.
pub(super) const MESSAGE_WEIGHT: usize = 1_024;

/// One operation in the shared transaction.
pub(super) trait Operation: Send {
    /// Runs the operation. It checks before its first write, so that a refusal leaves nothing
    /// behind in the transaction that it shares with others. A row that cannot be read fails only
    /// the operation. Only a failure of the file is an error here, and fails the whole batch.
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), redb::Error>;

    /// Takes the outcome of the transaction, and answers the callers.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);

    /// Approximate number of bytes that it writes.
    fn weight(&self) -> usize;

    /// Number of messages that it counts as: each takes the writer about as long.
    fn messages(&self) -> usize {
        (self.weight() / MESSAGE_WEIGHT).max(1)
    }

    fn kind(&self) -> Kind {
        Kind::Write
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It writes. It is refused while the file is not in its place.
    Write,
    /// It writes facts that have happened and cannot be refused, also to a file that is not in its
    /// place.
    Outcome,
    /// It writes nothing. Once it is answered, all operations that were queued before are durable
    /// and published, or refused.
    Barrier,
}

pub(super) struct Batch<'txn> {
    pub(super) tables: Tables<'txn>,
    pub(super) effects: Effects,
    /// True if organisations, keys or domains changed, so that their index has to be made anew.
    pub(super) is_directory_changed: bool,
    /// True if the rule that runs has put or removed a row.
    pub(super) is_changed: bool,
    /// Reason why a rule could not continue.
    pub(super) failure: Option<redb::Error>,
    pub(super) shared: &'txn Shared,
}

impl Batch<'_> {
    /// Counts recipients as accepted at `now`, or returns the limit that they would exceed.
    pub(super) fn use_up(
        &mut self,
        organisation: OrganisationId,
        recipients: u64,
        now: Timestamp,
    ) -> Result<(), Exceeded> {
        let memory = &self.shared.memory;
        let before = self.effects.usage.get(&organisation).copied();
        let mut used = before.unwrap_or_else(|| memory.usage.of(organisation)).at(now);
        let directory = memory.directory.load();
        let limits = directory.organisation(organisation).map(|known| &known.limits);
        if let Some(exceeded) = limits.and_then(|limits| used.exceeded(limits, recipients, now)) {
            return Err(exceeded);
        }
        used.add(recipients);
        self.effects.usage.insert(organisation, used);
        Ok(())
    }
}

/// Changes of a batch to data that readers keep in memory, for once it is durable.
#[derive(Default)]
pub(super) struct Effects {
    /// Idempotency keys that it claims: not yet in the index, which holds durable ones.
    pub(super) claimed: ClaimedKeys,
    pub(super) increments: Vec<(OrganisationId, Increment)>,
    pub(super) usage: ChangedUsage,
    /// Entries that it adds to the feed.
    pub(super) fed: Vec<(OrganisationId, FeedPosition)>,
    /// The index, if it had to be made anew.
    pub(super) organisations: Option<OrganisationIndex>,
    /// True if an address became suppressed: messages admitted before must be checked again.
    pub(super) is_suppressed: bool,
}

/// Separates a failure of only this operation from a failure of the file.
pub(super) fn own_failure<T>(
    result: Result<T, ReadError>,
    shared: &Shared,
) -> Result<Result<T, StoreError>, redb::Error> {
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(ReadError::Row(row)) => {
            shared.memory.damage.note(row);
            Ok(Err(StoreError::Damaged))
        }
        Err(ReadError::File(error)) => Err(error),
    }
}
