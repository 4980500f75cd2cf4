//! Why a command failed, and the exit code that says so.

use std::io;
use std::path::PathBuf;

use crate::admin::Refusal;
use crate::admin::client::{CallError, ConnectError};
use crate::admin::conditions::several;
use crate::config::ConfigError;
use crate::service::ServiceError;
use crate::store::{ConnectError as StoreConnectError, CopyError, OpenError, RestoreError};

/// Exit code for a failure.
const EXIT_FAILED: u8 = 1;
/// Exit code of a service whose stop ended messages as `body_lost_on_restart`.
const EXIT_BODIES_LOST: u8 = 71;
/// Exit code if the service is to be started again, because it is of a version that does not know the
/// call: `EX_TEMPFAIL` of sysexits.h.
const EXIT_START_AGAIN: u8 = 75;
/// Exit code for a wrong configuration: `EX_CONFIG` of sysexits.h.
const EXIT_CONFIGURATION: u8 = 78;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// An argument breaks a rule.
    #[error("{0}")]
    Usage(String),
    /// The configuration is wrong.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// The service's socket cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The service gave no answer.
    #[error(transparent)]
    Call(CallError),
    /// It was not done.
    #[error("{0}")]
    Refused(String),
    /// The set-up has faults, which have been printed.
    #[error("{faults} of the checks found something that keeps it from working")]
    Unwell {
        /// How many.
        faults: usize,
    },
    /// A service runs, and not at this socket.
    #[error(
        "the service runs, for its data file {} is in use, but its socket {} does not answer; \
         name the socket that it was started with by --socket or --config", file.display(),
        socket.display()
    )]
    InUse {
        /// The data file.
        file: PathBuf,
        /// The socket that was tried.
        socket: PathBuf,
    },
    /// No service runs, and there is nothing to work on.
    #[error(
        "{connect}. There is no data directory {} to work on either; is --config right?",
        directory.display()
    )]
    NoData {
        /// Why the service was not asked.
        connect: ConnectError,
        /// The directory.
        directory: PathBuf,
    },
    /// No service runs here, and there is no file to work on.
    #[error(
        "{0}. The store is on PostgreSQL, so commands go to a running node; start this one, or run \
         the command where one runs"
    )]
    NoNode(ConnectError),
    /// No service runs, and its file cannot be opened.
    #[error("no service runs, and its data file {} cannot be opened: {source}", file.display())]
    Open {
        /// The data file.
        file: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// A service stopped, and messages failed by that.
    #[error(
        "{} failed with body_lost_on_restart, because the service stopped before it sent {}. After \
         the next start, list them with: pillarbox message list --status failed",
        several(*messages, "message"), if *messages == 1 { "it" } else { "them" }
    )]
    BodiesLost {
        /// How many messages.
        messages: u64,
    },
    /// The status was printed, and tells of something critical.
    #[error("{what}")]
    Critical {
        /// The status, to be printed.
        report: String,
        /// The reason.
        what: String,
    },
    /// A service runs that must not.
    #[error(
        "a service answers at {}; stop it first, and start it again afterwards", socket.display()
    )]
    Running {
        /// Its socket.
        socket: PathBuf,
    },
    /// The destination is a file of the service's own.
    #[error(
        "{} is the {name} of the service in {}; name another file", file.display(),
        directory.display()
    )]
    OwnFile {
        /// The path that was given.
        file: PathBuf,
        /// What it is.
        name: &'static str,
        /// The service's data directory.
        directory: PathBuf,
    },
    /// The destination is a link to nothing.
    #[error("{} is a link that leads nowhere; remove it, or name another file", file.display())]
    DeadLink {
        /// The link.
        file: PathBuf,
    },
    /// The destination's directory is missing.
    #[error(
        "there is no directory {}; create it, or name another file", directory.display()
    )]
    NoDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// The destination of a backup is no file.
    #[error("{} is not a regular file, which a backup needs; name another file", file.display())]
    NotAFile {
        /// The path that was given.
        file: PathBuf,
    },
    /// There is no copy.
    #[error("{source}{}", advice(source))]
    Copy {
        /// Why.
        #[from]
        source: CopyError,
    },
    /// A backup is not in place.
    #[error("{0}")]
    Restore(#[from] RestoreError),
    /// A backup would take the place of a data file.
    #[error("{0}; --replace puts the backup in its place, and keeps it under another name")]
    WouldReplace(RestoreError),
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which, or in which directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing more can be printed.
    #[error("cannot print: {0}")]
    Print(io::Error),
    /// A file that the command line names cannot be used.
    #[error("{} cannot be used: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Rows of a list were refused; which and why has been told.
    #[error(
        "{refused} rows were refused; {}",
        if *strict { "nothing was imported" } else { "put them right and import them again" }
    )]
    RowsRefused {
        /// How many.
        refused: usize,
        /// Whether the others had to stay out for that.
        strict: bool,
    },
    /// SES did not take addresses from its own list; which and why has been told.
    #[error(
        "{addresses} addresses may still be on SES's own list, while here all was done as told; put \
         that right and give the command again for them"
    )]
    NotClearedAtSes {
        /// How many.
        addresses: usize,
    },
    /// An import did not come to its end.
    #[error("{source}. {done} rows are in; import the list again for the rest")]
    ImportStopped {
        /// How many rows are durable.
        done: u64,
        /// Why it ended.
        source: Box<CliError>,
    },
    /// It was done in part.
    #[error("{open} of the steps above {} not done", if *open == 1 { "is" } else { "are" })]
    Incomplete {
        /// What was done, to be printed.
        report: String,
        /// How many steps were not.
        open: usize,
    },
    /// Nodes did not answer, so what they hold is not done.
    #[error("{}: {advice}", silent(nodes))]
    NodesWithoutAnswer {
        /// Their names.
        nodes: Vec<String>,
        /// Report of the others, to be printed.
        report: String,
        /// Advice on what they hold.
        advice: &'static str,
    },
    /// An endpoint did not take a test event; its answer has been printed.
    #[error("the endpoint {id} did not take the test event")]
    NotDelivered {
        /// Its number.
        id: u32,
        /// Its answer, to be printed.
        report: String,
    },
    /// The asynchronous runtime could not be started.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    /// The service, or the simulator, ended with an error.
    #[error("{0}")]
    Run(ServiceError),
}

