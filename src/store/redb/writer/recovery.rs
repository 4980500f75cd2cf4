//! Recovery after a failed commit: opens the file again, undoes what is in doubt, and refuses what
//! arrives until a write succeeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::domain::id::MessageId;
use crate::store::redb::Shared;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::tables::{MESSAGES, PROBE};
use crate::store::redb::writer::{Operation, settle};
use crate::store::{FileLoss, StoreError};

/// How long to wait between attempts to write again after a failure.
const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(50);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a failed batch leaves to clear up.
pub(super) struct Doubt {
    pub(super) operations: Vec<Box<dyn Operation>>,
    /// Messages that it accepts, if its commit may have begun: they have to be undone.
    pub(super) accepted: Option<Vec<MessageId>>,
}

/// Brings the file back to a state that takes writes, then refuses the batch in doubt.
pub(super) fn recover(
    shared: &Shared,
    operations: &mut mpsc::Receiver<Box<dyn Operation>>,
    doubt: Doubt,
) {
    let mut pause = REOPEN_PAUSE_MIN;
    let Doubt { operations: mut waiting, accepted } = doubt;
    let may_be_on_disk = accepted.is_some();
    let accepted = accepted.unwrap_or_default();
    loop {
        if shared.look() == Some(FileLoss::WrittenOver) {
            // What is in memory can still be read. The file never takes writes again.
            settle(waiting, Err(StoreError::FileLost));
            shared.suppression_epoch.fetch_add(1, Ordering::Release);
            shared.refusing.store(false, Ordering::Release);
            shared.health_changed.notify_waiters();
            return;
        }
        // A panic is one more failed attempt: redb panics on pages that it cannot make sense of.
        let opened = catch_unwind(AssertUnwindSafe(|| open_again(shared, &accepted, &mut waiting)));
        if !may_be_on_disk {
            // Not before the file is open for reading: who is refused may read at once.
            settle(std::mem::take(&mut waiting), Err(StoreError::Unavailable));
        }
        match opened {
            Ok(Ok(())) => break,
            Ok(Err(error)) => tracing::warn!(%error, "the store does not take writes yet"),
            Err(_) => tracing::error!("the attempt to open the store again panicked"),
        }
        if refuse_until(operations, Instant::now() + pause) == Ended::Yes {
            break;
        }
        pause = (pause * 2).min(REOPEN_PAUSE_MAX);
    }
    settle(waiting, Err(StoreError::Unavailable));
    // The batch may have suppressed an address and been durable all the same.
    shared.suppression_epoch.fetch_add(1, Ordering::Release);
    shared.refusing.store(false, Ordering::Release);
    shared.health_changed.notify_waiters();
    tracing::info!("the store takes writes again");
}

/// Opens the file again and removes the rows of the batch in doubt; the write itself proves
/// that writes succeed. If it fails, callers whose rows are not on disk are refused at once:
/// they need not wait until a write succeeds.
fn open_again(
    shared: &Shared,
    accepted: &[MessageId],
    waiting: &mut Vec<Box<dyn Operation>>,
) -> Result<(), ReadError> {
    let cleaned = shared.reopen(|mut tables| {
        for id in accepted {
            tables.remove_accepted(*id)?;
        }
        tables.meta.open()?.insert(PROBE, 0)?;
        Ok(())
    });
    if cleaned.is_err() && !waiting.is_empty() && is_absent(shared, accepted) {
        settle(std::mem::take(waiting), Err(StoreError::Unavailable));
    }
    cleaned?;
    shared.reload_directory()
}

fn is_absent(shared: &Shared, accepted: &[MessageId]) -> bool {
    let found = shared.read(|transaction| {
        let messages = transaction.open_table(MESSAGES)?;
        for id in accepted {
            if messages.get(id.as_bytes())?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    });
    matches!(found, Ok(false))
}

/// Refuses what arrives until `end`: none of it was in a transaction.
fn refuse_until(operations: &mut mpsc::Receiver<Box<dyn Operation>>, end: Instant) -> Ended {
    while Instant::now() < end {
        match operations.try_recv() {
            Ok(operation) => settle([operation], Err(StoreError::Unavailable)),
            Err(mpsc::error::TryRecvError::Empty) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(mpsc::error::TryRecvError::Disconnected) => return Ended::Yes,
        }
    }
    Ended::No
}

#[derive(PartialEq, Eq)]
enum Ended {
    Yes,
    No,
}
