//! Events on the timelines of messages.

use crate::domain::event::Event;
use crate::domain::id::MessageId;
use crate::store::StoreError;
use crate::store::error::DamagedRow;
use crate::store::postgres::{PostgresStore, uuid_of};
use crate::store::record::decode_event;

/// Finds events by their messages and keys.
pub(super) const FIND: &str = "
SELECT event.message, event.key, event.event FROM event
JOIN unnest($1::uuid[], $2::bytea[]) AS asked (message, key) USING (message, key)";

impl PostgresStore {
    pub(in crate::store) async fn events(&self, id: MessageId) -> Result<Vec<Event>, StoreError> {
        const READ: &str = "SELECT event FROM event WHERE message = $1 ORDER BY key";
        let rows = self.query(READ, &[&uuid_of(id)]).await?;
        let events = rows.iter().map(|row| {
            decode_event(row.get(0)).map_err(|reason| DamagedRow::new("event", id, &reason))
        });
        Ok(events.filter_map(|event| self.shared.damage.left_out(event)).collect())
    }
}
