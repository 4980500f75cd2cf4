//! One attempt: a call to the provider and its outcome.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::envelope::Envelope;
use crate::message::{Acceptance, Failure, FailureCode};
use crate::organisation::OrganisationKind;
use crate::worded;

/// Sender of messages: takes a message's ready request and returns the outcome of the call.
///
/// An implementation never retries by itself; every call is one attempt.
pub trait Provider: Send + Sync + 'static {
    /// Makes one attempt with the ready, encoded request of a message with this envelope, whose
    /// organisation is of this kind. Only those of production may leave the process.
    fn send(
        &self,
        kind: OrganisationKind,
        envelope: &Envelope<'_>,
        request: RequestBody,
    ) -> impl Future<Output = Outcome> + Send;
}

/// Encoded request of a message.
#[derive(Clone)]
pub enum RequestBody {
    /// The whole request, in memory.
    Whole(Bytes),
    /// A large one, which is read part by part while it is sent.
    Parts(Arc<dyn RequestParts>),
}

/// Large request that is not in memory.
pub trait RequestParts: Send + Sync {
    /// Bytes of all of it.
    fn len_bytes(&self) -> usize;

    /// Reads `len` bytes from `from` on; `None` if they cannot be read.
    fn part(&self, from: usize, len: usize) -> Option<Bytes>;
}

impl RequestBody {
    /// Bytes of all of it.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Parts(parts) => parts.len_bytes(),
        }
    }

    /// Reads a part; `None` if it cannot be read.
    pub fn part(&self, from: usize, len: usize) -> Option<Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes.slice(from..from + len)),
            Self::Parts(parts) => parts.part(from, len),
        }
    }

    /// Reads all of it; `None` if it cannot be read.
    pub fn whole(&self) -> Option<Bytes> {
        self.part(0, self.len_bytes())
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

// By hand: it is the body, which must reach no log.
impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").finish_non_exhaustive()
    }
}

/// Outcome of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider accepted the message.
    Sent {
        /// The provider's identifier for it.
        ses_message_id: String,
    },
    /// It did not, or it is not known whether it did.
    NotSent(Problem),
    /// No call was started: there were no credentials to sign it with.
    NotCalled(Problem),
}

/// Reason why an attempt did not end in acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the problem, which decides what happens next.
    pub kind: ProblemKind,
    /// The provider's own name for it, such as `MessageRejected`.
    pub provider_code: Option<String>,
    /// The provider's text, or a description of the fault; without addresses of recipients.
    pub message: String,
    /// Time that the provider asks to wait.
    pub retry_after: Option<Duration>,
    /// Content of the provider's answer beyond the kind.
    pub answer: ProviderAnswer,
}

/// Content of the provider's answer beyond the kind of problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderAnswer {
    /// There is none: it was lost, or no call was made.
    Missing,
    /// Its meaning is known.
    Expected,
    /// Its error has an unknown name, or none.
    Unexpected {
        /// The HTTP status of the answer.
        status: u16,
    },
    /// It refuses the request in words that may be about the message or about the set-up.
    Disputable(Sentence),
}

/// Sentence of the provider, to be compared with others: the text itself may have addresses in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentence(u64);

impl Sentence {
    /// Returns the sentence with this text.
    pub fn of(text: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self(hasher.finish())
    }
}

worded! {
    /// The kinds of problem, by what has to happen next. The words are those of metrics.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum ProblemKind {
        /// Too fast: slow the whole sender down and retry.
        Throttled = "throttled",
        /// The daily quota is used up: pause, retry later.
        QuotaExhausted = "quota_exhausted",
        /// The account may not send for now: pause everything, raise an alarm, retry.
        AccountPaused = "account_paused",
        /// The set-up is at fault for every message (credentials, access, configuration set): pause
        /// everything, raise an alarm, retry.
        SetupFault = "setup_fault",
        /// The provider refuses the time of our calls, and so our clock: pause everything, raise an
        /// alarm, retry.
        ClockWrong = "clock_wrong",
        /// The sender's domain is not set up at the provider: pause that domain, raise an alarm,
        /// retry.
        DomainFault = "domain_fault",
        /// The message itself is refused for good.
        Rejected = "rejected",
        /// The provider did not take the request and cannot have accepted it: retry.
        Unavailable = "unavailable",
        /// The request was written, and no answer or one of a failed server came: the provider may
        /// have accepted the message.
        Unknown = "unknown",
        /// Our own code failed during the call: the provider may have accepted the message, and
        /// another call would fail the same way.
        Crashed = "crashed",
    }
}

impl Outcome {
    /// Returns whether the provider accepted the message, or may have accepted it.
    pub const fn acceptance(&self) -> Acceptance {
        match self {
            Self::Sent { .. } => Acceptance::Possible,
            Self::NotSent(problem) => problem.kind.acceptance(),
            Self::NotCalled(_) => Acceptance::Excluded,
        }
    }
}

impl ProblemKind {
    /// Returns whether the provider may have accepted the message in spite of the problem.
    pub const fn acceptance(self) -> Acceptance {
        if matches!(self, Self::Unknown | Self::Crashed) {
            Acceptance::Possible
        } else {
            Acceptance::Excluded
        }
    }

