//! Events on the timelines of messages, with the suppressions that follow from them.

use crate::domain::event::Event;
use crate::domain::id::MessageId;
use crate::store::StoreError;
use crate::store::record::{EventKey, decode_event};
use crate::store::redb::RedbStore;
use crate::store::redb::error::InRow;
use crate::store::redb::tables::EVENTS;

impl RedbStore {
    pub(in crate::store) fn events(&self, id: MessageId) -> Result<Vec<Event>, StoreError> {
        self.read(&EVENTS, id, |transaction| {
            let mut events = Vec::new();
            let (first, last) = (id.as_bytes().as_slice(), last_key(id));
            for row in transaction.open_table(EVENTS)?.range::<&[u8]>(first..=last.as_slice())? {
                let event = decode_event(row?.1.value()).in_row(EVENTS, id);
                events.extend(self.shared.damage.left_out(event));
            }
            Ok(events)
        })
    }
}

/// Returns a key that no event of the message is after.
pub(super) fn last_key(message: MessageId) -> Vec<u8> {
    [message.as_bytes().as_slice(), &[u8::MAX; EventKey::BYTES]].concat()
}
