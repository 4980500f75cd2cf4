//! Descriptors that were handed over, by systemd's protocol (`LISTEN_FDS` and `LISTEN_FDNAMES`, see
//! `sd_listen_fds(3)`): listening sockets of a supervisor, the bodies that it kept, and what the
//! program before had open that executed this one in its own place.

use std::cmp::Reverse;
use std::fs::OpenOptions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::ServiceError;
use pillarbox_admin::status::SocketOpener;
use pillarbox_store::FileId;

/// Name of the clients' socket (`FileDescriptorName=`).
pub(super) const CLIENTS: &str = "clients";
/// Other names of the clients' socket: of one without a name, and the unit's own, which systemd takes
/// if there is no `FileDescriptorName=`.
const ALSO_CLIENTS: [&str; 3] = ["", "unknown", "pillarbox.socket"];
/// Name of the socket at which SMTP sessions begin in plain text.
pub(super) const SMTP: &str = "smtp";
/// Name of the socket at which SMTP sessions begin with TLS.
pub(super) const SMTPS: &str = "smtps";
/// Name of the socket of the API in Resend's shape.
pub(super) const RESEND: &str = "resend";
/// Name of the memory that has the bodies, as the service manager keeps it.
pub(super) const ARENA: &str = "arena";
/// Name of the socket that shows whether the service manager keeps descriptors.
pub(super) const PROBE: &str = "probe";
/// Name of the operators' socket.
pub(super) const OPERATORS: &str = "operators";
/// Name of the temporary data directory of `dev`.
pub(super) const DIRECTORY: &str = "directory";
/// Name of the descriptor whose presence stops the program at once.
pub(super) const STOP: &str = "stop";
/// Begins the name of the administration socket.
const ADMIN: &str = "admin";
/// Begins the names of what the service had opened itself before it executed this program.
const OWN: &str = "own-";
/// Environment variable with the names.
const NAMES: &str = "LISTEN_FDNAMES";

/// Descriptors that were handed over.
#[derive(Debug, Default)]
pub struct Inherited {
    /// A supervisor's socket of the API.
    pub clients: Option<TcpListener>,
    /// A supervisor's socket at which SMTP sessions begin in plain text.
    pub smtp: Option<TcpListener>,
    /// A supervisor's socket at which SMTP sessions begin with TLS.
    pub smtp_tls: Option<TcpListener>,
    /// A supervisor's socket of the API in Resend's shape.
    pub resend: Option<TcpListener>,
    /// Memory with bodies of pending messages, the newest first.
    pub arenas: Vec<LeftArena>,
    /// Descriptors that the program before had opened in this process.
    pub own: OwnDescriptors,
}

/// Memory with bodies that an earlier program has left.
#[derive(Debug)]
pub struct LeftArena {
    /// Descriptor of the memory.
    pub memory: OwnedFd,
    /// Its keeper, besides this process.
    pub keeper: ArenaKeeper,
    file: FileId,
    written_at: SystemTime,
}

/// Keeper of memory that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaKeeper {
    /// The service manager keeps it.
    Manager,
    /// This process alone: the program before had opened it.
    Process,
}

/// Descriptors that the program before in this process had opened itself.
#[derive(Debug, Default)]
pub struct OwnDescriptors {
    /// Socket of the API.
    pub clients: Option<TcpListener>,
    /// Socket at which SMTP sessions begin in plain text.
    pub smtp: Option<TcpListener>,
    /// Socket at which SMTP sessions begin with TLS.
    pub smtp_tls: Option<TcpListener>,
    /// Socket of the API in Resend's shape.
    pub resend: Option<TcpListener>,
    /// Socket of the operator listener.
    pub operators: Option<TcpListener>,
    /// The administration socket, and its file.
    pub admin: Option<(UnixListener, FileId)>,
    /// The temporary data directory of `dev`.
    pub directory: Option<PathBuf>,
    /// True if a signal ended the program before while it handed over.
    pub is_to_stop: bool,
}

impl Inherited {
    /// Takes over what the environment names. To be called once, before there is any other thread.
    pub fn from_environment() -> Result<Self, ServiceError> {
        let what = "the inherited descriptors cannot be used";
        let failed = |source| ServiceError::System { what, source };
        let names = std::env::var(NAMES).unwrap_or_default();
        // What `listenfd` does not take must not go on to other programs either: this marks all.
        drop(sd_notify::listen_fds().map_err(failed)?);
        let mut handed_over = ListenFd::from_env();
        let slots = slots(&names, handed_over.len()).map_err(failed)?;
        let mut inherited = Self::default();
        for (index, slot) in slots.into_iter().enumerate() {
            inherited.take(slot, index, &mut handed_over).map_err(failed)?;
        }
        inherited.order_arenas();
        Ok(inherited)
    }

