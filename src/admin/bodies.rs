//! Bodies of pending messages, for operators: how many there are, and what they survive.

use std::fmt;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{Admin, BodiesDrop, BodiesShow, Refusal, Result};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;
use pillarbox_queue::MessageQueue;

/// Bodies of pending messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bodies {
    pub count: usize,
    /// Bytes of them, with the records of their messages.
    pub bytes: u64,
    pub memory_bytes: u64,
    /// Acceptance of the oldest message; `None` if there is none.
    pub oldest_at: Option<String>,
    pub keeper: Keeper,
    /// Reason why bodies of an earlier process cannot be used, if the service manager has such.
    pub unreadable: Option<String>,
    /// Messages that went on when the service was started, because their bodies had survived.
    #[serde(default)]
    pub survived_messages: usize,
}

impl Bodies {
    /// Says in a line how many there are, what they survive, and why no more.
    pub fn summary(&self) -> String {
        let bodies = if self.count == 1 { "body" } else { "bodies" };
        let kib = self.memory_bytes.div_ceil(1024);
        let survive = match &self.keeper {
            Keeper::ServiceManager => {
                "They survive a restart and a crash: the service manager keeps them".to_owned()
            }
            Keeper::Nobody { reason } => {
                format!("They survive `pillarbox restart`, but not a stop or a crash: {reason}")
            }
            Keeper::NotWanted => {
                "They are lost when the process ends: sending.keep_bodies is off".to_owned()
            }
        };
        format!("{} {bodies} in {kib} KiB of memory. {survive}", self.count)
    }
}

/// Keeper of the bodies while no process runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Keeper {
    /// The service manager: they survive a restart and a crash.
    ServiceManager,
    /// Only the program that a restart in place executes.
    Nobody { reason: String },
    /// Nothing keeps them, because the configuration says so.
    NotWanted,
}

/// Bodies of earlier processes that were given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodiesDropped {
    pub dropped: bool,
}

/// Bodies of a running service, and access to their keeper.
pub struct BodyFacts {
    pub queue: Arc<MessageQueue>,
    pub survived_messages: usize,
    /// The start, by the clock of messages and by that of records.
    pub began: (Instant, Timestamp),
    pub keeper: Box<dyn Fn() -> Keeper + Send + Sync>,
    /// Returns the reason why bodies of an earlier process cannot be used, if there are such.
    pub unreadable: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Has the service manager drop those, and keep this process's in their place.
    pub drop_unreadable: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
}

impl fmt::Debug for BodyFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyFacts").finish_non_exhaustive()
    }
}

impl BodyFacts {
    /// Time at which this process took up a message that waited when the one before it ended; `None`
    /// if it did not, or is not pending any more.
    pub fn restarted_at(&self, id: MessageId) -> Option<Timestamp> {
        let (began, at) = self.began;
        self.queue.is_pending_since_before(id, began).then_some(at)
    }

    pub fn show(&self) -> Bodies {
        let usage = self.queue.bodies().usage();
        Bodies {
            count: usage.records,
            bytes: usage.alive_bytes,
            memory_bytes: usage.memory_bytes,
            oldest_at: self.queue.oldest().map(|id| id.instant().to_string()),
            keeper: (self.keeper)(),
            unreadable: (self.unreadable)(),
            survived_messages: self.survived_messages,
        }
    }
}

pub(super) fn show(admin: &Admin, _: &BodiesShow) -> Result<Bodies> {
    Ok(admin.facts()?.bodies.show())
}

pub(super) fn drop_unreadable(admin: &Admin, _: &BodiesDrop) -> Result<BodiesDropped> {
    let facts = &admin.facts()?.bodies;
    let dropped = (facts.unreadable)().is_some();
    if dropped {
        (facts.drop_unreadable)().map_err(|error| {
            Refusal::new(format!(
                "the service manager cannot be reached, so it still keeps the bodies: {error}. \
                 Repeat the command"
            ))
        })?;
    }
    Ok(BodiesDropped { dropped })
}
