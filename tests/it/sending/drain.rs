//! The end of the dispatcher's life: what can be sent is sent, the rest is recorded.

use std::time::Duration;

use pillarbox_dispatch::circuit_breaker::BreakerState;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_dispatch::{DailyQuota, Settings};
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Acceptance, FailureCode, State, Status};
use pillarbox_domain::retry::Backoff;
use pillarbox_queue::DrainForecast;

use crate::sending::harness::{Answer, Limit, Mail, Sim, Simulated, settings};

const LATENCY: Duration = Duration::from_millis(60);
const STEP: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

async fn sim(settings: Settings, rate: f64) -> Sim {
    Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(rate)).await
}

fn assert_lost(sim: &Sim, id: MessageId, expected: Acceptance) {
    let State::Failed { failure, acceptance } = sim.message(id).state else {
        panic!("{:?}", sim.message(id))
    };
    assert_eq!((failure.code, acceptance), (FailureCode::BodyLostOnRestart, expected));
}

#[tokio::test(start_paused = true)]
async fn what_is_due_is_sent_and_then_the_drain_is_over() {
    let mut sim = sim(settings(), 200.0).await;
    let ids = sim.accept_singles(0, 100).await;
    sim.drain(MINUTE).await;
    let took = sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    assert!(took < SECOND, "{took:?}");
    sim.ended().await;
    assert!(ids.iter().all(|id| sim.status(*id) == Status::Sent));
}

