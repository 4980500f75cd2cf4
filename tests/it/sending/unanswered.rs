//! Calls that get no answer: each costs its slot until its time-out, and the others nothing.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use pillarbox_config::OnUnknown;
use pillarbox_dispatch::circuit_breaker::BreakerState;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_dispatch::{Evidence, Settings};
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::message::Status;

use crate::sending::harness::{Answer, Call, Limit, Sim, Simulated, settings};

const LATENCY: Duration = Duration::from_millis(30);
const STEP: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);
const RATE: f64 = 14.0;
const SECONDS: u32 = if cfg!(feature = "long") { 600 } else { 60 };

/// Result of sending a backlog of one organisation while another sends now and then.
struct Run {
    sim: Sim,
    /// Accepted messages per second, as a part of the rate.
    used: f64,
    /// Median time from acceptance to the call, of the other organisation's messages.
    wait: Duration,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} % of the pace, a wait of {:?}", self.used * 100.0, self.wait)
    }
}

/// So many of a thousand calls are answered too late.
async fn run(unanswered: u32) -> Run {
    let mut random = fastrand::Rng::with_seed(5);
    let run = run_with(move |_| {
        if random.u32(0..1_000) < unanswered { Answer::AcceptSlowly } else { Answer::Accept }
    });
    let run = run.await;
    println!("{unanswered} of 1,000 calls unanswered: {run:?}");
    run
}

async fn run_with(script: impl FnMut(&Call) -> Answer + Send + 'static) -> Run {
    let sim = Sim::start(Simulated::new(LATENCY, Limit::None), settings(), Rate::PerSecond(RATE));
    let sim = sim.await;
    sim.provider.script(script);
    sim.accept_singles(0, 14 * SECONDS as usize + 500).await;
    sim.run(10 * SECOND, STEP).await;
    let start = Instant::now();
    let mut accepted = Vec::new();
    for _ in 0..SECONDS {
        accepted.push((Instant::now(), sim.accept_singles(1, 1).await[0]));
        sim.run(SECOND, STEP).await;
    }
    let calls = sim.provider.calls();
    let sent = calls.iter().filter(|call| call.at >= start && call.answer == Answer::Accept);
    let mut waits: Vec<Duration> = accepted
        .iter()
        .filter_map(|(at, id)| calls.iter().find(|call| call.message == *id).map(|c| c.at - *at))
        .collect();
    waits.resize(accepted.len(), Duration::MAX);
    waits.sort_unstable();
    let sent = u32::try_from(sent.count()).unwrap();
    let (used, wait) = (f64::from(sent) / f64::from(SECONDS) / RATE, waits[waits.len() / 2]);
    Run { sim, used, wait }
}

#[tokio::test(start_paused = true)]
async fn calls_without_an_answer_cost_neither_the_pace_nor_another_organisations_time() {
    let usual = run(0).await;
    assert!(usual.used >= 0.97, "{usual:?}");
    for unanswered in [10, 30, 50, 100] {
        let run = run(unanswered).await;
        assert!(run.used >= 0.85, "{unanswered}: {run:?}");
        assert!(run.wait <= 2 * usual.wait, "{unanswered}: {run:?} after {usual:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_organisation_whose_calls_all_get_no_answer_costs_the_others_no_time() {
    let usual = run(0).await;
    let alone =
        |call: &Call, answer| if call.organisation == "a" { answer } else { Answer::Accept };
    for answer in [Answer::AcceptSlowly, Answer::Lose, Answer::Refuse(ProblemKind::Unavailable)] {
        let run = run_with(move |call| alone(call, answer)).await;
        println!("no call of one organisation answered, {answer:?}: {run:?}");
        assert!(run.wait <= 2 * usual.wait, "{answer:?}: {run:?} after {usual:?}");
        // Before they are found out, up to half of the slots; then one at a time.
        let before = run.sim.provider.call_count_of("a");
        run.sim.run(60 * SECOND, STEP * 10).await;
        let probes = run.sim.provider.call_count_of("a") - before;
        assert!((1..=6).contains(&probes), "{probes} probes in a minute");
        let status = run.sim.dispatcher.status();
        assert_eq!(status.condition, BreakerState::Closed);
        let paused: Vec<_> = status.paused_organisations.iter().map(|(id, _)| *id).collect();
        assert_eq!(paused, [run.sim.organisations[0].id]);

        run.sim.provider.always(Answer::Accept);
        run.sim.run_until_empty(Duration::from_mins(10), STEP * 10).await;
        assert!(run.sim.dispatcher.status().paused_organisations.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn another_organisations_message_goes_out_at_once_after_hours_of_unanswered_calls() {
    let provider = Simulated::new(LATENCY, Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(RATE)).await;
    let alone = |call: &Call| call.organisation == "a";
    sim.provider
        .script(move |call| if alone(call) { Answer::AcceptSlowly } else { Answer::Accept });
    sim.accept_singles(0, 100).await;
    sim.run(Duration::from_hours(1), SECOND).await;
    let condition = sim.dispatcher.status().condition;
    assert!(matches!(condition, BreakerState::Open { .. }), "nothing shows that it answers");
    assert!(sim.dispatcher.status().paused_organisations.is_empty(), "all is told once");
    let id = sim.accept_singles(1, 1).await[0];
    sim.run(SECOND / 2, STEP).await;
    assert_eq!(sim.status(id), Status::Sent);
    assert_eq!(sim.dispatcher.status().condition, BreakerState::Closed);
    assert_eq!(sim.dispatcher.status().paused_organisations.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn lost_answers_with_an_empty_queue_end_by_an_answer_without_a_message_or_by_and_by() {
    for answers in [true, false] {
        let settings = Settings { on_unknown: OnUnknown::Fail, ..settings() };
        let provider = Simulated::new(LATENCY, Limit::None);
        let sim = Sim::start(provider, settings, Rate::PerSecond(RATE)).await;
        sim.provider.always(Answer::Lose);
        for _ in 0..6 {
            sim.accept_singles(0, 1).await;
            sim.accept_singles(1, 1).await;
            sim.run(SECOND, STEP).await;
        }
        let is_open = || matches!(sim.dispatcher.status().condition, BreakerState::Open { .. });
        sim.run_until_empty(Duration::from_mins(2), STEP * 10).await;
        assert!(is_open());
        sim.provider.always(Answer::Accept);
        sim.run(SECOND, STEP).await;
        assert!(is_open(), "nothing has shown that it is over");
        if answers {
            sim.dispatcher.answered(Instant::now(), |_| Evidence::Against, None);
        } else {
            sim.run(Duration::from_mins(10), SECOND).await;
        }
        assert!(!is_open(), "answers: {answers}");
        let id = sim.accept_singles(1, 1).await[0];
        sim.run(SECOND, STEP).await;
        assert_eq!(sim.status(id), Status::Sent);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_from_before_an_outage_that_hang_put_off_neither_probe_nor_return() {
    let provider = Simulated::new(LATENCY, Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(100.0)).await;
    sim.provider.always(Answer::AcceptSlowly);
    sim.accept_singles(0, 2_000).await;
    sim.run(SECOND, STEP).await;
    assert!(sim.provider.under_way() > 50, "{}", sim.provider.under_way());
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    sim.run(SECOND / 10, STEP).await;
    sim.provider.always(Answer::Accept);
    let before = sim.provider.call_count();
    sim.run(4 * SECOND, STEP).await;
    let since = sim.provider.call_count() - before;
    assert!(since > 200, "{since} calls in the 4 seconds after the account's pause");
}
