//! A message's timeline: its acceptance, its attempts, restarts of the service, its end and its
//! events, in one list (contract, section 1, "Timeline").

use crate::event::Event;
use crate::message::{Failure, FailureCode, Message, State};
use crate::time::Timestamp;
use crate::worded;

worded! {
    /// Kind of a step that neither the record nor an event shows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StepKind {
        /// An attempt failed, and another was to follow.
        AttemptFailed = "attempt_failed",
        /// The message was given up.
        Failed = "failed",
        /// A recipient became suppressed.
        Suppressed = "suppressed",
        /// It was cancelled.
        Cancelled = "cancelled",
        /// Its own time was over.
        Expired = "expired",
        /// The process that held it ended, and the next one continued with it.
        Restarted = "restarted",
    }
}

impl StepKind {
    /// Returns true if nothing but events and a proof of acceptance follows.
    pub const fn is_end(self) -> bool {
        match self {
            Self::AttemptFailed | Self::Restarted => false,
            Self::Failed | Self::Suppressed | Self::Cancelled | Self::Expired => true,
        }
    }
}

/// Step that is kept for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Time of the step.
    pub at: Timestamp,
    /// Kind of the step.
    pub kind: StepKind,
    /// Number of the attempt, from 1 on, if it was one.
    pub attempt: Option<u32>,
    /// Attempts until then, this one included.
    pub attempts: u32,
    /// Failure of the attempt or message; `None` for a restart.
    pub failure: Option<Failure>,
    /// Earliest time of the next attempt, if there was to be one.
    pub next_attempt_at: Option<Timestamp>,
}

impl Step {
    /// Returns the end that a message has come to at `at`, by its last attempt if `attempt` says
    /// so; `None` if it has not failed.
    pub fn end(message: &Message, attempt: Option<u32>, at: Timestamp) -> Option<Self> {
        let (kind, failure) = match &message.state {
            State::Queued { .. } | State::Sent { .. } => return None,
            State::Suppressed { failure } => (StepKind::Suppressed, failure),
            State::Failed { failure, .. } if failure.code == FailureCode::Cancelled => {
                (StepKind::Cancelled, failure)
            }
            State::Failed { failure, .. } if failure.code == FailureCode::Expired => {
                (StepKind::Expired, failure)
            }
            State::Failed { failure, .. } => (StepKind::Failed, failure),
        };
        let (attempts, failure) = (message.attempts, Some(failure.clone()));
        Some(Self { at, kind, attempt, attempts, failure, next_attempt_at: None })
    }

    /// Returns the step of a restart.
    pub const fn restart(at: Timestamp) -> Self {
        let kind = StepKind::Restarted;
        Self { at, kind, attempt: None, attempts: 0, failure: None, next_attempt_at: None }
    }
}

/// Entry of a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// The message was accepted.
    Accepted(Timestamp),
    /// A step that was kept.
    Step(Step),
    /// The end of a message that an earlier version failed: its time was not kept.
    EndAtUnknownTime(Step),
    /// The provider accepted the message.
    Sent {
        /// Time of the acceptance.
        at: Timestamp,
        /// Number of the attempt, from 1 on.
        attempt: u32,
    },
    /// An event.
    Event(Event),
    /// So many attempts were left out here.
    Omitted(u32),
}

impl Entry {
    const fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Accepted(at) | Self::Sent { at, .. } => Some(*at),
            Self::Step(step) => Some(step.at),
            Self::Event(event) => Some(event.occurred_at),
            Self::EndAtUnknownTime(_) | Self::Omitted(_) => None,
        }
    }
}