#[tokio::test(start_paused = true)]
async fn an_empty_outbox_ends_the_drain_at_once() {
    let mut sim = sim(settings(), 200.0).await;
    sim.run(SECOND, STEP).await;
    sim.drain(MINUTE).await;
    assert!(sim.has_ended());
    sim.ended().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_retries_get_one_last_attempt_at_once() {
    let backoff = Backoff::try_new(MINUTE * 10, MINUTE * 10).unwrap();
    let mut sim = sim(Settings { backoff, ..settings() }, 200.0).await;
    sim.provider.script(|call| match call.nth {
        1 => Answer::Refuse(ProblemKind::Unavailable),
        _ => Answer::Accept,
    });
    // Fewer than the failures in a row that mean an outage.
    let good = sim.accept_singles(0, 3).await;
    sim.run(SECOND, STEP).await;
    sim.drain(MINUTE).await;
    let took = sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    assert!(took < SECOND, "{took:?}");
    sim.ended().await;
    for id in good {
        assert_eq!((sim.status(id), sim.provider.calls_of(id).len()), (Status::Sent, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_of_one_organisation_cost_no_other_its_last_attempt() {
    let backoff = Backoff::try_new(MINUTE * 10, MINUTE * 10).unwrap();
    let settings = Settings { backoff, unknown_wait: MINUTE, ..settings() };
    let mut sim = sim(settings, 200.0).await;
    sim.provider.script(|call| match (&*call.organisation, call.nth) {
        ("a", _) => Answer::Lose,
        (_, 1) => Answer::Refuse(ProblemKind::Throttled),
        _ => Answer::Accept,
    });
    let throttled = sim.accept_singles(1, 1).await[0];
    sim.run(SECOND, STEP).await;
    let lost = sim.accept_singles(0, 5).await;
    sim.run(SECOND, STEP).await;
    assert_eq!(sim.queue.pending().messages, 6);
    sim.drain(20 * SECOND).await;
    sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    sim.ended().await;
    assert_eq!(sim.status(throttled), Status::Sent);
    for id in lost {
        assert_lost(&sim, id, Acceptance::Possible);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_go_out_once_the_provider_returns_during_the_drain() {
    let backoff = Backoff::try_new(SECOND, MINUTE * 10).unwrap();
    let mut sim = sim(Settings { backoff, ..settings() }, 200.0).await;
    // Retries wait for minutes after so many attempts, and probes for a second.
    sim.provider.always(Answer::Refuse(ProblemKind::Throttled));
    let waiting = sim.accept_singles(0, 20).await;
    sim.run(5 * MINUTE, SECOND).await;
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    let probe = sim.accept_singles(1, 1).await[0];
    sim.run(SECOND / 2, STEP).await;
    assert!(matches!(sim.dispatcher.status().condition, BreakerState::Open { .. }));
    sim.provider.always(Answer::Accept);
    sim.drain(MINUTE).await;
    sim.run_until(2 * MINUTE, STEP, || sim.has_ended()).await;
    sim.ended().await;
    for id in waiting.into_iter().chain([probe]) {
        assert_eq!(sim.status(id), Status::Sent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttle_during_the_drain_is_tried_again_within_its_time() {
    let mut sim = sim(settings(), 200.0).await;
    sim.provider.script(|call| match call.nth {
        1..4 => Answer::Refuse(ProblemKind::Throttled),
        _ => Answer::Accept,
    });
    let ids = sim.accept_singles(0, 2).await;
    sim.drain(MINUTE).await;
    sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    sim.ended().await;
    assert!(ids.iter().all(|id| sim.status(*id) == Status::Sent));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_not_repeated_early_for_the_drains_sake() {
    let mut sim = sim(Settings { unknown_wait: MINUTE, ..settings() }, 200.0).await;
    sim.provider.always(Answer::AcceptAndLose);
    let ids = sim.accept_singles(0, 2).await;
    sim.run(SECOND, STEP).await;
    // Its retry is not due before the end: there is nothing to wait for.
    sim.drain(MINUTE / 2).await;
    let took = sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    assert!(took < SECOND, "{took:?}");
    sim.ended().await;
    for id in ids {
        assert_eq!(sim.provider.accepted(id), 1);
        assert_lost(&sim, id, Acceptance::Possible);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_begins_while_the_dispatcher_is_busy_is_not_overlooked() {
    for turns in 0..8 {
        let backoff = Backoff::try_new(MINUTE * 10, MINUTE * 10).unwrap();
        let mut sim = sim(Settings { backoff, ..settings() }, 200.0).await;
        sim.provider.script(|call| match call.nth {
            1 => Answer::Refuse(ProblemKind::Unavailable),
            _ => Answer::Accept,
        });
        let id = sim.accept_singles(0, 1).await[0];
        sim.run(SECOND, STEP).await;
        // Another task wakes the dispatcher a few of the scheduler's rounds before.
        sim.dispatcher.set_rate(Rate::PerSecond(200.0));
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        sim.drain(MINUTE).await;
        sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
        sim.ended().await;
        assert_eq!(sim.status(id), Status::Sent, "after {turns} turns");
    }
}

#[tokio::test(start_paused = true)]
async fn an_impaired_provider_is_probed_and_gets_no_last_attempts() {
    let mut sim = sim(settings(), 200.0).await;
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    let ids = sim.accept_singles(0, 50).await;
    sim.run(MINUTE, SECOND).await;
    let before = sim.provider.call_count();
    sim.drain(MINUTE).await;
    sim.run_until(2 * MINUTE, STEP, || sim.has_ended()).await;
    sim.ended().await;
    assert!(sim.provider.call_count() <= before + 2);
    for id in ids {
        assert_lost(&sim, id, Acceptance::Excluded);
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_a_call_under_way_may_have_been_accepted_and_the_rest_was_not() {
    let mut sim = sim(Settings { max_in_flight: 1, ..settings() }, 200.0).await;
    sim.provider.always(Answer::Hang);
    let ids = sim.accept_singles(0, 1_500).await;
    sim.run(SECOND, STEP).await;
    sim.drain(5 * SECOND).await;
    let took = sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    // What is left is then recorded in real time, while simulated time goes on.
    assert!(took + STEP >= 5 * SECOND && took <= 6 * SECOND, "{took:?}");
    sim.ended().await;
    let called = sim.provider.calls()[0].message;
    assert_eq!(sim.provider.call_count(), 1);
    for id in ids {
        let expected = if id == called { Acceptance::Possible } else { Acceptance::Excluded };
        assert_lost(&sim, id, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_is_known_at_the_deadline_is_recorded() {
    let mut sim = sim(settings(), 1_000.0).await;
    sim.provider.set_latency(SECOND);
    let ids = sim.accept_singles(0, 50).await;
    sim.run(SECOND / 2, STEP).await;
    // The answers arrive in the instant in which the drain is over.
    let calls = sim.provider.calls();
    let end = calls.last().unwrap().at + SECOND;
    sim.drain(end - tokio::time::Instant::now()).await;
    sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    sim.ended().await;
    let known = ids.iter().filter(|id| sim.status(**id) == Status::Sent).count();
    assert!(known >= 40, "{known}");
    for id in ids.into_iter().filter(|id| sim.status(*id) != Status::Sent) {
        let expected = match sim.provider.calls_of(id).len() {
            0 => Acceptance::Excluded,
            _ => Acceptance::Possible,
        };
        assert_lost(&sim, id, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_by_the_drain_is_recorded_in_shared_commits() {
    let mut sim = sim(Settings { max_in_flight: 1, ..settings() }, 200.0).await;
    sim.provider.always(Answer::Hang);
    let ids = sim.accept_singles(0, 3_000).await;
    let before = sim.store.metrics().commits();
    sim.drain(Duration::ZERO).await;
    sim.ended().await;
    let commits = sim.store.metrics().commits() - before;
    println!("3,000 leftovers recorded in {commits} commits");
    assert!(commits <= 30, "{commits} commits");
    assert!(ids.iter().all(|id| sim.status(*id) == Status::Failed));
}

/// Drains, and holds what was lost against what had been foreseen.
async fn drain_as_foreseen(sim: &mut Sim, drain: Duration, foreseen: DrainForecast) {
    assert_eq!(sim.dispatcher.forecast_stop(), foreseen);
    let pending: Vec<MessageId> = sim.queue.remaining().iter().map(|(id, ..)| *id).collect();
    sim.drain(drain).await;
    sim.run_until(drain + SECOND, STEP, || sim.has_ended()).await;
    sim.ended().await;
    let lost = pending.iter().filter(|id| sim.status(**id) == Status::Failed).count();
    assert_eq!(lost, foreseen.messages(), "of {}", pending.len());
}

#[tokio::test(start_paused = true)]
async fn a_stop_loses_what_waits_for_the_provider_as_foreseen() {
    let mut sim = sim(settings(), 200.0).await;
    assert_eq!(sim.dispatcher.forecast_stop(), DrainForecast::default());
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    sim.accept_singles(0, 30).await;
    sim.run(SECOND * 5, STEP).await;
    let foreseen = DrainForecast { provider: 30, ..DrainForecast::default() };
    drain_as_foreseen(&mut sim, MINUTE, foreseen).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_loses_what_every_call_is_throttled_for_as_foreseen() {
    let mut sim = sim(settings(), 200.0).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Throttled));
    sim.accept_singles(0, 4).await;
    sim.run(SECOND * 10, STEP).await;
    let foreseen = DrainForecast { provider: 4, ..DrainForecast::default() };
    drain_as_foreseen(&mut sim, MINUTE, foreseen).await;
}

#[tokio::test(start_paused = true)]
async fn a_forecast_counts_the_calls_of_the_last_minute() {
    // No wait is longer than what is run for until all is empty.
    let backoff = Backoff::try_new(SECOND, MINUTE / 2).unwrap();
    let sim = sim(Settings { backoff, ..settings() }, 200.0).await;
    sim.provider.script(|call| match &*call.organisation {
        "a" => Answer::Refuse(ProblemKind::Throttled),
        _ => Answer::Accept,
    });
    sim.accept_singles(0, 4).await;
    sim.accept_singles(1, 40).await;
    sim.run(SECOND * 20, STEP).await;
    assert_eq!(sim.queue.pending().messages, 4);
    assert_eq!(sim.dispatcher.forecast_stop().provider, 4, "of the other's, all were accepted");

    sim.provider.always(Answer::Accept);
    sim.run_until_empty(MINUTE, STEP).await;
    sim.provider.always(Answer::Hang);
    sim.accept_singles(0, 4).await;
    assert_eq!(sim.dispatcher.forecast_stop(), DrainForecast::default(), "nothing is known yet");
}

#[tokio::test(start_paused = true)]
async fn a_stop_loses_what_waits_for_a_domain_as_foreseen() {
    let mut sim = sim(settings(), 200.0).await;
    sim.provider.script(|call| match &*call.from {
        "ann@other.example" => Answer::Refuse(ProblemKind::DomainFault),
        _ => Answer::Accept,
    });
    sim.accept(0, vec![Mail::from_domain("other.example"); 7]).await;
    sim.run(SECOND * 5, STEP).await;
    sim.accept(0, vec![Mail::from_domain("example.com"); 5]).await;
    let foreseen = DrainForecast { domain: 7, ..DrainForecast::default() };
    drain_as_foreseen(&mut sim, MINUTE, foreseen).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_loses_late_retries_of_lost_answers_alone_as_foreseen() {
    let backoff = Backoff::try_new(MINUTE * 10, MINUTE * 10).unwrap();
    for (drain, retry) in [(MINUTE / 2, 2), (MINUTE * 11, 0)] {
        let settings = Settings { unknown_wait: MINUTE, backoff, drain, ..settings() };
        let mut sim = sim(settings, 200.0).await;
        let mut calls = 0;
        sim.provider.script(move |_| {
            calls += 1;
            match calls {
                1 | 2 => Answer::Lose,
                // One that was not accepted for sure is brought forward.
                3 => Answer::Refuse(ProblemKind::Unavailable),
                _ => Answer::Accept,
            }
        });
        sim.accept_singles(0, 3).await;
        sim.run(SECOND, STEP).await;
        assert_eq!(sim.queue.pending().messages, 3);
        let foreseen = DrainForecast { retry, ..DrainForecast::default() };
        drain_as_foreseen(&mut sim, drain, foreseen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_loses_what_the_pace_leaves_as_foreseen() {
    let mut sim = sim(Settings { drain: SECOND * 10, ..settings() }, 4.0).await;
    sim.accept_singles(0, 100).await;
    let foreseen = sim.dispatcher.forecast_stop();
    assert_eq!(foreseen.messages(), foreseen.pace);
    sim.drain(SECOND * 10).await;
    sim.run_until(MINUTE, STEP, || sim.has_ended()).await;
    sim.ended().await;
    let lost = 100 - sim.provider.call_count();
    assert!(foreseen.pace.abs_diff(lost) <= 2, "{foreseen:?}, and {lost} were lost");

    let quota = DailyQuota { max: 100.0, left: 15.0 };
    let sim = self::sim(settings(), 200.0).await;
    sim.dispatcher.set_quota(Some(quota));
    sim.accept_singles(0, 40).await;
    assert!((25..=26).contains(&sim.dispatcher.forecast_stop().pace));
}
