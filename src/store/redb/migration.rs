//! Migration of data files of earlier versions to the present layout.

use std::ops::Bound;

use redb::{Database, ReadableTable};

use crate::damage::Damage;
use crate::record::decode_message;
use crate::redb::error::{InRow, ReadError};
use crate::redb::tables::{FORMAT_KEY, IdKey, MESSAGES, Tables, write_tables};
use pillarbox_domain::id::MessageId;

/// Number of messages that one transaction of a migration takes over.
const MIGRATION_STEP: usize = 50_000;

/// Brings a file of version 1, which had no list of each organisation's messages, to this layout.
/// Each step can be repeated: the version is written last, so a process that ends in between
/// begins again.
pub(super) fn from_1(database: &Database, damage: &Damage) -> Result<(), ReadError> {
    let mut after = Bound::Unbounded;
    loop {
        let last = write_tables(database, |mut tables| {
            list_organisations_messages(&mut tables, after, damage)
        })?;
        match last {
            Some(last) => after = Bound::Excluded(last),
            None => return Ok(()),
        }
    }
}

/// Takes over some messages after `after`; returns the last of them, or `None` once all are taken
/// over.
fn list_organisations_messages(
    tables: &mut Tables<'_>,
    after: Bound<IdKey>,
    damage: &Damage,
) -> Result<Option<IdKey>, ReadError> {
    let (mut found, mut last) = (Vec::new(), None);
    for row in tables.messages.open()?.range((after, Bound::Unbounded))?.take(MIGRATION_STEP) {
        let (id, row) = row?;
        last = Some(id.value());
        let id = MessageId::from_bytes(id.value());
        found.extend(damage.left_out(decode_message(id, row.value()).in_row(MESSAGES, id)));
    }
    for message in &found {
        let id = message.id;
        tables.by_organisation.open()?.insert((message.organisation.0, *id.as_bytes()), ())?;
        tables.note_lead(id, message.created_at)?;
    }
    if last.is_none() {
        tables.meta.open()?.insert(FORMAT_KEY, 2)?;
    }
    Ok(last)
}
