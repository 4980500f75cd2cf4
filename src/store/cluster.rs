//! Cluster: the nodes that work on one database and the state of that database, as one node sees
//! them. Operators' commands, metrics and the page read it; nothing is decided by it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::worded;

/// Time after its last sign of life for which a node still starts something. After it, the node is
/// silent.
pub const LEASE: Duration = Duration::from_secs(20);
/// Difference between a node's clock and the database's from which operators are informed. No time
/// daemon keeps both, and AWS refuses signatures of a machine whose clock is minutes off.
pub const CLOCKS_DIFFER: Duration = Duration::from_secs(5);
/// First schema whose nodes check whether they are to drain.
pub const FIRST_WITH_DRAIN: i32 = 2;
/// First schema whose nodes know the settings of organisations, and the rights of keys.
pub const FIRST_WITH_RIGHTS: i32 = 10;
/// First schema whose nodes know terms of messages.
pub const FIRST_WITH_TERMS: i32 = 11;
/// First schema whose nodes know the forms of the events that endpoints receive.
pub const FIRST_WITH_WEBHOOK_FORMATS: i32 = 12;
/// First schema whose nodes answer each other's requests.
pub(super) const FIRST_WITH_REQUESTS: i32 = 7;
/// Connections by which a node accepts messages, each with a transaction under way.
pub const ACCEPTING_CONNECTIONS: u8 = 2;
/// Connections that a node holds.
pub const CONNECTIONS_OF_A_NODE: i32 = 5 + ACCEPTING_CONNECTIONS as i32;

/// Identity of the machine's boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Place of a node: the boot of its machine, and the file by which it holds its data directory. Two
/// processes never have the same place, because that file is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace(Vec<u8>);

impl NodePlace {
    /// Returns the place of the process that has locked this file. Fails if the system does not
    /// give the identity of this boot. Without that, a file of the same number in another boot
    /// would have the same place.
    pub fn of(file: &File) -> io::Result<Self> {
        Self::in_boot(Path::new(BOOT_ID), file)
    }

    /// Returns the place in the boot whose identity lies in a file.
    pub(super) fn in_boot(boot: &Path, file: &File) -> io::Result<Self> {
        let failed = |kind, why: &dyn std::fmt::Display| {
            let path = boot.display();
            let remedy = "if the unit has ProcSubset=pid, remove that line";
            let problem = format!("cannot read the boot ID in {path}: {why}; {remedy}");
            io::Error::new(kind, problem)
        };
        let id = fs::read_to_string(boot).map_err(|error| failed(error.kind(), &error))?;
        let id = id.trim();
        if id.is_empty() {
            return Err(failed(io::ErrorKind::InvalidData, &"it is empty"));
        }
        let file = file.metadata()?;
        Ok(Self(format!("{id} {} {}", file.dev(), file.ino()).into_bytes()))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Messages that a node found when it joined the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Messages whose body was lost with a node that is dead.
    pub bodies_lost: usize,
    /// Messages of this node's life before that stay pending, because their body is there.
    pub kept: BTreeSet<MessageId>,
}

/// Node, as another one or itself sees it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct NodeStatus {
    pub name: String,
    pub version: String,
    /// Version of the schema that it was built for.
    pub schema: i32,
    pub started_at: Timestamp,
    pub state: NodeState,
    pub seen_from: SeenFrom,
    /// Silence after which none of its calls is under way. It is zero if the node does not report
    /// it.
    pub least_dead_after: Duration,
    /// Its part of the pace of all nodes, from 0 to 1.
    pub share: f64,
    pub duties: Vec<String>,
    pub load: NodeLoad,
}

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// It accepts messages and sends them.
    Working,
    /// It accepts none and sends what it holds.
    Draining,
    /// It has given no sign of life for this time.
    Silent(Duration),
}

/// Place from which a node is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenFrom {
    /// The report is the node's own.
    Itself,
    /// The report is another node's.
    Another,
}

worded! {
    /// Work that one node does for all. Operators see its word.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Duty {
        /// Delivers to endpoints.
        Webhooks = "webhooks",
        /// Asks the provider about the domains of senders.
        Domains = "domains",
        /// Deletes records that are past their retention.
        Purge = "purge",
        /// Posts alerts to operators.
        Alerts = "alerts",
    }
}

/// Report of a node about itself, for the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Messages in its memory that are not finished.
    pub pending: u64,
    /// Codes of the conditions that hold for it.
    pub conditions: Vec<String>,
    /// Number of organisations whose messages it has to send. The pace is divided by it. It is 0
    /// only if the node has had no message for a while.
    pub demand: u32,
}

/// Order to a node to accept messages or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainOrder {
    /// It accepts no more messages, and sends those that it holds.
    Begin,
    /// It accepts messages again.
    End,
}

/// Result of removing a node from the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// It is removed, and the messages that it held fail.
    Removed,
    /// It lives: its last sign of life is this time ago.
    Lives(Duration),
    /// There is no node of this name.
    Unknown,
}

/// Request of another node, as that one encoded it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRequest {
    /// Number that an answer has to carry.
    pub id: i64,
    /// Encoded request.
    pub request: Vec<u8>,
}

/// Answer of another node to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAnswer {
    /// Name of the node.
    pub node: String,
    /// Its answer, as it encoded it; `None` if it did not answer in time.
    pub answer: Option<Vec<u8>>,
}

/// State of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// Version of the server, as it says it, such as `15.20 (Debian 15.20-0+deb12u1)`.
    pub server_version: String,
    /// The same as a number, such as 150020.
    pub server_version_number: i32,
    /// Version of the schema; `None` if there is none yet.
    pub schema: Option<i32>,
    /// Synchronous standby that commits wait for, if there is one.
    pub standby: Standby,
    /// True if commits wait for the server's own disk (`fsync`).
    pub waits_for_disk: bool,
    /// Connections that ordinary users may open at one time.
    pub max_connections: i32,
    /// Transactions since the oldest one that a snapshot, a prepared transaction or a replication
    /// slot still needs. The server cannot clean up newer rows.
    pub transactions_behind: i64,
    /// Difference of the database's clock and this machine's, in milliseconds; positive if the
    /// database's is ahead. It is exact to half the time that an answer takes.
    pub clock_offset_millis: i64,
}

/// Synchronous standby of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standby {
    /// Commits wait for one (`synchronous_standby_names`).
    Synchronous,
    /// Commits wait for none.
    None,
    /// Commits wait for none, though they did since this process was started.
    Lost,
}

impl DatabaseStatus {
    /// The oldest server that nodes work on.
    pub const OLDEST_SERVER: i32 = 150_000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_that_nobody_knows_is_an_error_and_no_place() {
        let directory = tempfile::tempdir().unwrap();
        let lock = File::create(directory.path().join("node")).unwrap();
        let boot = directory.path().join("boot_id");
        let place = || NodePlace::in_boot(&boot, &lock);
        let missing = place().unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("boot ID"), "{missing}");
        assert!(missing.to_string().contains("has ProcSubset=pid, remove"), "{missing}");
        for nothing in ["", "\n"] {
            fs::write(&boot, nothing).unwrap();
            assert_eq!(place().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        fs::write(&boot, [0xff]).unwrap();
        assert_eq!(place().unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(&boot, "one\n").unwrap();
        let before = place().unwrap();
        assert_eq!(place().unwrap(), before);
        fs::write(&boot, "other\n").unwrap();
        assert_ne!(place().unwrap(), before);
    }
}
