//! Steps and their results, in words for the operator who runs the set-up.

use crate::account::Caller;
use crate::error::CallError;

/// One step of the set-up, with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Kind of resource, such as `SNS topic`.
    pub what: &'static str,
    /// Name of the resource.
    pub name: String,
    /// Result of the step.
    pub outcome: Outcome,
}

/// Result of a step.
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

    /// Detail beyond the word; empty if there is none.
    pub fn detail(&self) -> &str {
        match self {
            Self::Found | Self::Created => "",
            Self::Completed(text)
            | Self::Planned(text)
            | Self::Skipped(text)
            | Self::Failed(text) => text,
        }
    }

    /// True if something is left to be done.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Skipped(_) | Self::Failed(_))
    }
}

/// Reason why a step did not work.
#[derive(Debug)]
pub(super) enum Failure {
    /// A call did not.
    Call {
        /// The permission that it takes, such as `sns:CreateTopic`.
        action: &'static str,
        error: CallError,
    },
    /// The existing resource cannot be completed.
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
                    "{error}; {who} must have the permission {action}: attach the policy for \
                     the set-up, which --dry-run prints"
                ))
            }
            Self::Call { action, error } => Outcome::Failed(format!("{action}: {error}")),
        }
    }
}

/// True if AWS knows the caller and denies the call; invalid credentials are another matter.
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