impl CliError {
    /// The exit code that says it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => super::EXIT_USAGE,
            Self::Configuration(_)
            | Self::Run(
                ServiceError::Store { source: OpenError::MadeByDev, .. }
                | ServiceError::Connect(StoreConnectError::MadeByDev),
            ) => EXIT_CONFIGURATION,
            Self::BodiesLost { .. } => EXIT_BODIES_LOST,
            Self::Call(CallError::OtherVersion(_)) => EXIT_START_AGAIN,
            Self::Connect(error) if error.is_other_version() => EXIT_START_AGAIN,
            Self::Connect(_)
            | Self::Call(_)
            | Self::Refused(_)
            | Self::Unwell { .. }
            | Self::InUse { .. }
            | Self::NoData { .. }
            | Self::NoNode(_)
            | Self::Open { .. }
            | Self::Critical { .. }
            | Self::Running { .. }
            | Self::OwnFile { .. }
            | Self::DeadLink { .. }
            | Self::NoDirectory { .. }
            | Self::NotAFile { .. }
            | Self::Copy { .. }
            | Self::Restore(_)
            | Self::WouldReplace(_)
            | Self::Write { .. }
            | Self::Print(_)
            | Self::File { .. }
            | Self::RowsRefused { .. }
            | Self::NotClearedAtSes { .. }
            | Self::ImportStopped { .. }
            | Self::Incomplete { .. }
            | Self::NodesWithoutAnswer { .. }
            | Self::NotDelivered { .. }
            | Self::Runtime(_)
            | Self::Run(_) => EXIT_FAILED,
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

fn silent(nodes: &[String]) -> String {
    match nodes {
        [node] => format!("node {node} does not answer"),
        nodes => format!("nodes {} do not answer", nodes.join(", ")),
    }
}

/// What to do where a copy could not be made.
fn advice(error: &CopyError) -> &'static str {
    match error {
        CopyError::Exists { .. } => "; choose another name, or replace it with --force",
        CopyError::Write { .. } | CopyError::Incomplete { .. } => "",
    }
}
