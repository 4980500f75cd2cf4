//! The command line: reads it, asks the service or works on the file, and prints the result.
//!
//! Decides nothing: the administration and the domain have the rules.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::io::{self, Write};
use std::pin::Pin;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use pillarbox_admin::{
    ClockConfirm, DeadLetterClear, DeadLetterList, DeadLetterShow, DomainAdd, DomainCheck,
    DomainList, DomainRemove, KeyAdd, KeyList, KeyRevoke, KeyRotate, MessageCancel, MessageList,
    MessageShow, NodeDrain, NodeForget, NodeList, OrganisationAdd, OrganisationLimit,
    OrganisationList, OrganisationPause, OrganisationRemove, OrganisationResume, SuppressionAdd,
    SuppressionList, WebhookDeliveryList, WebhookList, WebhookPause, WebhookRemove, WebhookReplay,
    WebhookResume, WebhookRotate, WebhookShow, WebhookTest,
};
use pillarbox_domain::likely::likely;
use pillarbox_service::HandedBodies;

use aws::Aws;
use cluster::Cluster;
use confirmation::Confirmed;
use connect::{Commands, Group, Session};
use error::CliError;

mod aws;
mod backup;
mod bodies;
mod cluster;
mod confirmation;
mod connect;
mod dead_letter;
mod destination;
mod doctor;
mod domain;
mod error;
mod examples;
mod generated;
mod key;
mod logging;
mod manual;
mod message;
mod node;
mod org;
mod output;
mod restart;
mod run;
mod status;
mod suppression;
mod webhook;

/// Exit code for wrong usage, as clap has it.
const EXIT_USAGE: u8 = 2;
/// Exit codes in the help.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 70 a fault in the service, 71 a \
                          stop lost messages, 75 the service must be started again, 78 wrong \
                          configuration.";
/// Name of the program.
const NAME: &str = "pillarbox";

/// Self-hosted transactional email: one binary, one directory, sent through Amazon SES.
#[derive(Debug, Parser)]
#[command(name = NAME, version, arg_required_else_help = true)]
#[command(after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Declares groups of commands that make calls: each command with its arguments, and with what prints
/// the answer to a call (`:`), or with what runs it (`=>`).
macro_rules! commands {
    ($($group:ident {$(
        $(#[$about:meta])*
        $command:ident($arguments:ty) $(: $shown:expr)? $(=> $run:path)?;
    )*})*) => {$(
        #[derive(Debug, Subcommand)]
        enum $group {
            $($(#[$about])* $command($arguments),)*
        }

        impl Commands for $group {
            async fn run(self, session: &Session) -> Result<String, CliError> {
                match self {$(
                    Self::$command(arguments) => {
                        $(session.run(arguments, $shown).await)?
                        $(Box::pin($run(session, arguments)).await)?
                    }
                )*}
            }
        }
    )*};
}

commands! {
    Org {
        Add(OrganisationAdd) => org::add;
        List(OrganisationList): org::table;
        Limit(OrganisationLimit): org::limited;
        Usage(org::Usage) => org::usage;
        Pause(OrganisationPause) => org::pause;
        Resume(OrganisationResume) => org::resume;
        Remove(Confirmed<OrganisationRemove>) => org::remove;
    }
    Key {
        Add(KeyAdd): key::added;
        List(KeyList): key::table;
        Rotate(KeyRotate): key::added;
        Revoke(KeyRevoke): key::revoked;
    }
    Domain {
        Add(DomainAdd): domain::added;
        List(DomainList): domain::table;
        Check(DomainCheck): domain::checked;
        Remove(Confirmed<DomainRemove>) => domain::remove;
    }
    Suppression {
        Add(SuppressionAdd) => suppression::add;
        Remove(suppression::Remove) => suppression::remove;
        List(SuppressionList) => suppression::list;
        /// Suppress the addresses of a CSV file. Existing suppressions stay as they are.
        Import(suppression::Import) => suppression::import;
        /// Write suppressions to a CSV file.
        Export(suppression::Export) => suppression::export;
    }
    Message {
        Show(MessageShow): message::shown;
        List(MessageList) => message::list;
        Cancel(Confirmed<MessageCancel>) => message::cancel;
    }
    Webhook {
        Add(webhook::Add) => webhook::add;
        List(WebhookList): webhook::table;
        Show(WebhookShow): webhook::shown;
        Remove(WebhookRemove): |one| webhook::told("removed", one);
        Pause(WebhookPause): |one| webhook::told("paused", one);
        Resume(WebhookResume): |one| webhook::told("resumed", one);
        Rotate(WebhookRotate): webhook::rotated;
        Test(WebhookTest) => webhook::test;
        Deliveries(WebhookDeliveryList): webhook::deliveries;
        Replay(WebhookReplay): webhook::replayed;
    }
    DeadLetter {
        List(DeadLetterList): dead_letter::table;
        Show(DeadLetterShow): dead_letter::with_document;
        Clear(DeadLetterClear): |done| dead_letter::cleared(done.cleared);
    }
    Node {
        List(NodeList): node::table;
        Drain(NodeDrain): node::drained;
        Forget(NodeForget): node::forgotten;
    }
    Clock {
        Confirm(ClockConfirm): status::confirmed;
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service.
    Serve(run::ServeArgs),
    /// Replace the running service with the installed program, in the same process. Connections
    /// wait meanwhile, and pending messages stay pending.
    Restart(restart::Restart),
    /// Show the bodies of pending messages, and what they survive.
    Bodies(bodies::Bodies),
    /// Run the whole service on a built-in simulator of SES, to try it out.
    Dev(run::DevArgs),
    /// Run only the simulator of SES, for tests of your own programs.
    Simulator(run::SimulatorArgs),
    /// Add, list, pause, resume and remove organisations.
    Org(Group<Org>),
    /// Create, list and revoke API keys.
    Key(Group<Key>),
    /// Add, list, check and remove sender domains.
    Domain(Group<Domain>),
    /// Add, remove, list, import and export suppressed addresses.
    Suppression(Group<Suppression>),
    /// Show, list and cancel messages.
    Message(Group<Message>),
    /// Add, list, change and test endpoints that receive events.
    Webhook(Group<Webhook>),
    /// Show and clear delivery events that were set aside.
    DeadLetter(Group<DeadLetter>),
    /// List, drain and forget nodes on one database.
    Node(Group<Node>),
    /// Import a data file into the database of several nodes.
    #[command(subcommand)]
    Cluster(Cluster),
    /// Set up AWS for delivery events.
    #[command(subcommand)]
    Aws(Aws),
    /// Show how the service is doing.
    Status(status::Status),
    /// Check the set-up, and say what to do if something is wrong.
    Doctor(doctor::Doctor),
    /// Confirm the wall clock's time if it is in doubt.
    Clock(Group<Clock>),
    /// Copy all stored data into a file, whether the service is running or not.
    Backup(backup::Backup),
    /// Check a backup, and replace the data file with it. Stop the service before a restore;
    /// `--check` also works while the service is running.
    Restore(backup::Restore),
    /// Make the data file as small as possible. Stop the service first.
    Compact(backup::Compact),
    /// Print completions for a shell.
    Completions(generated::Completions),
    /// Write the manual pages.
    Man(generated::Man),
}

/// Returns the definition of the command line, from which its reference page is written.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Adds what was probably meant by an unknown command, if clap finds nothing that is like it.
fn with_likely_command(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};

    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand)
        && error.get(ContextKind::SuggestedSubcommand).is_none()
        && let Some(meant) = likely(given, command.get_subcommands().map(clap::Command::get_name))
    {
        let meant = ContextValue::Strings(vec![meant.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// Runs the process's command line; what `main` calls.
pub fn run() -> ExitCode {
    let handed_bodies = HandedBodies::from_environment();
    let mut command = examples::in_help(Cli::command(), NAME);
    let parsed = command
        .try_get_matches_from_mut(std::env::args_os())
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|error| with_likely_command(error, &command).format(&mut command));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // If nothing can be printed, the exit code still reports it.
            let _ = error.print();
            let code = u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE);
            return ExitCode::from(match handed_bodies {
                Some(bodies) if code != 0 => bodies.failed("the command line is wrong"),
                _ => code,
            });
        }
    };
    // A start that is to give them up does not wait for them.
    let drops_bodies = matches!(&cli.command, Command::Serve(args) if args.drop_bodies);
    let handed_bodies = handed_bodies.filter(|_| !drops_bodies);
    match cli.command.run() {
        Ok(text) => match print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            // `pillarbox message list | head` has what it wants.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "pillarbox: done, but printing failed: {error}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            if let CliError::Reported { report, .. } = &error {
                let _ = print(report);
            }
            // What a provider said may be in it; lines are ours.
            let lines: Vec<_> = error.to_string().lines().map(output::escaped).collect();
            // Standard error may be closed; `eprintln` would panic.
            let text = lines.join("\n");
            let _ = writeln!(io::stderr(), "pillarbox: {text}");
            ExitCode::from(match handed_bodies {
                Some(bodies) if !matches!(error, CliError::BodiesLost { .. }) => {
                    bodies.failed(&text)
                }
                _ => error.exit_code(),
            })
        }
    }
}

