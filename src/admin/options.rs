//! Options of the calls: how the command line reads what is more than a text or a number.

use std::ffi::OsStr;

use clap::builder::{BoolValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, Id};

use crate::dead_letter::Letters;
use crate::message::QueuedMessages;
use crate::organisation::SendsWhilePaused;
use crate::suppression::Scope;
use crate::webhook::ReplayedEvents;
use pillarbox_domain::message::Status;
use pillarbox_domain::outcome::MessageOutcome;

/// Reads a flag, which is one value if it is given and another if not.
pub(super) fn flag<T>(off: T, on: T) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    BoolValueParser::new().map(move |is_given| if is_given { on.clone() } else { off.clone() })
}

/// Reads a status. Points at `--outcome` if the word is an outcome and no status.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatusParser;

impl TypedValueParser for StatusParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        let statuses = Status::ALL.map(Status::as_str);
        match value.to_str() {
            Some(value)
                if !statuses.contains(&value) && value.parse::<MessageOutcome>().is_ok() =>
            {
                let message = format!(
                    "{value:?} is an outcome, not a status; a message that the provider accepted \
                     keeps the status \"sent\". Use: --outcome {value}\n"
                );
                Err(Error::raw(ErrorKind::ValueValidation, message).with_cmd(command))
            }
            _ => PossibleValuesParser::new(statuses).parse_ref(command, argument, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Status::ALL.map(Status::as_str).into_iter().map(PossibleValue::new)))
    }
}

#[derive(Debug, Args)]
struct MessageOptions {
    /// Ids of the messages.
    #[arg(value_name = "ID", required_unless_present = "org", conflicts_with = "org")]
    ids: Vec<String>,
    /// All queued messages of this organisation.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only messages that this API key posted, even if the key is revoked.
    #[arg(long, value_name = "ID", requires = "org")]
    key: Option<u32>,
    /// Only messages from this domain.
    #[arg(long, value_name = "DOMAIN", requires = "org")]
    domain: Option<String>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct ScopeOptions {
    /// Organisation that the suppressions belong to.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Suppressions for all organisations; those of single organisations are separate.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct PauseOptions {
    /// Accept its send requests; the messages wait. This is the default.
    #[arg(long)]
    accept: bool,
    /// Refuse its send requests with 503 Paused.
    #[arg(long)]
    refuse: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct LetterOptions {
    /// Ids, or the beginnings of ids.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All dead letters.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ReplayOptions {
    /// Time (2027-01-31T12:00:00Z), day (2027-01-31) or how long ago (2h).
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Identifier of the event.
    #[arg(long, value_name = "EVENT")]
    event: Option<String>,
}

/// Has the command line read a value that several options give together.
macro_rules! read_from {
    ($($value:ty: $options:ident { $($option:tt)* } => $read:expr;)*) => {$(
        impl FromArgMatches for $value {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
                let $options { $($option)* } = $options::from_arg_matches(matches)?;
                Ok($read)
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl Args for $value {
            fn group_id() -> Option<Id> {
                $options::group_id()
            }

            fn augment_args(command: Command) -> Command {
                $options::augment_args(command)
            }

            fn augment_args_for_update(command: Command) -> Command {
                $options::augment_args_for_update(command)
            }
        }
    )*};
}

read_from! {
    QueuedMessages: MessageOptions { ids, org, key, domain } => match org {
        Some(name) => Self::OfOrganisation { name, key, domain },
        None => Self::WithIds(ids),
    };
    Scope: ScopeOptions { org, all: _ } => org.map_or(Self::All, Self::Organisation);
    SendsWhilePaused: PauseOptions { accept: _, refuse } =>
        if refuse { Self::Refuse } else { Self::Accept };
    Letters: LetterOptions { ids, all } => if all { Self::All } else { Self::Ids(ids) };
    ReplayedEvents: ReplayOptions { since, event } => match since {
        Some(time) => Self::Since(time),
        // One of the two is required.
        None => Self::One(event.unwrap_or_default()),
    };
}