    fn take(&mut self, slot: Slot, index: usize, handed_over: &mut ListenFd) -> io::Result<()> {
        let own = &mut self.own;
        match slot {
            Slot::Clients => self.clients = handed_over.take_tcp_listener(index)?,
            Slot::Smtp => self.smtp = handed_over.take_tcp_listener(index)?,
            Slot::SmtpTls => self.smtp_tls = handed_over.take_tcp_listener(index)?,
            Slot::Resend => self.resend = handed_over.take_tcp_listener(index)?,
            Slot::OwnClients => own.clients = handed_over.take_tcp_listener(index)?,
            Slot::OwnSmtp => own.smtp = handed_over.take_tcp_listener(index)?,
            Slot::OwnSmtpTls => own.smtp_tls = handed_over.take_tcp_listener(index)?,
            Slot::OwnResend => own.resend = handed_over.take_tcp_listener(index)?,
            Slot::OwnOperators => own.operators = handed_over.take_tcp_listener(index)?,
            Slot::OwnAdmin(file) => {
                let listener = handed_over.take_unix_listener(index)?;
                own.admin = listener.map(|listener| (listener, file));
            }
            Slot::OwnDirectory => {
                let link = descriptor_path(index, handed_over)?;
                own.directory = Some(std::fs::read_link(link)?);
            }
            Slot::OwnStop => own.is_to_stop = true,
            Slot::Arena => {
                let path = descriptor_path(index, handed_over)?;
                self.arenas.push(LeftArena::open(&path, ArenaKeeper::Manager)?);
            }
            Slot::OwnArena => {
                let path = descriptor_path(index, handed_over)?;
                self.arenas.push(LeftArena::open(&path, ArenaKeeper::Process)?);
            }
            Slot::Probe => {
                // The process that had asked was killed before the answer.
                sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(PROBE)])?;
            }
        }
        Ok(())
    }

    /// Puts this process's own memory first, and then what was written last. Of two descriptors of
    /// one memory, one stays, and the service manager counts as its keeper.
    fn order_arenas(&mut self) {
        let mut arenas = std::mem::take(&mut self.arenas);
        let is_managers = |arena: &LeftArena| arena.keeper == ArenaKeeper::Manager;
        let managers: Vec<_> =
            arenas.iter().filter(|arena| is_managers(arena)).map(|arena| arena.file).collect();
        arenas.sort_by_key(|arena| (is_managers(arena), Reverse(arena.written_at)));
        for mut arena in arenas {
            if managers.contains(&arena.file) {
                arena.keeper = ArenaKeeper::Manager;
            }
            if self.arenas.iter().all(|other| other.file != arena.file) {
                self.arenas.push(arena);
            }
        }
    }
}

impl LeftArena {
    fn open(path: &Path, keeper: ArenaKeeper) -> io::Result<Self> {
        let written_at = std::fs::metadata(path)?.modified()?;
        Ok(Self { memory: open_again(path)?, keeper, file: FileId::of(path)?, written_at })
    }
}

/// Path of a descriptor, which stays open until the end of the process.
fn descriptor_path(index: usize, handed_over: &mut ListenFd) -> io::Result<PathBuf> {
    let descriptor = handed_over.take_raw_fd(index)?;
    let descriptor = descriptor.ok_or_else(|| io::Error::other("it was taken already"))?;
    Ok(Path::new("/proc/self/fd").join(descriptor.to_string()))
}

/// Opens memory again: without `unsafe`, no number becomes a descriptor that is owned.
fn open_again(path: &Path) -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().read(true).write(true).open(path)?.into())
}

/// Returns the name of something that the service had opened itself.
pub(super) fn own_name(name: &str) -> String {
    format!("{OWN}{name}")
}

/// Returns the name of a socket by who opened it.
pub(super) fn socket_name(name: &str, opener: SocketOpener) -> String {
    match opener {
        SocketOpener::Service => own_name(name),
        SocketOpener::Supervisor => name.to_owned(),
    }
}

/// Returns the name of the administration socket with this file.
pub(super) fn admin_name(file: FileId) -> String {
    let (device, inode) = file.numbers();
    own_name(&format!("{ADMIN}/{device}/{inode}"))
}

/// Returns the socket if it may stand for a configured address: the same, or any port of its host if
/// the port is left open.
pub(super) fn fitting(socket: Option<TcpListener>, address: SocketAddr) -> Option<TcpListener> {
    socket.filter(|socket| {
        socket.local_addr().is_ok_and(|bound| {
            bound.ip() == address.ip() && (address.port() == 0 || bound.port() == address.port())
        })
    })
}

/// Use of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Clients,
    Smtp,
    SmtpTls,
    Resend,
    Arena,
    /// Left by a process that was killed while it asked the manager whether it keeps descriptors.
    Probe,
    OwnClients,
    OwnSmtp,
    OwnSmtpTls,
    OwnResend,
    OwnOperators,
    OwnAdmin(FileId),
    OwnDirectory,
    OwnStop,
    OwnArena,
}

