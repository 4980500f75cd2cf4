//! The provider's reports and what could not be made of them, as the store's callers see them.

use redb::ReadableTableMetadata;

use crate::domain::time::Timestamp;
use crate::store::redb::tables::{DEAD_LETTERS, UNMATCHED};
use crate::store::redb::{apply, dead_letter};
use crate::store::{Applied, DeadLetter, EventBacklog, Report, Store, StoreError};

/// About how many bytes a report writes.
const REPORT_WEIGHT: usize = 1_024;

impl Store {
    /// Applies a provider's report: the event, the proof of acceptance and the suppressions that
    /// follow, together. A repeat changes nothing.
    pub async fn apply(&self, report: Report, now: Timestamp) -> Result<Applied, StoreError> {
        let applied = self.apply_all(vec![report], now).await?;
        Ok(applied[0])
    }

    /// As [`Store::apply`], for several reports in one transaction; an answer for each, in order.
    pub async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let weight = REPORT_WEIGHT * reports.len();
        self.writer.run(weight, move |batch| apply::apply_all(batch, &reports, now)).await
    }

    /// Keeps documents that could not be read. Of too many, the oldest go.
    pub async fn keep_dead_letters(&self, letters: Vec<DeadLetter>) -> Result<(), StoreError> {
        let weight = DeadLetter::MAX_DOCUMENT_BYTES * letters.len();
        self.writer.run(weight, move |batch| dead_letter::keep_all(batch, &letters)).await
    }

    /// Removes dead letters; how many of them were there.
    pub async fn remove_dead_letters(&self, letters: &[DeadLetter]) -> Result<usize, StoreError> {
        let keys: Vec<_> = letters.iter().map(dead_letter::key).collect();
        self.writer.run(0, move |batch| dead_letter::remove(batch, &keys)).await
    }

    /// The documents that could not be read, newest first, at most `limit`.
    pub fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let damage = &self.shared.damage;
        let read = self.shared.read(|transaction| dead_letter::list(transaction, damage, limit));
        self.noticed(&DEAD_LETTERS, "a list", read)
    }

    /// How much of the provider's reports waits for its message or for a reader.
    pub fn event_backlog(&self) -> Result<EventBacklog, StoreError> {
        let read = self.shared.read(|transaction| {
            Ok(EventBacklog {
                unmatched: transaction.open_table(UNMATCHED)?.len()?,
                dead_letters: transaction.open_table(DEAD_LETTERS)?.len()?,
            })
        });
        self.noticed(&UNMATCHED, "their number", read)
    }
}
