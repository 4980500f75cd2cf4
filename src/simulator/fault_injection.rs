//! Fault injection: decides which call goes wrong and how, by script and by seed.
//!
//! Must not know HTTP connections, or how a fault is carried out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::protocol::{ErrorResponse, NamePlace};
use super::random::{InvalidProbability, SeededRandom};

/// Delay of a slow response unless set: beyond the usual client timeout of 10 s.
const DEFAULT_SLOW_FOR: Duration = Duration::from_secs(15);

/// One way in which a call goes wrong. In JSON the names are in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing goes wrong; for scripts.
    Pass,
    /// The host is gone: every AWS call, in every scope, is reset as it starts and is not counted.
    /// The simulator's own API stays, or the host could not come back.
    Down,
    /// The connection is reset before the call is handled.
    ResetBefore,
    /// The call is handled, then the connection is reset: the response is lost.
    ResetAfter,
    /// The call is handled at once, its response is late, by [`Faults::slow_for`].
    Slow,
    /// The call is handled, the response breaks off half way.
    Truncated,
    /// The call is handled, then answered with 500.
    InternalErrorAfter,
    /// 500, not handled.
    InternalError,
    /// 503, not handled.
    Unavailable,
    /// 429 `TooManyRequestsException`.
    Throttled,
    /// 400 `MessageRejected`.
    Rejected,
    /// 400 `LimitExceededException`, the daily quota.
    QuotaExhausted,
    /// 400 `SendingPausedException`.
    SendingPaused,
    /// 400 `AccountSuspendedException`.
    AccountSuspended,
    /// 400 `MailFromDomainNotVerifiedException`.
    MailFromDomainNotVerified,
    /// 403 `AccessDeniedException`.
    AccessDenied,
    /// 403 `ExpiredTokenException`.
    ExpiredToken,
    /// 400 `BadRequestException`.
    BadRequest,
    /// 400 `ValidationException`.
    ValidationError,
    /// 400 `BadRequestException`, as from an endpoint that does not know `ConfigurationOverrides`. A
    /// request without that member is handled.
    UnknownMember,
    /// 413 `RequestEntityTooLargeException`.
    TooLarge,
    /// 403 `RequestTimeTooSkewed`.
    RequestTimeTooSkewed,
    /// 403 `RequestInTheFuture`.
    RequestInTheFuture,
    /// 400 `RequestExpired`.
    RequestExpired,
    /// 403 `InvalidSignatureException`, because of the time of the signature.
    SignatureExpired,
    /// 400 `AuthFailure`.
    AuthFailure,
    /// 400 `RequestAbortedException`.
    RequestAborted,
    /// 503 `RequestLimitExceeded`.
    RequestLimitExceeded,
    /// 400 `MalformedHttpRequestException`.
    MalformedRequest,
    /// The error that [`Faults::with_error`] describes.
    Error,
}

/// Error of an AWS service: what [`Fault::Error`] answers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorFault {
    /// The HTTP status, from 400 to 599.
    pub status: u16,
    /// The error's name, with the text around it; empty for none.
    #[serde(default)]
    pub name: String,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// The place of the name.
    #[serde(default)]
    pub name_in: NamePlace,
}

impl From<&ErrorFault> for ErrorResponse {
    fn from(fault: &ErrorFault) -> Self {
        let status = StatusCode::from_u16(fault.status).ok();
        let status = status.filter(|status| status.as_u16() >= 400);
        Self {
            place: fault.name_in,
            ..Self::new(
                status.unwrap_or(StatusCode::BAD_REQUEST),
                fault.name.clone(),
                fault.message.clone(),
            )
        }
    }
}

