//! Recovery: repairs that a start makes after the end of the last process.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::OnceLock;

use redb::{Database, ReadTransaction, ReadableDatabase as _, ReadableTable, TableHandle as _};

use crate::StoreId;
use crate::damage::Damage;
use crate::error::DamagedRow;
use crate::lost_messages;
use crate::record::{
    ReportedChange, decode_message, decode_quarantined, decode_time, encode_message,
    encode_quarantined,
};
use crate::redb::database::Laid;
use crate::redb::error::{InRow, ReadError};
use crate::redb::feed::FeedIndex;
use crate::redb::idempotency::IdempotencyIndex;
use crate::redb::open::FileOrigin;
use crate::redb::tables::{
    DAMAGED_MESSAGES, MESSAGES, SUPPRESSIONS, TIME_KEY, Tables, write_tables,
};
use crate::redb::{OpenError, Shared, feed, rows, usage, write_lock};
use crate::rows::{Counter, Table};
use crate::{InMemory, suppressions, timeline};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Acceptance, Recorded, State, Transition};
use pillarbox_domain::time::Timestamp;

/// Number of pending messages that a start recovers in one transaction.
const RECOVERY_STEP: usize = 5_000;

/// Result of the recovery at a start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Messages whose body was lost with the process that held it.
    pub bodies_lost: usize,
    /// Messages that stay pending, because their body is there.
    pub kept: BTreeSet<MessageId>,
    /// Idempotency keys that still replay.
    pub live_keys: usize,
    /// Origin of the file: it existed before, or was created.
    pub file: FileOrigin,
}

/// Treatment of messages that the last process left pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Each becomes `failed`: the opener of the store continues in the place of that process.
    Recover,
    /// They stay as they are, for the next process to recover and to report.
    Leave,
}

/// Work of a start, and its time.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) pending: Pending,
    pub(super) now: Timestamp,
    /// Messages whose body is there, once the file is known.
    pub(super) bodies: OnceLock<BTreeSet<MessageId>>,
}

/// Opens the files for the first time in this process. If the disk takes no writes, they are open
/// for reading afterwards, unless pending messages are left to the next process, and the error gives
/// the reason.
pub(super) fn start(
    shared: &Shared,
    bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
) -> Result<(Recovery, Option<OpenError>), OpenError> {
    let mut bodies = Some(bodies);
    let set_right = |database: &Database, laid| {
        set_right(shared, database, laid, |id| {
            bodies.take().map_or_else(BTreeSet::new, |it| it(id))
        })
    };
    let may_be_read =
        |error: &OpenError| shared.start.pending == Pending::Recover && is_of_disk(error);
    let (recovered, refused) =
        shared.database.start(&shared.memory.damage, may_be_read, set_right)?;
    Ok((load(shared, recovered)?, refused))
}

/// Returns true if the disk is at fault, and the file may be readable.
fn is_of_disk(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Io(redb::Error::Io(_) | redb::Error::PreviousIo) | OpenError::Create { .. }
    )
}

/// Opens the files for writing after a start that could only read them, and first writes the
/// changes that that start laid over them. If that fails, the file is open for reading afterwards,
/// as before.
pub(super) fn start_writing(shared: &Shared) -> Result<(), OpenError> {
    if let Some(file) = shared.database.data_file() {
        // Readers wait for the next step, so it is not done for a disk that is still full.
        file.probe().map_err(|error| OpenError::Io(error.into()))?;
    }
    // The messages whose bodies are there are known since the first attempt.
    let set_right =
        |database: &Database, laid| set_right(shared, database, laid, |_| BTreeSet::new());
    let (_, refused) = shared.database.start(&shared.memory.damage, |_| true, set_right)?;
    refused.map_or(Ok(()), Err)
}

/// Repairs the state that the end of the last process left, in a file that nobody else reads yet.
/// `bodies` returns the messages whose bodies are there; it is called once. An attempt that was
/// broken off may be made again.
///
/// Over a file that cannot be written, messages show as failed, and the feed has no entries for it
/// yet: they get their positions when they are written.
fn set_right(
    shared: &Shared,
    database: &Database,
    laid: Laid,
    bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
) -> Result<Recovery, ReadError> {
    let start = &shared.start;
    let feed_id = write_tables(database, |mut tables| {
        // An earlier version may not have had all of them.
        tables.create()?;
        feed::identify(&mut tables)
    })?;
    shared.feed.load(&database.begin_read()?, feed_id)?;
    if start.pending == Pending::Leave {
        return Ok(Recovery::default());
    }
    let bodies = start.bodies.get_or_init(|| bodies(StoreId::of_file(feed_id.0)));
    let (mut recovered, mut after) = (Recovery::default(), Bound::Unbounded);
    loop {
        let step = write_tables(database, |mut tables| {
            // A clock that is behind the file's time stamp is wrong. A stamp that cannot be read
            // counts as none here; a later read reports it.
            let row = tables.clock.open()?.get(TIME_KEY)?;
            let stamp = row.and_then(|row| decode_time(row.value()).ok());
            let now = stamp.map_or(start.now, |stamp| stamp.reached().now().max(start.now));
            let rows = tables.pending.open()?.range((after, Bound::Unbounded))?.take(RECOVERY_STEP);
            let ids = rows.map(|row| row.map(|(id, _)| MessageId::from_bytes(id.value())));
            let pending = ids.collect::<Result<Vec<_>, _>>()?;
            let (mut kept, mut gone) = (Vec::new(), Vec::new());
            for id in &pending {
                let stays = bodies.contains(id) && is_queued(&mut tables, *id)?;
                if stays { kept.push(*id) } else { gone.push(*id) }
            }
            settle_pending(&mut tables, &shared.feed, laid, &gone, now)?;
            Ok((kept, gone.len(), pending.last().copied()))
        })?;
        let (kept, bodies_lost, last) = step;
        recovered.kept.extend(kept);
        recovered.bodies_lost += bodies_lost;
        match last {
            Some(last) => after = Bound::Excluded(*last.as_bytes()),
            None => break,
        }
    }
    // With the entries that were reported here.
    shared.feed.load(&database.begin_read()?, feed_id)?;
    Ok(recovered)
}

