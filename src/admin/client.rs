//! The client's side of the administration socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::admin::line::{self, Line};
use crate::admin::wire::{MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, Request, Response};
use crate::store::{Chunk, NotAChunk};

/// How long a response may take: SES's calls wait their turn, and a listing may read much.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(2);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no such socket.
    #[error("there is no socket {}; is the service running, and does it use this path?", path.display())]
    Absent {
        /// The path.
        path: PathBuf,
    },
    /// Nobody listens: the socket is left over from a process that is gone.
    #[error("nobody answers at the socket {}; is the service running?", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
    },
    /// The socket is another user's.
    #[error(
        "the socket {} may not be used by this user; run the command as the service's user or as \
         root", path.display()
    )]
    Denied {
        /// The path.
        path: PathBuf,
    },
    /// Another service listens there.
    #[error(
        "the service at {} works on {}, but the configuration names the data directory {}; correct \
         admin_socket or data_dir, or reach that service with --socket {}",
        path.display(), serves.display(), configured.display(), path.display()
    )]
    OtherService {
        /// The path.
        path: PathBuf,
        /// The service's data directory.
        serves: PathBuf,
        /// The data directory of the configuration.
        configured: PathBuf,
    },
    /// The service does not say what it works on.
    #[error("the service at {} does not say which data it works on: {source}", path.display())]
    Silent {
        /// The path.
        path: PathBuf,
        /// Why there is no answer.
        source: AskError,
    },
    /// Something else is wrong.
    #[error("the socket {} cannot be used: {source}; is the path right?", path.display())]
    Other {
        /// The path.
        path: PathBuf,
        /// What.
        source: io::Error,
    },
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The request is longer than the service reads.
    #[error("the request is longer than {MAX_REQUEST_BYTES} bytes; send it in parts")]
    TooLong,
    /// None came in time.
    #[error(
        "the service has not answered for {} s; what was asked may yet be done",
        RESPONSE_TIMEOUT.as_secs()
    )]
    TimedOut,
    /// The service ended the connection.
    #[error("the service ended the connection; what was asked may or may not have been done")]
    Ended,
    /// The connection broke.
    #[error("the connection to the service broke: {0}; what was asked may or may not be done")]
    Broken(#[from] io::Error),
    /// The response is not one that this version knows.
    #[error(
        "the service's answer cannot be read ({0}); use the pillarbox of the version that runs"
    )]
    Unreadable(serde_json::Error),
    /// What came is no part of a backup.
    #[error("the service's backup cannot be read: {0}")]
    NotAChunk(#[from] NotAChunk),
}

/// A connection to a running service.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the socket at `path`.
    pub async fn connect(path: &Path) -> Result<Self, ConnectError> {
        let path = path.to_owned();
        match UnixStream::connect(&path).await {
            Ok(stream) => Ok(Self { stream: BufReader::new(stream) }),
            Err(source) => Err(match source.kind() {
                io::ErrorKind::NotFound => ConnectError::Absent { path },
                io::ErrorKind::ConnectionRefused => ConnectError::Refused { path },
                io::ErrorKind::PermissionDenied => ConnectError::Denied { path },
                _ => ConnectError::Other { path, source },
            }),
        }
    }

    /// Connects to the socket at `path`, whose service must work on `data_dir`.
    pub async fn connect_to(path: &Path, data_dir: &Path) -> Result<Self, ConnectError> {
        let mut client = Self::connect(path).await?;
        match client.ask(&Request::Identity {}).await {
            Ok(Response::Identity(service)) if !service.works_on(data_dir) => {
                Err(ConnectError::OtherService {
                    path: path.to_owned(),
                    serves: service.data_dir,
                    configured: data_dir.to_owned(),
                })
            }
            // A service of an earlier version does not know the request, and cannot be checked.
            Ok(_) => Ok(client),
            Err(source) => Err(ConnectError::Silent { path: path.to_owned(), source }),
        }
    }

    /// The next part of a backup that [`Request::Backup`] began; `None` after the last.
    pub async fn next_part(&mut self) -> Result<Option<Chunk>, AskError> {
        let part = async {
            let length = self.stream.read_u32().await.map_err(ended)?;
            if length == 0 {
                return Ok(None);
            }
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > Chunk::MAX_BYTES {
                return Err(NotAChunk.into());
            }
            let mut bytes = vec![0; length];
            self.stream.read_exact(&mut bytes).await.map_err(ended)?;
            Ok(Some(Chunk::from_bytes(bytes)?))
        };
        timeout(RESPONSE_TIMEOUT, part).await.map_err(|_| AskError::TimedOut)?
    }

    /// Asks, and waits for the response.
    pub async fn ask(&mut self, request: &Request) -> Result<Response, AskError> {
        let mut line = serde_json::to_vec(request).expect("a request has no map with other keys");
        line.push(b'\n');
        if line.len() > MAX_REQUEST_BYTES {
            return Err(AskError::TooLong);
        }
        let answered = timeout(RESPONSE_TIMEOUT, async {
            self.stream.write_all(&line).await?;
            line::read(&mut self.stream, MAX_RESPONSE_BYTES).await
        });
        match answered.await.map_err(|_| AskError::TimedOut)?? {
            Line::Whole(line) => serde_json::from_slice(&line).map_err(AskError::Unreadable),
            Line::TooLong | Line::End => Err(AskError::Ended),
        }
    }
}

/// The end of the connection within a part is the service's, not the network's.
fn ended(error: io::Error) -> AskError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => AskError::Ended,
        _ => AskError::Broken(error),
    }
}