    /// The failure as a client reads it, in words of our own: the provider's text about an account
    /// or its set-up may name other organisations' domains, ARNs and account numbers.
    pub fn failure(self) -> Failure {
        let (code, message) = match self {
            Self::Throttled => (
                FailureCode::ProviderThrottled,
                "the provider limits the sending rate for now; the message is tried again",
            ),
            Self::QuotaExhausted => (
                FailureCode::ProviderQuotaExhausted,
                "the provider's daily quota is used up; the message waits until the quota has \
                 room again",
            ),
            Self::AccountPaused => (
                FailureCode::SendingPaused,
                "the provider has paused sending; the message waits until sending continues",
            ),
            Self::SetupFault | Self::ClockWrong => (
                FailureCode::SendingPaused,
                "sending is paused because of a fault in the service's set-up; the message waits \
                 until the operator corrects it",
            ),
            Self::DomainFault => (
                FailureCode::SendingPaused,
                "the provider does not accept messages from the sender's domain for now; the \
                 message waits. Ask the operator to check the domain",
            ),
            Self::Rejected => {
                (FailureCode::ProviderRejected, "the provider refused the message for good")
            }
            Self::Unavailable => (
                FailureCode::ProviderUnavailable,
                "the provider could not be reached, or could not take the message; the message is \
                 tried again",
            ),
            Self::Unknown => (
                FailureCode::OutcomeUnknown,
                "the provider's answer was lost, so it is unknown whether it accepted the message",
            ),
            Self::Crashed => (
                FailureCode::OutcomeUnknown,
                "a fault in the service ended the call to the provider, so it is unknown whether \
                 it accepted the message",
            ),
        };
        Failure::new(code, message)
    }
}

impl Problem {
    /// The problem as a message's record shows it. The provider's own text is in it only if it
    /// concerns this message, and then without ARNs and account numbers.
    pub fn to_failure(&self) -> Failure {
        let failure = self.kind.failure();
        let message = match self.kind {
            ProblemKind::Rejected => without_account(&self.message),
            ProblemKind::Unknown if self.answer != ProviderAnswer::Missing => {
                "the provider answered with a server error, so it is unknown whether it accepted \
                 the message"
                    .to_owned()
            }
            ProblemKind::Throttled
            | ProblemKind::QuotaExhausted
            | ProblemKind::AccountPaused
            | ProblemKind::SetupFault
            | ProblemKind::ClockWrong
            | ProblemKind::DomainFault
            | ProblemKind::Unavailable
            | ProblemKind::Unknown
            | ProblemKind::Crashed => failure.message,
        };
        Failure { message, provider_code: self.provider_code.clone(), ..failure }
    }

    /// The problem of a refusal that other messages got alike, as the message's record shows it
    /// while it waits.
    pub fn to_held_failure(&self) -> Failure {
        let message = "the provider refused several messages of the organisation with the same \
                       error text, so a fault in the service's set-up is possible; the message is tried \
                       again";
        let failure = Failure::new(FailureCode::ProviderUnavailable, message);
        Failure { provider_code: self.provider_code.clone(), ..failure }
    }

    /// The name of an unknown answer, or `None` if the answer is known.
    pub fn unexpected_name(&self) -> Option<String> {
        let ProviderAnswer::Unexpected { status } = self.answer else { return None };
        let unnamed = || format!("{status} without an error name");
        Some(self.provider_code.clone().unwrap_or_else(unnamed))
    }

    /// The provider's own name for the problem and its text, for operators.
    pub fn explained(&self) -> Cow<'_, str> {
        match &self.provider_code {
            Some(name) => format!("{name}: {}", self.message).into(),
            None => self.message.as_str().into(),
        }
    }
}

/// Use of SES API v2's `TrackingConfigurationOverrides`, by which a message turns off open and
/// click tracking for itself, even if the account or the configuration set asks for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TrackingOverride {
    /// Each message disables tracking.
    #[default]
    Always,
    /// Each message disables tracking, unless the endpoint refuses that.
    Auto,
    /// No message disables tracking.
    Never,
}

/// The text with an ellipsis for each ARN and each AWS account number (AWS: "Amazon Resource
/// Names (ARNs)"; an account number has 12 digits).
fn without_account(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, ':' | '/' | '-' | '_' | '.' | '*');
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let (before, word) = rest.split_at(start);
        let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        shown.push_str(before);
        shown.push_str(if names_account(word) { "…" } else { word });
        rest = after;
    }
    shown + rest
}

