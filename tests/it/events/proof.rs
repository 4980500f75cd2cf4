//! Events that prove an acceptance, for messages that are pending in memory.

use std::time::Duration;

use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::{Address, DomainName};
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Recorded, Status, Transition};
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_queue::{AcceptedMessage, Claim, EncodedRequest};
use tokio::time::Instant;

use crate::events::document::send;
use crate::events::sink::{EventSink, NOW};

/// A message that is pending in the queue, with one call started.
async fn being_sent(sink: &EventSink) -> (MessageId, Claim) {
    let id = sink.new_message().await;
    let sender = DomainName::parse("example.com").unwrap();
    let recipient = Address::parse("bob@example.org").unwrap();
    let held = sink.queue.hold(AcceptedMessage {
        id,
        kind: OrganisationKind::Production,
        key: None,
        request: EncodedRequest::new("{}".to_owned(), &Envelope::new(&sender, [&recipient])),
        accepted_at: Instant::now(),
        suppression_epoch: 0,
        reservation: sink.queue.budget().reserve(sink.organisation, 2).unwrap(),
    });
    sink.queue.add(held.unwrap());
    let mut claim = sink.queue.claim(OrganisationKind::Production, Instant::now(), 1).unwrap();
    drop(claim.start_call());
    assert_eq!((claim.id(), claim.attempts), (id, 1));
    (id, claim)
}

fn lost_answer() -> Transition {
    Transition::RetryLater {
        failure: Failure::new(FailureCode::OutcomeUnknown, "the answer was lost"),
        acceptance: Acceptance::Possible,
        next_attempt_at: None,
    }
}

fn later() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

async fn prove(sink: &EventSink, id: MessageId) {
    sink.events.ingest(&[&send(id).to_string()]).await.unwrap();
    assert_eq!(sink.store.message(id, NOW).await.unwrap().unwrap().status(), Status::Sent);
}

#[tokio::test]
async fn a_proof_cancels_the_waiting_retry_and_drops_the_body() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let (id, claim) = being_sent(&sink).await;
    sink.store.record(id, 1, lost_answer(), NOW).await.unwrap();
    assert!(claim.put_back(later(), Acceptance::Possible).is_none());
    prove(&sink, id).await;
    let pending = sink.queue.pending();
    assert_eq!((pending.messages, pending.bytes), (0, 0));
    let message = sink.store.message(id, NOW).await.unwrap().unwrap();
    assert_eq!((message.attempts, message.failure()), (1, None));
    // A repeat of it is nothing new.
    prove(&sink, id).await;
}

#[tokio::test]
async fn a_proof_that_overtakes_a_lost_answer_leaves_no_retry() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let (id, claim) = being_sent(&sink).await;
    prove(&sink, id).await;
    assert_eq!(sink.queue.pending().in_flight, 1, "the call goes on to its end");
    let recorded = sink.store.record(id, 1, lost_answer(), NOW).await.unwrap();
    assert_eq!(recorded, Recorded::AlreadyFinal);
    assert!(claim.put_back(later(), Acceptance::Possible).is_none());
    let pending = sink.queue.pending();
    assert_eq!((pending.messages, pending.bytes), (0, 0));
}

#[tokio::test]
async fn another_organisations_name_cancels_no_retry() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let (id, claim) = being_sent(&sink).await;
    assert!(claim.put_back(later(), Acceptance::Possible).is_none());
    let mut document = send(id);
    document["mail"]["tags"]["pillarbox-organisation"] = serde_json::json!(["other"]);
    sink.events.ingest(&[&document.to_string()]).await.unwrap();
    assert_eq!(sink.queue.pending().messages, 1);
    let message = sink.store.message(id, NOW).await.unwrap().unwrap();
    assert_eq!(message.status(), Status::Queued);
    assert_eq!(sink.events.metrics().foreign.get(), 1);
}
