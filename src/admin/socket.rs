//! The Unix socket of a running service: who may open it may administer.
//!
//! Knows lines and the handler, and nothing of what is asked.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, warn};

use crate::admin::line::{self, Line};
use crate::admin::wire::{MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, Refusal, Request, Response};
use crate::admin::{Admin, backup};

/// Connections at one time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
/// How long a connection may take to send its next request.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a response may take to be read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stopping service waits for the requests under way.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How long accepting rests after a failure (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long another service may take to bind a socket in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the directory's lock is tried.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Read and written by its owner alone.
const SOCKET_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The directory cannot be used.
    #[error(
        "the directory of the administration socket {} cannot be used: {source}; let the \
         service's user write there, or set admin_socket to another path", path.display()
    )]
    Directory {
        /// The socket's path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A process listens there.
    #[error(
        "another service answers at {}; stop that service, or set admin_socket to another path",
        path.display()
    )]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something else is there, and it is left alone.
    #[error("{} is there and is not a socket; set admin_socket to another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// It cannot be bound.
    #[error("the administration socket {} cannot be made: {source}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The socket, listening. Its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    // After the listener, so that the file goes while nobody can be accepted any more.
    file: SocketFile,
}

/// The socket's name in the file system, as long as it is ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Socket {
    /// Listens at `path`. Replaces a socket that a dead process left there, and refuses if anybody
    /// listens on it.
    pub async fn bind(path: &Path) -> Result<Self, BindError> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        let failed = |source| BindError::Directory { path: path.to_owned(), source };
        let builder = &mut DirBuilder::new();
        builder.mode(DIRECTORY_MODE).recursive(true).create(directory).map_err(failed)?;
        // Two services that start at one time must not both find that nobody listens.
        let _lock = lock(directory).await.map_err(failed)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(BindError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if is_in_use(path).await => {
                return Err(BindError::InUse { path: path.to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // Made where nobody else can look, and moved to its place once only its owner may connect:
        // a socket's mode at birth is the process's umask. Short names, because a socket's path is.
        let private = tempfile::Builder::new()
            .prefix(".p")
            .permissions(Permissions::from_mode(DIRECTORY_MODE))
            .tempdir_in(directory)
            .map_err(failed)?;
        let made = (|| {
            let at = private.path().join("s");
            let listener = StdUnixListener::bind(&at)?;
            listener.set_nonblocking(true)?;
            fs::set_permissions(&at, Permissions::from_mode(SOCKET_MODE))?;
            let metadata = fs::symlink_metadata(&at)?;
            let listener = UnixListener::from_std(listener)?;
            fs::rename(&at, path)?;
            let (device, inode) = (metadata.dev(), metadata.ino());
            Ok(Self { listener, file: SocketFile { path: path.to_owned(), device, inode } })
        })();
        made.map_err(|source| BindError::Bind { path: path.to_owned(), source })
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Answers requests until `shutdown`, then lets those under way end and removes the socket.
    pub async fn serve(self, admin: Arc<Admin>, shutdown: impl Future<Output = ()>) {
        let mut conversations = JoinSet::new();
        let (stop, stopped) = watch::channel(());
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(over) = conversations.join_next(), if !conversations.is_empty() => ended(over),
                accepted = self.listener.accept(), if conversations.len() < MAX_CONNECTIONS => {
                    match accepted {
                        Ok((stream, _)) => {
                            let (admin, stopped) = (Arc::clone(&admin), stopped.clone());
                            conversations.spawn(converse(stream, admin, stopped));
                        }
                        Err(error) => {
                            warn!(%error, "a connection to the administration socket failed");
                            sleep(ACCEPT_PAUSE).await;
                        }
                    }
                }
            }
        }
        drop(self);
        drop(stop);
        let all_over = async {
            while let Some(over) = conversations.join_next().await {
                ended(over);
            }
        };
        if timeout(SHUTDOWN_GRACE, all_over).await.is_err() {
            conversations.shutdown().await;
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A successor may have put its own in this place.
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            warn!(path = %self.path.display(), %error, "the socket's file could not be removed");
        }
    }
}

/// Locks a directory until the result is dropped.
async fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => sleep(LOCK_PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether a process listens on a socket. A process that is too busy to accept counts, and
/// so does one that this user may not ask.
async fn is_in_use(path: &Path) -> bool {
    match UnixStream::connect(path).await {
        Ok(_) => true,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        }
    }
}

fn ended(over: Result<(), JoinError>) {
    if let Err(error) = over
        && error.is_panic()
    {
        error!("a request of administration panicked");
    }
}

/// Answers one connection's requests, one after the other.
async fn converse(mut stream: UnixStream, admin: Arc<Admin>, mut stopped: watch::Receiver<()>) {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    loop {
        let read = tokio::select! {
            read = timeout(READ_TIMEOUT, line::read(&mut reader, MAX_REQUEST_BYTES)) => read,
            // The sender is gone: the service stops.
            _ = stopped.changed() => return,
        };
        let Ok(Ok(line)) = read else { return };
        let (response, last) = match line {
            Line::Whole(line) => match serde_json::from_slice(&line) {
                Ok(Request::Backup {}) => return back_up(&admin, &mut writer).await,
                Ok(request) => (admin.handle(request).await, false),
                Err(error) => (unknown(&error), false),
            },
            Line::TooLong => {
                (refused(format!("a request has at most {MAX_REQUEST_BYTES} bytes")), true)
            }
            Line::End => return,
        };
        let written = timeout(WRITE_TIMEOUT, writer.write_all(&encode(&response))).await;
        if last || !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// Answers with everything that is stored. The connection ends with it: it is no lines any more.
async fn back_up(admin: &Admin, writer: &mut (impl AsyncWrite + Unpin)) {
    let (response, snapshot) = match admin.snapshot() {
        Ok(snapshot) => (Response::BackupBegins(backup::begins(&snapshot)), Some(snapshot)),
        Err(refusal) => (Response::Refused(refusal), None),
    };
    let sent = async {
        let written = timeout(WRITE_TIMEOUT, writer.write_all(&encode(&response))).await;
        if let (Ok(Ok(())), Some(snapshot)) = (written, snapshot) {
            backup::send(snapshot, writer).await;
        }
    };
    // A snapshot keeps the file from being opened again, and until then nothing can be read: it
    // must not wait for a slow reader of the backup.
    tokio::select! {
        () = sent => {}
        () = admin.store.refuses() => warn!("a backup is broken off: the store refuses writes"),
    }
}

fn unknown(error: &serde_json::Error) -> Response {
    refused(format!(
        "the service, version {}, does not know this request ({error}); use the pillarbox of the \
         version that runs",
        env!("CARGO_PKG_VERSION")
    ))
}

fn refused(message: String) -> Response {
    Response::Refused(Refusal { message })
}

fn encode(response: &Response) -> Vec<u8> {
    let text = |response| {
        let mut line = serde_json::to_vec(response).expect("a response's maps have text as keys");
        line.push(b'\n');
        line
    };
    let line = text(response);
    if line.len() <= MAX_RESPONSE_BYTES {
        return line;
    }
    text(&refused("the answer is too long to be sent; ask for less".to_owned()))
}

#[cfg(test)]
mod tests;
