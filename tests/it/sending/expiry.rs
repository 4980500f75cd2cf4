//! Messages whose own time is over: they end then, with every kind of obstacle, and none is sent
//! later.

use std::time::Duration;

use pillarbox_config::OnUnknown;
use pillarbox_dispatch::Settings;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{FailureCode, Status};
use pillarbox_domain::organisation::{Organisation, Pause, PausedRequests};
use pillarbox_domain::time::Timestamp;
use tokio::time::Instant;

use crate::sending::harness::{Answer, Limit, Mail, Sim, Simulated, TIMEOUT, settings};

const LATENCY: Duration = Duration::from_millis(60);
const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_mins(1);
/// Just before the end of a message that may be sent for a minute.
const ALMOST: Duration = Duration::from_millis(59_900);
/// So long after its time, a message is final at the latest.
const LATEST: Duration = Duration::from_secs(2);

async fn sim(settings: Settings, rate: f64) -> Sim {
    Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(rate)).await
}

fn expiring(expires_in: &'static str) -> Mail {
    Mail { expires_in: Some(expires_in), ..Mail::to_many(1) }
}

async fn accept(sim: &Sim, organisation: usize, count: usize) -> Vec<MessageId> {
    sim.accept(organisation, vec![expiring("1m"); count]).await
}

fn assert_expired(sim: &Sim, ids: &[MessageId], said: &str) {
    for id in ids {
        let message = sim.message(*id);
        let failure = message.failure().unwrap();
        assert_eq!((message.status(), failure.code), (Status::Failed, FailureCode::Expired));
        assert!(failure.message.contains(said), "{}", failure.message);
    }
}

/// Lets time pass until an instant.
async fn run_until(sim: &Sim, end: Instant) {
    sim.run(end.saturating_duration_since(Instant::now()), STEP).await;
}

/// Lets time pass up to just before the end of what was accepted at `start`, and then as long as it may
/// take.
async fn run_over_the_end(sim: &Sim, start: Instant, ids: &[MessageId]) {
    run_until(sim, start + ALMOST).await;
    assert!(ids.iter().all(|id| sim.status(*id) == Status::Queued), "not before their time");
    sim.run(STEP + LATEST, STEP).await;
}

#[tokio::test(start_paused = true)]
async fn messages_expire_in_time_while_the_provider_is_down() {
    let sim = sim(settings(), 100.0).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Unavailable));
    let start = Instant::now();
    // More than end in one step.
    let ids = accept(&sim, 0, 2_500).await;
    let others = sim.accept_singles(0, 3).await;
    run_over_the_end(&sim, start, &ids).await;
    assert_expired(&sim, &ids, "expired 1m after its acceptance; the message was not sent");
    sim.provider.always(Answer::Accept);
    sim.run_until_empty(Duration::from_mins(6), SECOND).await;
    assert!(others.iter().all(|id| sim.status(*id) == Status::Sent));
    assert!(ids.iter().all(|id| sim.provider.accepted(*id) == 0));
}

#[tokio::test(start_paused = true)]
async fn messages_expire_in_time_while_the_pace_holds_them_up_and_none_is_sent_later() {
    let sim = sim(settings(), 2.0).await;
    let start = Instant::now();
    let ids = accept(&sim, 0, 300).await;
    sim.run(MINUTE + LATEST, STEP).await;
    assert_eq!(sim.queue.pending().messages, 0);
    let is_sent = |id: &MessageId| sim.status(*id) == Status::Sent;
    let (sent, expired): (Vec<_>, Vec<_>) = ids.into_iter().partition(is_sent);
    assert!(sent.len() >= 100, "{}", sent.len());
    assert_expired(&sim, &expired, "the message was not sent");
    assert!(sim.provider.calls().iter().all(|call| call.at < start + MINUTE));
}

