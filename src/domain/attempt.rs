//! One attempt: a call to the provider and what it came to.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::domain::message::{Failure, FailureCode};

/// Who sends: takes a message's ready request and says what became of it.
///
/// An implementation never retries by itself; every call is one attempt.
pub trait Provider: Send + Sync + 'static {
    /// Makes one attempt with the ready, encoded request.
    fn send(&self, request: Bytes) -> impl Future<Output = Outcome> + Send;
}

/// What one attempt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider accepted the message.
    Sent {
        /// The provider's identifier for it.
        ses_message_id: String,
    },
    /// It did not, or it is not known whether it did.
    NotSent(Problem),
}

/// Why an attempt did not end in acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What kind of problem, which decides what happens next.
    pub kind: ProblemKind,
    /// The provider's own name for it, such as `MessageRejected`.
    pub provider_code: Option<String>,
    /// What the provider said, or what went wrong; without addresses of recipients.
    pub message: String,
    /// How long the provider asks to wait.
    pub retry_after: Option<Duration>,
}

/// The kinds of problem, by what has to happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// Too fast: slow the whole sender down and retry.
    Throttled,
    /// The daily quota is used up: pause, retry later.
    QuotaExhausted,
    /// The account may not send for now: pause everything, raise an alarm, retry.
    AccountPaused,
    /// The set-up is at fault for every message (credentials, access, configuration set): pause
    /// everything, raise an alarm, retry.
    SetupFault,
    /// The sender's domain is not set up at the provider: pause that domain, raise an alarm,
    /// retry.
    DomainFault,
    /// The message itself is refused for good.
    Rejected,
    /// The provider did not take the request and cannot have accepted it: retry.
    Unavailable,
    /// The request was written and no answer came: the provider may have accepted the message.
    Unknown,
    /// Our own code failed during the call: the provider may have accepted the message, and
    /// another call would fail the same way.
    Crashed,
}

impl Problem {
    /// The problem as a message's record shows it.
    pub fn to_failure(&self) -> Failure {
        let code = match self.kind {
            ProblemKind::Throttled => FailureCode::ProviderThrottled,
            ProblemKind::QuotaExhausted => FailureCode::ProviderQuotaExhausted,
            ProblemKind::AccountPaused | ProblemKind::SetupFault | ProblemKind::DomainFault => {
                FailureCode::SendingPaused
            }
            ProblemKind::Rejected => FailureCode::ProviderRejected,
            ProblemKind::Unavailable => FailureCode::ProviderUnavailable,
            ProblemKind::Unknown | ProblemKind::Crashed => FailureCode::OutcomeUnknown,
        };
        Failure { code, message: self.message.clone(), provider_code: self.provider_code.clone() }
    }
}
