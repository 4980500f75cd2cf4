//! The purge: removes rows that are past their window, oldest first, a bounded step at a time, and
//! the oldest rows of a table whose number of rows is limited.

use std::collections::BTreeSet;
use std::ops;

use redb::{ReadableTable, ReadableTableMetadata, StorageError};

use crate::limits;
use crate::locks::write_lock;
use crate::purge::PurgeStep;
use crate::record::{EventKey, decode_message, organisation_of};
use crate::redb::RedbStore;
use crate::redb::batch::Batch;
use crate::redb::changes;
use crate::redb::error::ReadError;
use crate::redb::feed::PurgedFeed;
use crate::redb::tables::{IdKey, Row, Tables, TimedRow};
use crate::rows::Table;
use crate::{Purged, StoreError};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::State;
use pillarbox_domain::time::Timestamp;

/// The part of a full table that is removed at once, so that not every new row checks all others.
const SHARE: usize = 10;

impl RedbStore {
    pub(crate) async fn purge(&self, step: PurgeStep) -> Result<Purged, StoreError> {
        // Rows of expired hours may still be on disk, and are not found.
        write_lock(&self.shared.idempotency).expire(&step.window_now);
        let (purged, feed) = self.writer.run(0, move |batch| purge(batch, &step)).await?;
        self.shared.feed.shrink(feed);
        Ok(purged)
    }
}

fn purge(batch: &mut Batch<'_>, step: &PurgeStep) -> Result<(Purged, Vec<PurgedFeed>), ReadError> {
    let (mut purged, limit) = (Purged::default(), step.limit);
    for run in &step.records {
        purged.messages += purge_messages(batch, run, limit - purged.messages)?;
        if purged.messages < limit {
            purge_orphans(batch, run, limit)?;
        }
        remove_all(batch.tables.damaged_messages.open()?, keys(run))?;
    }
    expire(&mut batch.tables, Table::UnmatchedEvents, &step.unmatched)?;
    expire(&mut batch.tables, Table::DeadLetters, &step.letters)?;
    let old = (0, 0)..(step.first_hour.number(), 0);
    batch.tables.history.open()?.remove_first(old, limit, |_, _| {})?;
    for run in &step.keys {
        let (run, left) = (keys(run), limit - purged.idempotency_keys);
        let (count, _) = batch.tables.idempotency.open()?.remove_first(run, left, |_, _| {})?;
        purged.idempotency_keys += count;
    }
    let mut feeds = Vec::new();
    for run in &step.feed {
        let left = limit - purged.feed_entries;
        let feed = batch.shared.feed.purge(&mut batch.tables, run, left)?;
        purged.feed_entries += feed.iter().map(|feed| feed.entries).sum::<usize>();
        feeds.extend(feed);
    }
    Ok((purged, feeds))
}

fn keys(ids: &ops::Range<MessageId>) -> ops::Range<IdKey> {
    *ids.start.as_bytes()..*ids.end.as_bytes()
}

fn purge_messages(
    batch: &mut Batch<'_>,
    ids: &ops::Range<MessageId>,
    limit: usize,
) -> Result<usize, ReadError> {
    let (mut organisations, mut sent) = (BTreeSet::new(), Vec::new());
    let messages = batch.tables.messages.open()?;
    let (count, last) = messages.remove_first(keys(ids), limit, |id, row| {
        organisations.extend(organisation_of(row));
        // If a record cannot be read, the provider's id stays for now: see `purge_orphans`.
        let message = decode_message(MessageId::from_bytes(id), row);
        if let Ok(State::Sent { sent_at, .. }) = message.map(|message| message.state) {
            sent.push((sent_at.unix_millis(), id));
        }
    })?;
    let Some(last) = last else { return Ok(0) };
    for key in sent {
        batch.tables.sent.open()?.remove(key)?;
    }
    let first = ids.start.as_bytes();
    for OrganisationId(number) in organisations {
        let run = (number, *first)..=(number, last);
        batch.tables.by_organisation.open()?.retain_in(run, |_, ()| false)?;
    }
    let end = [last.as_slice(), &[u8::MAX; EventKey::BYTES]].concat();
    let run = first.as_slice()..=end.as_slice();
    batch.tables.events.open()?.retain_in::<&[u8]>(run, |_, _| false)?;
    remove_all(batch.tables.timeline.open()?, (*first, 0)..=(last, u32::MAX))?;
    remove_all(batch.tables.overturned.open()?, *first..=last)?;
    Ok(count)
}

