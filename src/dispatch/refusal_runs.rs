//! Refusals in a row: messages of an organisation that the provider refuses one after the other in
//! the same words.
//!
//! Such a refusal may be the message's fault or the set-up's. Once enough different messages got the
//! same sentence and none was accepted in between, it is taken for the set-up's. Knows no queue.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::warn;

use pillarbox_domain::attempt::{Problem, ProviderAnswer, Sentence};
use pillarbox_domain::id::{MessageId, OrganisationId};

/// From this refusal in a row on, messages wait.
const HELD_FROM: usize = 5;
/// The most sentences that are held against an organisation at one time.
const MAX_SENTENCES: usize = 8;

/// The rows of all organisations that had a refusal since a message of theirs was accepted.
#[derive(Debug, Default)]
pub(super) struct RefusalRuns(Mutex<BTreeMap<OrganisationId, Run>>);

/// The row of an organisation.
#[derive(Debug)]
struct Run {
    /// The sentence of the last refusals.
    sentence: Sentence,
    /// Messages that got it: fewer than [`HELD_FROM`].
    messages: Vec<MessageId>,
    /// Sentences that have come often enough, and what operators read of them.
    held: Vec<(Sentence, String)>,
}

impl RefusalRuns {
    /// Takes note of how a call ended. Returns true if the message waits instead of failing.
    pub(super) fn refused(
        &self,
        organisation: OrganisationId,
        message: MessageId,
        problem: &Problem,
    ) -> bool {
        let ProviderAnswer::Disputable(sentence) = problem.answer else { return false };
        let mut runs = self.lock();
        let new = || Run { sentence, messages: Vec::new(), held: Vec::new() };
        let run = runs.entry(organisation).or_insert_with(new);
        if run.held.iter().any(|(held, _)| *held == sentence) {
            return true;
        }
        if run.sentence != sentence {
            run.sentence = sentence;
            run.messages.clear();
        }
        if run.messages.contains(&message) {
            return false;
        }
        if run.messages.len() + 1 < HELD_FROM || run.held.len() == MAX_SENTENCES {
            run.messages.push(message);
            run.messages.truncate(HELD_FROM - 1);
            return false;
        }
        let said = problem.explained().into_owned();
        warn!(
            organisation = organisation.0,
            said,
            "the provider refuses messages of an organisation with the same error text; they wait"
        );
        run.held.push((sentence, said));
        true
    }

    /// Takes note that a message was accepted: the next refusal begins a row.
    pub(super) fn accepted(&self, organisation: OrganisationId) {
        let mut runs = self.lock();
        if !runs.is_empty() {
            runs.remove(&organisation);
        }
    }

    /// Message of the provider to each organisation whose messages wait.
    pub(super) fn held(&self) -> Vec<(OrganisationId, String)> {
        let runs = self.lock();
        let all = runs.iter().flat_map(|(organisation, run)| {
            run.held.iter().map(|(_, said)| (*organisation, said.clone()))
        });
        all.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<OrganisationId, Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::attempt::ProblemKind;
    use pillarbox_domain::id::MessageIds;
    use pillarbox_domain::time::Timestamp;

    const A: OrganisationId = OrganisationId(1);
    const B: OrganisationId = OrganisationId(2);

    struct Refusals {
        runs: RefusalRuns,
        ids: MessageIds,
    }

    impl Refusals {
        fn new() -> Self {
            Self { runs: RefusalRuns::default(), ids: MessageIds::new() }
        }

        fn next(&self) -> MessageId {
            self.ids.next(Timestamp::from_unix_millis(1_800_000_000_000))
        }

        /// Refuses a new message; returns true if it waits.
        fn refuse(&self, organisation: OrganisationId, said: &str) -> bool {
            self.refuse_again(organisation, self.next(), said)
        }

        fn refuse_again(&self, organisation: OrganisationId, id: MessageId, said: &str) -> bool {
            let problem = Problem {
                kind: ProblemKind::Rejected,
                provider_code: None,
                message: said.to_owned(),
                retry_after: None,
                answer: ProviderAnswer::Disputable(Sentence::of(said)),
            };
            self.runs.refused(organisation, id, &problem)
        }
    }

    #[test]
    fn messages_wait_from_the_fifth_equal_refusal_in_a_row_on() {
        let refusals = Refusals::new();
        let waits: Vec<_> = (0..7).map(|_| refusals.refuse(A, "no")).collect();
        assert_eq!(waits, [false, false, false, false, true, true, true]);
        assert_eq!(refusals.runs.held(), [(A, "no".to_owned())]);
        assert!(!refusals.refuse(B, "no"), "it is no row of another organisation");
        refusals.runs.accepted(B);
        assert!(refusals.refuse(A, "no"));
        refusals.runs.accepted(A);
        assert!(refusals.runs.held().is_empty());
        assert!(!refusals.refuse(A, "no"));
    }

    #[test]
    fn another_sentence_ends_the_row_and_not_what_is_held() {
        let refusals = Refusals::new();
        for _ in 0..10 {
            assert!((0..4).all(|_| !refusals.refuse(A, "no")));
            assert!(!refusals.refuse(A, "never"));
        }
        let waits: Vec<_> = (0..5).map(|_| refusals.refuse(A, "no")).collect();
        assert_eq!(waits, [false, false, false, false, true]);
        assert!(!refusals.refuse(A, "never"));
        assert!(refusals.refuse(A, "no"));
    }

    #[test]
    fn one_message_counts_once_however_often_it_is_refused() {
        let refusals = Refusals::new();
        let id = refusals.next();
        assert!((0..20).all(|_| !refusals.refuse_again(A, id, "no")));
        assert!((0..3).all(|_| !refusals.refuse(A, "no")));
        assert!(refusals.refuse(A, "no"));
    }
}
