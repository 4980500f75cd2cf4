//! A message's record and its transitions, as pure functions of the row and their input.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::LastEvent;
use crate::id::{MessageId, OrganisationId};
use crate::limits::RECORD_RETENTION;
use crate::message_terms::Terms;
use crate::time::Timestamp;
use crate::worded;

worded! {
    /// Status of a message, which says if the provider took it. A client reads it as `status`
    /// (specification section 3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Status {
        /// Accepted by us, waiting for an attempt.
        Queued = "queued",
        /// A call to the provider is under way.
        Sending = "sending",
        /// The provider accepted it.
        Sent = "sent",
        /// It will not be sent.
        Failed = "failed",
        /// It will not be sent, because a recipient became suppressed after acceptance.
        Suppressed = "suppressed",
    }
}

worded! {
    /// Reason why a message is not sent, or not yet, in the contract's words.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum FailureCode {
        /// The process ended while the body was pending.
        BodyLostOnRestart = "body_lost_on_restart",
        /// The provider refused the message for good.
        ProviderRejected = "provider_rejected",
        /// The provider could not be reached.
        ProviderUnavailable = "provider_unavailable",
        /// The provider said that we send too fast.
        ProviderThrottled = "provider_throttled",
        /// The provider's daily quota is used up.
        ProviderQuotaExhausted = "provider_quota_exhausted",
        /// Sending is paused at the provider, or by a fault in the set-up.
        SendingPaused = "sending_paused",
        /// No attempt succeeded within `sending.retry_for`.
        RetriesExhausted = "retries_exhausted",
        /// The provider's answer was lost; it may have accepted the message.
        OutcomeUnknown = "outcome_unknown",
        /// A recipient became suppressed after acceptance.
        RecipientSuppressed = "recipient_suppressed",
        /// The sender's domain no longer belongs to the organisation.
        DomainUnverified = "domain_unverified",
        /// The operator cancelled the message or removed its organisation.
        Cancelled = "cancelled",
        /// It was not sent within its own `expiresIn`.
        Expired = "expired",
    }
}

/// Failure information on a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Kind of the failure.
    pub code: FailureCode,
    /// Description of the failure for a person to read.
    pub message: String,
    /// The provider's own name for the failure, if it gave one.
    pub provider_code: Option<String>,
}

impl Failure {
    /// A failure that the provider did not name.
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), provider_code: None }
    }
}

/// Possibility that the provider accepted a message that is not known to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// Every attempt's answer is known, and none accepted it.
    Excluded,
    /// An attempt's answer was lost: an event may yet prove acceptance.
    Possible,
}

impl Acceptance {
    /// Returns `Possible` if either of the two is.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Excluded, Self::Excluded) => Self::Excluded,
            _ => Self::Possible,
        }
    }
}

/// Decision of an operator or application to stop a message that is not sent yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// The operator cancelled the message.
    ByOperator,
    /// The application that posted the message cancelled it.
    ByApplication,
    /// The operator removed the message's organisation.
    OrganisationRemoved,
    /// The operator withdrew the sender's domain from the organisation.
    DomainRemoved,
}

impl Cancellation {
    /// The transition of a message that the provider may or may not have accepted before.
    pub fn transition(self, acceptance: Acceptance) -> Transition {
        let (code, reason) = match self {
            Self::ByOperator => (FailureCode::Cancelled, "the operator cancelled the message"),
            Self::ByApplication => {
                (FailureCode::Cancelled, "your application cancelled the message")
            }
            Self::OrganisationRemoved => {
                (FailureCode::Cancelled, "the operator removed the organisation")
            }
            Self::DomainRemoved => (
                FailureCode::DomainUnverified,
                "the sender's domain no longer belongs to the organisation",
            ),
        };
        let outcome = match acceptance {
            Acceptance::Excluded => "the message was not sent",
            Acceptance::Possible => {
                "the answer to a call to the provider was lost, so it is unknown whether the \
                 message was accepted"
            }
        };
        let failure = Failure::new(code, format!("{reason}; {outcome}"));
        Transition::Failed { failure, acceptance }
    }
}