/// Returns a message's timeline, oldest first. `steps` are in their order. `restarted_at` is the
/// start of the process that continued with the message, if no step shows it yet.
pub fn timeline(
    message: &Message,
    steps: Vec<Step>,
    events: Vec<Event>,
    restarted_at: Option<Timestamp>,
) -> Vec<Entry> {
    let mut entries = vec![Entry::Accepted(message.created_at)];
    let is_told = |at| steps.iter().any(|step| step.kind == StepKind::Restarted && step.at >= at);
    let restarted_at = restarted_at.filter(|at| !is_told(*at));
    let has_end = steps.last().is_some_and(|step| step.kind.is_end());
    let mut told = 0;
    let mut omit = |entries: &mut Vec<Entry>, next: u32| {
        let left_out = next.saturating_sub(told + 1);
        entries.extend((left_out > 0).then_some(Entry::Omitted(left_out)));
        told = told.max(next);
    };
    for step in steps {
        match step.attempt {
            Some(attempt) => omit(&mut entries, attempt),
            None if step.kind.is_end() => omit(&mut entries, step.attempts + 1),
            None => {}
        }
        entries.push(Entry::Step(step));
    }
    match &message.state {
        State::Sent { sent_at, .. } => {
            omit(&mut entries, message.attempts);
            entries.push(Entry::Sent { at: *sent_at, attempt: message.attempts });
        }
        State::Queued { .. } => omit(&mut entries, message.attempts + 1),
        State::Failed { .. } | State::Suppressed { .. } if !has_end => {
            omit(&mut entries, message.attempts + 1);
            let end = Step::end(message, None, message.created_at);
            entries.extend(end.map(Entry::EndAtUnknownTime));
        }
        State::Failed { .. } | State::Suppressed { .. } => {}
    }
    entries.extend(restarted_at.map(|at| Entry::Step(Step::restart(at))));
    entries.extend(events.into_iter().map(Entry::Event));
    in_order(entries)
}

