//! The Unix socket of a running service: who may open it may administer. It speaks HTTP/1.1: `POST
//! /NAME` makes the call of that name, with the call as JSON.
//!
//! Knows the calls by their names, and nothing of what they do.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};
use tracing::{debug, error, warn};

use crate::backup;
use crate::{Admin, CallFault, MAX_ANSWER_BYTES, MAX_CALL_BYTES, Refusal};
use pillarbox_http::body::{BodyReader, ResponseBody};
use pillarbox_http::drain::DrainSignal;
use pillarbox_http::limits::{Limits, WhenFull};
use pillarbox_http::rejection::{ErrorAnswer, JSON, Rejection};
use pillarbox_http::request_id::RequestId;
use pillarbox_http::{Connection, Handler, Listener};
use pillarbox_store::FileId;

/// Connections at one time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 64;
/// Time limit for a connection to send its next call, and to take a part of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Memory for calls that are being read: 32 of the largest, and as much again, because one holder is
/// given about half of a budget.
const MAX_READING_BYTES: usize = 64 * MAX_CALL_BYTES;
/// Time limit for another service to bind a socket in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between attempts to lock the directory.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Read and written by its owner alone.
const SOCKET_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Reason why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "the directory of the administration socket {} cannot be used: {source}; allow the \
         service's user to write there, or set admin_socket to another path", path.display()
    )]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "another service answers at {}; stop that service, or set admin_socket to another path",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error("{} exists but is not a socket; set admin_socket to another path", path.display())]
    NotASocket { path: PathBuf },
    #[error("the administration socket {} cannot be made: {source}", path.display())]
    Bind { path: PathBuf, source: io::Error },
}

/// The socket, listening. Its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    // After the listener, so that the file is removed when no connection can be accepted any more.
    file: SocketFile,
}

/// The socket's name in the file system, as long as it is ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: FileId,
    /// True if the file stays, for the program that goes on with the socket.
    stays: Arc<AtomicBool>,
}

/// Copy of the socket, for the program that goes on with it.
#[derive(Debug)]
pub struct SocketCopy {
    pub listener: OwnedFd,
    pub file: FileId,
    stays: Arc<AtomicBool>,
}

impl SocketCopy {
    /// Has the socket's file stay once the service has ended.
    pub fn keep_file(&self) {
        self.stays.store(true, Ordering::SeqCst);
    }
}

impl Socket {
    /// Listens at `path`. Replaces a socket that a dead process left there, and refuses if anybody
    /// listens on it.
    pub async fn bind(path: &Path) -> Result<Self, BindError> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = parent.unwrap_or(Path::new("."));
        let failed = |source| BindError::Directory { path: path.to_owned(), source };
        let builder = &mut DirBuilder::new();
        builder.mode(DIRECTORY_MODE).recursive(true).create(directory).map_err(failed)?;
        // Two services that start at one time must not both find that nothing listens.
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
        // Made in a private directory, and moved to its place once only its owner may connect: a
        // socket's mode at birth is the process's umask. Short names, because a socket's path is.
        let private = tempfile::Builder::new()
            .prefix(".p")
            .permissions(Permissions::from_mode(DIRECTORY_MODE))
            .tempdir_in(directory)
            .map_err(failed)?;
        let made = (|| {
            let at = private.path().join("s");
            let listener = StdUnixListener::bind(&at)?;
            fs::set_permissions(&at, Permissions::from_mode(SOCKET_MODE))?;
            let metadata = fs::symlink_metadata(&at)?;
            fs::rename(&at, path)?;
            Self::new(listener, path, FileId::from(&metadata))
        })();
        made.map_err(|source| BindError::Bind { path: path.to_owned(), source })
    }

    /// Goes on with a socket that the program before had bound, if its file is still the one at
    /// `path`; otherwise binds one there.
    pub async fn take_or_bind(
        path: &Path,
        taken: Option<(StdUnixListener, FileId)>,
    ) -> Result<Self, BindError> {
        match taken {
            Some((listener, file)) if FileId::of(path).is_ok_and(|found| found == file) => {
                let made = Self::new(listener, path, file);
                made.map_err(|source| BindError::Bind { path: path.to_owned(), source })
            }
            Some(_) | None => Self::bind(path).await,
        }
    }

    fn new(listener: StdUnixListener, path: &Path, id: FileId) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let file = SocketFile { path: path.to_owned(), id, stays: Arc::default() };
        Ok(Self { listener, file })
    }

    /// Copies the socket, for the program that goes on with it.
    pub fn copy(&self) -> io::Result<SocketCopy> {
        let listener = self.listener.as_fd().try_clone_to_owned()?;
        Ok(SocketCopy { listener, file: self.file.id, stays: Arc::clone(&self.file.stays) })
    }

    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Answers calls until the drain stops it, then lets those under way end. The socket's file
    /// goes first.
    pub async fn serve(self, admin: Arc<Admin>, drain: DrainSignal) {
        let limits = Limits {
            max_connections: MAX_CONNECTIONS,
            when_full: WhenFull::Wait,
            head_timeout: READ_TIMEOUT,
            idle_timeout: READ_TIMEOUT,
            write_timeout: READ_TIMEOUT,
            max_request_bytes: MAX_CALL_BYTES,
            max_reading_bytes: MAX_READING_BYTES,
            ..Limits::default()
        };
        let calls = Calls { admin, bodies: BodyReader::new(&limits) };
        if let Err(error) = pillarbox_http::serve(self, calls, limits, drain).await {
            error!(%error, "the administration socket ended");
        }
    }
}

