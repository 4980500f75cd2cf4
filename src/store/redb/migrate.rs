//! Files of earlier versions, brought to this one's layout when they are opened.
//!
//! Each step can be repeated: the version is written last, so a process that ends in between
//! begins again.

use std::ops::Bound;

use redb::{Database, ReadableTable};

use crate::domain::id::MessageId;
use crate::store::redb::damage::{Damage, InRow};
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::message::decode_message;
use crate::store::redb::tables::{FORMAT_KEY, FORMAT_VERSION, IdKey, MESSAGES, Tables};
use crate::store::redb::writer;

/// How many messages one transaction takes over.
const STEP: usize = 50_000;

/// From version 1, which had no list of each organisation's messages.
pub(super) fn from_1(database: &Database, damage: &Damage) -> Result<(), ReadError> {
    let mut after = Bound::Unbounded;
    loop {
        let mut transaction = database.begin_write().map_err(redb::Error::from)?;
        writer::prepare(&mut transaction);
        let mut tables = Tables::open(&transaction)?;
        let last = list_organisations_messages(&mut tables, after, damage)?;
        drop(tables);
        transaction.commit().map_err(redb::Error::from)?;
        match last {
            Some(last) => after = Bound::Excluded(last),
            None => return Ok(()),
        }
    }
}

/// Takes over some messages after `after`; the last of them, or nothing once all are.
fn list_organisations_messages(
    tables: &mut Tables<'_>,
    after: Bound<IdKey>,
    damage: &Damage,
) -> Result<Option<IdKey>, ReadError> {
    let (mut found, mut last) = (Vec::new(), None);
    for row in tables.messages.range((after, Bound::Unbounded))?.take(STEP) {
        let (id, row) = row?;
        last = Some(id.value());
        let id = MessageId::from_bytes(id.value());
        found.extend(damage.left_out(decode_message(id, row.value()).in_row(MESSAGES, id)));
    }
    for message in &found {
        let id = message.id;
        tables.by_organisation.insert((message.organisation.0, *id.as_bytes()), ())?;
        tables.note_lead(id, message.created_at)?;
    }
    if last.is_none() {
        tables.meta.open()?.insert(FORMAT_KEY, FORMAT_VERSION)?;
    }
    Ok(last)
}