impl Fault {
    /// SES's error, for a fault that refuses the call.
    pub(super) fn ses_error(self) -> Option<ErrorResponse> {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        Some(match self {
            Self::Pass
            | Self::Down
            | Self::ResetBefore
            | Self::ResetAfter
            | Self::Slow
            | Self::Truncated
            | Self::InternalErrorAfter
            // Its error is with the faults.
            | Self::Error => return None,
            Self::InternalError => ErrorResponse::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalServiceErrorException",
                "The request processing has failed because of an unknown error.",
            ),
            Self::Unavailable => ErrorResponse::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailableException",
                "Service is unavailable.",
            ),
            Self::Throttled => ErrorResponse::too_many_requests("Maximum sending rate exceeded."),
            Self::Rejected => {
                ErrorResponse::rejected("Email content was rejected by the simulator.")
            }
            Self::QuotaExhausted => ErrorResponse::limit_exceeded("Daily message quota exceeded."),
            Self::SendingPaused => ErrorResponse::new(
                BAD,
                "SendingPausedException",
                "Sending is paused for this account.",
            ),
            Self::AccountSuspended => ErrorResponse::new(
                BAD,
                "AccountSuspendedException",
                "The account's ability to send email has been permanently restricted.",
            ),
            Self::MailFromDomainNotVerified => ErrorResponse::new(
                BAD,
                "MailFromDomainNotVerifiedException",
                "The custom MAIL FROM domain is not verified.",
            ),
            Self::AccessDenied => ErrorResponse::forbidden(
                "AccessDeniedException",
                "User: arn:aws:iam::123456789012:user/mailer is not authorized to perform: \
                 ses:SendEmail on resource: \
                 arn:aws:ses:eu-west-1:123456789012:configuration-set/alpha.example because no \
                 identity-based policy allows the ses:SendEmail action",
            ),
            Self::ExpiredToken => ErrorResponse::forbidden(
                "ExpiredTokenException",
                "The security token included in the request is expired",
            ),
            Self::BadRequest
            | Self::ValidationError
            | Self::UnknownMember
            | Self::TooLarge
            | Self::RequestTimeTooSkewed
            | Self::RequestInTheFuture
            | Self::RequestExpired
            | Self::SignatureExpired
            | Self::AuthFailure
            | Self::RequestAborted
            | Self::RequestLimitExceeded
            | Self::MalformedRequest => self.common_error()?,
        })
    }

    /// The error of a fault of those that AWS's services have in common, or that concern the request
    /// (SES API v2 Reference, "Common Error Types").
    fn common_error(self) -> Option<ErrorResponse> {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        Some(match self {
            Self::BadRequest => ErrorResponse::bad_request("The request is not valid."),
            Self::ValidationError => ErrorResponse::new(
                BAD,
                "ValidationException",
                "1 validation error detected: Value at 'content.simple.subject' failed to satisfy \
                 constraint: Member must not be null",
            ),
            Self::UnknownMember => ErrorResponse::bad_request(
                "Unknown parameter in input: \"ConfigurationOverrides\", must be one of: \
                 FromEmailAddress, Destination, ReplyToAddresses, Content, EmailTags, \
                 ConfigurationSetName",
            ),
            Self::TooLarge => ErrorResponse::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLargeException",
                "Message length is more than 41943040 bytes long.",
            ),
            Self::RequestTimeTooSkewed => ErrorResponse::forbidden(
                "RequestTimeTooSkewed",
                "The difference between the request time and the current time is too large.",
            ),
            Self::RequestInTheFuture => ErrorResponse::forbidden(
                "RequestInTheFuture",
                "The time of the request is in the future.",
            ),
            Self::RequestExpired => {
                ErrorResponse::new(BAD, "RequestExpired", "Request has expired.")
            }
            Self::SignatureExpired => ErrorResponse::forbidden(
                "InvalidSignatureException",
                "Signature expired: 20261121T093000Z is now earlier than 20261121T093500Z \
                 (20261121T094000Z - 5 min.)",
            ),
            Self::AuthFailure => ErrorResponse::new(
                BAD,
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
            ),
            Self::RequestAborted => ErrorResponse::new(
                BAD,
                "RequestAbortedException",
                "The request was aborted before a reply was sent back.",
            ),
            Self::RequestLimitExceeded => ErrorResponse::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "RequestLimitExceeded",
                "Request limit exceeded.",
            ),
            Self::MalformedRequest => ErrorResponse::new(
                BAD,
                "MalformedHttpRequestException",
                "The request body cannot be processed.",
            ),
            _ => return None,
        })
    }
}

/// The calls that faults may hit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultScope {
    /// `SendEmail` alone, so that other calls do not shift the sequence.
    #[default]
    Sends,
    /// Every AWS call. Faults that only SES knows leave SQS's calls alone.
    AllCalls,
    /// SES's calls other than `SendEmail` alone.
    OtherCalls,
    /// The calls of SQS alone.
    QueueCalls,
}

/// The faults from now on. The default is none.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    always: Option<Fault>,
    probabilities: BTreeMap<Fault, f64>,
    slow_for: Duration,
    scope: FaultScope,
    error: Option<ErrorFault>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            always: None,
            probabilities: BTreeMap::new(),
            slow_for: DEFAULT_SLOW_FOR,
            scope: FaultScope::default(),
            error: None,
        }
    }
}

impl Faults {
    /// Injects no fault.
    pub fn none() -> Self {
        Self::default()
    }

    /// Every call goes wrong in one way.
    pub fn always(fault: Fault) -> Self {
        Self { always: Some(fault), ..Self::default() }
    }

    /// Adds a fault with its probability per call.
    pub fn with_probability(
        mut self,
        fault: Fault,
        probability: f64,
    ) -> Result<Self, InvalidProbability> {
        self.probabilities.insert(fault, probability);
        let valid = self.probabilities.values().all(|p| (0.0..=1.0).contains(p))
            // Room for the rounding of sums such as ten times 0.1.
            && self.probabilities.values().sum::<f64>() <= 1.0 + 1e-9;
        if valid { Ok(self) } else { Err(InvalidProbability) }
    }

