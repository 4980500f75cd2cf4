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
                        "This discards bodies of an earlier process that cannot be used: {why}. It \
                         ends 0 messages: the messages of these bodies have failed already."
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

const NONE_TO_DROP: &str = "the service manager keeps no bodies that this process cannot use\n";

fn dropped(answer: &BodiesDropped) -> String {
    let text = if answer.dropped {
        "bodies of an earlier process are discarded; those of this one are kept now\n"
    } else {
        NONE_TO_DROP
    };
    text.to_owned()
}

fn text(bodies: &Shown) -> String {
    let mut text = format!("bodies  {}\n", bodies.summary());
    let _ = writeln!(text, "bytes   {} of bodies, {} of memory", bodies.bytes, bodies.memory_bytes);
    if let Some(oldest) = &bodies.oldest_at {
        let _ = writeln!(text, "oldest  {oldest}");
    }
    let stop = match bodies.keeper {
        Keeper::ServiceManager => {
            "keeps them with systemd 254 and later, until systemctl clean --what=fdstore; earlier \
             versions drop them"
        }
        Keeper::Nobody { .. } | Keeper::NotWanted => "loses those that the drain does not send",
    };
    let _ = writeln!(text, "stop    {stop}");
    let _ = writeln!(text, "reboot  loses them");
    if let Some(why) = &bodies.unreadable {
        let _ = writeln!(
            text,
            "unusable  bodies of an earlier process: {why}. To discard them, run: pillarbox bodies \
             drop"
        );
    }
    text
}