/// Reads the data that is kept in memory. A row that cannot be read stops nothing: it is noted and
/// left out. No caller may use the store before this is done.
fn load(shared: &Shared, recovered: Recovery) -> Result<Recovery, OpenError> {
    let damage = &shared.memory.damage;
    shared.database.read(|transaction| note_quarantined(transaction, damage))?;
    shared.reload_organisations()?;
    shared.memory.usage.replace(shared.database.read(usage::read_last)?);
    shared.memory.directory.key_use.replace(shared.database.read(rows::key_uses)?);
    shared.database.read(|transaction| load_suppressed(transaction, &shared.memory))?;
    let now = shared.start.now;
    let index =
        shared.database.read(|transaction| IdempotencyIndex::load(transaction, damage, now))?;
    let live_keys = index.len();
    *write_lock(&shared.idempotency) = index;
    shared.memory.restarts.note(now, recovered.kept.clone());
    Ok(Recovery { live_keys, ..recovered })
}

/// Returns true if the record can be read and is not final. Without such a record no outcome can be
/// stored, so the message must not be sent.
fn is_queued(tables: &mut Tables<'_>, id: MessageId) -> Result<bool, ReadError> {
    let row = tables.messages.open()?.get(id.as_bytes())?.map(|row| row.value().to_vec());
    let message = row.and_then(|row| decode_message(id, &row).ok());
    Ok(message.is_some_and(|message| matches!(message.state, State::Queued { .. })))
}

fn settle_pending(
    tables: &mut Tables<'_>,
    feed: &FeedIndex,
    laid: Laid,
    pending: &[MessageId],
    now: Timestamp,
) -> Result<(), ReadError> {
    let mut lost = 0;
    for id in pending {
        let row = tables.messages.open()?.get(id.as_bytes())?.map(|row| row.value().to_vec());
        let message = row.as_deref().map(|row| decode_message(*id, row).in_row(MESSAGES, id));
        if let (Some(row), Some(Err(damaged))) = (&row, &message) {
            // The start continues without the record: it loses its pending mark, and its bytes are
            // kept until the end of its retention. It stays where it is, so that no client reads
            // that it does not exist.
            let kept = encode_quarantined(&damaged.reason, row);
            let table = tables.damaged_messages.open()?;
            table.insert(id.as_bytes(), (now.unix_millis(), kept.as_slice()))?;
            lost += 1;
        }
        if let Some(Ok(mut message)) = message {
            let transition = Transition::BodyLost {
                acceptance: Acceptance::Possible,
                message: "the service restarted before the message was sent, and bodies are kept \
                          in memory only; a call to the provider may have been under way, so it is \
                          unknown whether the message was accepted",
                found_at: now,
            };
            let attempts = message.attempts;
            if message.record(attempts, transition) == Recorded::Changed {
                lost += 1;
                if let Some((key, row)) = timeline::end(&message, None, now) {
                    tables.of(Table::Timeline).put(&key, &row)?;
                }
                if laid == Laid::Down {
                    feed.append(tables, &message, ReportedChange::Failed, now)?;
                }
            }
            tables.messages.open()?.insert(id.as_bytes(), encode_message(&message).as_slice())?;
        }
        tables.pending.open()?.remove(id.as_bytes())?;
    }
    if lost > 0 {
        let before =
            (tables.counter(Counter::LostMessages)?, tables.counter(Counter::LostMessagesAt)?);
        tables.set_counter(Counter::LostMessages, lost_messages::sum(before, lost, now))?;
        tables.set_counter(Counter::LostMessagesAt, now.unix_millis())?;
    }
    Ok(())
}

/// Notes the records in quarantine, so that every start reports them.
fn note_quarantined(transaction: &ReadTransaction, damage: &Damage) -> Result<(), ReadError> {
    for row in transaction.open_table(DAMAGED_MESSAGES)?.iter()? {
        let (id, row) = row?;
        let id = MessageId::from_bytes(id.value());
        let reason = decode_quarantined(row.value().1).in_row(DAMAGED_MESSAGES, id);
        damage.note(reason.map_or_else(
            |unreadable| unreadable,
            |reason| DamagedRow::new(MESSAGES.name(), id, reason),
        ));
    }
    Ok(())
}

/// Reads the suppressed addresses. A row that cannot be read suppresses as well, and is noted.
fn load_suppressed(transaction: &ReadTransaction, memory: &InMemory) -> Result<(), ReadError> {
    for row in transaction.open_table(SUPPRESSIONS)?.iter()? {
        let (key, row) = row?;
        let (scope, address) = key.value();
        suppressions::load(&memory.suppressed, &memory.damage, scope, address, row.value());
    }
    Ok(())
}