/// State of a stored message. A call under way is no part of it: after a crash it means the same as
/// queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Waiting for an attempt.
    Queued {
        /// The last attempt's failure, while a retry is awaited.
        last_failure: Option<Failure>,
        /// Possibility that an earlier attempt was accepted.
        acceptance: Acceptance,
    },
    /// The provider accepted it. Final.
    Sent {
        /// The provider's identifier for the message.
        ses_message_id: String,
        /// Time at which the provider accepted it.
        sent_at: Timestamp,
    },
    /// It will not be sent. Final, unless acceptance is possible and an event proves it.
    Failed {
        /// The failure as a client reads it.
        failure: Failure,
        /// Possibility that an attempt was accepted all the same.
        acceptance: Acceptance,
    },
    /// A recipient became suppressed. Final.
    Suppressed {
        /// The failure as a client reads it.
        failure: Failure,
    },
}

/// Outcome for a message: the input to [`Message::record`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// The provider accepted it.
    Sent {
        /// The provider's identifier for the message.
        ses_message_id: String,
        /// Time at which the provider accepted it.
        sent_at: Timestamp,
    },
    /// An attempt failed and another will follow.
    RetryLater {
        /// The failure of the attempt.
        failure: Failure,
        /// Possibility that the attempt was accepted.
        acceptance: Acceptance,
        /// Earliest time of the next attempt, if it is known.
        next_attempt_at: Option<Timestamp>,
    },
    /// The message is given up.
    Failed {
        /// The failure as a client reads it.
        failure: Failure,
        /// Possibility that the last attempt was accepted.
        acceptance: Acceptance,
    },
    /// The body was lost with the process that held it.
    BodyLost {
        /// Possibility that a call was accepted.
        acceptance: Acceptance,
        /// Description of the loss for a client to read.
        message: &'static str,
        /// Time at which the loss was found.
        found_at: Timestamp,
    },
    /// A recipient became suppressed.
    Suppressed,
}

impl Transition {
    /// The end of a message that was not sent for as long as it could be, after its acceptance.
    pub fn expired(expires_in: Duration, acceptance: Acceptance) -> Self {
        let time = humantime::format_duration(expires_in);
        let outcome = match acceptance {
            Acceptance::Excluded => "the message was not sent",
            Acceptance::Possible => {
                "the answer to a call to the provider was lost, so SES may have accepted the message"
            }
        };
        let message = format!("the message expired {time} after its acceptance; {outcome}");
        Self::Failed { failure: Failure::new(FailureCode::Expired, message), acceptance }
    }
}

/// Result of a transition for the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The transition changed the row.
    Changed,
    /// The row had reached a final state before: a late or repeated input changes nothing.
    AlreadyFinal,
}

/// Record of a message: everything but its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Identifier, which sorts by acceptance.
    pub id: MessageId,
    /// Organisation of the message.
    pub organisation: OrganisationId,
    /// Time of acceptance by us.
    pub created_at: Timestamp,
    /// The sender as given.
    pub from: String,
    /// The recipients as given: to, cc and bcc, in that order.
    pub recipients: Vec<String>,
    /// The subject, as given.
    pub subject: String,
    /// The client's own names and values, if it gave any.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Priority, and time for which it may be sent.
    pub terms: Terms,
    /// Calls to the provider that were started; after a crash, a lower bound.
    pub attempts: u32,
    /// Progress of sending.
    pub state: State,
    /// Latest delivery event, if the provider reported one.
    pub last_event: Option<LastEvent>,
    /// Number of started calls, if the node that holds the message has reported a call under way.
    /// It is no part of the record.
    pub calling: Option<u32>,
}

