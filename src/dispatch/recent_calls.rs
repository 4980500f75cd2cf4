//! Calls of the last minutes: how many there were, and how many were slow or got no answer. The
//! one definition of a slow provider, for the page, `status` and the alarm; and the prospects of
//! messages that wait, for the forecast of a stop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use pillarbox_domain::attempt::{Outcome, ProblemKind, ProviderAnswer};
use pillarbox_domain::id::OrganisationId;

/// Window in which calls count.
pub const WINDOW: Duration = Duration::from_mins(5);
/// Calls are counted together for so long, so the window is longer by this at most.
const STEP: Duration = Duration::from_secs(10);
/// A call that takes longer is slow. Those that got no answer until their time-out are slow too.
pub const SLOW: Duration = Duration::from_millis(2_500);
/// Fewer slow calls than this are no trend.
pub const FEW: u64 = 3;
/// The most names of unexpected answers that are kept.
const MAX_NAMES: usize = 20;
/// The provider is slow if more than one call in so many is.
pub const ONE_IN: u64 = 20;
/// Window for the prospects of messages that wait, if it has any calls.
const LATEST: Duration = Duration::from_mins(1);

/// Results of the calls of the last five minutes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentCalls {
    /// Calls that ended in the window.
    pub calls: u64,
    /// Of these, the ones that took over 2.5 seconds.
    pub slow: u64,
    /// Of these, the ones that got no answer, so that it is not known whether the provider accepted
    /// the message.
    pub unanswered: u64,
    /// Of these, the ones that got an error after which that is not known either.
    pub unclear: u64,
}

impl RecentCalls {
    /// True if the provider is slow.
    pub fn are_slow(&self) -> bool {
        self.slow >= FEW && self.slow * ONE_IN > self.calls
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.slow += other.slow;
        self.unanswered += other.unanswered;
        self.unclear += other.unclear;
    }
}

/// Calls by what they say of a message that waits.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    /// The provider took the message, or refused it for good.
    finished: u64,
    /// It put the message off, or did not answer.
    put_off: u64,
}

impl Answers {
    fn of(outcome: &Outcome) -> Self {
        let (finished, put_off) = match outcome {
            Outcome::Sent { .. } => (1, 0),
            Outcome::NotSent(problem) | Outcome::NotCalled(problem) => match problem.kind {
                ProblemKind::Rejected => (1, 0),
                ProblemKind::Throttled | ProblemKind::Unavailable | ProblemKind::Unknown => (0, 1),
                // These hold up messages by themselves, or say nothing of the next one.
                ProblemKind::ClockWrong
                | ProblemKind::Crashed
                | ProblemKind::DomainFault
                | ProblemKind::QuotaExhausted
                | ProblemKind::AccountPaused
                | ProblemKind::SetupFault => (0, 0),
            },
        };
        Self { finished, put_off }
    }

    fn add(&mut self, other: Self) {
        self.finished += other.finished;
        self.put_off += other.put_off;
    }

    /// Returns true if the provider takes none. A few calls are no trend.
    fn are_hopeless(self) -> bool {
        self.finished == 0 && self.put_off > FEW
    }
}

/// Prospects of messages that wait, by the calls of the last minute, or of the last five if that
/// had none.
#[derive(Debug)]
pub(super) struct Prospects {
    /// Organisations of whose messages the provider takes none.
    hopeless: BTreeSet<OrganisationId>,
    /// The part of the other organisations' calls that are of use, from 0 to 1.
    pub(super) useful: f64,
}

impl Prospects {
    /// Prospects by these answers. Those of organisations that are held up by themselves say
    /// nothing of the others.
    fn of(
        answers: &BTreeMap<OrganisationId, Answers>,
        is_held_up: impl Fn(OrganisationId) -> bool,
    ) -> Self {
        let (mut hopeless, mut others) = (BTreeSet::new(), Answers::default());
        for (organisation, answers) in answers.iter().filter(|(id, _)| !is_held_up(**id)) {
            if answers.are_hopeless() {
                hopeless.insert(*organisation);
            } else {
                others.add(*answers);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "for a forecast")]
        let useful = match (others.finished, others.put_off) {
            (0, _) if !hopeless.is_empty() => 0.0,
            (0, few) if few <= FEW => 1.0,
            (finished, put_off) => finished as f64 / (finished + put_off) as f64,
        };
        Self { hopeless, useful }
    }