impl Listener for Socket {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.stays.load(Ordering::SeqCst) {
            return;
        }
        // A successor may have put its own in this place.
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| FileId::from(&found) == self.id);
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
    let connected = UnixStream::connect(path).await.map_err(|error| error.kind());
    !matches!(connected, Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
}

/// Handler of the socket's requests.
struct Calls {
    admin: Arc<Admin>,
    bodies: BodyReader<()>,
}

impl Handler for Calls {
    async fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        _: &Connection,
    ) -> Response<ResponseBody> {
        self.answer(request).await.unwrap_or_else(|error| {
            debug!(request_id = %id, status = error.status.as_u16(), error.code, "refused");
            error.into_response().map(ResponseBody::from)
        })
    }
}

impl Calls {
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, ErrorAnswer<'static>> {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return Err(Rejection::MethodNotAllowed { allow: "POST" }.answer());
        }
        let document = self.bodies.read((), body).await.map_err(|error| error.answer())?;
        let name = head.uri.path().trim_start_matches('/');
        self.make(name, &document).await.map_err(|fault| answer_of(name, fault))
    }

    /// Makes the call of a name.
    async fn make(&self, name: &str, document: &[u8]) -> Result<Response<ResponseBody>, CallFault> {
        if name == backup::NAME {
            let body = backup::begin(&self.admin).await.map_err(CallFault::Refused)?;
            return Ok(Response::new(body));
        }
        // By hand, a call without fields needs no body.
        let document = if document.is_empty() { b"{}" } else { document };
        let answer = self.admin.make(name, document).await?;
        if answer.len() > MAX_ANSWER_BYTES {
            let message = "the answer is too long to be sent; ask for less";
            return Err(CallFault::Refused(Refusal::new(message)));
        }
        let mut response = Response::new(Full::<Bytes>::from(answer).into());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        Ok(response)
    }
}

fn answer_of(name: &str, fault: CallFault) -> ErrorAnswer<'static> {
    let (status, code, problem) = match fault {
        CallFault::Unknown => {
            (StatusCode::NOT_FOUND, "UnknownCall", format!("does not know the call {name}"))
        }
        CallFault::Invalid(error) => {
            let problem = format!("does not understand this call {name} ({error})");
            (StatusCode::BAD_REQUEST, "InvalidCall", problem)
        }
        CallFault::Refused(Refusal { message }) => {
            return failed(StatusCode::UNPROCESSABLE_ENTITY, "Refused", message);
        }
    };
    let version = env!("CARGO_PKG_VERSION");
    let message = format!(
        "the service, version {version}, {problem}; if pillarbox was upgraded, restart the service; \
         otherwise run the command with version {version}"
    );
    failed(status, code, message)
}

fn failed(status: StatusCode, code: &'static str, message: String) -> ErrorAnswer<'static> {
    ErrorAnswer { status, code, message: message.into(), field: None, header: None }
}