fn names_account(word: &str) -> bool {
    const ACCOUNT_DIGITS: usize = 12;
    let mut numbers = word.split(|c: char| !c.is_ascii_digit());
    word.to_ascii_lowercase().contains("arn:")
        || numbers.any(|number| number.len() == ACCOUNT_DIGITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [ProblemKind; 10] = [
        ProblemKind::Throttled,
        ProblemKind::QuotaExhausted,
        ProblemKind::AccountPaused,
        ProblemKind::SetupFault,
        ProblemKind::ClockWrong,
        ProblemKind::DomainFault,
        ProblemKind::Rejected,
        ProblemKind::Unavailable,
        ProblemKind::Unknown,
        ProblemKind::Crashed,
    ];

    fn problem(kind: ProblemKind, answer: ProviderAnswer) -> Problem {
        Problem {
            kind,
            provider_code: Some("Name".to_owned()),
            message: "text".to_owned(),
            retry_after: None,
            answer,
        }
    }

    fn failure(kind: ProblemKind, message: &str) -> Failure {
        let provider_code = Some("AccessDeniedException".to_owned());
        let message = message.to_owned();
        let answer = ProviderAnswer::Expected;
        Problem { kind, provider_code, message, retry_after: None, answer }.to_failure()
    }

    #[test]
    fn a_refused_message_shows_the_providers_text_without_arns_and_account_numbers() {
        for (said, shown) in [
            ("Email content was rejected.", "Email content was rejected."),
            (
                "not authorized on `arn:aws:ses:eu-west-1:1:identity/a.example'.",
                "not authorized on `…'.",
            ),
            ("Account 123456789012 may not", "Account … may not"),
            ("id-123456789012/x, 1234567890123", "…, 1234567890123"),
            ("Länge: 12 ärger", "Länge: 12 ärger"),
            ("", ""),
        ] {
            assert_eq!(failure(ProblemKind::Rejected, said).message, shown);
        }
    }

    #[test]
    fn only_a_lost_or_odd_answer_leaves_acceptance_possible() {
        for kind in KINDS {
            let problem = problem(kind, ProviderAnswer::Expected);
            let is_open = matches!(kind, ProblemKind::Unknown | ProblemKind::Crashed);
            let expected = if is_open { Acceptance::Possible } else { Acceptance::Excluded };
            assert_eq!(Outcome::NotSent(problem.clone()).acceptance(), expected, "{kind:?}");
            assert_eq!(Outcome::NotCalled(problem).acceptance(), Acceptance::Excluded);
        }
        let sent = Outcome::Sent { ses_message_id: "1".to_owned() };
        assert_eq!(sent.acceptance(), Acceptance::Possible);
    }

    #[test]
    fn a_record_says_whether_the_answer_was_lost_or_an_error() {
        let message = |answer| problem(ProblemKind::Unknown, answer).to_failure().message;
        assert!(message(ProviderAnswer::Missing).contains("answer was lost"));
        for answer in [ProviderAnswer::Expected, ProviderAnswer::Unexpected { status: 500 }] {
            assert!(message(answer).contains("answered with a server error"), "{answer:?}");
        }
        let other = problem(ProblemKind::Throttled, ProviderAnswer::Expected).to_failure();
        assert_eq!(other.message, ProblemKind::Throttled.failure().message);
        assert_eq!(other.provider_code.as_deref(), Some("Name"));
        let held = problem(ProblemKind::Rejected, ProviderAnswer::Expected).to_held_failure();
        assert_eq!(held.code, FailureCode::ProviderUnavailable);
        assert_eq!(held.provider_code.as_deref(), Some("Name"));
    }

    #[test]
    fn operators_read_the_name_of_an_answer_and_its_text() {
        let named = problem(ProblemKind::Unknown, ProviderAnswer::Unexpected { status: 500 });
        assert_eq!(named.unexpected_name().as_deref(), Some("Name"));
        assert_eq!(named.explained(), "Name: text");
        let unnamed = Problem { provider_code: None, ..named };
        assert_eq!(unnamed.unexpected_name().as_deref(), Some("500 without an error name"));
        assert_eq!(unnamed.explained(), "text");
        for answer in [ProviderAnswer::Missing, ProviderAnswer::Expected] {
            assert_eq!(problem(ProblemKind::Unknown, answer).unexpected_name(), None);
        }
        assert_eq!(Sentence::of("a"), Sentence::of("a"));
        assert_ne!(Sentence::of("a"), Sentence::of("b"));
    }

    #[test]
    fn a_whole_body_is_read_in_parts() {
        let body = RequestBody::from(Bytes::from_static(b"0123456789"));
        assert_eq!(body.len_bytes(), 10);
        assert_eq!(body.part(3, 4).as_deref(), Some(&b"3456"[..]));
        assert_eq!(body.whole().as_deref(), Some(&b"0123456789"[..]));
    }

    proptest! {
        #[test]
        fn a_client_reads_the_providers_text_only_if_it_concerns_its_message(
            before in "\\PC{0,40}", after in "\\PC{0,40}"
        ) {
            let said = format!(
                "{before} arn:aws:iam::123456789012:user/mailer may not send for other.example {after}"
            );
            for kind in KINDS {
                let message = failure(kind, &said).message;
                prop_assert!(!message.is_empty());
                prop_assert!(!message.contains("123456789012"), "{kind:?}: {message}");
                prop_assert!(!message.contains("iam"), "{kind:?}: {message}");
                let concerns_the_message = kind == ProblemKind::Rejected;
                prop_assert_eq!(message.contains("other.example"), concerns_the_message);
            }
        }
    }
}
