//! Restarts: which messages waited when the last process ended, as long as nothing has been written
//! about them since.

use std::collections::BTreeSet;
use std::sync::RwLock;

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::locks::{read_lock, write_lock};

/// Messages that this process took up from the one before.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    waiting: RwLock<(Option<Timestamp>, BTreeSet<MessageId>)>,
}

impl Restarts {
    /// Notes what a start at `at` has found.
    pub(super) fn note(&self, at: Timestamp, waiting: BTreeSet<MessageId>) {
        *write_lock(&self.waiting) = (Some(at), waiting);
    }

    /// Returns when this process took a message up, if it did and nothing says so yet.
    pub(super) fn untold(&self, id: MessageId) -> Option<Timestamp> {
        let waiting = read_lock(&self.waiting);
        waiting.0.filter(|_| waiting.1.contains(&id))
    }

    /// Notes that the message's timeline says so.
    pub(super) fn told(&self, id: MessageId) {
        if self.untold(id).is_some() {
            write_lock(&self.waiting).1.remove(&id);
        }
    }
}
