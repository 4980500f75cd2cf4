//! One message's attempt: checks before it, the call's outcome, and the next step.

use std::borrow::Cow;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{error, info};

use crate::circuit_breaker::Signal;
use crate::paused_domains::Fault;
use crate::provider_health::CallMarks;
use crate::{Dispatcher, Settings};
use pillarbox_config::OnUnknown;
use pillarbox_domain::attempt::{Outcome, Problem, ProblemKind, Provider, ProviderAnswer};
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{
    Acceptance, Cancellation, Failure, FailureCode, Recorded, Status, Transition,
};
use pillarbox_domain::organisation::{OrganisationKind, SenderStatus};
use pillarbox_domain::time::Timestamp;
use pillarbox_queue::{Call, Claim, Interruption, PendingMessage};
use pillarbox_runtime::tasks::caught;
use pillarbox_store::{Store, StoreError};

/// Duration of a call after which other nodes are informed that it is under way.
const LONG_CALL: Duration = Duration::from_secs(1);
/// Wait before an outcome that the store refused is offered to it again. It becomes twice as long
/// each time, up to [`RECORD_AGAIN_MAX`]: the store may take others and refuse this one.
pub(super) const RECORD_AGAIN: Duration = Duration::from_millis(20);
const RECORD_AGAIN_MAX: Duration = Duration::from_secs(5);

impl<P: Provider> Dispatcher<P> {
    /// Makes a claimed message's call, and handles its outcome.
    pub(super) async fn attempt(&self, mut claim: Claim, started: Started) {
        let attempts = claim.attempts;
        info!(target: "pillarbox::message", id = %claim.id(), attempts, "sending");
        let Started { at, marks, call, envelope } = started;
        let outcome = match claim.message.request() {
            Ok(request) => {
                let call = pin!(self.provider.send(claim.message.kind, &envelope, request));
                caught(self.told_of(claim.id(), attempts, call)).await.ok()
            }
            Err(error) => {
                error!(id = %claim.id(), %error, "a body cannot be read");
                None
            }
        };
        let outcome = outcome.unwrap_or_else(|| {
            error!(id = %claim.id(), "a call to the provider panicked");
            Outcome::NotSent(Problem {
                kind: ProblemKind::Crashed,
                provider_code: None,
                message: "a fault in the service ended the call to the provider, so it is unknown \
                          whether the message was accepted"
                    .to_owned(),
                retry_after: None,
                answer: ProviderAnswer::Missing,
            })
        });
        self.observe(&claim, &envelope, &outcome, at, marks);
        // Only now: the next call starts in the light of this one.
        drop(call);
        match outcome {
            Outcome::Sent { ses_message_id } => {
                let sent_at = self.clock.now();
                claim.was_sent(&ses_message_id, sent_at);
                self.finish(claim, Transition::Sent { ses_message_id, sent_at }).await;
            }
            Outcome::NotSent(problem) => {
                if problem.kind.acceptance() == Acceptance::Excluded {
                    claim.was_not_sent();
                }
                self.not_sent(claim, problem).await;
            }
            Outcome::NotCalled(problem) => {
                claim.not_called();
                self.not_sent(claim, problem).await;
            }
        }
    }

    /// Waits for a call, and informs other nodes if it takes long.
    async fn told_of<T>(
        &self,
        id: MessageId,
        attempts: u32,
        mut call: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        if self.store.is_shared() {
            if let Ok(outcome) = timeout(LONG_CALL, &mut call).await {
                return outcome;
            }
            self.store.tell_of_call(id, attempts);
        }
        call.await
    }

    /// End of a message whose time is over: the shorter one of its own and `retry_for`.
    pub(super) fn time_over(&self, claim: &Claim) -> Transition {
        let (acceptance, retry_for) = (claim.acceptance, self.settings().retry_for);
        if let Some(expires_in) = claim.message.expires_in.filter(|time| *time <= retry_for) {
            return Transition::expired(expires_in, acceptance);
        }
        let retry_for = humantime::format_duration(retry_for);
        let message = match acceptance {
            Acceptance::Excluded => {
                format!("the provider did not accept the message within {retry_for}")
            }
            Acceptance::Possible => format!(
                "no attempt is known to have succeeded within {retry_for}; the answer to a call to \
                 the provider was lost, so SES may have accepted the message"
            ),
        };
        let failure = Failure::new(FailureCode::RetriesExhausted, message);
        Transition::Failed { failure, acceptance }
    }

    /// Returns true if the time of a message is over.
    pub(super) fn is_over_for(&self, message: &PendingMessage) -> bool {
        message.end(self.settings().retry_for) <= Instant::now()
    }

