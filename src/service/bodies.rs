//! Bodies in the service: the arena that a start takes over, or a new one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use tracing::{error, info};

use crate::body_store::{ArenaOwner, BodyStore, NotTaken, Survivor};
use crate::domain::id::MessageId;
use crate::service::ServiceError;
use crate::store::StoreId;

/// Arenas that an earlier process has left, until the store that they belong to is known.
#[derive(Debug)]
pub(super) struct Arenas {
    left: Vec<OwnedFd>,
    boot: [u8; 16],
    owner: Option<ArenaOwner>,
    taken: Option<(BodyStore, Vec<Survivor>)>,
    refused: Vec<UnreadableArena>,
}

/// Arena that cannot be taken over. It is kept as it is.
#[derive(Debug)]
pub(super) struct UnreadableArena {
    pub(super) fd: OwnedFd,
    pub(super) why: NotTaken,
}

/// Bodies of a service that starts.
#[derive(Debug)]
pub(super) struct Bodies {
    pub(super) store: BodyStore,
    /// Those of messages that are still pending.
    pub(super) survivors: Vec<Survivor>,
    /// Arenas that cannot be taken over.
    pub(super) unreadable: Vec<UnreadableArena>,
}

impl Arenas {
    pub(super) fn new(left: Vec<OwnedFd>) -> Result<Self, ServiceError> {
        let boot = boot_id().map_err(|source| ServiceError::System {
            what: "cannot read the identity of the machine's boot",
            source,
        })?;
        Ok(Self { left, boot, owner: None, taken: None, refused: Vec::new() })
    }

    /// Takes over the arena of this store, if there is one; returns whose bodies are in it.
    pub(super) fn take_over(&mut self, store: StoreId) -> BTreeSet<MessageId> {
        let owner = ArenaOwner { boot: self.boot, store: store.0 };
        self.owner = Some(owner);
        for fd in self.left.drain(..) {
            let copy = match fd.try_clone() {
                Ok(copy) => copy,
                Err(error) => {
                    self.refused.push(UnreadableArena { fd, why: error.into() });
                    continue;
                }
            };
            match BodyStore::take_over(fd, owner) {
                Ok(taken) if self.taken.is_none() => self.taken = Some(taken),
                // No process makes two; whatever the second one is, it stays as it is.
                Ok(_) => self.refused.push(UnreadableArena { fd: copy, why: NotTaken::OtherStore }),
                Err(why) => {
                    error!(%why, "an arena with bodies of an earlier process cannot be taken over");
                    self.refused.push(UnreadableArena { fd: copy, why });
                }
            }
        }
        let survivors = self.taken.iter().flat_map(|(_, survivors)| survivors);
        survivors.map(|survivor| survivor.id).collect()
    }

    /// The bodies, once it is known which of the messages are still pending. The room of the others
    /// is free.
    pub(super) fn into_bodies(self, kept: &BTreeSet<MessageId>) -> Result<Bodies, ServiceError> {
        let (store, mut survivors) = match (self.taken, self.owner) {
            (Some(taken), _) => taken,
            (None, Some(owner)) => (BodyStore::create(owner).map_err(no_memory)?, Vec::new()),
            (None, None) => (BodyStore::of_this_process().map_err(no_memory)?, Vec::new()),
        };
        survivors.retain(|survivor| kept.contains(&survivor.id));
        if !survivors.is_empty() {
            info!(messages = survivors.len(), "pending messages of the last process go on");
        }
        Ok(Bodies { store, survivors, unreadable: self.refused })
    }
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
