//! The client's side of the administration socket.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::HOST;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::backup::{self, BackupBegins, LENGTH_BYTES};
use crate::{Call, Identify, MAX_ANSWER_BYTES, MAX_CALL_BYTES, Refusal};
use pillarbox_store::{Chunk, NotAChunk};

/// Time limit of an answer: SES's calls wait for the token bucket, and a listing may read much.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(2);
/// Error codes of a service that does not know a call, or not as this version makes it.
const OTHER_VERSION: [&str; 2] = ["UnknownCall", "InvalidCall"];

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "there is no socket {}; is the service running, and does it use this path? To reach a \
         `pillarbox dev`, paste the lines with `export` that it printed", path.display()
    )]
    Absent { path: PathBuf },
    /// Nothing listens: the socket is left over from a process that has ended.
    #[error("nothing listens on the socket {}: its service has ended", path.display())]
    Refused { path: PathBuf },
    #[error(
        "this user may not use the socket {}; run the command as the service's user or as root",
        path.display()
    )]
    Denied { path: PathBuf },
    #[error(
        "the service at {} works on {}, but the configuration names the data directory {}; correct \
         admin_socket or data_dir, or reach that service with --socket {}",
        path.display(), serves.display(), configured.display(), path.display()
    )]
    OtherService { path: PathBuf, serves: PathBuf, configured: PathBuf },
    #[error("the service at {} does not say which data it works on: {source}", path.display())]
    Silent { path: PathBuf, source: CallError },
    #[error("the socket {} cannot be used: {source}; is the path right?", path.display())]
    Other { path: PathBuf, source: io::Error },
}

/// Reason why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The service does not know such a call, because it is of another version.
    #[error("{0}")]
    OtherVersion(String),
    #[error("the service no longer answers at its socket: {0}; the command was not sent")]
    Gone(io::Error),
    #[error("the command is longer than {MAX_CALL_BYTES} bytes; split it into several")]
    TooLong,
    #[error(
        "the service has not answered for {} s; it may still do what the command asked",
        ANSWER_TIMEOUT.as_secs()
    )]
    TimedOut,
    #[error(
        "the service closed the connection; it may or may not have done what the command asked"
    )]
    Ended,
    #[error(
        "the connection to the service broke: {0}; the service may or may not have done what the \
         command asked"
    )]
    Broken(hyper::Error),
    #[error(
        "the service's answer cannot be read ({0}); run the command with the same version of \
         pillarbox as the service"
    )]
    Unreadable(String),
    #[error("the service's backup cannot be read: {0}")]
    NotAChunk(#[from] NotAChunk),
}

impl ConnectError {
    /// True if a service is there and is of a version that does not know what it is asked.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Silent { source: CallError::OtherVersion(_), .. })
    }
}

impl From<hyper::Error> for CallError {
    fn from(error: hyper::Error) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        let is_cut = source.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof);
        if error.is_parse() {
            Self::Unreadable(error.to_string())
        } else if is_cut || error.is_incomplete_message() || error.is_canceled() {
            Self::Ended
        } else {
            Self::Broken(error)
        }
    }
}

impl From<serde_json::Error> for CallError {
    fn from(error: serde_json::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}

/// Client of a running service. Each call has a connection of its own, so that a long command does
/// not delay another one.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
}

/// Backup that is being read.
#[derive(Debug)]
pub struct Backup {
    pub rows: u64,
    body: Incoming,
    read: BytesMut,
    // Ends once the body is read or dropped.
    _connection: JoinSet<()>,
}

impl Client {
    /// Reaches the service at the socket `path`.
    pub async fn connect(path: &Path) -> Result<Self, ConnectError> {
        let path = path.to_owned();
        match UnixStream::connect(&path).await {
            Ok(_) => Ok(Self { path }),
            Err(source) => Err(match source.kind() {
                io::ErrorKind::NotFound => ConnectError::Absent { path },
                io::ErrorKind::ConnectionRefused => ConnectError::Refused { path },
                io::ErrorKind::PermissionDenied => ConnectError::Denied { path },
                _ => ConnectError::Other { path, source },
            }),
        }
    }