impl Message {
    /// Returns true if the record is older than the retention. No reader gets it any more.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.created_at.is_past(RECORD_RETENTION, now)
    }

    /// Time until which it may be sent; `None` if it has no end of its own.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.terms.expires_in.map(|expires_in| self.created_at.plus(expires_in))
    }

    /// Status by the stored state; it is not `sending`.
    pub const fn status(&self) -> Status {
        match self.state {
            State::Queued { .. } => Status::Queued,
            State::Sent { .. } => Status::Sent,
            State::Failed { .. } => Status::Failed,
            State::Suppressed { .. } => Status::Suppressed,
        }
    }

    /// The failure that a client reads; `None` once sent.
    pub const fn failure(&self) -> Option<&Failure> {
        match &self.state {
            State::Queued { last_failure, .. } => last_failure.as_ref(),
            State::Sent { .. } => None,
            State::Failed { failure, .. } | State::Suppressed { failure } => Some(failure),
        }
    }

    /// Records the outcome for the message after `attempts` calls in all.
    pub fn record(&mut self, attempts: u32, transition: Transition) -> Recorded {
        let State::Queued { acceptance: before, .. } = self.state else {
            // A call that an event's proof overtook was started too.
            if matches!(self.state, State::Sent { .. }) {
                self.attempts = self.attempts.max(attempts);
            }
            return Recorded::AlreadyFinal;
        };
        self.attempts = self.attempts.max(attempts);
        self.state = match transition {
            Transition::Sent { ses_message_id, sent_at } => State::Sent { ses_message_id, sent_at },
            Transition::RetryLater { failure, acceptance, next_attempt_at: _ } => {
                State::Queued { last_failure: Some(failure), acceptance: before.or(acceptance) }
            }
            Transition::Failed { failure, acceptance } => {
                State::Failed { failure, acceptance: before.or(acceptance) }
            }
            Transition::BodyLost { acceptance, message, found_at: _ } => State::Failed {
                failure: Failure::new(FailureCode::BodyLostOnRestart, message),
                acceptance: before.or(acceptance),
            },
            Transition::Suppressed => State::Suppressed {
                failure: Failure::new(
                    FailureCode::RecipientSuppressed,
                    "a recipient became suppressed after the message was accepted",
                ),
            },
        };
        Recorded::Changed
    }

    /// Takes an event into account, in whatever order events arrive.
    pub fn observe(&mut self, event: LastEvent) {
        self.last_event = self.last_event.max(Some(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventType;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn message(attempts: u32, state: State) -> Message {
        Message {
            id: MessageId::first_of(NOON),
            organisation: OrganisationId(1),
            created_at: NOON,
            from: "ann@example.com".to_owned(),
            recipients: vec!["bob@example.org".to_owned()],
            subject: "Hello".to_owned(),
            metadata: None,
            terms: Terms::NONE,
            attempts,
            state,
            last_event: None,
            calling: None,
        }
    }

    fn queued(acceptance: Acceptance) -> State {
        State::Queued { last_failure: None, acceptance }
    }

    fn sent(id: &str) -> State {
        State::Sent { ses_message_id: id.to_owned(), sent_at: NOON }
    }

    fn failure(code: FailureCode) -> Failure {
        Failure::new(code, "it failed")
    }

    fn failed(acceptance: Acceptance) -> State {
        State::Failed { failure: failure(FailureCode::RetriesExhausted), acceptance }
    }

    #[test]
    fn a_lost_answer_stays_possible_through_every_later_attempt() {
        use Acceptance::{Excluded, Possible};
        for (before, of_attempt, after) in [
            (Excluded, Excluded, Excluded),
            (Excluded, Possible, Possible),
            (Possible, Excluded, Possible),
            (Possible, Possible, Possible),
        ] {
            let mut retried = message(1, queued(before));
            let again = failure(FailureCode::ProviderThrottled);
            let (last_failure, next_attempt_at) = (again.clone(), None);
            let later =
                Transition::RetryLater { failure: again, acceptance: of_attempt, next_attempt_at };
            assert_eq!(retried.record(2, later), Recorded::Changed);
            let state = State::Queued { last_failure: Some(last_failure), acceptance: after };
            assert_eq!((retried.attempts, &retried.state), (2, &state));

            let mut given_up = message(1, queued(before));
            let end = failure(FailureCode::RetriesExhausted);
            let end = Transition::Failed { failure: end, acceptance: of_attempt };
            assert_eq!(given_up.record(2, end), Recorded::Changed);
            assert_eq!(given_up.state, failed(after));

            let mut lost = message(1, queued(before));
            let (text, found_at) = ("it is lost", NOON);
            let end = Transition::BodyLost { acceptance: of_attempt, message: text, found_at };
            assert_eq!(lost.record(1, end), Recorded::Changed);
            let failure = Failure::new(FailureCode::BodyLostOnRestart, text);
            assert_eq!(lost.state, State::Failed { failure, acceptance: after });
        }
    }

    #[test]
    fn a_final_state_stays_and_only_a_sent_message_counts_a_later_call() {
        let end = || Transition::Sent { ses_message_id: "2".to_owned(), sent_at: NOON };
        let mut first = message(1, queued(Acceptance::Excluded));
        assert_eq!(first.record(1, end()), Recorded::Changed);
        assert_eq!(first.state, sent("2"));
        let mut suppressed = message(0, queued(Acceptance::Excluded));
        assert_eq!(suppressed.record(0, Transition::Suppressed), Recorded::Changed);
        let code = suppressed.failure().map(|failure| failure.code);
        assert_eq!(code, Some(FailureCode::RecipientSuppressed));
        let cases =
            [(sent("1"), 3), (failed(Acceptance::Possible), 1), (suppressed.state.clone(), 1)];
        for (state, attempts) in cases {
            let mut message = message(1, state.clone());
            assert_eq!(message.record(3, end()), Recorded::AlreadyFinal);
            assert_eq!((message.attempts, message.state), (attempts, state));
        }
    }

    #[test]
    fn an_event_proves_the_acceptance_of_what_may_have_been_accepted() {
        for (attempts, state) in [
            (0, queued(Acceptance::Excluded)),
            (4, queued(Acceptance::Possible)),
            (4, failed(Acceptance::Possible)),
        ] {
            let mut message = message(attempts, state);
            assert_eq!(message.prove_accepted("1", NOON), Recorded::Changed);
            assert_eq!((message.attempts, message.state), (attempts.max(1), sent("1")));
        }
        let suppressed = State::Suppressed { failure: failure(FailureCode::RecipientSuppressed) };
        for state in [sent("2"), failed(Acceptance::Excluded), suppressed] {
            let mut message = message(1, state.clone());
            assert_eq!(message.prove_accepted("1", NOON), Recorded::AlreadyFinal);
            assert_eq!(message.state, state);
        }
    }

    #[test]
    fn a_client_reads_the_status_and_the_failure_of_the_state() {
        let waits = failure(FailureCode::ProviderThrottled);
        let retried = State::Queued { last_failure: Some(waits), acceptance: Acceptance::Excluded };
        let suppressed = State::Suppressed { failure: failure(FailureCode::RecipientSuppressed) };
        for (state, status, code) in [
            (queued(Acceptance::Excluded), Status::Queued, None),
            (retried, Status::Queued, Some(FailureCode::ProviderThrottled)),
            (sent("1"), Status::Sent, None),
            (failed(Acceptance::Possible), Status::Failed, Some(FailureCode::RetriesExhausted)),
            (suppressed, Status::Suppressed, Some(FailureCode::RecipientSuppressed)),
        ] {
            let message = message(1, state);
            let read = message.failure().map(|failure| failure.code);
            assert_eq!((message.status(), read), (status, code));
        }
    }

    #[test]
    fn a_record_ends_after_its_retention_and_a_message_after_its_own_time() {
        let mut message = message(0, queued(Acceptance::Excluded));
        let end = NOON.plus(RECORD_RETENTION);
        assert!(!message.is_expired(end.minus(Duration::from_millis(1))));
        assert!(message.is_expired(end));
        assert_eq!(message.expires_at(), None);
        message.terms.expires_in = Some(Duration::from_mins(5));
        assert_eq!(message.expires_at(), Some(NOON.plus(Duration::from_mins(5))));
    }

    #[test]
    fn the_last_event_is_the_latest_in_whatever_order_they_come() {
        let event = |seconds, event_type| LastEvent {
            occurred_at: NOON.plus(Duration::from_secs(seconds)),
            event_type,
        };
        let (first, last) = (event(1, EventType::Delivery), event(2, EventType::Complaint));
        for events in [[first, last], [last, first]] {
            let mut message = message(1, sent("1"));
            for event in events {
                message.observe(event);
            }
            assert_eq!(message.last_event, Some(last));
        }
    }

    #[test]
    fn an_end_by_decision_or_by_time_says_if_the_message_may_be_sent() {
        let told = |end| match end {
            Transition::Failed { failure, acceptance } => {
                (failure.code, acceptance, failure.message)
            }
            other => panic!("{other:?}"),
        };
        for (decision, code) in [
            (Cancellation::ByOperator, FailureCode::Cancelled),
            (Cancellation::ByApplication, FailureCode::Cancelled),
            (Cancellation::OrganisationRemoved, FailureCode::Cancelled),
            (Cancellation::DomainRemoved, FailureCode::DomainUnverified),
        ] {
            for acceptance in [Acceptance::Excluded, Acceptance::Possible] {
                let (of, possible, message) = told(decision.transition(acceptance));
                assert_eq!((of, possible), (code, acceptance));
                let is_sure = message.ends_with("; the message was not sent");
                assert_eq!(is_sure, acceptance == Acceptance::Excluded, "{message}");
            }
        }
        let time = Duration::from_mins(5);
        let (code, _, message) = told(Transition::expired(time, Acceptance::Excluded));
        assert_eq!(code, FailureCode::Expired);
        let text = "the message expired 5m after its acceptance; the message was not sent";
        assert_eq!(message, text);
        let (_, acceptance, message) = told(Transition::expired(time, Acceptance::Possible));
        assert_eq!(acceptance, Acceptance::Possible);
        assert!(message.ends_with("SES may have accepted the message"), "{message}");
    }
}