    /// Sets the delay of a slow response.
    #[must_use]
    pub fn with_slow_for(mut self, slow_for: Duration) -> Self {
        self.slow_for = slow_for;
        self
    }

    /// Sets the answer of [`Fault::Error`]; without one, such a call is handled.
    #[must_use]
    pub fn with_error(mut self, error: ErrorFault) -> Self {
        self.error = Some(error);
        self
    }

    /// Sets which calls are hit.
    #[must_use]
    pub fn with_scope(mut self, scope: FaultScope) -> Self {
        self.scope = scope;
        self
    }
}

/// The fault of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedFault {
    pub(super) fault: Fault,
    pub(super) slow_for: Duration,
    pub(super) error: Option<ErrorFault>,
}

/// The faults in their order: first the script, call by call, then those that the seed draws.
#[derive(Debug)]
pub(super) struct FaultSequence {
    faults: Faults,
    script: VecDeque<Fault>,
    random: SeededRandom,
}

impl FaultSequence {
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        Self { faults, script: VecDeque::new(), random: SeededRandom::new(seed) }
    }

    pub(super) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub(super) fn set_script(&mut self, script: Vec<Fault>) {
        self.script = script.into();
    }

    pub(super) fn restart(&mut self, seed: u64) {
        self.random = SeededRandom::new(seed);
    }

    /// Takes the fault of the next call, which is of this kind.
    pub(super) fn next(&mut self, call: CallKind) -> PlannedFault {
        let slow_for = self.faults.slow_for;
        let is_exempt = match self.faults.scope {
            FaultScope::Sends => call != CallKind::Send,
            FaultScope::AllCalls => false,
            FaultScope::OtherCalls => call != CallKind::Other,
            FaultScope::QueueCalls => call != CallKind::Queue,
        };
        let fault = match self.faults.always {
            // A host that is down is down for all callers.
            Some(Fault::Down) => Fault::Down,
            _ if is_exempt => Fault::Pass,
            always => self.script.pop_front().or(always).unwrap_or_else(|| self.draw()),
        };
        let error = self.faults.error.clone().filter(|_| fault == Fault::Error);
        PlannedFault { fault, slow_for, error }
    }

    fn draw(&mut self) -> Fault {
        if self.faults.probabilities.is_empty() {
            return Fault::Pass;
        }
        let mut point = self.random.next_fraction();
        for (fault, probability) in &self.faults.probabilities {
            if point < *probability {
                return *fault;
            }
            point -= probability;
        }
        Fault::Pass
    }
}

/// Kinds of calls that limits and faults distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// SES's `SendEmail`.
    Send,
    /// SES's other calls.
    Other,
    /// SQS's calls.
    Queue,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64, count: usize) -> Vec<Fault> {
        let faults = Faults::none()
            .with_probability(Fault::Throttled, 0.25)
            .and_then(|f| f.with_probability(Fault::ResetAfter, 0.25))
            .unwrap();
        let mut sequence = FaultSequence::new(faults, seed);
        (0..count).map(|_| sequence.next(CallKind::Send).fault).collect()
    }

    #[test]
    fn the_seed_alone_decides_the_sequence() {
        assert_eq!(draws(7, 200), draws(7, 200));
        assert_ne!(draws(7, 200), draws(8, 200));
    }

    #[test]
    fn faults_come_as_often_as_asked() {
        let all = draws(1, 10_000);
        let passed = all.iter().filter(|f| **f == Fault::Pass).count();
        let throttled = all.iter().filter(|f| **f == Fault::Throttled).count();
        assert!((4_700..5_300).contains(&passed), "{passed} of 10,000 at 0.5");
        assert!((2_200..2_800).contains(&throttled), "{throttled} of 10,000 at 0.25");
    }

    #[test]
    fn a_script_comes_first_and_exempts_other_calls() {
        let mut sequence = FaultSequence::new(Faults::always(Fault::Rejected), 0);
        sequence.set_script(vec![Fault::Pass, Fault::ResetAfter]);
        assert_eq!(sequence.next(CallKind::Other).fault, Fault::Pass);
        assert_eq!(sequence.next(CallKind::Send).fault, Fault::Pass);
        assert_eq!(sequence.next(CallKind::Send).fault, Fault::ResetAfter);
        assert_eq!(sequence.next(CallKind::Send).fault, Fault::Rejected);
        sequence.set_faults(Faults::always(Fault::Down));
        assert_eq!(sequence.next(CallKind::Other).fault, Fault::Down);
    }

    #[test]
    fn invalid_probabilities_are_refused() {
        for p in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Faults::none().with_probability(Fault::Slow, p), Err(InvalidProbability));
        }
        let half = Faults::none().with_probability(Fault::Slow, 0.6).unwrap();
        assert_eq!(half.with_probability(Fault::Rejected, 0.6), Err(InvalidProbability));
    }
}
