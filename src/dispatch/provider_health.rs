//! Health of the provider as the calls show it: for all, and for single organisations.
//!
//! The content of a message can leave its call without an answer. So such calls of one organisation
//! hold up that organisation alone, until those of others fail as well. Knows no queue.
//!
//! What holds up messages ([`ProviderHealth::state`], [`ProviderHealth::permit_of`]) and what is
//! reported to operators ([`ProviderHealth::reported`]) are two things: a report never holds
//! anything up.

use std::collections::BTreeMap;

use tokio::time::Instant;
use tracing::warn;

use crate::circuit_breaker::{BreakerState, Cause, CircuitBreaker, Permit, Signal};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::retry::Backoff;
use pillarbox_runtime::in_flight::InFlightGuard;
use unanswered_calls::{UnansweredCalls, is_forgotten};

mod unanswered_calls;

/// Questions without a message in a row that could not be asked, from which on the provider cannot
/// be reached. One that is lost on its way means nothing.
const SILENT_AFTER: u32 = 2;

/// A circuit breaker for all, and one for each organisation that is held up by itself.
#[derive(Debug)]
pub(super) struct ProviderHealth {
    everybody: CircuitBreaker,
    /// Breakers of the organisations whose calls alone got no answer. One stays when its
    /// organisation has returned, because it knows which calls are from before.
    single: BTreeMap<OrganisationId, CircuitBreaker>,
    unanswered: UnansweredCalls,
    silence: Option<Silence>,
    /// True if anything was answered since the start.
    has_answered: bool,
    backoff: Backoff,
}

/// Questions without a message that got no answer, with no answer to anything in between.
#[derive(Debug)]
struct Silence {
    since: Instant,
    questions: u32,
    /// Message of the last failure.
    message: String,
}

/// State of the provider as it is reported to operators.
#[derive(Debug)]
pub(super) struct Reported {
    pub(super) state: BreakerState,
    /// Since when it is so, if it takes no messages.
    pub(super) since: Option<Instant>,
}

/// Next probe of a provider that does not take messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextProbe {
    /// A message that is due.
    Message,
    /// None: no message is due.
    None,
}

/// Evidence of the answer to a question without a message about a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// It does not hold.
    Against,
    /// The cause holds.
    For,
    /// The answer says nothing about the cause.
    None,
}

/// Marks of a call that is under way, in the breakers that it is a probe of.
#[derive(Debug)]
pub(super) struct CallMarks {
    _marks: [Option<InFlightGuard>; 2],
}

/// Organisation that is held up by itself.
#[derive(Debug)]
pub(super) struct PausedOrganisation {
    pub(super) id: OrganisationId,
    /// Time from which the next probe may start.
    pub(super) probe: Instant,
    /// Message of the last failure.
    pub(super) message: String,
}

impl ProviderHealth {
    /// A provider that is taken to work; probes follow `backoff` when it does not.
    pub(super) fn new(backoff: Backoff, now: Instant) -> Self {
        Self {
            everybody: CircuitBreaker::new(backoff, now),
            single: BTreeMap::new(),
            unanswered: UnansweredCalls::default(),
            silence: None,
            has_answered: false,
            backoff,
        }
    }

    /// State that holds up every organisation's messages, or none.
    pub(super) fn state(&self) -> &BreakerState {
        self.everybody.state()
    }