    /// Reaches the service at the socket `path`, which must work on `data_dir`.
    pub async fn connect_to(path: &Path, data_dir: &Path) -> Result<Self, ConnectError> {
        let client = Self::connect(path).await?;
        match client.call(&Identify {}).await {
            Ok(service) if service.works_on(data_dir) => Ok(client),
            Ok(service) => Err(ConnectError::OtherService {
                path: path.to_owned(),
                serves: service.data_dir,
                configured: data_dir.to_owned(),
            }),
            Err(source) => Err(ConnectError::Silent { path: path.to_owned(), source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a call, and waits for its answer.
    pub async fn call<C: Call>(&self, call: &C) -> Result<C::Answer, CallError> {
        let document = serde_json::to_vec(call).expect("a call has no map with other keys");
        let answer = async {
            let (response, _connection) = self.send(C::NAME, document).await?;
            read(response).await
        };
        let answer = timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| CallError::TimedOut)??;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Begins a backup of everything that is stored.
    pub async fn backup(&self) -> Result<Backup, CallError> {
        let (response, connection) = timeout(ANSWER_TIMEOUT, self.send(backup::NAME, Vec::new()))
            .await
            .map_err(|_| CallError::TimedOut)??;
        if response.status() != StatusCode::OK {
            let other = read(response).await.map(|_| "it is not a backup".to_owned())?;
            return Err(CallError::Unreadable(other));
        }
        let body = response.into_body();
        let mut backup = Backup { rows: 0, body, read: BytesMut::new(), _connection: connection };
        let begins: BackupBegins = match backup.next().await? {
            Some(part) => serde_json::from_slice(&part)?,
            None => return Err(CallError::Ended),
        };
        if begins.version != env!("CARGO_PKG_VERSION") {
            return Err(CallError::Unreadable(format!("version {}", begins.version)));
        }
        backup.rows = begins.rows;
        Ok(backup)
    }

    /// Sends a call; the connection lives with the second part of the result.
    async fn send(
        &self,
        name: &str,
        document: Vec<u8>,
    ) -> Result<(Response<Incoming>, JoinSet<()>), CallError> {
        if document.len() > MAX_CALL_BYTES {
            return Err(CallError::TooLong);
        }
        let stream = UnixStream::connect(&self.path).await.map_err(CallError::Gone)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async {
            // The caller that waits for the answer learns of a failure.
            let _ = connection.await;
        });
        let request = Request::post(format!("/{name}"))
            .header(HOST, "localhost")
            .body(Full::<Bytes>::from(document))
            .expect("a call's name is a path");
        Ok((sender.send_request(request).await?, driver))
    }
}

/// Reads an answer, or why there is none.
async fn read(response: Response<Incoming>) -> Result<Bytes, CallError> {
    #[derive(Deserialize)]
    struct Failed {
        error: Failure,
    }
    #[derive(Deserialize)]
    struct Failure {
        code: String,
        message: String,
    }
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => (*error).into(),
        Err(error) => CallError::Unreadable(error.to_string()),
    })?;
    let body = body.to_bytes();
    if status == StatusCode::OK {
        return Ok(body);
    }
    let Failure { code, message } = serde_json::from_slice::<Failed>(&body)?.error;
    if OTHER_VERSION.contains(&&*code) {
        return Err(CallError::OtherVersion(message));
    }
    Err(Refusal::new(message).into())
}

impl Backup {
    /// The next part; `None` after the last.
    pub async fn next_part(&mut self) -> Result<Option<Chunk>, CallError> {
        let part = self.next().await?;
        Ok(part.map(|part| Chunk::from_bytes(part.into())).transpose()?)
    }

    async fn next(&mut self) -> Result<Option<BytesMut>, CallError> {
        match self.take(LENGTH_BYTES).await?.get_u32() as usize {
            0 => Ok(None),
            length if length > Chunk::MAX_BYTES => Err(NotAChunk.into()),
            length => self.take(length).await.map(Some),
        }
    }

    async fn take(&mut self, length: usize) -> Result<BytesMut, CallError> {
        while self.read.len() < length {
            let frame = timeout(ANSWER_TIMEOUT, self.body.frame()).await;
            let frame = frame.map_err(|_| CallError::TimedOut)?.ok_or(CallError::Ended)??;
            self.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        }
        Ok(self.read.split_to(length))
    }
}
