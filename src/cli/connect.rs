//! Connection to the handler of calls: the running service over its socket, or, if none runs, the
//! same handler on the data file.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::error::CliError;
use crate::output::Progress;
use pillarbox_admin::client::{CallError, Client, ConnectError};
use pillarbox_admin::{Admin, Call, Identify};
use pillarbox_config::{self as config, Config, StoreConfig};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::{Clock, ConfirmedBy};
use pillarbox_store::{FILE_NAME, FileCopy, OpenError, OwnFiles, Store};

/// Heading of these options in a command's help.
const HEADING: &str = "Which service";

/// The options of all administration commands.
#[derive(Debug, Args)]
pub(super) struct Connection {
    /// Configuration file of the service, which names its socket and its data directory. Without
    /// the option, `PILLARBOX_ADMIN_SOCKET` and `PILLARBOX_DATA_DIR` name them, or else the
    /// defaults apply.
    // Not by `next_help_heading`, which would take in the command's own arguments that follow.
    #[arg(long, value_name = "FILE", global = true, help_heading = HEADING)]
    config: Option<PathBuf>,
    /// Socket of the running service. With it, the command never opens the data file.
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    socket: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long, global = true, help_heading = HEADING)]
    json: bool,
}

/// Commands that make calls, as a group of the command line.
#[derive(Debug, Args)]
pub(super) struct Group<C: Subcommand> {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: C,
}

/// Commands that make calls.
pub(super) trait Commands: Subcommand {
    async fn run(self, session: &Session) -> Result<String, CliError>;
}

impl<C: Commands> Group<C> {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let session = self.connection.open().await?;
        self.command.run(&session).await
    }
}

/// For whom to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    People,
    Json,
}

impl Format {
    pub(super) fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::People }
    }

    /// Output for an answer: a line of JSON, or the text that `people` makes of it.
    pub(super) fn show<T: Serialize>(
        self,
        answer: &T,
        people: impl FnOnce(&T) -> String,
    ) -> String {
        match self {
            Self::People => people(answer),
            Self::Json => {
                let mut line =
                    serde_json::to_string(answer).expect("an answer's maps have text as keys");
                line.push('\n');
                line
            }
        }
    }
}

/// Process that answers the calls.
enum Backend {
    Service(Client),
    File(Box<Admin>),
}

/// A command's way to make calls and to print.
pub(super) struct Session {
    backend: Backend,
    pub(super) format: Format,
    /// The data directory that the configuration names; `None` if only a socket was given.
    data_dir: Option<PathBuf>,
    /// Options that name the same service to another command.
    pub(super) service: String,
}

/// Reason why a command has no service to ask, and the configuration of the one that could run.
struct NoService {
    connect: ConnectError,
    config: Box<Config>,
}

impl Connection {
    /// Finds the running service, and the data directory that the configuration names.
    async fn find(&self) -> Result<Result<(Client, Option<PathBuf>), NoService>, CliError> {
        if let Some(socket) = &self.socket {
            return Ok(Ok((Client::connect(socket).await?, None)));
        }
        let config = load(self.config.as_deref())?;
        match Client::connect_to(&config.admin_socket, &config.data_dir).await {
            Ok(client) => Ok(Ok((client, Some(config.data_dir)))),
            Err(connect @ (ConnectError::Absent { .. } | ConnectError::Refused { .. })) => {
                Ok(Err(NoService { connect, config: Box::new(config) }))
            }
            // The service may well be running: its file is not to be touched.
            Err(error) => Err(error.into()),
        }
    }

    /// The files of the service that the options name, whether it runs or not.
    pub(super) async fn own_files(&self) -> Result<Option<OwnFiles>, CliError> {
        if self.socket.is_some() {
            return self.open().await?.own_files().await;
        }
        let data_dir = load(self.config.as_deref())?.data_dir;
        Ok(Some(OwnFiles::in_directory(data_dir)))
    }

    /// The data directory, once it is certain that no service answers.
    pub(super) async fn idle_directory(&self) -> Result<PathBuf, CliError> {
        if self.socket.is_some() {
            let rule = "this command works on the data file: give --config instead of --socket";
            return Err(CliError::Usage(rule.to_owned()));
        }
        match self.find().await? {
            Ok((client, _)) => Err(CliError::Refused(format!(
                "a service answers at {}; stop it first, and start it again afterwards",
                client.path().display()
            ))),
            Err(none) => Ok(none.directory()?.1),
        }
    }

    /// Opens the data file, once it is certain that no service answers; gives its directory too.
    pub(super) async fn open_idle(&self) -> Result<(Session, PathBuf), CliError> {
        let directory = self.idle_directory().await?;
        let backend = Backend::File(open_directory(&directory).await?);
        Ok((self.session(backend, Some(directory.clone())), directory))
    }

    pub(super) fn format(&self) -> Format {
        Format::of(self.json)
    }

    /// The options that were given to name the service, as a shell reads them.
    fn service(&self) -> String {
        let given = [("config", &self.config), ("socket", &self.socket)].into_iter();
        given
            .filter_map(|(name, path)| Some(format!(" --{name} {}", quoted(path.as_deref()?))))
            .collect()
    }

    fn session(&self, backend: Backend, data_dir: Option<PathBuf>) -> Session {
        Session { backend, format: self.format(), data_dir, service: self.service() }
    }

    /// Finds the running service, and leaves the data file alone.
    pub(super) async fn open_service(&self) -> Result<Session, CliError> {
        let (client, data_dir) = self.find().await?.map_err(|none| none.connect)?;
        Ok(self.session(Backend::Service(client), data_dir))
    }