    /// Returns true if the provider takes none of an organisation's messages.
    pub(super) fn are_hopeless_for(&self, organisation: OrganisationId) -> bool {
        self.useful == 0.0 || self.hopeless.contains(&organisation)
    }
}

/// Counts of the last five minutes, step by step, and answers that nothing is known of.
#[derive(Debug, Default)]
pub(super) struct Recent {
    steps: Mutex<VecDeque<Step>>,
    /// Names, and when each came last.
    unexpected: Mutex<BTreeMap<String, Instant>>,
}

/// Counts of the calls that ended within [`STEP`].
#[derive(Debug)]
struct Step {
    begun: Instant,
    counts: RecentCalls,
    answers: BTreeMap<OrganisationId, Answers>,
}

impl Recent {
    /// Counts a call of an organisation that ended at `now`.
    pub(super) fn note(
        &self,
        organisation: OrganisationId,
        outcome: &Outcome,
        took: Duration,
        now: Instant,
    ) {
        let mut call = RecentCalls { calls: 1, slow: u64::from(took > SLOW), ..Default::default() };
        if let Outcome::NotSent(problem) = outcome {
            if problem.kind == ProblemKind::Unknown {
                let is_answered = problem.answer != ProviderAnswer::Missing;
                call.unclear = u64::from(is_answered);
                call.unanswered = u64::from(!is_answered);
            }
            if let Some(name) = problem.unexpected_name() {
                self.note_unexpected(name, now);
            }
        }
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.back().is_none_or(|last| now >= last.begun + STEP) {
            let (counts, answers) = (RecentCalls::default(), BTreeMap::new());
            steps.push_back(Step { begun: now, counts, answers });
        }
        let step = steps.back_mut().expect("one is there");
        step.counts.add(&call);
        step.answers.entry(organisation).or_default().add(Answers::of(outcome));
        forget(&mut steps, now);
    }

    /// Prospects of messages that wait, but for those of organisations that are held up by
    /// themselves.
    pub(super) fn prospects(
        &self,
        now: Instant,
        is_held_up: impl Fn(OrganisationId) -> bool,
    ) -> Prospects {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut steps, now);
        let since = |window: Duration| {
            let mut answers = BTreeMap::<OrganisationId, Answers>::new();
            let steps = steps.iter().filter(|step| step.begun + STEP + window > now);
            for (organisation, counts) in steps.flat_map(|step| &step.answers) {
                answers.entry(*organisation).or_default().add(*counts);
            }
            answers
        };
        let latest = since(LATEST);
        let answers = if latest.is_empty() { since(WINDOW) } else { latest };
        Prospects::of(&answers, is_held_up)
    }

    pub(super) fn read(&self, now: Instant) -> RecentCalls {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut steps, now);
        let mut all = RecentCalls::default();
        steps.iter().for_each(|step| all.add(&step.counts));
        all
    }

    /// Names of the last minutes' answers that nothing is known of.
    pub(super) fn unexpected(&self, now: Instant) -> Vec<String> {
        let mut names = self.unexpected.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|_, last| *last + WINDOW > now);
        names.keys().cloned().collect()
    }

    fn note_unexpected(&self, name: String, now: Instant) {
        let mut names = self.unexpected.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES
            && !names.contains_key(&name)
            && let Some(oldest) = names.iter().min_by_key(|(_, last)| **last)
        {
            let oldest = oldest.0.clone();
            names.remove(&oldest);
        }
        names.insert(name, now);
    }
}