/// Removes rows that find messages whose record is gone: a record that could not be read showed
/// neither its organisation nor the time at which it was sent.
fn purge_orphans(
    batch: &mut Batch<'_>,
    ids: &ops::Range<MessageId>,
    limit: usize,
) -> Result<(), ReadError> {
    let [start, end] = [ids.start, ids.end].map(|id| (id.instant().unix_millis(), [0; 16]));
    let mut orphans = Vec::new();
    for row in batch.tables.sent.open()?.range(start..end)?.take(limit) {
        let key = row?.0.value();
        if batch.tables.messages.open()?.get(key.1)?.is_none() {
            orphans.push(key);
        }
    }
    for key in orphans {
        batch.tables.sent.open()?.remove(key)?;
    }
    let ops::Range { start: first, end } = keys(ids);
    let (mut orphans, mut organisation) = (Vec::new(), 0);
    loop {
        let listed = batch.tables.by_organisation.open()?;
        let Some(row) = listed.range((organisation, [0; 16])..)?.next() else { break };
        let number = row?.0.value().0;
        for row in listed.range((number, first)..(number, end))?.take(limit - orphans.len()) {
            let key = row?.0.value();
            if batch.tables.messages.open()?.get(key.1)?.is_none() {
                orphans.push(key);
            }
        }
        match number.checked_add(1) {
            Some(next) if orphans.len() < limit => organisation = next,
            Some(_) | None => break,
        }
    }
    for key in orphans {
        batch.tables.by_organisation.open()?.remove(key)?;
    }
    Ok(())
}

/// Removes the rows of messages from a table that is mostly empty.
fn remove_all<'a, K: redb::Key + 'static, V: redb::Value>(
    table: &mut changes::Table<'_, K, V>,
    run: impl ops::RangeBounds<K::SelfType<'a>> + 'a,
) -> Result<(), ReadError> {
    if table.first()?.is_some() {
        table.retain_in(run, |_, _| false)?;
    }
    Ok(())
}

/// Removes rows that were put at the instants of these runs.
fn expire(
    tables: &mut Tables<'_>,
    table: Table,
    runs: &[ops::Range<Timestamp>],
) -> Result<(), ReadError> {
    let table = timed(tables, table)?;
    if !table.is_empty()? {
        table.retain_in::<&[u8]>(.., |_, (time, _)| {
            !runs.iter().any(|run| run.contains(&Timestamp::from_unix_millis(time)))
        })?;
    }
    Ok(())
}

fn timed<'a, 'txn>(
    tables: &'a mut Tables<'txn>,
    table: Table,
) -> Result<&'a mut changes::Table<'txn, Row, TimedRow>, redb::Error> {
    match table {
        Table::UnmatchedEvents => tables.unmatched.open(),
        Table::DeadLetters => tables.dead_letters.open(),
        other => unreachable!("the rows of {} are not kept for a while", other.as_str()),
    }
}

/// Removes the oldest rows of a table that has `max` of them.
pub(super) fn make_room(
    tables: &mut Tables<'_>,
    table: Table,
    max: usize,
    what: &str,
) -> Result<(), ReadError> {
    let table = timed(tables, table)?;
    if table.len()? < max as u64 {
        return Ok(());
    }
    let mut times: Vec<u64> = table
        .iter()?
        .map(|row| row.map(|(_, row)| row.value().0))
        .collect::<Result<_, StorageError>>()?;
    let number = (times.len() / SHARE).max(1);
    let (older, cut, _) = times.select_nth_unstable(number - 1);
    let cut = *cut;
    let mut at_the_cut = number - older.iter().filter(|&&time| time < cut).count();
    table.retain_in::<&[u8]>(.., |_, (time, _)| {
        let goes = time < cut || (time == cut && at_the_cut > 0);
        if goes && time == cut {
            at_the_cut -= 1;
        }
        !goes
    })?;
    limits::warn_removed(number as u64, what);
    Ok(())
}