    /// Finds who answers the calls.
    pub(super) async fn open(&self) -> Result<Session, CliError> {
        if self.socket.is_some() && self.config.is_some() {
            let rule = "--socket and --config each name a service; give one of them";
            return Err(CliError::Usage(rule.to_owned()));
        }
        match self.find().await? {
            Ok((client, data_dir)) => Ok(self.session(Backend::Service(client), data_dir)),
            Err(none) => self.open_file(none).await,
        }
    }

    /// Opens the data file. That its lock is free is the proof that no service runs.
    async fn open_file(&self, none: NoService) -> Result<Session, CliError> {
        let proxy = none.config.webhooks.proxy.clone();
        let (socket, directory) = none.directory()?;
        let mut admin = open_directory(&directory).await.map_err(|error| match error {
            CliError::Open { file, source: OpenError::InUse } => CliError::InUse { file, socket },
            error => error,
        })?;
        if self.format() == Format::People {
            // To standard error: what is printed is the command's answer alone.
            let file = directory.join(FILE_NAME);
            let note = format!("no service is running; working on {}", file.display());
            let _ = writeln!(io::stderr(), "pillarbox: {note}");
        }
        admin.webhooks_proxy = proxy;
        Ok(self.session(Backend::File(admin), Some(directory)))
    }
}

impl NoService {
    /// The socket and the data directory of a service that is not running.
    fn directory(self) -> Result<(PathBuf, PathBuf), CliError> {
        let Self { connect, config } = self;
        // Made here, it would belong to the wrong user.
        if config.store != StoreConfig::Redb {
            Err(CliError::NoNode(connect))
        } else if config.data_dir.is_dir() {
            Ok((config.admin_socket, config.data_dir))
        } else {
            Err(CliError::NoData { connect, directory: config.data_dir })
        }
    }
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if is_plain { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Reads the configuration. Refuses if a file that was named and a variable mean two services: the
/// command would read or change the wrong one.
pub(super) fn load(path: Option<&Path>) -> Result<Config, CliError> {
    match Config::load_and_compare(path, config::environment())? {
        (config, None) => Ok(config),
        (_, Some(overruled)) => {
            let advice = "unset the variable, or leave out --config";
            Err(CliError::Usage(format!("{overruled}: {advice}")))
        }
    }
}

/// Opens the data file of a directory that no service has open.
pub(super) fn observe(directory: &Path, now: Timestamp) -> Result<Store, CliError> {
    let open = |source| CliError::Open { file: directory.join(FILE_NAME), source };
    Store::observe(directory, now).map_err(open)
}

async fn open_directory(directory: &Path) -> Result<Box<Admin>, CliError> {
    let clock = Clock::system();
    let store = observe(directory, clock.now())?;
    // If the clock is in doubt, windows are judged by the file's time stamp.
    if let (Ok(record), Ok(newest)) = (store.time_record().await, store.newest().await) {
        clock.open(record, newest, ConfirmedBy::Nobody);
    }
    Ok(Box::new(Admin::on_file(store, clock)))
}

impl Session {
    /// Makes a call; a refusal is an error.
    pub(super) async fn call<C: Call>(&self, call: C) -> Result<C::Answer, CliError> {
        match &self.backend {
            Backend::Service(client) => Ok(client.call(&call).await?),
            Backend::File(admin) => Ok(call.answer(admin).await?),
        }
    }

    /// Makes a call, and gives what to print of its answer.
    pub(super) async fn run<C: Call>(
        &self,
        call: C,
        people: impl FnOnce(&C::Answer) -> String,
    ) -> Result<String, CliError> {
        Ok(self.show(&self.call(call).await?, people))
    }

    /// The files that no command may write to; `None` if the service does not report their paths.
    pub(super) async fn own_files(&self) -> Result<Option<OwnFiles>, CliError> {
        let directory = match (&self.data_dir, &self.backend) {
            (Some(directory), _) => Some(directory.clone()),
            (None, Backend::Service(client)) => match client.call(&Identify {}).await {
                Ok(service) => Some(service.data_dir),
                Err(CallError::Refused(_)) => None,
                Err(error) => return Err(error.into()),
            },
            (None, Backend::File(_)) => None,
        };
        Ok(directory.map(OwnFiles::in_directory))
    }

    /// Copies everything that is stored, and shows how far it is; gives the number of rows that
    /// the copy has to have.
    pub(super) async fn copy_to(&self, copy: &mut FileCopy) -> Result<u64, CliError> {
        const WHAT: &str = "copying";
        match &self.backend {
            Backend::Service(client) => {
                let mut backup = client.backup().await?;
                let progress = Progress::of(backup.rows, WHAT);
                while let Some(part) = backup.next_part().await? {
                    progress.at(copy.add(&part)?);
                }
                Ok(backup.rows)
            }
            Backend::File(admin) => {
                let snapshot = admin.snapshot().await?;
                let rows = snapshot.rows();
                let progress = Progress::of(rows, WHAT);
                let mut copied = Ok(0);
                let read = snapshot.read(|part| {
                    copied = copy.add(&part);
                    copied.as_ref().map_or(ControlFlow::Break(()), |rows| {
                        progress.at(*rows);
                        ControlFlow::Continue(())
                    })
                });
                copied?;
                read.map_err(|error| CliError::Refused(error.to_string()))?;
                Ok(rows)
            }
        }
    }

    pub(super) fn show<T: Serialize>(
        &self,
        answer: &T,
        people: impl FnOnce(&T) -> String,
    ) -> String {
        self.format.show(answer, people)
    }

    pub(super) fn is_on_file(&self) -> bool {
        matches!(self.backend, Backend::File(_))
    }
}
