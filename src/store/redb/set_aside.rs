//! Records that a start found pending and could not read. The start goes on without them: each
//! loses its pending mark, and its bytes are kept here until the end of the record's retention.
//!
//! The record itself stays where it is, so that nobody is told that it never was.

use std::ops::Range;

use redb::ReadableTable;

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::redb::Shared;
use crate::store::redb::damage::{DamagedRow, InRow};
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::set_aside::{decode_set_aside, encode_set_aside};
use crate::store::redb::tables::{DAMAGED_MESSAGES, MESSAGES, Tables};

/// Keeps the bytes of a record that cannot be read.
pub(super) fn keep(
    tables: &mut Tables<'_>,
    id: MessageId,
    record: &[u8],
    damaged: &DamagedRow,
    now: Timestamp,
) -> Result<(), ReadError> {
    let row = encode_set_aside(&damaged.reason, record);
    let table = tables.damaged_messages.open()?;
    table.insert(id.as_bytes(), (now.unix_millis(), row.as_slice()))?;
    Ok(())
}

/// Notes the records that are kept here, so that every start tells of them.
pub(super) fn note_all(shared: &Shared) -> Result<(), ReadError> {
    shared.read(|transaction| {
        for row in transaction.open_table(DAMAGED_MESSAGES)?.iter()? {
            let (id, row) = row?;
            let id = MessageId::from_bytes(id.value());
            let reason = decode_set_aside(row.value().1).in_row(DAMAGED_MESSAGES, id);
            shared.damage.note(match reason {
                Ok(reason) => DamagedRow {
                    table: redb::TableHandle::name(&MESSAGES).to_owned(),
                    id: id.to_string(),
                    address: None,
                    reason,
                },
                Err(unreadable) => unreadable,
            });
        }
        Ok(())
    })
}

/// Removes those of records with these ids.
pub(super) fn purge(tables: &mut Tables<'_>, ids: &Range<MessageId>) -> Result<(), ReadError> {
    let table = tables.damaged_messages.open()?;
    if table.first()?.is_some() {
        table.retain_in(*ids.start.as_bytes()..*ids.end.as_bytes(), |_, _| false)?;
    }
    Ok(())
}