#[tokio::test(start_paused = true)]
async fn messages_expire_in_time_while_all_calls_are_in_use_and_no_call_is_repeated() {
    let sim = sim(Settings { max_in_flight: 1, ..settings() }, 100.0).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Throttled));
    sim.provider.set_latency(MINUTE + TIMEOUT);
    let start = Instant::now();
    let ids = accept(&sim, 0, 20).await;
    run_until(&sim, start + ALMOST).await;
    assert_eq!((sim.provider.call_count(), sim.queue.pending().messages), (1, 20));
    sim.run(STEP + LATEST, STEP).await;
    let called = sim.provider.calls()[0].message;
    let waiting: Vec<_> = ids.iter().copied().filter(|id| *id != called).collect();
    assert_expired(&sim, &waiting, "the message was not sent");
    assert_eq!(sim.status(called), Status::Queued, "its call is under way");
    sim.run(TIMEOUT, STEP).await;
    assert_expired(&sim, &ids, "the message was not sent");
    assert_eq!((sim.provider.call_count(), sim.queue.pending().messages), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_at_the_end_that_is_accepted_counts() {
    let sim = sim(settings(), 100.0).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Throttled));
    let start = Instant::now();
    let id = accept(&sim, 0, 1).await[0];
    sim.run(Duration::from_secs(30), STEP).await;
    sim.provider.always(Answer::Accept);
    sim.provider.set_latency(MINUTE);
    sim.dispatcher.try_again();
    run_until(&sim, start + MINUTE + LATEST).await;
    assert_eq!((sim.provider.under_way(), sim.status(id)), (1, Status::Queued));
    sim.run_until_empty(MINUTE, STEP).await;
    assert_eq!(sim.status(id), Status::Sent);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_told_and_an_event_proves_the_acceptance() {
    for is_under_way_at_the_end in [false, true] {
        let sim = sim(Settings { unknown_wait: MINUTE, ..settings() }, 100.0).await;
        let first = if is_under_way_at_the_end {
            Answer::Refuse(ProblemKind::Throttled)
        } else {
            Answer::Lose
        };
        sim.provider.always(first);
        let start = Instant::now();
        let id = accept(&sim, 0, 1).await[0];
        sim.run(Duration::from_secs(55), STEP).await;
        if is_under_way_at_the_end {
            sim.provider.always(Answer::AcceptSlowly);
            sim.dispatcher.try_again();
        }
        run_until(&sim, start + MINUTE + TIMEOUT + LATEST).await;
        assert_expired(&sim, &[id], "SES may have accepted the message");
        let calls = sim.provider.calls_of(id);
        assert!(calls.iter().all(|call| call.at < start + MINUTE));
        assert!(calls.iter().any(|call| call.answer.is_lost()));
        sim.prove_sent(id).await;
        assert_eq!((sim.status(id), sim.failure(id)), (Status::Sent, None));
    }
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_both_ends_counts_and_of_equal_ones_the_messages_own() {
    for (retry_for, code) in [
        (MINUTE + SECOND, FailureCode::Expired),
        (MINUTE, FailureCode::Expired),
        (ALMOST, FailureCode::RetriesExhausted),
    ] {
        let sim = sim(Settings { retry_for, ..settings() }, 100.0).await;
        sim.provider.always(Answer::Refuse(ProblemKind::Throttled));
        let start = Instant::now();
        let id = accept(&sim, 0, 1).await[0];
        sim.run_until_empty(Duration::from_mins(2), STEP).await;
        assert!(start.elapsed() <= MINUTE.min(retry_for) + LATEST, "{:?}", start.elapsed());
        assert_eq!(sim.failure(id), Some(code));
        // Both are over by now: a late check gives the same end.
        let end = start + MINUTE.min(retry_for);
        assert!(sim.provider.calls().iter().all(|call| call.at < end));
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_stays_unknown_is_not_overwritten_by_the_end() {
    let sim = sim(Settings { on_unknown: OnUnknown::Fail, ..settings() }, 100.0).await;
    sim.provider.always(Answer::AcceptAndLose);
    let id = accept(&sim, 0, 1).await[0];
    sim.run(MINUTE + LATEST, STEP).await;
    assert_eq!(sim.failure(id), Some(FailureCode::OutcomeUnknown));
}

#[tokio::test(start_paused = true)]
async fn messages_of_paused_organisations_and_domains_expire_in_time() {
    let sim = sim(settings(), 100.0).await;
    sim.provider.always(Answer::Refuse(ProblemKind::DomainFault));
    let start = Instant::now();
    let mut ids = accept(&sim, 0, 20).await;
    sim.run(SECOND, STEP).await;
    let paused = &sim.organisations[1];
    let pause = Pause { since: sim.clock.now(), requests: PausedRequests::Accepted };
    let change = move |one: &mut Organisation| one.pause = Some(pause);
    sim.store.change_organisation(paused.id, change).await.unwrap();
    sim.dispatcher.follow_pauses().await;
    let late = accept(&sim, 1, 20).await;
    let status = sim.dispatcher.paused_messages(paused.id);
    let first_end = status.first_end.unwrap();
    assert_eq!((status.waiting, first_end), (20, sim.clock.now().plus(MINUTE)));
    run_over_the_end(&sim, start, &ids).await;
    assert_expired(&sim, &ids, "the message was not sent");
    ids = late;
    sim.run(SECOND, STEP).await;
    assert_expired(&sim, &ids, "the message was not sent");
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_changes_no_end() {
    for jump in [-1, 1] {
        let sim = sim(settings(), 100.0).await;
        sim.provider.always(Answer::Refuse(ProblemKind::Unavailable));
        let start = Instant::now();
        let ids = accept(&sim, 0, 5).await;
        sim.run(SECOND, STEP).await;
        let day = Duration::from_hours(24);
        let now = sim.clock.now();
        let set: Timestamp = if jump < 0 { now.minus(day) } else { now.plus(day) };
        sim.clock.set(set);
        run_over_the_end(&sim, start, &ids).await;
        assert_expired(&sim, &ids, "the message was not sent");
    }
}
