//! A provider of which a part of the calls goes wrong in every way.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use pillarbox_config::OnUnknown;
use pillarbox_dispatch::Settings;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::message::{Acceptance, FailureCode, State, Status};

use crate::sending::harness::{Answer, Limit, Sim, Simulated, settings};

const LATENCY: Duration = Duration::from_millis(60);
const STEP: Duration = Duration::from_millis(10);

/// 5 % each: throttled, a 500 (half of them accepted), a reset before the answer, an answer past
/// the timeout, a truncated answer; and one in a hundred is refused for good.
fn storm(provider: &Simulated) {
    let mut random = fastrand::Rng::with_seed(11);
    provider.script(move |_| match random.u32(0..1_000) {
        0..50 => Answer::Refuse(ProblemKind::Throttled),
        50..75 | 100..125 => Answer::Lose,
        75..100 | 125..150 | 200..250 => Answer::AcceptAndLose,
        150..200 => Answer::AcceptSlowly,
        250..260 => Answer::Refuse(ProblemKind::Rejected),
        _ => Answer::Accept,
    });
}

#[tokio::test(start_paused = true)]
async fn every_message_reaches_a_final_state_and_duplicates_only_follow_lost_answers() {
    const MESSAGES: usize = if cfg!(feature = "long") { 20_000 } else { 1_000 };
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings(), Rate::PerSecond(500.0)).await;
    storm(&sim.provider);
    let ids = sim.accept_singles(0, MESSAGES).await;
    sim.run_until_empty(Duration::from_hours(1), STEP).await;

    let calls = sim.provider.calls();
    let lost = calls.iter().filter(|call| call.answer.is_lost()).count();
    let accepted: u32 = ids.iter().map(|id| sim.provider.accepted(*id)).sum();
    let reached = ids.iter().filter(|id| sim.provider.accepted(**id) > 0).count();
    let duplicates = usize::try_from(accepted).unwrap() - reached;
    println!("{} calls, {lost} answers lost, {duplicates} duplicates", calls.len());
    assert!(duplicates <= lost);
    let last: HashMap<_, _> = calls.iter().map(|call| (call.message, call.answer)).collect();
    for id in ids {
        let expected = match last[&id] {
            Answer::Accept => (Status::Sent, None),
            Answer::Refuse(ProblemKind::Rejected) => {
                (Status::Failed, Some(FailureCode::ProviderRejected))
            }
            other => panic!("{other:?} ended a message"),
        };
        assert_eq!((sim.status(id), sim.failure(id)), expected);
        assert_eq!(sim.message(id).attempts as usize, sim.provider.calls_of(id).len());
    }
}

#[tokio::test(start_paused = true)]
async fn where_it_is_to_fail_a_lost_answer_is_never_followed_by_another_call() {
    let settings = Settings { on_unknown: OnUnknown::Fail, ..settings() };
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(500.0)).await;
    storm(&sim.provider);
    let ids = sim.accept_singles(0, 500).await;
    sim.run_until_empty(Duration::from_hours(1), STEP).await;
    for id in ids {
        let calls = sim.provider.calls_of(id);
        let lost = calls.iter().position(|call| call.answer.is_lost());
        assert!(sim.provider.accepted(id) <= 1);
        if let Some(lost) = lost {
            assert_eq!(lost, calls.len() - 1);
            let State::Failed { failure, acceptance } = sim.message(id).state else {
                panic!("{:?}", sim.message(id))
            };
            assert_eq!(failure.code, FailureCode::OutcomeUnknown);
            assert_eq!(acceptance, Acceptance::Possible);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_an_attempt_ends_its_message_and_nothing_else() {
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings(), Rate::PerSecond(500.0)).await;
    sim.provider.script(|call| match call.from.as_str() {
        "ann@other.example" => Answer::Panic,
        _ => Answer::Accept,
    });
    let bad =
        sim.accept(0, vec![crate::sending::harness::Mail::from_domain("other.example"); 3]).await;
    let good = sim.accept_singles(0, 20).await;
    sim.run_until_empty(Duration::from_secs(10), STEP).await;
    for id in bad {
        let State::Failed { failure, acceptance } = sim.message(id).state else {
            panic!("{:?}", sim.message(id))
        };
        assert_eq!(failure.code, FailureCode::OutcomeUnknown);
        assert_eq!(acceptance, Acceptance::Possible);
        assert_eq!(sim.provider.calls_of(id).len(), 1);
    }
    assert!(good.iter().all(|id| sim.status(*id) == Status::Sent));
    assert_eq!(sim.queue.pending().in_flight, 0);
    assert_eq!(sim.queue.pending().bytes, 0);
}

/// A task that panics drops the claim that it holds, and so does a future that is not polled any
/// more.
#[tokio::test(start_paused = true)]
async fn a_message_whose_claim_is_dropped_is_sent_if_no_call_was_under_way_and_else_fails() {
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings(), Rate::PerSecond(500.0)).await;
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    let ids = sim.accept_singles(0, 2).await;
    sim.run(Duration::from_secs(5), STEP).await;
    let mut claims = sim.queue.claim_older_than(Instant::now(), 2);
    let calls = |id| sim.provider.calls_of(id).len();
    let before = ids.iter().map(|id| calls(*id)).collect::<Vec<_>>();
    drop(claims[1].start_call());
    drop(claims);
    sim.provider.always(Answer::Accept);
    sim.run_until_empty(Duration::from_mins(6), STEP).await;
    assert_eq!((sim.status(ids[0]), calls(ids[0])), (Status::Sent, before[0] + 1));
    let State::Failed { failure, acceptance } = sim.message(ids[1]).state else {
        panic!("{:?}", sim.message(ids[1]))
    };
    assert_eq!((failure.code, acceptance), (FailureCode::OutcomeUnknown, Acceptance::Possible));
    assert_eq!(
        calls(ids[1]),
        before[1],
        "it may have been accepted, so it is not called for again"
    );
    sim.prove_sent(ids[1]).await;
    assert_eq!(sim.status(ids[1]), Status::Sent);
}
