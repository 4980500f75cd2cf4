//! Rows that cannot be read: each is noted, told of and left out, and costs nobody but itself.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{ReadTransaction, ReadableTable, TableHandle};

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::time::Timestamp;
use crate::store::Store;
use crate::store::error::{DamagedRow, InRow, ReadError, RowError};
use crate::store::record::{decode_quarantined, encode_quarantined};
use crate::store::tables::{
    ALL_ORGANISATIONS, DAMAGED_MESSAGES, EVENTS, IDEMPOTENCY, MESSAGES, SUPPRESSIONS, Tables,
};

/// How many damaged rows are remembered; the log has all of them.
const MAX_NOTED: usize = 1_000;

impl Store {
    /// The rows that cannot be read, as far as they have been met since the start. A start meets
    /// those of organisations, API keys, domains, suppressions, live idempotency keys and pending
    /// messages.
    pub fn damaged(&self) -> Vec<DamagedRow> {
        let mut rows = self.shared.organisations().damaged.clone();
        rows.extend(self.shared.damage.rows());
        rows
    }
}

/// A suppression's row, whose key has an address.
pub(super) fn damaged_suppression(scope: u32, address: &str, reason: &RowError) -> DamagedRow {
    DamagedRow {
        table: SUPPRESSIONS.name().to_owned(),
        id: suppression_id(scope),
        address: Some(address.to_owned()),
        reason: reason.to_string(),
    }
}

fn suppression_id(scope: u32) -> String {
    match scope {
        ALL_ORGANISATIONS => "all organisations".to_owned(),
        organisation => format!("organisation {organisation}"),
    }
}

/// Logs a damaged row.
pub(super) fn log(row: &DamagedRow) {
    let DamagedRow { table, id, address, reason } = row;
    tracing::error!(table, id, reason, "a row of the data file cannot be read");
    if let Some(address) = address {
        tracing::debug!(table, id, address, "the address of the row that cannot be read");
    }
}

/// The damaged rows that were found since the start, those of organisations, keys and domains
/// aside: the organisation index has these.
#[derive(Debug, Default)]
pub(super) struct Damage(Mutex<BTreeSet<DamagedRow>>);

impl Damage {
    /// Logs a damaged row and remembers it.
    pub(super) fn note(&self, row: DamagedRow) {
        log(&row);
        let mut rows = self.locked();
        if rows.len() < MAX_NOTED {
            rows.insert(row);
        }
    }

    /// What was read; a damaged row is noted and left out.
    pub(super) fn left_out<T>(&self, read: Result<T, DamagedRow>) -> Option<T> {
        read.map_err(|row| self.note(row)).ok()
    }

    /// The rows in the order of their tables.
    fn rows(&self) -> Vec<DamagedRow> {
        self.locked().iter().cloned().collect()
    }

    /// Forgets a suppression's row: it was removed or written anew.
    pub(super) fn forget_suppression(&self, scope: u32, address: &str) {
        let mut rows = self.locked();
        if !rows.is_empty() {
            let id = suppression_id(scope);
            let is_it = |row: &DamagedRow| row.id == id && row.address.as_deref() == Some(address);
            rows.retain(|row| !is_it(row));
        }
    }

    /// Forgets what is past its retention: records and events with ids in `records`, idempotency
    /// keys with ids in `keys`.
    pub(super) fn forget(&self, records: &[Range<MessageId>], keys: &[Range<MessageId>]) {
        let mut rows = self.locked();
        if rows.is_empty() {
            return;
        }
        // An id as text sorts like its bytes.
        let text = |ids: &Range<MessageId>| ids.start.to_string()..ids.end.to_string();
        let texts = |runs: &[Range<MessageId>]| runs.iter().map(text).collect::<Vec<_>>();
        let (records, keys) = (texts(records), texts(keys));
        let is_in = |runs: &[Range<String>], id: &String| runs.iter().any(|run| run.contains(id));
        rows.retain(|row| match row.table.as_str() {
            table if table == MESSAGES.name() || table == EVENTS.name() => {
                !is_in(&records, &row.id)
            }
            table if table == IDEMPOTENCY.name() => !is_in(&keys, &row.id),
            _ => true,
        });
    }

