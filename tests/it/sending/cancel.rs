//! Cancellations and removals by operators after acceptance.

use std::time::Duration;

use pillarbox_config::OnUnknown;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_dispatch::{Cancelled, Settings};
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{Acceptance, Cancellation, FailureCode, State, Status};
use pillarbox_domain::organisation::DomainState;
use pillarbox_queue::Selection;

use crate::sending::harness::{Answer, DOMAINS, Limit, Mail, Sim, Simulated, TIMEOUT, settings};

const LATENCY: Duration = Duration::from_millis(60);
const STEP: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_hours(1);

async fn sim(settings: Settings) -> Sim {
    Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(500.0)).await
}

/// A simulation in which messages have failed once and wait for a provider that is paused.
async fn waiting(mails: Vec<Mail>) -> (Sim, Vec<MessageId>) {
    let sim = sim(settings()).await;
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    let ids = sim.accept(0, mails).await;
    sim.run(10 * SECOND, STEP).await;
    sim.provider.always(Answer::Accept);
    (sim, ids)
}

async fn cancel(sim: &Sim, selection: &Selection, why: Cancellation) -> Cancelled {
    sim.dispatcher.cancel(selection, why).await.unwrap()
}

fn domain(name: &str) -> DomainName<'_> {
    DomainName::parse(name).unwrap()
}