/// Drops the steps that ended before the window.
fn forget(steps: &mut VecDeque<Step>, now: Instant) {
    while steps.front().is_some_and(|step| step.begun + STEP + WINDOW <= now) {
        steps.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::attempt::Problem;

    const LATE: Duration = Duration::from_secs(3);
    const A: OrganisationId = OrganisationId(1);
    const B: OrganisationId = OrganisationId(2);

    fn sent() -> Outcome {
        Outcome::Sent { ses_message_id: "1".to_owned() }
    }

    fn lost() -> Outcome {
        let (kind, message) = (ProblemKind::Unknown, "lost".to_owned());
        let answer = ProviderAnswer::Missing;
        Outcome::NotSent(Problem { kind, provider_code: None, message, retry_after: None, answer })
    }

    #[test]
    fn a_few_slow_calls_or_few_among_many_make_no_slow_provider() {
        let slow = |slow, calls| RecentCalls { calls, slow, ..RecentCalls::default() }.are_slow();
        assert!(!slow(2, 2));
        assert!(slow(3, 3));
        assert!(!slow(5, 100));
        assert!(slow(6, 100));
    }

    #[test]
    fn calls_count_for_five_minutes() {
        let recent = Recent::default();
        let start = Instant::now();
        recent.note(A, &lost(), LATE, start);
        for second in 0..600 {
            recent.note(A, &sent(), SLOW, start + Duration::from_secs(second));
        }
        let read = |seconds| recent.read(start + Duration::from_secs(seconds));
        let now = read(599);
        assert!((300..=310).contains(&now.calls), "{now:?}");
        let steps = recent.steps.lock().unwrap().len() as u128;
        assert!(steps <= WINDOW.as_nanos() / STEP.as_nanos() + 1, "{steps}");
        assert_eq!((now.slow, now.unanswered), (0, 0));
        assert_eq!(read(2_000), RecentCalls::default());
        recent.note(A, &lost(), LATE, start + Duration::from_secs(2_000));
        assert_eq!(read(2_299), RecentCalls { calls: 1, slow: 1, unanswered: 1, unclear: 0 });
        let Outcome::NotSent(problem) = lost() else { panic!("it was not sent") };
        let unclear = Outcome::NotSent(Problem { answer: ProviderAnswer::Expected, ..problem });
        for outcome in [lost(), unclear.clone(), unclear] {
            recent.note(A, &outcome, LATE, start + Duration::from_secs(2_105));
        }
        assert_eq!(read(2_299), RecentCalls { calls: 4, slow: 4, unanswered: 2, unclear: 2 });
    }

    #[test]
    fn unknown_answers_are_named_for_five_minutes() {
        let (recent, start) = (Recent::default(), Instant::now());
        recent.note_unexpected("NewException".to_owned(), start);
        assert_eq!(recent.unexpected(start + WINDOW - SLOW), ["NewException"]);
        assert!(recent.unexpected(start + WINDOW).is_empty());
    }

    #[test]
    fn the_latest_names_of_unknown_answers_are_kept() {
        let (recent, start) = (Recent::default(), Instant::now());
        let at = |second: usize| start + Duration::from_secs(second as u64);
        let note = |name: usize, second| recent.note_unexpected(format!("{name:02}"), at(second));
        (0..MAX_NAMES).for_each(|number| note(number, number));
        note(0, MAX_NAMES);
        assert_eq!(recent.unexpected(at(MAX_NAMES)).len(), MAX_NAMES, "a known one takes no room");
        note(MAX_NAMES, MAX_NAMES + 1);
        let names = recent.unexpected(at(MAX_NAMES + 1));
        assert_eq!((names.len(), &*names[0], &*names[1]), (MAX_NAMES, "00", "02"));
    }

    #[test]
    fn prospects_follow_the_calls_of_the_last_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let note = |recent: &Recent, organisation, outcome: &Outcome, count, seconds| {
            for _ in 0..count {
                recent.note(organisation, outcome, SLOW, at(seconds));
            }
        };
        let recent = Recent::default();
        note(&recent, A, &lost(), FEW, 0);
        let useful = |seconds| recent.prospects(at(seconds), |_| false).useful;
        assert_eq!(useful(0).to_bits(), 1.0_f64.to_bits(), "a few are no trend");
        note(&recent, A, &lost(), 1, 1);
        assert_eq!(useful(1).to_bits(), 0.0_f64.to_bits());
        assert_eq!(useful(299).to_bits(), 0.0_f64.to_bits(), "nothing has happened since");
        let of_two = Recent::default();
        note(&of_two, A, &lost(), FEW, 1);
        note(&of_two, B, &lost(), 1, 1);
        let useful_of_two = of_two.prospects(at(1), |_| false).useful;
        assert_eq!(useful_of_two.to_bits(), 0.0_f64.to_bits(), "a few of each are many together");
        let held_up = recent.prospects(at(1), |organisation| organisation == A);
        assert!(!held_up.are_hopeless_for(B), "it is held up by itself");
        note(&recent, B, &sent(), 12, 20);
        assert!(!recent.prospects(at(70), |_| false).are_hopeless_for(A), "that was a minute ago");
        let prospects = recent.prospects(at(20), |_| false);
        assert!(prospects.are_hopeless_for(A) && !prospects.are_hopeless_for(B));
        note(&recent, B, &lost(), 4, 21);
        assert_eq!(useful(21).to_bits(), 0.75_f64.to_bits());
        note(&recent, A, &sent(), 1, 100);
        assert_eq!(useful(100).to_bits(), 1.0_f64.to_bits());
    }
}
