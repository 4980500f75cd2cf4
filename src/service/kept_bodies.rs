//! Bodies in the service: the arena that a start takes over, or a new one, and those that it cannot use.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::ftruncate;
use tracing::{error, info, warn};

use crate::ServiceError;
use crate::fd_store::{self, Stored};
use crate::inherited::{ArenaKeeper, Inherited, LeftArena};
use pillarbox_body_store::{ArenaOwner, BodyStore, NotTaken, Survivor};
use pillarbox_config::KeepBodies;
use pillarbox_domain::id::MessageId;
use pillarbox_store::StoreId;

/// Arenas that earlier programs have left, until the store that they belong to is known.
#[derive(Debug)]
pub(super) struct FoundArenas {
    /// Those that may be taken over, the newest first.
    left: Vec<LeftArena>,
    boot: [u8; 16],
    owner: Option<ArenaOwner>,
    taken: Option<TakenArena>,
    refused: Vec<RefusedArena>,
}

#[derive(Debug)]
struct TakenArena {
    store: BodyStore,
    survivors: Vec<Survivor>,
    keeper: ArenaKeeper,
}

/// Arena of an earlier program that is not used.
#[derive(Debug)]
pub(super) struct RefusedArena {
    pub(super) why: Unused,
    pub(super) memory: OwnedFd,
    pub(super) keeper: ArenaKeeper,
}

/// Reason why an arena is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unused {
    /// It cannot be taken over.
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    /// There is a newer one of the same store.
    #[error("newer bodies of the same store are in use")]
    Older,
    /// Bodies are not to be kept.
    #[error("sending.keep_bodies is off")]
    NotWanted,
}

/// Bodies of a service that starts.
#[derive(Debug)]
pub(super) struct Bodies {
    pub(super) store: BodyStore,
    /// Those of messages that are still pending.
    pub(super) survivors: Vec<Survivor>,
    /// The others, which are to be dropped once the service has started.
    pub(super) gone: Vec<Survivor>,
    /// Memory that the service manager keeps.
    pub(super) stored: Stored,
    /// Arenas that were found and are not used.
    pub(super) refused: Vec<RefusedArena>,
}

impl FoundArenas {
    pub(super) fn new(left: Vec<LeftArena>, keep: KeepBodies) -> Self {
        // A unit with `ProcSubset=pid` hides it. Without it, arenas of other boots cannot be
        // distinguished from this one's; but memory does not outlive a boot, so there are none.
        let boot = boot_id().unwrap_or_else(|problem| {
            warn!(%problem, "cannot read the machine's boot ID; continuing without it. If the unit has \
                 ProcSubset=pid, remove that line");
            [0; 16]
        });
        let (left, unwanted) = match keep {
            KeepBodies::Yes => (left, Vec::new()),
            KeepBodies::No => (Vec::new(), left),
        };
        let refused =
            unwanted.into_iter().map(|left| RefusedArena::new(left, Unused::NotWanted)).collect();
        Self { left, boot, owner: None, taken: None, refused }
    }

    /// Takes over the newest arena that is this store's; returns whose bodies are in it.
    pub(super) fn take_over(&mut self, store: StoreId) -> BTreeSet<MessageId> {
        let owner = ArenaOwner { boot: self.boot, store: store.0 };
        self.owner = Some(owner);
        for left in std::mem::take(&mut self.left) {
            let memory = left.memory.try_clone();
            let found = memory.map_err(NotTaken::from);
            match found.and_then(|memory| BodyStore::take_over(memory, owner)) {
                Ok((store, survivors)) if self.taken.is_none() => {
                    self.taken = Some(TakenArena { store, survivors, keeper: left.keeper });
                }
                Ok(_) => self.refused.push(RefusedArena::new(left, Unused::Older)),
                Err(why) => self.refused.push(RefusedArena::new(left, why.into())),
            }
        }
        let survivors = self.taken.iter().flat_map(|taken| &taken.survivors);
        survivors.map(|survivor| survivor.id).collect()
    }

