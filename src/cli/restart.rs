//! `restart`: the service executes the installed program in its own place.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::connect::{Connection, Session};
use crate::error::CliError;
use pillarbox_admin::client::CallError;
use pillarbox_admin::conditions::several;
use pillarbox_admin::restart::{RestartBegun, RunningProgram};
use pillarbox_admin::{AskRunningProgram, Restart as Begin};

/// Longest time until the next program answers: it may have much to read.
const PATIENCE: Duration = Duration::from_mins(5);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct Restart {
    #[command(flatten)]
    connection: Connection,
}

/// A restart that is over.
#[derive(Serialize)]
struct Restarted {
    from: RunningProgram,
    to: RunningProgram,
}

impl Restart {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let session = self.connection.open_service().await?;
        let begun = session.call(Begin {}).await?;
        let to = next_program(&session, &begun).await?;
        Ok(session.show(&Restarted { from: begun.from, to }, shown))
    }
}

/// Waits until another program answers than the one that began the restart.
async fn next_program(session: &Session, begun: &RestartBegun) -> Result<RunningProgram, CliError> {
    let end = Instant::now() + PATIENCE;
    loop {
        match session.call(AskRunningProgram {}).await {
            Ok(program) if program.start != begun.from.start => return Ok(program),
            // Nothing listens: the next program has ended. Until then, callers wait in the socket.
            Err(CliError::Call(CallError::Gone(_))) if !begun.is_supervised => {
                return Err(CliError::Refused(format!(
                    "the program of version {} ended before it answered; its log says why. Start \
                     the service again",
                    begun.to_version
                )));
            }
            Ok(_)
            | Err(CliError::Call(CallError::Gone(_) | CallError::Ended | CallError::Broken(_))) => {
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= end {
            return Err(CliError::Refused(format!(
                "the program of version {} has not answered for {} s; see the service's log",
                begun.to_version,
                PATIENCE.as_secs()
            )));
        }
        sleep(PAUSE).await;
    }
}

fn shown(restarted: &Restarted) -> String {
    let Restarted { from, to } = restarted;
    let versions = if from.version == to.version {
        format!("version {}", to.version)
    } else {
        format!("version {} in place of {}", to.version, from.version)
    };
    let process = if from.process == to.process {
        format!("the process is still {}", to.process)
    } else {
        format!("the process was {} and is now {}", from.process, to.process)
    };
    format!(
        "restarted: {versions} answers; {process}; {} pending. Changes to the unit, its \
         environment file or its credentials need systemctl restart\n",
        several(to.pending_messages as u64, "message")
    )
}