impl Command {
    fn run(self) -> Result<String, CliError> {
        // A pointer, so that what runs a command is compiled once for all of them.
        let command: Pin<Box<dyn Future<Output = Result<String, CliError>>>> = match self {
            Self::Serve(args) => return args.run(),
            Self::Restart(restart) => Box::pin(restart.run()),
            Self::Dev(args) => return args.run(),
            Self::Simulator(args) => return args.run(),
            Self::Org(org) => Box::pin(org.run()),
            Self::Key(key) => Box::pin(key.run()),
            Self::Domain(domain) => Box::pin(domain.run()),
            Self::Suppression(suppression) => Box::pin(suppression.run()),
            Self::Message(message) => Box::pin(message.run()),
            Self::Webhook(webhook) => Box::pin(webhook.run()),
            Self::DeadLetter(letter) => Box::pin(letter.run()),
            Self::Node(node) => Box::pin(node.run()),
            Self::Bodies(bodies) => Box::pin(bodies.run()),
            Self::Cluster(Cluster::Import(import)) => Box::pin(import.run()),
            Self::Aws(Aws::Setup(setup)) => Box::pin(setup.run()),
            Self::Status(status) => Box::pin(status.run()),
            Self::Doctor(doctor) => Box::pin(doctor.run()),
            Self::Clock(clock) => Box::pin(clock.run()),
            Self::Backup(backup) => Box::pin(backup.run()),
            Self::Restore(restore) => Box::pin(restore.run()),
            Self::Compact(compact) => Box::pin(compact.run()),
            Self::Completions(completions) => return Ok(completions.run()),
            Self::Man(man) => return man.run(),
        };
        one_thread()?.block_on(command)
    }
}

/// A runtime for a command that asks and prints.
fn one_thread() -> Result<Runtime, CliError> {
    Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)
}

fn print(text: &str) -> io::Result<()> {
    let text = output::for_standard_output(text);
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
