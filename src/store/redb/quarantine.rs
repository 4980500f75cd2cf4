//! Quarantine: records that a start found pending and could not read.

use redb::{ReadTransaction, ReadableTable, TableHandle};

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::damage::Damage;
use crate::store::error::DamagedRow;
use crate::store::record::{decode_quarantined, encode_quarantined};
use crate::store::redb::error::{InRow, ReadError};
use crate::store::redb::tables::{DAMAGED_MESSAGES, MESSAGES, Tables};

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
