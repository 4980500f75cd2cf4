//! Events whose message has no record. Kept for a day, and only so many.
//!
//! One without our tag may have overtaken the outcome that says by which id the provider knows its
//! message, and waits for that. One with our tags never finds a message, because the tags exist
//! only after the message is durable: it is kept if it has suppressed somebody, so that a repeat
//! of it is told.

use std::time::Duration;

use redb::{ReadableTable, ReadableTableMetadata};
use sha2::{Digest, Sha256};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::time::Timestamp;
use crate::store::Report;
use crate::store::redb::bounded::{expire as expire_rows, make_room};
use crate::store::redb::damage::InRow;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::kept_event::{EarlyEvent, decode_early, encode_early};
use crate::store::redb::suppress::Change;
use crate::store::redb::tables::{Tables, UNMATCHED};
use crate::store::redb::writer::Batch;

/// How long an event waits for its message (contract, section 3).
const WAIT: Duration = Duration::from_hours(24);
/// How many events wait; beyond, the oldest go.
const MAX_EVENTS: u64 = 10_000;
/// How much of its digest tells an event from others of the same message.
const DIGEST_BYTES: usize = 16;

/// Keeps a report's event, unless it is a repeat of one that is kept.
pub(super) fn keep(
    batch: &mut Batch<'_>,
    report: &Report,
    now: Timestamp,
) -> Result<Change, ReadError> {
    // A report without an event says nothing that the outcome itself will not say.
    let Some(event) = &report.event else { return Ok(Change::None) };
    let table = batch.tables.unmatched.open()?;
    let row = encode_early(event, report.organisation.as_deref());
    // By all that it says: which of two different reports counts is decided on the record.
    let digest = Sha256::digest(&row);
    let key = [prefix(&report.ses_message_id).as_slice(), &digest[..DIGEST_BYTES]].concat();
    if table.get(key.as_slice())?.is_some() {
        return Ok(Change::None);
    }
    make_room(table, MAX_EVENTS, "events without a message")?;
    table.insert(key.as_slice(), (now.unix_millis(), row.as_slice()))?;
    Ok(Change::Made)
}

/// Takes out the events of the message that the provider knows by this id. One that cannot be read
/// goes as well.
pub(super) fn take(
    batch: &mut Batch<'_>,
    ses_message_id: &str,
) -> Result<Vec<EarlyEvent>, ReadError> {
    let (tables, damage) = (&mut batch.tables, &batch.shared.damage);
    let mut events = Vec::new();
    if tables.unmatched.open()?.is_empty()? {
        return Ok(events);
    }
    let first = prefix(ses_message_id);
    let last = [first.as_slice(), &[u8::MAX; DIGEST_BYTES]].concat();
    if tables.unmatched.open()?.range::<&[u8]>(first.as_slice()..=last.as_slice())?.next().is_none()
    {
        return Ok(events);
    }
    tables.unmatched.open()?.retain_in::<&[u8], _>(
        first.as_slice()..=last.as_slice(),
        |_, (_, row)| {
            let read = decode_early(row).in_row(UNMATCHED, ses_message_id);
            events.extend(damage.left_out(read));
            false
        },
    )?;
    Ok(events)
}

/// Removes the events that have waited long enough.
pub(super) fn expire(tables: &mut Tables<'_>, window_now: &WindowTime) -> Result<(), ReadError> {
    expire_rows(tables.unmatched.open()?, window_now, WAIT)
}

fn prefix(ses_message_id: &str) -> Vec<u8> {
    // No id has a NUL in it, so none is the beginning of another's key.
    [ses_message_id.as_bytes(), &[0]].concat()
}
