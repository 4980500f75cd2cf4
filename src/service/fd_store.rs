//! The service manager's store of descriptors (`sd_notify(3)`, `FDSTORE=1`): it keeps the memory with
//! the bodies of pending messages while no process of the service runs.
//!
//! Since version 254, systemd sets the number of descriptors that it keeps (`FDSTORE` in the
//! environment), and nothing if it keeps none. Earlier versions never set it. So if it is not set,
//! a socket is stored beside the memory: a manager that does not keep it closes it, which this
//! process sees.

use std::fmt;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::inherited::{ARENA, PROBE};

/// Longest time that the manager may take to handle what it was sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Result of storing the memory: who keeps it while no process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// The service manager keeps it.
    ByManager,
    /// Nothing keeps it.
    ByNobody(NotKept),
}

/// Reason why the memory is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotKept {
    /// No service manager started this process.
    NoManager,
    /// The service manager keeps no descriptors.
    NotByThisManager,
    /// The service manager keeps other memory, which this process does not use.
    OtherIsKept,
    /// It could not be stored.
    Failed(String),
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoManager => "no service manager, such as systemd, started the process",
            Self::NotByThisManager => {
                "the service manager keeps no descriptors; the unit needs FileDescriptorStoreMax=2"
            }
            Self::OtherIsKept => {
                "the service manager still keeps bodies that this process cannot use"
            }
            Self::Failed(error) => {
                return write!(f, "the bodies could not be given to the service manager: {error}");
            }
        })
    }
}

/// Memory that the service manager keeps as the arena before it is sent any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// No memory.
    Nothing,
    /// The memory that this process uses.
    This,
    /// Only other memory.
    Other,
}

/// Memory that was sent to the manager.
#[derive(Debug)]
pub(super) enum Storing {
    /// The result is known.
    Done(Kept),
    /// The manager has not shown yet whether it keeps it.
    Asked(Asked),
}

/// Question to the manager.
#[derive(Debug)]
pub(super) struct Asked {
    /// Ends once the manager has handled what came before.
    handled: UnixStream,
    /// Ends if the manager does not keep the probe.
    probe: UnixStream,
}

/// Has the service manager keep memory, unless it keeps some already.
pub(super) fn store(memory: BorrowedFd<'_>, stored: Stored) -> Storing {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return Storing::Done(Kept::ByNobody(NotKept::NoManager));
    }
    match stored {
        Stored::Nothing => send(memory).unwrap_or_else(|error| Storing::Done(failed(&error))),
        Stored::This => Storing::Done(Kept::ByManager),
        Stored::Other => Storing::Done(Kept::ByNobody(NotKept::OtherIsKept)),
    }
}

fn failed(error: &io::Error) -> Kept {
    Kept::ByNobody(NotKept::Failed(error.to_string()))
}

fn send(memory: BorrowedFd<'_>) -> io::Result<Storing> {
    let store = |name, descriptor| {
        let states = [NotifyState::FdStore, NotifyState::FdName(name)];
        sd_notify::notify_with_fds(&states, &[descriptor])
    };
    store(ARENA, memory)?;
    if std::env::var_os("FDSTORE").is_some() {
        return Ok(Storing::Done(Kept::ByManager));
    }
    // The second of a pair ends here, so that the manager has the only copy.
    let (probe, theirs) = UnixStream::pair()?;
    store(PROBE, theirs.as_fd())?;
    let (handled, theirs) = UnixStream::pair()?;
    sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
    Ok(Storing::Asked(Asked { handled, probe }))
}

/// Has the manager drop all that it keeps as the arena.
pub(super) fn drop_stored() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(ARENA)])
}

impl Storing {
    /// Returns who keeps the memory, once the manager has shown it.
    pub(super) async fn kept(self) -> Kept {
        match self {
            Self::Done(kept) => kept,
            Self::Asked(asked) => asked.kept().await.unwrap_or_else(|error| failed(&error)),
        }
    }
}

impl Asked {
    async fn kept(self) -> io::Result<Kept> {
        self.handled.set_nonblocking(true)?;
        let mut handled = tokio::net::UnixStream::from_std(self.handled)?;
        timeout(ANSWER_TIMEOUT, handled.read(&mut [0])).await??;
        self.probe.set_nonblocking(true)?;
        let is_closed = match (&self.probe).read(&mut [0]) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => return Err(error),
        };
        sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(PROBE)])?;
        Ok(if is_closed { Kept::ByNobody(NotKept::NotByThisManager) } else { Kept::ByManager })
    }
}
