//! The purge: what is past its window goes, oldest first, a bounded step at a time.

use std::collections::BTreeSet;

use redb::ReadableTable;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::time::{IDEMPOTENCY_WINDOW, RECORD_RETENTION, Timestamp};
use crate::store::Purged;
use crate::store::redb::failure::ReadError;
use crate::store::redb::record::message::organisation_of;
use crate::store::redb::tables::{IdKey, Rows};
use crate::store::redb::writer::Batch;
use crate::store::redb::{Shared, dead_letter, sent, set_aside, unmatched, write_lock};

/// Purges at most `limit` messages with their events, and at most `limit` idempotency keys.
///
/// Message ids carry the time of acceptance or a later one, so nothing goes too early.
pub(in crate::store) fn purge(
    batch: &mut Batch<'_>,
    window_now: Timestamp,
    limit: usize,
) -> Result<Purged, ReadError> {
    let records_end = MessageId::first_of(window_now.minus(RECORD_RETENTION));
    sent::purge(&mut batch.tables, records_end, limit)?;
    let mut organisations = BTreeSet::new();
    let messages = purge_range(&mut batch.tables.messages, records_end, limit, |row| {
        organisations.extend(organisation_of(row));
    })?;
    if let Some(last) = messages.last {
        for OrganisationId(number) in organisations {
            let run = (number, [0; 16])..=(number, *last.as_bytes());
            batch.tables.by_organisation.retain_in(run, |_, ()| false)?;
        }
        let end = [last.as_bytes().as_slice(), &[u8::MAX; 17]].concat();
        batch.tables.events.open()?.retain_in::<&[u8], _>(..=end.as_slice(), |_, _| false)?;
    }
    set_aside::purge(&mut batch.tables, records_end)?;
    unmatched::expire(&mut batch.tables, window_now)?;
    dead_letter::expire(&mut batch.tables, window_now)?;
    let keys_end = MessageId::first_of(window_now.minus(IDEMPOTENCY_WINDOW));
    let keys = purge_range(&mut batch.tables.idempotency, keys_end, limit, |_| {})?;
    batch.shared.damage.forget_before(records_end, keys_end);
    Ok(Purged { messages: messages.count, idempotency_keys: keys.count })
}

/// Drops the expired hours of the index; their rows may still be on disk, and are not found.
pub(in crate::store) fn expire_index(shared: &Shared, window_now: Timestamp) {
    write_lock(&shared.index).expire(window_now);
}

struct Range {
    count: usize,
    last: Option<MessageId>,
}

fn purge_range(
    table: &mut redb::Table<'_, IdKey, Rows>,
    end: MessageId,
    limit: usize,
    mut look_at: impl FnMut(&[u8]),
) -> Result<Range, ReadError> {
    let mut range = Range { count: 0, last: None };
    for row in table.range(..*end.as_bytes())?.take(limit) {
        range.last = Some(MessageId::from_bytes(row?.0.value()));
        range.count += 1;
    }
    if let Some(last) = range.last {
        table.retain_in(..=*last.as_bytes(), |_, row| {
            look_at(row);
            false
        })?;
    }
    Ok(range)
}
