//! Reaching the one who does it: the running service over its socket, or, where none runs, the
//! same handler on the data file.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::admin::Admin;
use crate::admin::client::{Client, ConnectError};
use crate::admin::wire::{Request, Response};
use crate::cli::error::CliError;
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::store::{FILE_NAME, OpenError, Store};

/// The options of all administration commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which service")]
pub(super) struct Reach {
    /// The configuration file of the service: names its socket and its data directory.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// The socket of the running service; the data file is left alone.
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long, global = true)]
    json: bool,
}

/// For whom to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    People,
    Json,
}

/// Who does what is asked.
enum Backend {
    Service(Client),
    File(Admin),
}

/// A command's way to ask and to print.
pub(super) struct Session {
    backend: Backend,
    format: Format,
}

impl Reach {
    /// Finds who does what is asked.
    pub(super) async fn open(self) -> Result<Session, CliError> {
        let format = if self.json { Format::Json } else { Format::People };
        let backend = match (self.socket, self.config) {
            (Some(_), Some(_)) => {
                let rule = "--socket and --config each name a service; give one of them";
                return Err(CliError::Usage(rule.to_owned()));
            }
            (Some(socket), None) => Backend::Service(Client::connect(&socket).await?),
            (None, config) => {
                let config = Config::load(config.as_deref(), config::environment())?;
                match Client::connect(&config.admin_socket).await {
                    Ok(client) => Backend::Service(client),
                    Err(connect @ (ConnectError::Absent { .. } | ConnectError::Refused { .. })) => {
                        Backend::File(open_file(&config, connect, format)?)
                    }
                    // The service may well be running: its file is not to be touched.
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(Session { backend, format })
    }
}

/// Opens the data file. That its lock is free is the proof that no service runs.
fn open_file(config: &Config, connect: ConnectError, format: Format) -> Result<Admin, CliError> {
    let directory = &config.data_dir;
    // Made here, it would belong to the wrong user.
    if !directory.is_dir() {
        return Err(CliError::NoData { connect, directory: directory.clone() });
    }
    let file = directory.join(FILE_NAME);
    let clock = Clock::system();
    match Store::open(directory, clock.now()) {
        Ok((store, _)) => {
            if format == Format::People {
                // To standard error: what is printed is the command's answer alone.
                let note = format!("no service runs; working on {}", file.display());
                let _ = writeln!(io::stderr(), "pillarbox: {note}");
            }
            Ok(Admin::on_file(store, clock))
        }
        Err(OpenError::InUse) => Err(CliError::InUse { file, socket: config.admin_socket.clone() }),
        Err(source) => Err(CliError::Open { file, source }),
    }
}

impl Session {
    /// Asks, and turns a refusal into an error.
    pub(super) async fn ask(&mut self, request: Request) -> Result<Response, CliError> {
        let response = match &mut self.backend {
            Backend::Service(client) => client.ask(&request).await?,
            Backend::File(admin) => admin.handle(request).await,
        };
        match response {
            Response::Refused(refusal) => Err(CliError::Refused(refusal.message)),
            other => Ok(other),
        }
    }

    /// Whether no service runs.
    pub(super) fn is_on_file(&self) -> bool {
        matches!(self.backend, Backend::File(_))
    }

    /// Whether a person reads what is printed.
    pub(super) fn is_for_people(&self) -> bool {
        self.format == Format::People
    }

    /// What to print of an answer: a line of JSON, or what `people` makes of it.
    pub(super) fn show<T: Serialize>(
        &self,
        answer: &T,
        people: impl FnOnce(&T) -> String,
    ) -> String {
        match self.format {
            Format::People => people(answer),
            Format::Json => {
                let mut line =
                    serde_json::to_string(answer).expect("an answer's maps have text as keys");
                line.push('\n');
                line
            }
        }
    }
}
