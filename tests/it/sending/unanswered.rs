//! Calls that get no answer: each costs its slot until its time-out, and the others nothing.

use std::time::Duration;

use tokio::time::Instant;

use pillarbox::dispatch::token_bucket::Rate;
use pillarbox::domain::attempt::ProblemKind;

use crate::sending::harness::{Answer, Limit, Sim, Simulated, settings};

const LATENCY: Duration = Duration::from_millis(30);
const STEP: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);
const RATE: f64 = 14.0;
const SECONDS: u32 = if cfg!(feature = "long") { 600 } else { 60 };

/// What came of sending a backlog of one organisation while another sends now and then.
#[derive(Debug)]
struct Run {
    /// Accepted messages per second, as a part of the pace.
    used: f64,
    /// Median time from acceptance to the call, of the other organisation's messages.
    wait: Duration,
}

/// One in so many of a thousand calls is answered too late.
async fn run(unanswered: u32) -> Run {
    let sim = Sim::start(Simulated::new(LATENCY, Limit::None), settings(), Rate::PerSecond(RATE));
    let sim = sim.await;
    let mut random = fastrand::Rng::with_seed(5);
    sim.provider.script(move |_| {
        if random.u32(0..1_000) < unanswered { Answer::AcceptSlowly } else { Answer::Accept }
    });
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
    let run =
        Run { used: f64::from(sent) / f64::from(SECONDS) / RATE, wait: waits[waits.len() / 2] };
    println!("{unanswered} of 1,000 calls unanswered: {run:?}");
    run
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
