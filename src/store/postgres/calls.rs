//! Calls to the provider: a node reports its calls that take long to the others, and reads theirs.
//!
//! The task that writes outcomes also reports calls, one after the other. So a call is reported
//! before its outcome is written, and not after it.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use crate::StoreError;
use crate::locks::{Mutex, locked};
use crate::postgres::session::Session;
use crate::postgres::tables::integer;
use crate::postgres::{PostgresStore, Shared, message_id, uuid_of};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Message, Status};

/// Interval of the reports to the other nodes, if there is a call to report.
pub(super) const TELL: Duration = Duration::from_millis(500);

/// Marks messages. A message that another transaction is about to finish is left out, without a
/// wait. `$3` is the session.
const MARK: &str = "
WITH counted AS (
    UPDATE session SET writes = writes + 1 WHERE id = $3 RETURNING writes
), marked AS (
    SELECT pending.id, new.attempts FROM counted, pending
    JOIN unnest($1::uuid[], $2::integer[]) AS new (id, attempts) USING (id)
    FOR UPDATE OF pending SKIP LOCKED
), told AS (
    UPDATE pending SET calling = marked.attempts FROM marked WHERE pending.id = marked.id
)
SELECT writes FROM counted";
/// Removes the marks from messages that wait for another attempt.
pub(super) const UNMARK: &str =
    "UPDATE pending SET calling = NULL WHERE id = ANY($1) AND calling IS NOT NULL";
const MARKED: &str = "SELECT id, calling FROM pending WHERE id = ANY($1) AND calling IS NOT NULL";

/// Calls of this node that are not reported to the others yet, with the number of calls that were
/// started for the message.
#[derive(Default)]
pub(super) struct Calls(Mutex<HashMap<MessageId, u32>>);

impl Calls {
    pub(super) fn ended(&self, id: MessageId) {
        locked(&self.0).remove(&id);
    }
}

/// Reports the calls to the other nodes that are not reported yet.
pub(super) async fn tell(shared: &Shared, session: &mut Session) {
    let calls = std::mem::take(&mut *locked(&shared.calls.0));
    if calls.is_empty() {
        return;
    }
    let ids: Vec<Uuid> = calls.keys().copied().map(uuid_of).collect();
    let attempts: Vec<i32> = calls.values().copied().map(integer).collect();
    if let Err(error) = session.run(MARK, &[&ids, &attempts]).await {
        tracing::debug!(%error, "calls were not reported to other nodes; pillarbox tries again");
        shared.lost(&error);
        let mut known = locked(&shared.calls.0);
        for (id, attempts) in calls {
            known.entry(id).or_insert(attempts);
        }
    }
}

impl PostgresStore {
    pub(crate) fn tell_of_call(&self, id: MessageId, attempts: u32) {
        locked(&self.shared.calls.0).insert(id, attempts);
    }

    /// Adds the calls that nodes have reported to messages.
    pub(super) async fn lay_calls_over(&self, messages: &mut [Message]) -> Result<(), StoreError> {
        let queued = messages.iter_mut().filter(|message| message.status() == Status::Queued);
        let mut waiting: HashMap<MessageId, &mut Message> =
            queued.map(|message| (message.id, message)).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = waiting.keys().copied().map(uuid_of).collect();
        for row in self.query_by(&self.shared.listers, MARKED, &[&ids]).await? {
            if let Some(message) = waiting.get_mut(&message_id(row.get(0))) {
                message.calling = row.get::<_, Option<i32>>(1).map(i32::unsigned_abs);
            }
        }
        Ok(())
    }
}
