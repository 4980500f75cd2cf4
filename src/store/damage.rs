//! Rows that cannot be read: each is noted, reported and left out, and affects only itself.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::error::{DamagedRow, RowError};
use crate::limits::ALL_ORGANISATIONS;
use crate::locks::{Mutex, locked};
use crate::tables::Table;
use pillarbox_domain::id::MessageId;

/// Largest number of damaged rows that are remembered; the log has all of them.
const MAX_NOTED: usize = 1_000;

/// A suppression's row, whose key has an address.
pub(super) fn damaged_suppression(scope: u32, address: &str, reason: &RowError) -> DamagedRow {
    let row = DamagedRow::new(Table::Suppressions.as_str(), suppression_id(scope), reason);
    DamagedRow { address: Some(address.to_owned()), ..row }
}

fn suppression_id(scope: u32) -> String {
    match scope {
        ALL_ORGANISATIONS => "all organisations".to_owned(),
        organisation => format!("organisation {organisation}"),
    }
}

/// The damaged rows that were found since the start. Those of organisations, keys and domains are
/// in the organisation index instead.
#[derive(Debug, Default)]
pub(super) struct Damage(Mutex<BTreeSet<DamagedRow>>);

impl Damage {
    /// Logs a damaged row and remembers it.
    pub(super) fn note(&self, row: DamagedRow) {
        row.log();
        let mut rows = locked(&self.0);
        if rows.len() < MAX_NOTED {
            rows.insert(row);
        }
    }

    /// Returns what was read; a damaged row is noted and left out.
    pub(super) fn left_out<T>(&self, read: Result<T, DamagedRow>) -> Option<T> {
        read.map_err(|row| self.note(row)).ok()
    }

    pub(super) fn rows(&self) -> Vec<DamagedRow> {
        locked(&self.0).iter().cloned().collect()
    }

    /// Forgets a suppression's row: it was removed or written anew.
    pub(super) fn forget_suppression(&self, scope: u32, address: &str) {
        let is_it = |row: &DamagedRow| {
            row.address.as_deref() == Some(address) && row.id == suppression_id(scope)
        };
        locked(&self.0).retain(|row| !is_it(row));
    }

    /// Forgets rows that are past their retention: records and events with ids in `records`,
    /// idempotency keys with ids in `keys`.
    pub(super) fn forget(&self, records: &[Range<MessageId>], keys: &[Range<MessageId>]) {
        // An id as text sorts like its bytes.
        let text = |ids: &Range<MessageId>| ids.start.to_string()..ids.end.to_string();
        let texts = |runs: &[Range<MessageId>]| runs.iter().map(text).collect::<Vec<_>>();
        let (records, keys) = (texts(records), texts(keys));
        let is_in = |runs: &[Range<String>], id: &String| runs.iter().any(|run| run.contains(id));
        locked(&self.0).retain(|row| match row.table.as_str() {
            "messages" | "events" | "timeline" => !is_in(&records, &row.id),
            "idempotency" => !is_in(&keys, &row.id),
            _ => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use super::*;
    use pillarbox_domain::time::Timestamp;

    fn damaged(table: &str, id: impl Display) -> DamagedRow {
        DamagedRow::new(table, id, RowError::Version(9))
    }

    #[test]
    fn what_is_purged_is_forgotten_and_nothing_else() {
        let id = |millis| MessageId::first_of(Timestamp::from_unix_millis(millis));
        let damage = Damage::default();
        for millis in [1_000, 2_000, 3_000] {
            damage.note(damaged("messages", id(millis)));
            damage.note(damaged("idempotency", id(millis)));
        }
        damage.note(damaged("events", id(1_000)));
        damage.note(damaged("dead_letters", "00"));
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
            damage.note(damaged("messages", number));
        }
        assert_eq!(damage.rows().len(), MAX_NOTED);
    }
}
