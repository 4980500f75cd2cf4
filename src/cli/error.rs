//! Reason why a command failed, and its exit code.

use std::io;
use std::path::PathBuf;

use pillarbox_admin::Refusal;
use pillarbox_admin::client::{CallError, ConnectError};
use pillarbox_admin::conditions::several;
use pillarbox_config::ConfigError;
use pillarbox_service::ServiceError;
use pillarbox_store::{ConnectError as StoreConnectError, CopyError, OpenError, RestoreError};
use pillarbox_webhooks::BadEndpoint;

/// Exit code for a failure.
const EXIT_FAILED: u8 = 1;
/// Exit code of a service whose stop ended messages as `body_lost_on_restart`.
const EXIT_BODIES_LOST: u8 = 71;
/// Exit code if the service is to be started again, because it is of a version that does not know the
/// call: `EX_TEMPFAIL` of sysexits.h.
const EXIT_START_AGAIN: u8 = 75;
/// Exit code for a wrong configuration: `EX_CONFIG` of sysexits.h.
const EXIT_CONFIGURATION: u8 = 78;

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(CallError),
    #[error("{0}")]
    Refused(String),
    #[error(
        "the data file {} is in use, so a service is running, but the socket {} does not answer; \
         give the socket of that service with --socket or --config", file.display(),
        socket.display()
    )]
    InUse { file: PathBuf, socket: PathBuf },
    #[error(
        "{connect}. There is no data directory {} to work on either; is --config right?",
        directory.display()
    )]
    NoData { connect: ConnectError, directory: PathBuf },
    #[error(
        "{0}. The store is on PostgreSQL, so commands go to a running node; start this one, or run \
         the command on the machine of a running node"
    )]
    NoNode(ConnectError),
    #[error("no service is running; the data file {} cannot be opened: {source}", file.display())]
    Open { file: PathBuf, source: OpenError },
    #[error(
        "{} failed with body_lost_on_restart, because the service stopped before it sent {}. After \
         the next start, list them with: pillarbox message list --status failed",
        several(*messages, "message"), if *messages == 1 { "it" } else { "them" }
    )]
    BodiesLost { messages: u64 },
    /// A part is not as it should be, or was not done.
    #[error("{what}")]
    Reported {
        /// The answer, to be printed.
        report: String,
        what: String,
    },
    #[error(
        "{} is the {name} of the service in {}; name another file", file.display(),
        directory.display()
    )]
    OwnFile { file: PathBuf, name: &'static str, directory: PathBuf },
    #[error("{0}{advice}", advice = advice(.0))]
    Copy(#[from] CopyError),
    #[error("{0}")]
    Restore(#[from] RestoreError),
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// File that cannot be written, or its directory.
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot print: {0}")]
    Print(io::Error),
    /// A file that the command line names cannot be used.
    #[error("{} cannot be used: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    #[error("{0}")]
    Run(#[from] ServiceError),
}

impl CliError {
    /// The exit code that says it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => super::EXIT_USAGE,
            Self::Configuration(_)
            | Self::Run(
                ServiceError::Alerts(BadEndpoint::Url(_))
                | ServiceError::Store { source: OpenError::MadeByDev, .. }
                | ServiceError::Connect(StoreConnectError::MadeByDev),
            ) => EXIT_CONFIGURATION,
            Self::BodiesLost { .. } => EXIT_BODIES_LOST,
            Self::Call(CallError::OtherVersion(_)) => EXIT_START_AGAIN,
            Self::Connect(error) if error.is_other_version() => EXIT_START_AGAIN,
            _ => EXIT_FAILED,
        }
    }
}

impl From<CallError> for CliError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => refusal.into(),
            error => Self::Call(error),
        }
    }
}

impl From<Refusal> for CliError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.message)
    }
}

/// Advice if a copy could not be made.
fn advice(error: &CopyError) -> &'static str {
    match error {
        CopyError::Exists { .. } => "; choose another name, or replace it with --force",
        CopyError::Write { .. } | CopyError::Incomplete { .. } => "",
    }
}