    /// Checks for anything since acceptance that forbids or delays the call.
    pub(super) async fn hold_up(&self, claim: &Claim) -> Result<Hold, StoreError> {
        if let Some(why) = claim.cancellation {
            return Ok(Hold::End(why.transition(claim.acceptance)));
        }
        // What ended the holder of its call would end the next one too.
        if claim.interruption == Interruption::DuringCall {
            let failure = ProblemKind::Crashed.failure();
            return Ok(Hold::End(Transition::Failed { failure, acceptance: Acceptance::Possible }));
        }
        if self.is_over_for(&claim.message) {
            return Ok(Hold::End(self.time_over(claim)));
        }
        let message = &claim.message;
        // The kind was taken at the acceptance or at the start, and never changes. Should the two
        // differ all the same, neither the provider nor a simulator gets the message.
        let kind = self.store.organisation_kind(message.organisation);
        if kind.is_some_and(|kind| kind != message.kind) {
            error!(id = %message.id, "a pending message and its organisation differ: one is for tests, one is not");
            return Err(StoreError::Damaged);
        }
        let envelope = message.envelope().map_err(|error| {
            error!(id = %message.id, %error, "a pending message cannot be read");
            StoreError::Damaged
        })?;
        let sender = envelope.sender_domain();
        let cancelled = match self.store.sender_status(message.organisation, &sender) {
            SenderStatus::Verified => None,
            SenderStatus::Unverified => return Ok(Hold::DomainUnverified(sender.into_owned())),
            SenderStatus::DomainRemoved => Some(Cancellation::DomainRemoved),
            SenderStatus::OrganisationRemoved => Some(Cancellation::OrganisationRemoved),
        };
        if let Some(why) = cancelled {
            return Ok(Hold::End(why.transition(claim.acceptance)));
        }
        let may_be_final = claim.attempts > 0 || claim.acceptance == Acceptance::Possible;
        if may_be_final && self.is_final(message.id).await? {
            return Ok(Hold::Final);
        }
        if claim.interruption == Interruption::EndOfProcess {
            return Ok(Hold::AnswerLost);
        }
        if message.suppression_epoch != Some(self.store.suppression_epoch())
            && self.is_suppressed(message, &envelope).await?
        {
            return Ok(Hold::End(Transition::Suppressed));
        }
        // Again, because the store may have taken long to say all else.
        if self.is_over_for(message) {
            return Ok(Hold::End(self.time_over(claim)));
        }
        Ok(Hold::None(envelope))
    }

