//! Checkpoint: the part of its journal that the data file has, and the part that it still needs.

use redb::{ReadTransaction, ReadableTable, WriteTransaction};

use crate::redb::error::ReadError;
use crate::redb::journal::{Checkpoint, Epoch, Journal};
use crate::redb::tables::{self, JOURNAL_EPOCH, JOURNAL_RECORD, META};

/// Replays the records that the file does not have yet.
pub(super) fn replay_kept(
    journal: &Journal,
    transaction: &WriteTransaction,
) -> Result<(), ReadError> {
    let kept = checkpoint_in(&transaction.open_table(META)?)?;
    let Some(kept) = kept else { return Ok(()) };
    journal.replay(kept, |record| Ok(tables::replay(transaction, record)?))
}

/// Writes that the file has everything, and needs no journal once this transaction is durable.
pub(super) fn forget_journal(transaction: &WriteTransaction) -> Result<(), ReadError> {
    transaction.open_table(META)?.remove(JOURNAL_EPOCH)?;
    Ok(())
}

/// Returns the checkpoint of its journal that the file has; `None` if it needs no journal.
pub(super) fn kept_checkpoint(
    transaction: &ReadTransaction,
) -> Result<Option<Checkpoint>, ReadError> {
    checkpoint_in(&transaction.open_table(META)?)
}

fn checkpoint_in(
    meta: &impl ReadableTable<&'static str, u64>,
) -> Result<Option<Checkpoint>, ReadError> {
    let Some(epoch) = meta.get(JOURNAL_EPOCH)? else { return Ok(None) };
    let record = meta.get(JOURNAL_RECORD)?.map_or(0, |row| row.value());
    Ok(Some(Checkpoint { epoch: Epoch(epoch.value()), record }))
}

/// Writes the checkpoint of its journal that the file has once this transaction is durable.
pub(super) fn keep_checkpoint(
    transaction: &WriteTransaction,
    checkpoint: Checkpoint,
) -> Result<(), ReadError> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(JOURNAL_EPOCH, checkpoint.epoch.0)?;
    meta.insert(JOURNAL_RECORD, checkpoint.record)?;
    Ok(())
}
