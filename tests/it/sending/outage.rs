//! A provider that is down for hours, and comes back.

use std::time::Duration;

use tokio::time::Instant;

use pillarbox_dispatch::Settings;
use pillarbox_dispatch::circuit_breaker::BreakerState;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::message::{FailureCode, Status};

use crate::sending::harness::{Answer, Limit, Mail, Sim, Simulated, TIMEOUT, settings};

const LATENCY: Duration = Duration::from_millis(60);
const SECOND: Duration = Duration::from_secs(1);
const OUTAGE: Duration = Duration::from_hours(3);

/// The probes of the outage's second half lie at least this far apart.
fn assert_probes_are_rare(sim: &Sim, from: Instant, to: Instant, retry_max: Duration) {
    let calls = sim.provider.calls();
    let probes: Vec<Instant> =
        calls.iter().map(|call| call.at).filter(|at| *at >= from && *at < to).collect();
    assert!(probes.len() >= 10, "{} probes", probes.len());
    for pair in probes.windows(2) {
        assert!(pair[1] - pair[0] >= retry_max, "{:?} between two probes", pair[1] - pair[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_three_hours_down_every_message_is_sent_once_within_the_rate() {
    const MESSAGES: usize = if cfg!(feature = "long") { 50_000 } else { 1_500 };
    let sim = Sim::start(
        Simulated::new(LATENCY, Limit::bucket(100.0)),
        settings(),
        Rate::PerSecond(100.0),
    )
    .await;
    sim.provider.always(Answer::Refuse(ProblemKind::Unavailable));
    let start = Instant::now();
    let mut ids = sim.accept_singles(0, MESSAGES / 2).await;
    ids.extend(sim.accept_singles(1, MESSAGES / 2).await);
    sim.run(OUTAGE, SECOND).await;
    assert_probes_are_rare(&sim, start + OUTAGE / 2, start + OUTAGE, Duration::from_mins(5));
    assert_eq!(sim.queue.pending().messages, MESSAGES);

    sim.provider.always(Answer::Accept);
    let returned = Instant::now();
    sim.run_until(Duration::from_mins(6), SECOND, || sim.queue.pending().messages < MESSAGES).await;
    sim.run_until_empty(Duration::from_mins(10), Duration::from_millis(5)).await;
    let most = sim.provider.most_in_a_second(returned);
    println!("{MESSAGES} messages sent after 3 hours down, at most {most} in a second at 100/s");
    assert!(most <= 100, "{most} recipients in a second");
    assert!(
        sim.provider
            .calls()
            .iter()
            .all(|call| { call.at < returned || call.answer == Answer::Accept })
    );
    for id in ids {
        assert_eq!((sim.provider.accepted(id), sim.status(id)), (1, Status::Sent));
    }
}

#[tokio::test(start_paused = true)]
async fn the_backlog_is_not_thrown_at_a_provider_that_has_just_returned() {
    let sim =
        Sim::start(Simulated::new(SECOND, Limit::None), settings(), Rate::PerSecond(1_000.0)).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Unavailable));
    sim.accept_singles(0, 2_000).await;
    sim.run(Duration::from_secs(100), SECOND).await;
    sim.provider.always(Answer::Accept);
    let before = sim.provider.call_count();
    sim.run_until(Duration::from_mins(5), SECOND, || sim.provider.call_count() > before).await;
    sim.provider.most_under_way();
    let mut rounds = Vec::new();
    for _ in 0..5 {
        sim.run(SECOND, SECOND).await;
        rounds.push(sim.provider.most_under_way());
    }
    assert!(rounds.windows(2).all(|pair| pair[1] <= pair[0] * 2), "{rounds:?}");
    assert!(rounds[4] > rounds[0], "{rounds:?}");
}

#[tokio::test(start_paused = true)]
async fn timeouts_of_calls_from_before_the_return_do_not_stop_sending_again() {
    let settings = Settings { max_in_flight: 100, ..settings() };
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(100.0)).await;
    sim.provider.always(Answer::AcceptSlowly);
    sim.accept_singles(0, 400).await;
    sim.run(TIMEOUT + SECOND, Duration::from_millis(5)).await;
    sim.provider.always(Answer::Accept);
    let took = sim.run_until_empty(Duration::from_mins(2), Duration::from_millis(20)).await;
    assert!(took < Duration::from_mins(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_past_their_time_fail_while_the_provider_is_down() {
    let retry_for = Duration::from_mins(30);
    let settings = Settings { retry_for, ..settings() };
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(100.0)).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Unavailable));
    // More than are given up in one step.
    let old = sim.accept_singles(0, 2_500).await;
    sim.run(Duration::from_mins(10), SECOND).await;
    let young = sim.accept_singles(0, 5).await;
    sim.run(Duration::from_secs(20 * 60 - 1), SECOND).await;
    assert_eq!(sim.queue.pending().messages, 2_505);
    sim.run(3 * SECOND, SECOND).await;
    for id in old {
        assert_eq!(sim.failure(id), Some(FailureCode::RetriesExhausted));
        assert_eq!(sim.status(id), Status::Failed);
    }
    assert_eq!(sim.queue.pending().messages, young.len());
    sim.provider.always(Answer::Accept);
    sim.run_until_empty(Duration::from_mins(6), SECOND).await;
    assert!(young.iter().all(|id| sim.status(*id) == Status::Sent));
}

#[tokio::test(start_paused = true)]
async fn a_message_at_the_end_of_its_time_is_not_tried_over_and_over() {
    let settings = Settings { retry_for: Duration::from_secs(20), ..settings() };
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(500.0)).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Throttled));
    let id = sim.accept_singles(0, 1).await[0];
    let end = Instant::now() + Duration::from_secs(20);
    sim.run_until_empty(Duration::from_secs(25), Duration::from_millis(5)).await;
    assert_eq!(sim.failure(id), Some(FailureCode::RetriesExhausted));
    let late = sim.provider.calls().iter().filter(|call| call.at >= end).count();
    assert_eq!(late, 0, "calls after the message's time was over");
}

#[tokio::test(start_paused = true)]
async fn a_single_waiting_message_goes_out_after_the_return_without_new_ones() {
    let sim =
        Sim::start(Simulated::new(LATENCY, Limit::None), settings(), Rate::PerSecond(14.0)).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Unavailable));
    let id = sim.accept(0, vec![Mail::to_many(3)]).await[0];
    sim.run(Duration::from_hours(1), SECOND).await;
    assert!(matches!(sim.dispatcher.status().condition, BreakerState::Open { .. }));
    sim.provider.always(Answer::Accept);
    sim.run_until_empty(Duration::from_mins(11), SECOND).await;
    assert_eq!((sim.status(id), sim.provider.accepted(id)), (Status::Sent, 1));
    assert_eq!(sim.dispatcher.status().condition, BreakerState::Closed);
}
