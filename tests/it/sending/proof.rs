//! An event proves that a message was accepted, whenever it arrives.

use std::time::Duration;

use pillarbox_config::OnUnknown;
use pillarbox_dispatch::Settings;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_domain::message::{FailureCode, Status};

use crate::sending::harness::{Answer, Limit, Sim, Simulated, TIMEOUT, settings};

const LATENCY: Duration = Duration::from_millis(60);
const STEP: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

/// As with events configured.
fn with_events() -> Settings {
    Settings { unknown_wait: Duration::from_mins(1), ..settings() }
}

async fn sim(settings: Settings) -> Sim {
    Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(500.0)).await
}

#[tokio::test(start_paused = true)]
async fn a_proof_before_the_retry_cancels_it() {
    let sim = sim(with_events()).await;
    sim.provider.always(Answer::AcceptAndLose);
    let id = sim.accept_singles(0, 1).await[0];
    sim.run(30 * SECOND, STEP).await;
    assert_eq!(sim.status(id), Status::Queued);
    assert_eq!(sim.failure(id), Some(FailureCode::OutcomeUnknown));
    sim.prove_sent(id).await;
    assert_eq!(sim.queue.pending().bytes, 0, "the body is dropped");
    sim.run(Duration::from_mins(10), SECOND).await;
    assert_eq!((sim.provider.accepted(id), sim.provider.calls_of(id).len()), (1, 1));
    assert_eq!((sim.status(id), sim.failure(id)), (Status::Sent, None));
}

#[tokio::test(start_paused = true)]
async fn without_a_proof_the_retry_waits_its_minute() {
    let sim = sim(with_events()).await;
    sim.provider.script(|call| if call.nth == 1 { Answer::AcceptAndLose } else { Answer::Accept });
    let id = sim.accept_singles(0, 1).await[0];
    sim.run_until_empty(Duration::from_mins(2), STEP).await;
    let calls = sim.provider.calls_of(id);
    assert_eq!(calls.len(), 2);
    assert!(calls[1].at - calls[0].at >= Duration::from_mins(1));
    assert_eq!(sim.status(id), Status::Sent);
}

#[tokio::test(start_paused = true)]
async fn a_proof_during_the_call_keeps_it_from_being_repeated() {
    let sim = sim(settings()).await;
    sim.provider.always(Answer::AcceptSlowly);
    let id = sim.accept_singles(0, 1).await[0];
    sim.run(SECOND, STEP).await;
    sim.prove_sent(id).await;
    assert_eq!(sim.status(id), Status::Sent);
    sim.run_until_empty(TIMEOUT, STEP).await;
    sim.run(Duration::from_mins(10), SECOND).await;
    assert_eq!((sim.provider.accepted(id), sim.provider.calls_of(id).len()), (1, 1));
    assert_eq!((sim.status(id), sim.failure(id)), (Status::Sent, None));
    assert_eq!(sim.queue.pending().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_proof_after_the_message_failed_corrects_its_record() {
    let sim = sim(Settings { on_unknown: OnUnknown::Fail, ..with_events() }).await;
    sim.provider.always(Answer::AcceptAndLose);
    let id = sim.accept_singles(0, 1).await[0];
    sim.run_until_empty(SECOND, STEP).await;
    assert_eq!(sim.failure(id), Some(FailureCode::OutcomeUnknown));
    assert_eq!(sim.status(id), Status::Failed);
    sim.prove_sent(id).await;
    assert_eq!((sim.status(id), sim.failure(id)), (Status::Sent, None));
    assert_eq!(sim.message(id).attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_proof_after_the_retries_were_exhausted_corrects_the_record() {
    let sim = sim(Settings { retry_for: 30 * SECOND, ..with_events() }).await;
    sim.provider.always(Answer::AcceptAndLose);
    let id = sim.accept_singles(0, 1).await[0];
    sim.run_until_empty(Duration::from_mins(1), STEP).await;
    assert_eq!(sim.failure(id), Some(FailureCode::RetriesExhausted));
    let message = sim.message(id).failure().unwrap().message.clone();
    assert!(message.contains("SES may have accepted the message"), "{message}");
    sim.prove_sent(id).await;
    assert_eq!((sim.status(id), sim.provider.calls_of(id).len()), (Status::Sent, 1));
}

/// The proof is durable a moment before the queue hears of it.
#[tokio::test(start_paused = true)]
async fn a_retry_that_is_due_before_the_queue_hears_of_the_proof_is_not_sent() {
    let sim = sim(with_events()).await;
    sim.provider.always(Answer::AcceptAndLose);
    let ids = sim.accept_singles(0, 2).await;
    sim.run(30 * SECOND, STEP).await;
    sim.store_proof(ids[0]).await;
    sim.provider.always(Answer::Accept);
    sim.run_until_empty(Duration::from_mins(2), STEP).await;
    let calls = |id| (sim.provider.accepted(id), sim.provider.calls_of(id).len());
    assert_eq!(calls(ids[0]), (1, 1));
    assert_eq!(calls(ids[1]), (2, 2), "what is not proved is tried again");
    assert_eq!((sim.status(ids[0]), sim.message(ids[0]).attempts), (Status::Sent, 1));
    assert_eq!(sim.queue.pending().bytes, 0);
}
