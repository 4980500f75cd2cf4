//! Bodies in the service: the arena that a start takes over, or a new one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use tracing::{error, info, warn};

use crate::body_store::{ArenaOwner, BodyStore, NotTaken, Survivor};
use crate::domain::id::MessageId;
use crate::service::ServiceError;
use crate::store::StoreId;

/// Arena that an earlier process has left, until the store that it belongs to is known.
#[derive(Debug)]
pub(super) struct FoundArena {
    left: Option<OwnedFd>,
    boot: [u8; 16],
    owner: Option<ArenaOwner>,
    taken: Option<(BodyStore, Vec<Survivor>)>,
    refused: Option<NotTaken>,
}

/// Bodies of a service that starts.
#[derive(Debug)]
pub(super) struct Bodies {
    pub(super) store: BodyStore,
    /// Those of messages that are still pending.
    pub(super) survivors: Vec<Survivor>,
    /// The others, which are to be dropped once the service has started.
    pub(super) gone: Vec<Survivor>,
    /// Reason why the arena that was found could not be taken over.
    pub(super) refused: Option<NotTaken>,
}

impl FoundArena {
    pub(super) fn new(left: Option<OwnedFd>) -> Self {
        // A unit with `ProcSubset=pid` hides it. Without it, arenas of other boots look like this one's;
        // but memory does not outlive a boot, so there are none.
        let boot = boot_id().unwrap_or_else(|problem| {
            warn!(%problem, "cannot read the identity of the machine's boot; going on without it");
            [0; 16]
        });
        Self { left, boot, owner: None, taken: None, refused: None }
    }

    /// Takes over the arena if it is this store's; returns whose bodies are in it.
    pub(super) fn take_over(&mut self, store: StoreId) -> BTreeSet<MessageId> {
        let owner = ArenaOwner { boot: self.boot, store: store.0 };
        self.owner = Some(owner);
        match self.left.take().map(|fd| BodyStore::take_over(fd, owner)) {
            None => {}
            Some(Ok(taken)) => self.taken = Some(taken),
            Some(Err(why)) => {
                error!(
                    %why,
                    "the bodies of an earlier process cannot be used; if the service manager keeps \
                     them, they stay there until: pillarbox bodies drop"
                );
                self.refused = Some(why);
            }
        }
        let survivors = self.taken.iter().flat_map(|(_, survivors)| survivors);
        survivors.map(|survivor| survivor.id).collect()
    }

    /// The bodies, once it is known which of the messages are still pending.
    pub(super) fn into_bodies(self, kept: &BTreeSet<MessageId>) -> Result<Bodies, ServiceError> {
        let (store, survivors) = match (self.taken, self.owner) {
            (Some(taken), _) => taken,
            (None, Some(owner)) => (BodyStore::create(owner).map_err(no_memory)?, Vec::new()),
            (None, None) => (BodyStore::of_this_process().map_err(no_memory)?, Vec::new()),
        };
        let (survivors, gone): (Vec<_>, Vec<_>) =
            survivors.into_iter().partition(|survivor| kept.contains(&survivor.id));
        if !survivors.is_empty() {
            info!(messages = survivors.len(), "pending messages of the last process go on");
        }
        Ok(Bodies { store, survivors, gone, refused: self.refused })
    }
}

/// A second descriptor of the arena, for others to keep.
pub(super) fn copied(store: &BodyStore) -> Result<OwnedFd, ServiceError> {
    let copy = store.as_fd().try_clone_to_owned();
    let what = "cannot copy the descriptor of the bodies";
    copy.map_err(|source| ServiceError::System { what, source })
}

fn no_memory(source: io::Error) -> ServiceError {
    ServiceError::System { what: "cannot get memory for bodies", source }
}

/// The identity of the machine's boot (random(4), `boot_id`).
fn boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let mut id = [0; 16];
    hex::decode_to_slice(digits, &mut id).map_err(io::Error::other)?;
    Ok(id)
}