    /// Returns the state of the provider as it is reported to operators; it holds up nothing. If
    /// the last calls were all without an answer, it counts as down, also while a single
    /// organisation has made them and others may still try. Failures are forgotten if nothing can
    /// show that they are over. Without any call, it counts as down if the first question of all,
    /// or [`SILENT_AFTER`] in a row, could not be asked.
    pub(super) fn reported(&self, now: Instant, next: NextProbe) -> Reported {
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| !is_forgotten(at, now));
        if !self.everybody.is_up() {
            if next == NextProbe::Message || is_recent(self.everybody.failed_at()) {
                let (state, since) = (self.state().clone(), self.everybody.open_since());
                return Reported { state, since };
            }
        } else if let Some((since, message)) = self.unanswered.doubt(now) {
            let (cause, message) = (Cause::Unreachable, message.to_owned());
            return Reported { state: BreakerState::Open { cause, message }, since: Some(since) };
        } else if let Some(Silence { since, questions, message }) = &self.silence
            && (!self.has_answered || *questions >= SILENT_AFTER)
        {
            let state = BreakerState::Open { cause: Cause::Unreachable, message: message.clone() };
            return Reported { state, since: Some(*since) };
        }
        Reported { state: BreakerState::Closed, since: None }
    }

    /// Returns true if an answer to a question without a message could change the state.
    pub(super) fn is_doubted(&self) -> bool {
        !self.everybody.is_up() || self.unanswered.are_in_doubt()
    }

    /// Takes into account the provider's answer to a question without a message, asked at `asked`,
    /// or the reason why it could not be asked (`unreached`). If no message is due that could be
    /// the next probe, the question is the probe. Returns the same as [`ProviderHealth::observe`].
    pub(super) fn answered(
        &mut self,
        evidence: impl Fn(Cause) -> Evidence,
        unreached: Option<&str>,
        asked: Instant,
        now: Instant,
        next: NextProbe,
    ) -> Vec<OrganisationId> {
        if let Some(message) = unreached {
            let new = || Silence { since: now, questions: 0, message: String::new() };
            let silence = self.silence.get_or_insert_with(new);
            silence.questions = silence.questions.saturating_add(1);
            message.clone_into(&mut silence.message);
        }
        match evidence(Cause::Unreachable) {
            Evidence::Against => {
                self.hear();
                self.unanswered.explain(asked);
            }
            Evidence::For => self.unanswered.confirm(now),
            Evidence::None => {}
        }
        let BreakerState::Open { cause, .. } = self.state() else { return Vec::new() };
        match evidence(*cause) {
            Evidence::Against if next == NextProbe::None && self.everybody.heeds(asked) => {
                self.everybody.succeed();
                self.unanswered = UnansweredCalls::default();
                self.probe_at_once(now)
            }
            Evidence::For => {
                self.everybody.confirm(now);
                Vec::new()
            }
            Evidence::Against | Evidence::None => Vec::new(),
        }
    }

    /// True if all organisations may send, except those that are held up by themselves.
    pub(super) fn is_up(&self) -> bool {
        self.everybody.is_up()
    }

    /// Organisations that are held up by themselves.
    pub(super) fn paused(&self, now: Instant) -> Vec<PausedOrganisation> {
        let paused = self.single.iter().filter_map(|(id, breaker)| match breaker.state() {
            BreakerState::Closed => None,
            BreakerState::Open { message, .. } => Some(PausedOrganisation {
                id: *id,
                probe: breaker.permitted_at(now),
                message: message.clone(),
            }),
        });
        paused.collect()
    }

    /// Permission for a call of any organisation.
    pub(super) fn permit(&self, now: Instant) -> Permit {
        self.everybody.permit(now)
    }

    /// Permission for a call of this organisation, if it is held up by itself; `None` if it is not.
    pub(super) fn permit_of(&self, organisation: OrganisationId, now: Instant) -> Option<Permit> {
        self.limiting(organisation).map(|breaker| breaker.permit(now))
    }

    /// Time at which a call of any organisation may start, if none is under way.
    pub(super) fn permitted_at(&self, now: Instant) -> Instant {
        self.everybody.permitted_at(now)
    }

    /// Counts a call that starts as under way, until the marks are dropped. A probe of a single
    /// organisation holds up no other organisation's call, unless all wait for a probe.
    pub(super) fn call(&self, organisation: OrganisationId) -> CallMarks {
        let single = self.limiting(organisation).map(CircuitBreaker::call);
        let is_for_everybody = single.is_none() || !self.everybody.is_up();
        CallMarks { _marks: [is_for_everybody.then(|| self.everybody.call()), single] }
    }

    /// Takes a finished call into account. Returns the organisations for which
    /// [`ProviderHealth::permit_of`] may be another one now, once the call's marks are dropped.
    pub(super) fn observe(
        &mut self,
        organisation: OrganisationId,
        signal: &Signal<'_>,
        started: Instant,
        now: Instant,
    ) -> Vec<OrganisationId> {
        let was_up = self.everybody.is_up();
        let was_limited = self.limiting(organisation).is_some();
        match signal {
            Signal::Working => {
                self.hear();
                self.succeed(organisation, started);
            }
            Signal::Failing { cause, message } => {
                self.fail(organisation, *cause, message, started, now);
            }
        }
        if self.everybody.is_up() && !was_up {
            // What held up one of them may have been the same.
            return self.probe_at_once(now);
        }
        let is_limited = was_limited || self.limiting(organisation).is_some();
        is_limited.then_some(organisation).into_iter().collect()
    }

    /// The provider does not accept messages, by its answer to a question without a message.
    pub(super) fn impair(&mut self, cause: Cause, message: &str, now: Instant) {
        self.everybody.impair(cause, message, now);
    }

    /// Changes the delays between probes, from the next one on.
    pub(super) fn set_backoff(&mut self, backoff: Backoff) {
        self.backoff = backoff;
        self.breakers().for_each(|breaker| breaker.set_backoff(backoff));
    }

    /// Lets the next probes start at `now`. Returns what [`ProviderHealth::observe`] does.
    pub(super) fn probe_at_once(&mut self, now: Instant) -> Vec<OrganisationId> {
        self.breakers().for_each(|breaker| breaker.probe_at_once(now));
        self.single.keys().copied().collect()
    }

    /// Notes an answer, to any question.
    fn hear(&mut self) {
        (self.silence, self.has_answered) = (None, true);
    }

    fn succeed(&mut self, organisation: OrganisationId, started: Instant) {
        if self.everybody.heeds(started) {
            self.everybody.succeed();
            self.unanswered = UnansweredCalls::default();
        }
        if let Some(breaker) = self.single.get_mut(&organisation)
            && breaker.heeds(started)
            && !breaker.has_returned()
        {
            breaker.succeed();
        }
    }

    fn fail(
        &mut self,
        organisation: OrganisationId,
        cause: Cause,
        message: &str,
        started: Instant,
        now: Instant,
    ) {
        let is_told_of_all = cause != Cause::Unreachable || !self.everybody.is_up();
        let is_heeded = self.everybody.heeds(started);
        if is_told_of_all && is_heeded {
            self.everybody.fail(cause, message, now);
        }
        match self.single.get_mut(&organisation) {
            Some(breaker) if !breaker.heeds(started) => {}
            Some(breaker) if !breaker.is_up() => {
                breaker.fail(cause, message, now);
                self.unanswered.confirm(now);
            }
            Some(_) | None => {
                if is_heeded && !is_told_of_all {
                    self.count(organisation, message, now);
                }
            }
        }
    }

    /// Counts a call without an answer. It speaks against the provider as a whole once enough of
    /// others do, and until then against its organisation.
    fn count(&mut self, organisation: OrganisationId, message: &str, now: Instant) {
        self.unanswered.add(organisation, message, now);
        if self.unanswered.stop_all() {
            self.everybody.impair(Cause::Unreachable, message, now);
        }
        if self.unanswered.stop(organisation) {
            let backoff = self.backoff;
            let new = || CircuitBreaker::new(backoff, now);
            let breaker = self.single.entry(organisation).or_insert_with(new);
            breaker.impair(Cause::Unreachable, message, now);
            let organisation = organisation.0;
            warn!(organisation, message, "calls for an organisation fail; its messages wait");
        }
    }

    /// Breaker of an organisation that is held up by itself, or has not quite returned from that.
    fn limiting(&self, organisation: OrganisationId) -> Option<&CircuitBreaker> {
        self.single.get(&organisation).filter(|breaker| !breaker.has_returned())
    }

    fn breakers(&mut self) -> impl Iterator<Item = &mut CircuitBreaker> {
        self.single.values_mut().chain([&mut self.everybody])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const A: OrganisationId = OrganisationId(1);
    const B: OrganisationId = OrganisationId(2);
    /// Time for which failures say something of the provider.
    const HOLDS_FOR: Duration = Duration::from_mins(10);
    const SECOND: Duration = Duration::from_secs(1);
    const LOST: Signal<'_> = Signal::Failing { cause: Cause::Unreachable, message: "no answer" };

    /// A provider's health, and a time that goes on by a second with each call.
    struct Calls(ProviderHealth, Instant);

    impl Calls {
        fn new() -> Self {
            let backoff = Backoff::try_new(SECOND, Duration::from_mins(5)).unwrap();
            let now = Instant::now();
            Self(ProviderHealth::new(backoff, now), now)
        }

        fn make(&mut self, organisation: OrganisationId, signal: &Signal<'_>, count: usize) {
            for _ in 0..count {
                self.1 += SECOND;
                self.0.observe(organisation, signal, self.1, self.1);
            }
        }

        fn is_paused(&self, organisation: OrganisationId) -> bool {
            self.0.paused(self.1).iter().any(|paused| paused.id == organisation)
        }

        fn is_told(&self) -> bool {
            self.is_told_with(NextProbe::Message)
        }

        fn is_told_with(&self, next: NextProbe) -> bool {
            self.0.reported(self.1, next).state != BreakerState::Closed
        }

        /// The provider answers a question without a message, a second later.
        fn answer(&mut self, evidence: Evidence, next: NextProbe) {
            self.1 += SECOND;
            self.0.answered(|_| evidence, None, self.1, self.1, next);
        }

        /// A question without a message cannot be asked, a second later.
        fn ask_in_vain(&mut self) {
            self.1 += SECOND;
            let unreached = Some("no such host");
            self.0.answered(|_| Evidence::For, unreached, self.1, self.1, NextProbe::None);
        }
    }

    #[test]
    fn changed_delays_hold_from_the_next_failure_on() {
        let mut calls = Calls::new();
        let waits = |calls: &mut Calls| match calls.0.permit(calls.1) {
            Permit::At(at) => at.saturating_duration_since(calls.1),
            permit => panic!("{permit:?}"),
        };
        calls.0.impair(Cause::AccountPaused, "no", calls.1);
        assert!(waits(&mut calls) <= SECOND);
        let long = Duration::from_hours(1);
        calls.0.set_backoff(Backoff::try_new(long, long).unwrap());
        calls.1 += SECOND * 2;
        calls.0.impair(Cause::AccountPaused, "no", calls.1);
        assert!(waits(&mut calls) > long / 4);
    }

    #[test]
    fn a_provider_that_cannot_be_reached_is_told_of_before_any_call_and_holds_up_nothing() {
        let mut calls = Calls::new();
        calls.ask_in_vain();
        assert!(calls.is_told_with(NextProbe::None));
        assert_eq!(calls.0.permit(calls.1), Permit::Now);
        calls.answer(Evidence::Against, NextProbe::None);
        assert!(!calls.is_told_with(NextProbe::None));
        // Once it was there, one lost question means nothing.
        calls.ask_in_vain();
        assert!(!calls.is_told_with(NextProbe::None));
        calls.ask_in_vain();
        assert!(calls.is_told_with(NextProbe::None));
        calls.make(A, &Signal::Working, 1);
        assert!(!calls.is_told_with(NextProbe::None));
    }

    #[test]
    fn single_failures_among_successes_stop_nobody() {
        let mut calls = Calls::new();
        for _ in 0..100 {
            calls.make(A, &LOST, 4);
            calls.make(B, &Signal::Working, 1);
        }
        assert!(!calls.is_paused(A) && !calls.is_told());
        assert_eq!(calls.0.permit(calls.1), Permit::Now);
    }

    #[test]
    fn calls_of_one_organisation_without_an_answer_hold_it_up_alone() {
        let mut calls = Calls::new();
        calls.make(A, &LOST, 5);
        assert!(calls.is_paused(A) && calls.is_told(), "nobody else has shown that it answers");
        assert_eq!(calls.0.permit(calls.1), Permit::Now);
        assert_eq!(calls.0.permit_of(A, calls.1), Some(Permit::At(calls.1 + SECOND)));
        assert_eq!(calls.0.permit_of(B, calls.1), None);

        calls.make(B, &Signal::Working, 1);
        assert!(calls.is_paused(A) && !calls.is_told());
        calls.make(A, &LOST, 20);
        assert!(!calls.is_told(), "its probes say nothing of the others");
        assert_eq!(calls.0.permit(calls.1), Permit::Now);

        calls.make(A, &Signal::Working, 1);
        assert!(!calls.is_paused(A));
    }

    #[test]
    fn an_organisation_is_named_when_its_pause_begins_and_when_it_ends() {
        let mut calls = Calls::new();
        calls.make(B, &Signal::Working, 1);
        let named = |calls: &mut Calls, signal: &Signal<'_>| {
            calls.1 += SECOND;
            calls.0.observe(A, signal, calls.1, calls.1)
        };
        for _ in 0..4 {
            assert_eq!(named(&mut calls, &LOST), []);
        }
        assert_eq!(named(&mut calls, &LOST), [A]);
        assert!(calls.is_paused(A) && calls.0.is_up());
        assert_eq!(named(&mut calls, &Signal::Working), [A]);
    }

    #[test]
    fn lost_answers_are_their_organisations_own_matter_if_the_provider_answers_otherwise() {
        let mut calls = Calls::new();
        calls.make(A, &LOST, 5);
        assert!(calls.is_told() && calls.0.is_doubted());
        calls.answer(Evidence::For, NextProbe::None);
        assert!(calls.is_told(), "it does not answer other questions either");
        calls.answer(Evidence::Against, NextProbe::None);
        assert!(!calls.is_told() && !calls.0.is_doubted());
        assert!(calls.is_paused(A), "which is no reason to let it go");
        calls.make(A, &LOST, 20);
        assert!(!calls.is_told(), "its probes are explained by the same");
        calls.make(B, &LOST, 4);
        assert!(!calls.is_told());
        calls.make(B, &LOST, 1);
        assert!(calls.is_told(), "so many more are not");
    }

    #[test]
    fn an_answer_without_a_message_is_the_probe_if_no_message_is_due() {
        for (cause, calls_lost) in [(Cause::Unreachable, 5), (Cause::QuotaExhausted, 1)] {
            let mut calls = Calls::new();
            let lost = Signal::Failing { cause, message: "no" };
            calls.make(A, &lost, calls_lost);
            calls.make(B, &lost, calls_lost);
            assert!(!calls.0.is_up(), "{cause:?}");
            calls.answer(Evidence::Against, NextProbe::Message);
            assert!(!calls.0.is_up(), "{cause:?}: the message tells more");
            let before = calls.1 - Duration::from_mins(1);
            calls.0.answered(|_| Evidence::Against, None, before, calls.1, NextProbe::None);
            assert!(!calls.0.is_up(), "{cause:?}: it was asked before");
            calls.answer(Evidence::None, NextProbe::None);
            assert!(!calls.0.is_up(), "{cause:?}: it says nothing");
            calls.answer(Evidence::Against, NextProbe::None);
            assert!(calls.0.is_up() && !calls.is_told(), "{cause:?}");
        }
    }

    #[test]
    fn failures_are_forgotten_if_nothing_can_show_that_they_are_over() {
        let mut calls = Calls::new();
        calls.make(A, &LOST, 5);
        calls.1 += HOLDS_FOR;
        assert!(!calls.is_told());
        calls.make(B, &LOST, 4);
        assert!(!calls.is_told(), "nor do they count together with later ones");

        let mut calls = Calls::new();
        calls.make(A, &Signal::Failing { cause: Cause::SetupFault, message: "no" }, 1);
        calls.1 += HOLDS_FOR / 2;
        calls.answer(Evidence::For, NextProbe::None);
        calls.1 += HOLDS_FOR / 2;
        assert!(calls.is_told_with(NextProbe::None), "it was confirmed");
        calls.1 += HOLDS_FOR / 2;
        assert!(!calls.is_told_with(NextProbe::None));
        assert!(calls.is_told(), "a message that waits will show it");
        assert!(!calls.0.is_up(), "the report holds nothing up, and lets nothing go");
    }

    #[test]
    fn a_single_call_of_another_organisation_does_not_yet_stop_everybody() {
        let mut calls = Calls::new();
        calls.make(A, &LOST, 20);
        calls.make(B, &LOST, 4);
        assert_eq!(calls.0.permit(calls.1), Permit::Now);
        calls.make(B, &LOST, 1);
        assert_eq!(calls.0.permit(calls.1), Permit::At(calls.1 + SECOND));
    }

    #[test]
    fn calls_of_many_organisations_without_an_answer_stop_everybody() {
        let mut calls = Calls::new();
        for organisation in 1..=6 {
            assert_eq!(calls.0.permit(calls.1), Permit::Now);
            calls.make(OrganisationId(organisation), &LOST, 1);
        }
        assert_eq!(calls.0.permit(calls.1), Permit::At(calls.1 + SECOND));
        assert!(calls.0.paused(calls.1).is_empty());
        calls.make(B, &Signal::Working, 1);
        assert_eq!(calls.0.permit(calls.1), Permit::Now);
    }

    #[test]
    fn what_no_message_causes_stops_everybody_at_once() {
        for cause in [Cause::QuotaExhausted, Cause::AccountPaused, Cause::SetupFault] {
            let mut calls = Calls::new();
            calls.make(A, &Signal::Failing { cause, message: "no" }, 1);
            assert_eq!(calls.0.permit(calls.1), Permit::At(calls.1 + SECOND), "{cause:?}");
            calls.make(A, &Signal::Failing { cause, message: "no" }, 9);
            assert!(!calls.is_paused(A));
        }
    }

    #[test]
    fn a_probe_of_one_organisation_holds_up_that_of_no_other() {
        let mut calls = Calls::new();
        calls.make(A, &LOST, 5);
        let probe = calls.0.call(A);
        let later = calls.1 + SECOND;
        assert_eq!(calls.0.permit_of(A, later), Some(Permit::AfterACall));
        calls.make(B, &Signal::Failing { cause: Cause::AccountPaused, message: "no" }, 1);
        assert_eq!(calls.0.permit(calls.1 + SECOND), Permit::Now);
        drop(probe);
        // Now all organisations wait, and its probe is for all.
        let _probe = calls.0.call(A);
        assert_eq!(calls.0.permit(calls.1 + SECOND), Permit::AfterACall);
    }

    #[test]
    fn the_return_for_everybody_has_each_organisation_try_at_once() {
        let mut calls = Calls::new();
        calls.make(A, &LOST, 5);
        calls.make(B, &LOST, 5);
        for _ in 0..10 {
            calls.1 += Duration::from_mins(5);
            calls.make(A, &LOST, 1);
        }
        let (health, now) = (&mut calls.0, calls.1 + SECOND);
        let changed = health.observe(B, &Signal::Working, now, now);
        assert_eq!(changed, [A, B]);
        assert_eq!(health.permit_of(A, now), Some(Permit::Now));
        assert_eq!(health.permit(now), Permit::Now);
    }

    #[test]
    fn calls_from_before_the_pause_neither_put_off_the_probe_nor_end_it() {
        let mut calls = Calls::new();
        let before = calls.1;
        calls.make(A, &LOST, 5);
        let probe = calls.0.permit_of(A, calls.1);
        let later = calls.1 + Duration::from_mins(1);
        for _ in 0..200 {
            calls.0.observe(A, &LOST, before, later);
        }
        assert_eq!(calls.0.permit_of(A, calls.1), probe);
        calls.0.observe(A, &Signal::Working, before, later);
        assert!(calls.is_paused(A));
        calls.make(A, &Signal::Working, 1);
        for _ in 0..200 {
            calls.0.observe(A, &LOST, before, later);
        }
        assert!(!calls.is_paused(A), "nor do they begin another one");
    }

    #[test]
    fn an_organisation_returns_by_and_by_and_is_then_as_any_other() {
        let mut calls = Calls::new();
        calls.make(A, &LOST, 5);
        calls.make(A, &Signal::Working, 1);
        let under_way = [calls.0.call(A), calls.0.call(A)];
        assert_eq!(calls.0.permit_of(A, calls.1), Some(Permit::AfterACall));
        drop(under_way);
        calls.make(A, &LOST, 1);
        assert!(!calls.is_paused(A), "one lost answer holds up nobody");
        calls.make(A, &Signal::Working, 100);
        assert_eq!(calls.0.permit_of(A, calls.1), None);
        let _call = calls.0.call(A);
        calls.make(A, &LOST, 5);
        assert!(calls.is_paused(A), "it may be held up again");
    }
}