fn acceptance(sim: &Sim, id: MessageId) -> Acceptance {
    match sim.message(id).state {
        State::Failed { acceptance, .. } => acceptance,
        state => panic!("{state:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn before_an_attempt_the_organisation_and_its_domain_must_be_there() {
    let mails = DOMAINS.map(Mail::from_domain);
    let (sim, ids) = waiting(mails.to_vec()).await;
    sim.store.remove_domain(sim.organisations[0].id, domain(DOMAINS[1])).await.unwrap();
    let before = sim.provider.call_count();
    sim.run_until_empty(Duration::from_mins(5), STEP * 5).await;
    assert_eq!(sim.provider.call_count(), before + 1, "one of the two goes out");
    assert_eq!(sim.status(ids[0]), Status::Sent);
    assert_eq!((sim.failure(ids[1])), Some(FailureCode::DomainUnverified));
    assert_eq!(acceptance(&sim, ids[1]), Acceptance::Excluded);

    let (sim, ids) = waiting(mails.to_vec()).await;
    let others = sim.accept(1, mails.to_vec()).await;
    sim.store.remove_organisation(sim.organisations[0].id).await.unwrap();
    let before = sim.provider.call_count_of("a");
    sim.run_until_empty(Duration::from_mins(5), STEP * 5).await;
    assert_eq!(sim.provider.call_count_of("a"), before, "no call is made for it any more");
    assert!(ids.iter().all(|id| sim.failure(*id) == Some(FailureCode::Cancelled)));
    assert!(others.iter().all(|id| sim.status(*id) == Status::Sent));
}

#[tokio::test(start_paused = true)]
async fn messages_wait_while_their_domain_is_not_verified() {
    let mails = [&[Mail::from_domain(DOMAINS[0])][..], &vec![Mail::from_domain(DOMAINS[1]); 50]];
    let (sim, ids) = waiting(mails.concat()).await;
    let put = async |state| {
        let (organisation, name) = (sim.organisations[0].id, domain(DOMAINS[1]));
        sim.store.put_domain(organisation, name, state, sim.clock.now()).await.unwrap();
    };
    put(DomainState::Pending).await;
    let calls = || sim.provider.calls().iter().filter(|c| c.from.ends_with(DOMAINS[1])).count();
    let before = calls();
    sim.run(HOUR, SECOND).await;
    assert_eq!(calls(), before, "no call is made from it meanwhile");
    let by_status = |status| ids.iter().filter(|id| sim.status(**id) == status).count();
    assert_eq!((by_status(Status::Sent), by_status(Status::Queued)), (1, 50));
    let paused = sim.dispatcher.status().paused_domains;
    let [(_, name, reason)] = &paused[..] else { panic!("{paused:?}") };
    assert!(name == DOMAINS[1] && reason.contains("pillarbox domain check"), "{reason}");
    put(DomainState::Verified).await;
    sim.run_until_empty(Duration::from_mins(6), SECOND).await;
    assert!(by_status(Status::Sent) == 51);
    assert!(sim.dispatcher.status().paused_domains.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_cancelled_at_once_and_never_called_for() {
    let (sim, ids) = waiting(vec![Mail::to_many(2); 20]).await;
    let others = sim.accept_singles(1, 5).await;
    let before = sim.provider.call_count();
    let cancelled =
        cancel(&sim, &Selection::of(sim.organisations[0].id), Cancellation::ByOperator).await;
    assert_eq!(cancelled, Cancelled { cancelled: 20, calls_under_way: 0, not_pending: 0 });
    for id in &ids {
        assert_eq!((sim.failure(*id)), Some(FailureCode::Cancelled));
        assert_eq!(acceptance(&sim, *id), Acceptance::Excluded);
    }
    assert_eq!(sim.queue.pending().messages, others.len(), "their bodies are gone");
    sim.run_until_empty(Duration::from_mins(5), STEP * 5).await;
    assert_eq!(sim.provider.call_count(), before + others.len());
    let again = Selection::Ids(ids.iter().copied().collect());
    let again = cancel(&sim, &again, Cancellation::ByOperator).await;
    assert_eq!(again, Cancelled { cancelled: 0, calls_under_way: 0, not_pending: 20 });
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_not_followed_by_another() {
    let cases = [
        (Answer::Refuse(ProblemKind::Unavailable), Acceptance::Excluded, "was not sent"),
        (Answer::Refuse(ProblemKind::Throttled), Acceptance::Excluded, "was not sent"),
        (Answer::Lose, Acceptance::Possible, "it is unknown whether the message was accepted"),
        (
            Answer::AcceptSlowly,
            Acceptance::Possible,
            "it is unknown whether the message was accepted",
        ),
    ];
    for (answer, expected, words) in cases {
        let sim = sim(settings()).await;
        sim.provider.set_latency(SECOND);
        sim.provider.always(answer);
        let id = sim.accept_singles(0, 1).await[0];
        sim.run(SECOND / 2, STEP).await;
        let cancelled = cancel(&sim, &Selection::Ids([id].into()), Cancellation::ByOperator).await;
        assert_eq!(cancelled, Cancelled { cancelled: 0, calls_under_way: 1, not_pending: 0 });
        assert_eq!(sim.status(id), Status::Queued, "the call has not ended");
        sim.run_until_empty(TIMEOUT + SECOND, STEP).await;
        assert_eq!(sim.failure(id), Some(FailureCode::Cancelled), "{answer:?}");
        assert_eq!(acceptance(&sim, id), expected, "{answer:?}");
        let message = sim.message(id);
        assert!(message.failure().unwrap().message.ends_with(words), "{message:?}");
        sim.run(HOUR, 10 * SECOND).await;
        assert_eq!(sim.provider.calls_of(id).len(), 1, "{answer:?}");
        sim.prove_sent(id).await;
        let proved = if expected == Acceptance::Possible { Status::Sent } else { Status::Failed };
        assert_eq!(sim.status(id), proved, "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_keeps_an_end_of_its_own() {
    let at_most_once = Settings { on_unknown: OnUnknown::Fail, ..settings() };
    let cases = [
        (Answer::Accept, settings(), None),
        (Answer::Refuse(ProblemKind::Rejected), settings(), Some(FailureCode::ProviderRejected)),
        (Answer::Lose, at_most_once, Some(FailureCode::OutcomeUnknown)),
    ];
    for (answer, settings, expected) in cases {
        let sim = sim(settings).await;
        sim.provider.set_latency(SECOND);
        sim.provider.always(answer);
        let id = sim.accept_singles(0, 1).await[0];
        sim.run(SECOND / 2, STEP).await;
        cancel(&sim, &Selection::Ids([id].into()), Cancellation::ByOperator).await;
        sim.run_until_empty(2 * SECOND, STEP).await;
        assert_eq!(sim.failure(id), expected, "{answer:?}");
        assert_eq!(sim.status(id) == Status::Sent, expected.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_stays_in_doubt_after_the_cancellation_and_can_be_proved() {
    let sim = sim(settings()).await;
    sim.provider.always(Answer::AcceptAndLose);
    let ids = sim.accept_singles(0, 2).await;
    let waits = || sim.provider.call_count() >= 2 && sim.queue.pending().in_flight == 0;
    sim.run_until(SECOND, STEP, waits).await;
    sim.provider.always(Answer::Hang);
    let all = Selection::of(sim.organisations[0].id);
    let cancelled = cancel(&sim, &all, Cancellation::DomainRemoved).await;
    assert_eq!(cancelled.cancelled, 2, "they wait for their retry");
    for id in &ids {
        assert_eq!(sim.failure(*id), Some(FailureCode::DomainUnverified));
        assert_eq!(acceptance(&sim, *id), Acceptance::Possible);
    }
    sim.prove_sent(ids[0]).await;
    assert_eq!((sim.status(ids[0]), sim.status(ids[1])), (Status::Sent, Status::Failed));
}

/// Cancelled in the middle of sending, over and over: what is counted is what happens.
#[tokio::test(start_paused = true)]
async fn thousands_are_cancelled_while_calls_go_on_and_each_is_accounted_for() {
    const MESSAGES: usize = if cfg!(feature = "long") { 10_000 } else { 3_000 };
    let sim = sim(settings()).await;
    sim.provider.script(|call| match call.message.as_bytes()[15] % 8 {
        _ if call.nth > 1 => Answer::Accept,
        0 => Answer::Refuse(ProblemKind::Unavailable),
        1 => Answer::Lose,
        _ => Answer::Accept,
    });
    let ids = sim.accept_singles(0, MESSAGES).await;
    let others = sim.accept_singles(1, 500).await;
    sim.run(2 * SECOND, STEP).await;
    let (part, rest) = ids.split_at(MESSAGES / 4);
    let sent = |ids: &[MessageId]| ids.iter().filter(|id| sim.status(**id) == Status::Sent).count();
    let mut counted = Cancelled::default();
    let named = Selection::Ids(part.iter().copied().collect());
    let all = Selection::of(sim.organisations[0].id);
    let before = sim.provider.call_count_of("a");
    let under_way = sim.provider.under_way();
    for (selection, sent_before) in [(named, sent(part)), (all, sent(rest))] {
        let some = cancel(&sim, &selection, Cancellation::ByOperator).await;
        assert_eq!(some.not_pending, if counted.cancelled == 0 { sent_before } else { 0 });
        assert!(some.calls_under_way <= under_way, "{some:?}, {under_way}");
        counted.cancelled += some.cancelled;
        // The second selection holds what is under way of the first as well.
        counted.calls_under_way = some.calls_under_way;
    }
    sim.run_until_empty(Duration::from_mins(10), STEP * 5).await;
    assert_eq!(sim.provider.call_count_of("a"), before, "no call was started after it");
    let (mut sent, mut cancelled) = (0, 0);
    for id in &ids {
        match (sim.status(*id), sim.failure(*id)) {
            (Status::Sent, None) => sent += 1,
            (Status::Failed, Some(FailureCode::Cancelled)) => cancelled += 1,
            other => panic!("{other:?}"),
        }
        assert!(sim.provider.accepted(*id) <= 1);
    }
    assert_eq!(sent + cancelled, MESSAGES);
    assert!((counted.cancelled..=counted.cancelled + counted.calls_under_way).contains(&cancelled));
    assert!(others.iter().all(|id| sim.status(*id) == Status::Sent));
}

/// The caller of a cancellation may disconnect at any moment: no message stays behind without an
/// owner.
#[tokio::test(start_paused = true)]
async fn a_cancellation_whose_caller_is_gone_leaves_no_message_behind() {
    let (mut sim, ids) = waiting(vec![Mail::to_many(1); 20]).await;
    let before = sim.provider.call_count();
    let selection = Selection::of(sim.organisations[0].id);
    tokio::select! {
        biased;
        done = sim.dispatcher.cancel(&selection, Cancellation::ByOperator) => {
            panic!("it waits for the store: {done:?}")
        }
        () = std::future::ready(()) => {}
    }
    sim.settle().await;
    assert_eq!(sim.queue.pending().in_flight, 0, "nobody holds them any more");
    sim.drain(HOUR).await;
    let took = sim.run_until(HOUR, SECOND, || sim.has_ended()).await;
    assert!(took < Duration::from_mins(1), "the drain waited for what is not pending: {took:?}");
    sim.ended().await;
    for id in ids {
        assert_eq!(sim.failure(id), Some(FailureCode::Cancelled), "what was taken out is ended");
    }
    assert_eq!(sim.provider.call_count(), before, "and never called for");
}