/// Sorts entries behind the first one by their times. One without a time stays before the one that
/// it was before.
fn in_order(entries: Vec<Entry>) -> Vec<Entry> {
    let mut next = Timestamp::from_unix_millis(u64::MAX);
    let mut timed = Vec::with_capacity(entries.len());
    for entry in entries.into_iter().rev() {
        next = entry.at().unwrap_or(next);
        timed.push((next, entry));
    }
    timed.reverse();
    timed[1..].sort_by_key(|(at, _)| *at);
    timed.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventDetail;
    use crate::id::{MessageId, OrganisationId};
    use crate::message::Acceptance;
    use crate::message_terms::Terms;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_millis(seconds * 1000)
    }

    fn message(attempts: u32, state: State) -> Message {
        Message {
            id: MessageId::from_bytes([1; 16]),
            organisation: OrganisationId(1),
            created_at: at(100),
            from: "a@example.com".to_owned(),
            recipients: vec!["b@example.org".to_owned()],
            subject: "s".to_owned(),
            metadata: None,
            terms: Terms::NONE,
            attempts,
            state,
            last_event: None,
            calling: None,
        }
    }

    fn failure(code: FailureCode) -> Failure {
        Failure::new(code, "it failed")
    }

    fn failed_attempt(attempt: u32) -> Step {
        Step {
            at: at(100 + u64::from(attempt)),
            kind: StepKind::AttemptFailed,
            attempt: Some(attempt),
            attempts: attempt,
            failure: Some(failure(FailureCode::ProviderThrottled)),
            next_attempt_at: None,
        }
    }

    fn sent(attempts: u32) -> Message {
        let ses_message_id = "1".to_owned();
        message(attempts, State::Sent { ses_message_id, sent_at: at(100 + u64::from(attempts)) })
    }

    fn words(entries: &[Entry]) -> String {
        let word = |entry: &Entry| match entry {
            Entry::Accepted(_) => "accepted".to_owned(),
            Entry::Step(Step { kind, attempt, .. }) => {
                attempt.map_or(kind.as_str().to_owned(), |n| format!("{}:{n}", kind.as_str()))
            }
            Entry::EndAtUnknownTime(step) => format!("{}?", step.kind.as_str()),
            Entry::Sent { attempt, .. } => format!("sent:{attempt}"),
            Entry::Event(event) => event.event_type().as_str().to_owned(),
            Entry::Omitted(count) => format!("omitted:{count}"),
        };
        entries.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn attempts_that_are_not_kept_are_counted_where_they_were() {
        let steps = |attempts: &[u32]| attempts.iter().copied().map(failed_attempt).collect();
        let shown = |message: &Message, kept: &[u32]| {
            words(&timeline(message, steps(kept), Vec::new(), None))
        };
        assert_eq!(shown(&sent(1), &[]), "accepted sent:1");
        assert_eq!(shown(&sent(2), &[1]), "accepted attempt_failed:1 sent:2");
        assert_eq!(shown(&sent(4), &[]), "accepted omitted:3 sent:4", "of an earlier version");
        assert_eq!(
            shown(&sent(9), &[1, 7, 8]),
            "accepted attempt_failed:1 omitted:5 attempt_failed:7 attempt_failed:8 sent:9"
        );
        // An event proved the acceptance that a lost answer had left open.
        assert_eq!(shown(&sent(1), &[1]), "accepted attempt_failed:1 sent:1");
        let queued = State::Queued { last_failure: None, acceptance: Acceptance::Excluded };
        assert_eq!(shown(&message(3, queued), &[1]), "accepted attempt_failed:1 omitted:2");
        let failed = State::Failed {
            failure: failure(FailureCode::RetriesExhausted),
            acceptance: Acceptance::Excluded,
        };
        assert_eq!(shown(&message(2, failed.clone()), &[]), "accepted omitted:2 failed?");
        assert_eq!(
            shown(&message(2, failed.clone()), &[1]),
            "accepted attempt_failed:1 omitted:1 failed?"
        );
        // An end that no attempt brought comes after all of them.
        let ended = message(3, failed);
        let end = Step::end(&ended, None, at(104)).unwrap();
        let shown = timeline(&ended, vec![failed_attempt(1), end], Vec::new(), None);
        assert_eq!(words(&shown), "accepted attempt_failed:1 omitted:2 failed");
    }

    #[test]
    fn a_proof_after_the_end_leaves_out_no_attempt_and_a_restart_is_told_once() {
        let failure = failure(FailureCode::BodyLostOnRestart);
        let lost = State::Failed { failure, acceptance: Acceptance::Possible };
        let end = Step::end(&message(0, lost), None, at(102)).unwrap();
        let shown = words(&timeline(&sent(1), vec![end], Vec::new(), None));
        assert_eq!(shown, "accepted sent:1 failed");
        let restart = Step::restart(at(100));
        let shown = words(&timeline(&sent(1), vec![restart], Vec::new(), Some(at(100))));
        assert_eq!(shown, "accepted restarted sent:1");
        let restart = Step { attempts: 1, ..Step::restart(at(101)) };
        let steps = vec![failed_attempt(1), restart, failed_attempt(3)];
        let shown = words(&timeline(&sent(4), steps, Vec::new(), None));
        assert_eq!(shown, "accepted attempt_failed:1 restarted omitted:1 attempt_failed:3 sent:4");
        // Only a restart shows a restart.
        let steps = vec![Step::restart(at(100)), failed_attempt(2)];
        let shown = words(&timeline(&sent(3), steps, Vec::new(), Some(at(101))));
        assert_eq!(shown, "accepted restarted restarted omitted:1 attempt_failed:2 sent:3");
    }

    #[test]
    fn entries_come_in_the_order_of_their_times_behind_the_acceptance() {
        let event =
            |seconds, detail| Event { occurred_at: at(seconds), recipients: Vec::new(), detail };
        let events = vec![
            event(50, EventDetail::Reject { reason: "odd clock".to_owned() }),
            event(110, EventDetail::Delivery { smtp_response: None }),
        ];
        let entries = timeline(&sent(4), vec![failed_attempt(1)], events, Some(at(102)));
        assert_eq!(
            words(&entries),
            "accepted reject attempt_failed:1 restarted omitted:2 sent:4 delivery"
        );
    }

    #[test]
    fn an_end_is_named_by_what_ended_the_message() {
        let end =
            |state| words(&[Entry::Step(Step::end(&message(2, state), Some(2), at(1)).unwrap())]);
        let failed =
            |code| State::Failed { failure: failure(code), acceptance: Acceptance::Excluded };
        assert_eq!(end(failed(FailureCode::ProviderRejected)), "failed:2");
        assert_eq!(end(failed(FailureCode::Cancelled)), "cancelled:2");
        assert_eq!(end(failed(FailureCode::Expired)), "expired:2");
        let failure = failure(FailureCode::RecipientSuppressed);
        assert_eq!(end(State::Suppressed { failure }), "suppressed:2");
        assert_eq!(Step::end(&sent(1), Some(1), at(1)), None);
    }
}