    fn locked(&self) -> MutexGuard<'_, BTreeSet<DamagedRow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the bytes of a record that a start found pending and could not read. The start goes on
/// without it: it loses its pending mark, and its bytes are kept until the end of its retention.
/// The record itself stays where it is, so that nobody is told that it never was.
pub(super) fn quarantine(
    tables: &mut Tables<'_>,
    id: MessageId,
    record: &[u8],
    damaged: &DamagedRow,
    now: Timestamp,
) -> Result<(), ReadError> {
    let row = encode_quarantined(&damaged.reason, record);
    let table = tables.damaged_messages.open()?;
    table.insert(id.as_bytes(), (now.unix_millis(), row.as_slice()))?;
    Ok(())
}

/// Notes the records in quarantine, so that every start tells of them.
pub(super) fn note_quarantined(
    transaction: &ReadTransaction,
    damage: &Damage,
) -> Result<(), ReadError> {
    for row in transaction.open_table(DAMAGED_MESSAGES)?.iter()? {
        let (id, row) = row?;
        let id = MessageId::from_bytes(id.value());
        let reason = decode_quarantined(row.value().1).in_row(DAMAGED_MESSAGES, id);
        damage.note(reason.map_or_else(
            |unreadable| unreadable,
            |reason| DamagedRow {
                table: MESSAGES.name().to_owned(),
                id: id.to_string(),
                address: None,
                reason,
            },
        ));
    }
    Ok(())
}

/// Removes records with these ids from quarantine.
pub(super) fn purge_quarantined(
    tables: &mut Tables<'_>,
    ids: &Range<MessageId>,
) -> Result<(), ReadError> {
    let table = tables.damaged_messages.open()?;
    if table.first()?.is_some() {
        table.retain_in(*ids.start.as_bytes()..*ids.end.as_bytes(), |_, _| false)?;
    }
    Ok(())
}

/// An organisation's rows, for the log.
pub(super) fn of_organisation(OrganisationId(number): OrganisationId) -> String {
    format!("of organisation {number}")
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use super::*;
    use crate::store::tables::DEAD_LETTERS;

    fn damaged(table: impl TableHandle, id: impl Display) -> DamagedRow {
        Err::<(), _>(RowError::Version(9)).in_row(table, id).unwrap_err()
    }

    #[test]
    fn what_is_purged_is_forgotten_and_nothing_else() {
        let id = |millis| MessageId::first_of(Timestamp::from_unix_millis(millis));
        let damage = Damage::default();
        for millis in [1_000, 2_000, 3_000] {
            damage.note(damaged(MESSAGES, id(millis)));
            damage.note(damaged(IDEMPOTENCY, id(millis)));
        }
        damage.note(damaged(EVENTS, id(1_000)));
        damage.note(damaged(DEAD_LETTERS, "00"));
        damage.forget(&[id(0)..id(2_000)], &[id(0)..id(3_000)]);
        let left: Vec<_> = damage.rows().into_iter().map(|row| (row.table, row.id)).collect();
        let expected = [
            ("dead_letters", "00".to_owned()),
            ("idempotency", id(3_000).to_string()),
            ("messages", id(2_000).to_string()),
            ("messages", id(3_000).to_string()),
        ];
        assert_eq!(left, expected.map(|(table, id)| (table.to_owned(), id)));
    }

    #[test]
    fn a_suppression_is_forgotten_by_its_whole_key_and_only_so_many_rows_are_remembered() {
        let damage = Damage::default();
        let suppression =
            |scope, address| damaged_suppression(scope, address, &RowError::Version(9));
        for (scope, address) in [(0, "a@example.org"), (1, "a@example.org"), (1, "b@example.org")] {
            damage.note(suppression(scope, address));
        }
        damage.forget_suppression(1, "a@example.org");
        let left = [suppression(0, "a@example.org"), suppression(1, "b@example.org")];
        assert_eq!(damage.rows(), left);
        assert!(!left[0].to_string().contains('@'), "addresses are not for the log");
        for number in 0..2 * MAX_NOTED {
            damage.note(damaged(MESSAGES, number));
        }
        assert_eq!(damage.rows().len(), MAX_NOTED);
    }
}
