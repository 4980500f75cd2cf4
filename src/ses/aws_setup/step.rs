//! Steps and what came of them, in words for whoever runs the set-up.

use crate::account::Caller;
use crate::error::CallError;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What it is about, such as `SNS topic`.
    pub what: &'static str,
    /// Which one.
    pub name: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was in place; nothing was changed.
    Found,
    /// It was not there, and is now.
    Created,
    /// It was there and lacked something; what was done.
    Completed(String),
    /// Nothing was changed, because it is a dry run; what would be done.
    Planned(String),
    /// It could not be tried; why.
    Skipped(String),
    /// It was tried and did not work; why, and what to do.
    Failed(String),
}

impl Outcome {
    pub(super) fn to_be_created() -> Self {
        Self::Planned("would be created".to_owned())
    }

    /// The one word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Created => "created",
            Self::Completed(_) => "completed",
            Self::Planned(_) => "planned",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "failed",
        }
    }

    /// What there is to say beyond the word; empty if nothing.
    pub fn detail(&self) -> &str {
        match self {
            Self::Found | Self::Created => "",
            Self::Completed(text)
            | Self::Planned(text)
            | Self::Skipped(text)
            | Self::Failed(text) => text,
        }
    }

    /// Whether something is left to be done.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Skipped(_) | Self::Failed(_))
    }
}

/// Why a step did not work.
#[derive(Debug)]
pub(super) enum Failure {
    /// A call did not.
    Call {
        /// The permission that it takes, such as `sns:CreateTopic`.
        action: &'static str,
        error: CallError,
    },
    /// What is there cannot be completed.
    Unfit(String),
}

/// Names the permission that a call takes, for `map_err`.
pub(super) fn asking(action: &'static str) -> impl FnOnce(CallError) -> Failure {
    move |error| Failure::Call { action, error }
}

impl Failure {
    pub(super) fn outcome(self, caller: Option<&Caller>) -> Outcome {
        match self {
            Self::Unfit(text) => Outcome::Failed(text),
            Self::Call { action, error: CallError::NotSupported { status } } => {
                Outcome::Skipped(format!("the endpoint does not have {action}: status {status}"))
            }
            Self::Call { action, error } if is_denial(&error) => {
                let who = caller.map_or("these credentials", |caller| caller.arn.as_str());
                Outcome::Failed(format!(
                    "{error}; {who} does not have the permission {action}: attach the policy for \
                     the set-up, which --dry-run prints"
                ))
            }
            Self::Call { action, error } => Outcome::Failed(format!("{action}: {error}")),
        }
    }
}

/// Whether AWS knows the caller and does not let it; credentials that are no good are another
/// matter.
fn is_denial(error: &CallError) -> bool {
    // SES, SQS, SNS, and what stand-ins and older services say.
    error.is_named(&[
        "AccessDeniedException",
        "AccessDenied",
        "AuthorizationError",
        "AuthorizationErrorException",
        "UnauthorizedOperation",
    ])
}
