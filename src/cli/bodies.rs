//! `bodies`: the bodies of pending messages.

use std::fmt::Write as _;

use clap::{Args, Subcommand};

use crate::confirmation::{Confirmation, Confirmed};
use crate::connect::Connection;
use crate::error::CliError;
use pillarbox_admin::bodies::{Bodies as Shown, BodiesDropped, Keeper};
use pillarbox_admin::{BodiesDrop, BodiesShow};

#[derive(Debug, Args)]
pub(super) struct Bodies {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Drop(Confirmed<BodiesDrop>),
}

impl Bodies {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let session = self.connection.open_service().await?;
        match self.command {
            None => session.run(BodiesShow {}, text).await,
            Some(Command::Drop(Confirmed { call, confirmation })) => {
                if (confirmation.dry_run || confirmation.asks())
                    && let shown = session.call(BodiesShow {}).await?
                    && let Some(why) = &shown.unreadable
                {
                    let said = format!(
                        "This discards unusable bodies of an earlier process: {why}. If they \
                         belong to another data directory, database or node, the messages there \
                         fail; otherwise, their messages have already failed."
                    );
                    if confirmation.dry_run {
                        return Ok(session.show(&shown, |_| format!("{said}\n")));
                    }
                    Confirmation::confirm(&said)?;
                } else if confirmation.dry_run {
                    return Ok(NONE_TO_DROP.to_owned());
                }
                session.run(call, dropped).await
            }
        }
    }
}

const NONE_TO_DROP: &str = "nothing to discard: the service manager keeps no unusable bodies\n";

fn dropped(answer: &BodiesDropped) -> String {
    let text = if answer.dropped {
        "discarded; from now on, the service manager keeps the bodies of this process\n"
    } else {
        NONE_TO_DROP
    };
    text.to_owned()
}

fn text(bodies: &Shown) -> String {
    let mut text = format!("bodies  {}\n", bodies.summary());
    let (bytes, memory) = (bodies.bytes, bodies.memory_bytes);
    let _ = writeln!(text, "bytes   {bytes} in bodies, {memory} of memory used for them");
    if let Some(oldest) = &bodies.oldest_at {
        let _ = writeln!(text, "oldest  {oldest}");
    }
    let stop = match bodies.keeper {
        Keeper::ServiceManager => {
            "systemd 254 and later versions keep the bodies until systemctl clean --what=fdstore; \
             earlier versions drop them"
        }
        Keeper::Nobody { .. } | Keeper::NotWanted => "bodies that the drain does not send are lost",
    };
    let _ = writeln!(text, "stop    {stop}");
    let _ = writeln!(text, "reboot  the bodies are lost");
    if let Some(why) = &bodies.unreadable {
        let _ = writeln!(
            text,
            "unusable  bodies of an earlier process: {why}. To discard them, run: pillarbox bodies \
             drop"
        );
    }
    text
}