impl Slot {
    /// Returns the use of a descriptor with this name.
    fn of(name: &str) -> Option<Self> {
        if name == CLIENTS || ALSO_CLIENTS.contains(&name) {
            return Some(Self::Clients);
        }
        match name {
            SMTP => return Some(Self::Smtp),
            SMTPS => return Some(Self::SmtpTls),
            RESEND => return Some(Self::Resend),
            ARENA => return Some(Self::Arena),
            PROBE => return Some(Self::Probe),
            _ => {}
        }
        let mut parts = name.strip_prefix(OWN)?.split('/');
        let slot = match parts.next()? {
            CLIENTS => Self::OwnClients,
            SMTP => Self::OwnSmtp,
            SMTPS => Self::OwnSmtpTls,
            RESEND => Self::OwnResend,
            ARENA => Self::OwnArena,
            OPERATORS => Self::OwnOperators,
            DIRECTORY => Self::OwnDirectory,
            STOP => Self::OwnStop,
            ADMIN => {
                let mut number = || parts.next()?.parse().ok();
                Self::OwnAdmin(FileId::of_numbers(number()?, number()?))
            }
            _ => return None,
        };
        Some(slot)
    }

    /// Returns the remedy for a second one, at which nothing would answer.
    fn advice(self) -> &'static str {
        match self {
            Self::Smtp => "give pillarbox-smtp.socket a single ListenStream=",
            Self::SmtpTls => "give pillarbox-smtps.socket a single ListenStream=",
            Self::Resend => "give pillarbox-resend.socket a single ListenStream=",
            _ => "give pillarbox.socket a single ListenStream=",
        }
    }
}

/// The use of each of `count` descriptors with these names, which colons separate.
fn slots(names: &str, count: usize) -> io::Result<Vec<Slot>> {
    let mut names = names.split(':');
    let mut slots = Vec::with_capacity(count);
    for _ in 0..count {
        let name = names.next().unwrap_or_default();
        let slot = Slot::of(name).ok_or_else(|| {
            io::Error::other(format!(
                "pillarbox does not know the descriptor {name:?} that it inherited; set \
                 FileDescriptorName= in the socket unit to {CLIENTS}, {SMTP}, {SMTPS} or {RESEND}, \
                 or do not pass the descriptor to pillarbox"
            ))
        })?;
        // Of several arenas, one is used and the others are reported.
        if slots.contains(&slot) && !matches!(slot, Slot::Arena | Slot::Probe) {
            let advice = slot.advice();
            return Err(io::Error::other(format!(
                "two of the {count} inherited sockets are for the same listener; {advice}"
            )));
        }
        slots.push(slot);
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_known_by_its_name() {
        use Slot::{Arena, Clients, Probe, Smtp, SmtpTls};
        for (names, count, expected) in [
            ("", 0, &[][..]),
            ("", 1, &[Clients]),
            ("unknown", 1, &[Clients]),
            ("pillarbox.socket", 1, &[Clients]),
            ("smtp:clients:smtps", 3, &[Smtp, Clients, SmtpTls]),
            ("smtp", 2, &[Smtp, Clients]),
            ("arena:clients", 2, &[Arena, Clients]),
            ("probe:arena:probe", 3, &[Probe, Arena, Probe]),
            ("arena:clients:arena:probe", 4, &[Arena, Clients, Arena, Probe]),
        ] {
            assert_eq!(slots(names, count).unwrap(), expected, "{names:?}");
        }
        for (names, unit) in [("", "pillarbox.socket"), ("smtp:smtp", "pillarbox-smtp.socket")] {
            let error = slots(names, 2).unwrap_err().to_string();
            assert!(error.contains(&format!("{unit} a single ListenStream=")), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused() {
        for name in ["stored", "client", "own-", "own-admin", "own-admin/1", "own-other"] {
            let error = slots(&format!("clients:{name}"), 2).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("FileDescriptorName="), "{error}");
        }
    }

    #[test]
    fn what_the_service_names_is_understood() {
        let file = FileId::of(Path::new("/")).unwrap();
        assert_eq!(Slot::of(&admin_name(file)), Some(Slot::OwnAdmin(file)));
        assert_eq!(Slot::of(&own_name(ARENA)), Some(Slot::OwnArena));
    }

    #[test]
    fn a_socket_stands_for_its_own_address() {
        let socket = || Some(TcpListener::bind("127.0.0.1:0").unwrap());
        let bound = socket();
        let address = bound.as_ref().unwrap().local_addr().unwrap();
        assert!(fitting(bound, address).is_some());
        assert!(fitting(socket(), "127.0.0.1:0".parse().unwrap()).is_some());
        assert!(fitting(socket(), "127.0.0.1:1".parse().unwrap()).is_none());
        assert!(fitting(socket(), "127.0.0.2:0".parse().unwrap()).is_none());
    }
}