    /// Returns true if the message's record is final: by a report that the queue has not heard of
    /// yet, or that another node applied, or by an end whose holder was dropped.
    async fn is_final(&self, id: MessageId) -> Result<bool, StoreError> {
        match self.store.message(id, self.clock.window_time()).await {
            Ok(message) => Ok(message.is_none_or(|message| message.status() != Status::Queued)),
            // A damaged row is no reason not to send.
            Err(StoreError::Damaged) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn is_suppressed(
        &self,
        message: &PendingMessage,
        envelope: &Envelope<'_>,
    ) -> Result<bool, StoreError> {
        for recipient in envelope.recipients() {
            if self.store.is_suppressed(message.organisation, &recipient).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Learns from a finished call.
    fn observe(
        &self,
        claim: &Claim,
        envelope: &Envelope<'_>,
        outcome: &Outcome,
        started: Instant,
        marks: Option<CallMarks>,
    ) {
        let PendingMessage { organisation, kind, recipients, .. } = claim.message;
        if kind == OrganisationKind::Test {
            // What a simulator answers says nothing of the provider.
            self.metrics.test_call();
            return;
        }
        let now = Instant::now();
        let took = now.duration_since(started);
        self.metrics.call(outcome, took);
        self.recent.note(organisation, outcome, took, now);
        self.observe_domain(organisation, envelope, outcome, started);
        let explained = match outcome {
            Outcome::Sent { .. } => Cow::Borrowed(""),
            Outcome::NotSent(problem) | Outcome::NotCalled(problem) => problem.explained(),
        };
        let mut throttle = self.throttle();
        let (before, was_doubted) = (throttle.health.state().clone(), throttle.health.is_doubted());
        throttle.call_ended(recipients, outcome.acceptance());
        let signal = match outcome {
            Outcome::Sent { .. } => {
                self.refusals.accepted(organisation);
                Signal::Working
            }
            Outcome::NotSent(problem) | Outcome::NotCalled(problem) => {
                if problem.kind == ProblemKind::Throttled {
                    throttle.bucket.throttled(started, now);
                }
                Signal::of(problem.kind, &explained)
            }
        };
        let changed = throttle.health.observe(organisation, &signal, started, now);
        drop(marks);
        self.set_gates(&throttle.health, changed, now);
        self.tell_change(&before, throttle.health.state());
        if throttle.health.is_doubted() && !was_doubted {
            self.doubted.notify_one();
        }
    }

    /// Pauses the sender's domain, or lets it go on. Only an acceptance shows that it works.
    fn observe_domain(
        &self,
        organisation: OrganisationId,
        envelope: &Envelope<'_>,
        outcome: &Outcome,
        started: Instant,
    ) {
        match outcome {
            Outcome::Sent { .. } => {
                if self.domains.any() {
                    self.domains.works(organisation, &envelope.sender_domain(), started);
                }
            }
            Outcome::NotSent(problem) if problem.kind == ProblemKind::DomainFault => {
                let domain = envelope.sender_domain();
                let fault = Fault { problem, started, backoff: self.settings().backoff };
                self.domains.fault(organisation, &domain, fault, || self.store.domains());
            }
            Outcome::NotSent(_) | Outcome::NotCalled(_) => {}
        }
    }

    /// Goes on with a message whose call was under way when an earlier process ended, as after any
    /// lost answer.
    pub(super) async fn answer_lost(&self, claim: Claim) {
        let problem = Problem {
            kind: ProblemKind::Unknown,
            provider_code: None,
            message: "the service ended before the provider answered".to_owned(),
            retry_after: None,
            answer: ProviderAnswer::Missing,
        };
        self.not_sent(claim, problem).await;
    }

    async fn not_sent(&self, mut claim: Claim, problem: Problem) {
        let is_held = match claim.message.kind {
            OrganisationKind::Production => {
                self.refusals.refused(claim.message.organisation, claim.id(), &problem)
            }
            // There is no set-up that could be at fault.
            OrganisationKind::Test => false,
        };
        let failure = if is_held { problem.to_held_failure() } else { problem.to_failure() };
        let acceptance = problem.kind.acceptance();
        let settings = self.settings();
        let gives_up = match problem.kind {
            // What crashed once would crash again, and may be accepted each time.
            ProblemKind::Rejected => !is_held,
            ProblemKind::Crashed => true,
            ProblemKind::Unknown => settings.on_unknown == OnUnknown::Fail,
            _ => false,
        };
        if gives_up {
            info!(target: "pillarbox::message", id = %claim.id(), reason = problem.message, "given up");
            claim.has_failed(&failure, acceptance);
            self.finish(claim, Transition::Failed { failure, acceptance }).await;
            return;
        }
        let attempts = claim.attempts;
        info!(
            target: "pillarbox::message", id = %claim.id(), attempts, code = failure.code.as_str(),
            provider_code = failure.provider_code, reason = problem.message, "queued again",
        );
        let due = retry_due(&settings, &claim, &problem);
        // Messages of a paused domain wait for its end.
        let next_attempt_at = (problem.kind != ProblemKind::DomainFault)
            .then(|| self.clock.record_time().plus(due.saturating_duration_since(Instant::now())));
        let transition = Transition::RetryLater { failure, acceptance, next_attempt_at };
        let cancelled = match self.record(claim.id(), attempts, transition).await {
            // Its domain is paused. It goes first when that ends.
            Recorded::Changed if problem.kind == ProblemKind::DomainFault => {
                claim.put_back_as_new()
            }
            Recorded::Changed => claim.put_back(due, acceptance),
            // An event has proved meanwhile that it was sent.
            Recorded::AlreadyFinal => {
                claim.finish();
                None
            }
        };
        if let Some((claim, end)) = cancelled {
            self.finish(claim, end).await;
        }
    }

    /// Lets the messages from a domain wait that is the organisation's and is not verified for
    /// now: it may be again, and the provider would refuse each of them until then.
    pub(super) fn wait_for_verification(
        &self,
        claim: Claim,
        domain: &DomainName<'_>,
        now: Instant,
    ) -> Option<(Claim, Transition)> {
        let problem = Problem {
            kind: ProblemKind::DomainFault,
            provider_code: None,
            message: format!(
                "the domain is not verified at the moment; `pillarbox domain check {domain}` shows \
                 what is missing"
            ),
            retry_after: None,
            answer: ProviderAnswer::Missing,
        };
        let backoff = self.settings().backoff;
        let fault = Fault { problem: &problem, started: now, backoff };
        let organisation = claim.message.organisation;
        self.domains.fault(organisation, domain, fault, || self.store.domains());
        claim.put_back_as_new()
    }

    /// Ends a claimed message without a call.
    pub(super) fn end(
        self: &Arc<Self>,
        claim: Claim,
        transition: Transition,
        attempts: &mut JoinSet<()>,
    ) {
        let dispatcher = Arc::clone(self);
        attempts.spawn(async move {
            dispatcher.finish(claim, transition).await;
        });
    }

    /// Records a final state, then forgets the message and its body.
    pub(super) async fn finish(&self, claim: Claim, transition: Transition) -> Recorded {
        let (id, attempts) = (claim.id(), claim.attempts);
        match &transition {
            Transition::Sent { ses_message_id, .. } => {
                info!(target: "pillarbox::message", %id, attempts, ses_message_id, "sent");
            }
            Transition::Failed { failure, .. } => info!(
                target: "pillarbox::message", %id, attempts, code = failure.code.as_str(),
                provider_code = failure.provider_code, "failed",
            ),
            Transition::Suppressed => {
                info!(target: "pillarbox::message", %id, attempts, "suppressed");
            }
            Transition::RetryLater { .. } => unreachable!("a retry is no final state"),
            Transition::BodyLost { .. } => unreachable!("bodies live as long as the dispatcher"),
        }
        let recorded = self.record(id, attempts, transition).await;
        claim.finish();
        recorded
    }

    /// Records an outcome, however long the store takes to accept it: what happened at the
    /// provider has happened, and must not happen again for want of a note.
    async fn record(&self, id: MessageId, attempts: u32, transition: Transition) -> Recorded {
        let mut refused = None;
        let mut pause = RECORD_AGAIN;
        let outcome = KnownOutcome { id, attempts, transition };
        let mut outcome = Unwritten { outcome: Some(outcome), left: &self.unwritten };
        loop {
            let offered = match &outcome.outcome {
                Some(known) => offer(&self.store, known, self.clock.record_time()).await,
                None => unreachable!("it is taken only once it is recorded"),
            };
            if let Some(recorded) = offered {
                outcome.outcome = None;
                return recorded;
            }
            refused.get_or_insert_with(|| self.unrecorded.enter());
            self.takes_outcomes_again(pause).await;
            pause = RECORD_AGAIN_MAX.min(pause * 2);
        }
    }

    /// Waits until the store takes outcomes, and then for `pause`.
    pub(super) async fn takes_outcomes_again(&self, pause: Duration) {
        self.store.takes_outcomes().await;
        tokio::time::sleep(pause).await;
    }
}

/// Offers an outcome to the store; `None` if it does not take it now.
pub(super) async fn offer(
    store: &Store,
    outcome: &KnownOutcome,
    stored_at: Timestamp,
) -> Option<Recorded> {
    let KnownOutcome { id, attempts, transition } = outcome;
    match store.record(*id, *attempts, transition.clone(), stored_at).await {
        Ok(recorded) => Some(recorded),
        Err(StoreError::Damaged) => {
            error!(%id, "a message's record cannot be read; its outcome is lost");
            Some(Recorded::AlreadyFinal)
        }
        Err(StoreError::FileLost) => {
            error!(%id, "the data file was overwritten; a message's outcome is lost");
            Some(Recorded::AlreadyFinal)
        }
        Err(StoreError::Unavailable | StoreError::OutcomeOpen) => None,
    }
}

/// Outcome that is known.
#[derive(Debug)]
pub(super) struct KnownOutcome {
    pub(super) id: MessageId,
    pub(super) attempts: u32,
    pub(super) transition: Transition,
}

/// Known outcome that is being written. If its task ends before, the outcome is left for the
/// dispatcher's end to write.
struct Unwritten<'a> {
    outcome: Option<KnownOutcome>,
    left: &'a Mutex<Vec<KnownOutcome>>,
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            self.left.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
        }
    }
}

/// Reason why a message whose attempt is due is not sent.
pub(super) enum Hold {
    /// Nothing. The envelope was read for this.
    None(Envelope<'static>),
    /// It is not to be sent any more, and ends like this.
    End(Transition),
    /// Its sender's domain is not verified for now.
    DomainUnverified(DomainName<'static>),
    /// The answer to a call of an earlier process was lost with that process.
    AnswerLost,
    /// Its record has reached a final state meanwhile.
    Final,
}

/// A call as the dispatcher started it.
pub(super) struct Started {
    /// Time at which it was permitted.
    pub(super) at: Instant,
    /// Count it as under way for the provider's health; `None` for a test organisation's. Dropped
    /// before `call`, whose end wakes the dispatcher.
    pub(super) marks: Option<CallMarks>,
    pub(super) call: Call,
    pub(super) envelope: Envelope<'static>,
}

/// Time of the next attempt: full jitter, but not before the provider's own wish, and not before an
/// event had the time to prove an unknown outcome; and never after the message's end.
fn retry_due(settings: &Settings, claim: &Claim, problem: &Problem) -> Instant {
    let mut delay = settings.backoff.delay(claim.attempts, fastrand::f64());
    if let Some(wish) = problem.retry_after {
        delay = delay.max(wish.min(settings.backoff.max()));
    }
    if problem.kind == ProblemKind::Unknown {
        delay = delay.max(settings.unknown_wait);
    }
    (Instant::now() + delay).min(claim.message.end(settings.retry_for))
}