    /// The bodies, once it is known which of the messages are still pending.
    pub(super) fn into_bodies(self, kept: &BTreeSet<MessageId>) -> Result<Bodies, ServiceError> {
        let refused = self.refused;
        let is_other_stored = refused.iter().any(|one| one.keeper == ArenaKeeper::Manager);
        let keeper = self.taken.as_ref().map(|taken| taken.keeper);
        let stored = match keeper {
            Some(ArenaKeeper::Manager) => Stored::This,
            _ if is_other_stored => Stored::Other,
            Some(ArenaKeeper::Process) | None => Stored::Nothing,
        };
        let (store, survivors) = match (self.taken, self.owner) {
            (Some(taken), _) => (taken.store, taken.survivors),
            (None, Some(owner)) => (BodyStore::create(owner).map_err(no_memory)?, Vec::new()),
            (None, None) => (BodyStore::of_this_process().map_err(no_memory)?, Vec::new()),
        };
        let (survivors, gone): (Vec<_>, Vec<_>) =
            survivors.into_iter().partition(|survivor| kept.contains(&survivor.id));
        if !survivors.is_empty() {
            info!(messages = survivors.len(), "kept the previous process's pending messages");
        }
        Ok(Bodies { store, survivors, gone, stored, refused })
    }
}

impl RefusedArena {
    fn new(left: LeftArena, why: Unused) -> Self {
        let LeftArena { memory, keeper, .. } = left;
        match keeper {
            _ if why == Unused::NotWanted => warn!(
                "bodies of an earlier process are discarded, because sending.keep_bodies is off: \
                 their pending messages fail"
            ),
            ArenaKeeper::Manager => error!(
                %why,
                "bodies of an earlier process cannot be used; the service manager keeps them. To \
                 discard them: pillarbox bodies drop"
            ),
            ArenaKeeper::Process => error!(%why, "bodies of an earlier program cannot be used"),
        }
        Self { why, memory, keeper }
    }
}

/// Releases arenas that are not wanted, once nothing can fail any more; returns the others.
pub(super) fn without_unwanted(refused: Vec<RefusedArena>) -> Vec<RefusedArena> {
    let (unwanted, others): (Vec<_>, Vec<_>) =
        refused.into_iter().partition(|one| one.why == Unused::NotWanted);
    // Without bodies of its own that are kept, all that the manager has is unwanted.
    if unwanted.iter().any(|one| one.keeper == ArenaKeeper::Manager)
        && let Err(error) = fd_store::drop_stored()
    {
        error!(
            %error,
            "the service manager still keeps bodies that are not wanted; run: pillarbox bodies drop"
        );
        return unwanted.into_iter().chain(others).collect();
    }
    for RefusedArena { memory, .. } in &unwanted {
        free(memory);
    }
    others
}

/// Releases all bodies that the service manager has kept.
pub fn drop_bodies(inherited: &mut Inherited) -> Result<(), ServiceError> {
    let what = "the service manager cannot be reached to drop the bodies (--drop-bodies), so it still \
                keeps them; start the service again through its unit";
    let failed = |source| ServiceError::System { what, source };
    let is_kept = |arena: &LeftArena| arena.keeper == ArenaKeeper::Manager;
    let (kept, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut inherited.arenas).into_iter().partition(is_kept);
    inherited.arenas = others;
    if !kept.is_empty() {
        fd_store::drop_stored().map_err(failed)?;
        warn!(
            "bodies of an earlier process are discarded (--drop-bodies): their pending messages \
             fail. Remove the option before the next start"
        );
    }
    for LeftArena { memory, .. } in kept {
        free(&memory);
    }
    Ok(())
}

/// Frees memory whose descriptor, as it was handed over, stays open until the process ends.
pub(super) fn free(memory: &OwnedFd) {
    // Others may have sealed it.
    if let Err(error) = ftruncate(memory, 0) {
        warn!(%error, "the memory of discarded bodies is freed at the end of the process");
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
