//! Suppressions that were added after acceptance.

use std::time::Duration;

use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::mailbox::Mailbox;
use pillarbox_domain::message::{FailureCode, Status};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};

use crate::sending::harness::{Answer, Limit, Mail, Sim, Simulated, settings};

const STEP: Duration = Duration::from_millis(10);

async fn suppress(sim: &Sim, organisation: Option<usize>, address: &str) {
    let mailbox = Mailbox::parse(address).unwrap();
    let suppression = Suppression {
        address: SuppressedAddress::from(mailbox.address()),
        reason: SuppressionReason::Manual,
        since: sim.clock.now(),
        cause: None,
    };
    let organisation = organisation.map(|n| sim.organisations[n].id);
    sim.store.suppress(organisation, suppression).await.unwrap();
}

/// A simulation whose messages have failed once and wait for their next attempt.
async fn waiting(mails: Vec<Mail>) -> (Sim, Vec<pillarbox_domain::id::MessageId>) {
    let provider = Simulated::new(Duration::from_millis(60), Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(500.0)).await;
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    let ids = sim.accept(0, mails).await;
    sim.run(Duration::from_secs(10), STEP).await;
    sim.provider.always(Answer::Accept);
    (sim, ids)
}

fn to(recipients: &[&str]) -> Mail {
    Mail {
        from: "ann@example.com".to_owned(),
        to: recipients.iter().map(|&recipient| recipient.to_owned()).collect(),
        ..Mail::to_many(1)
    }
}

#[tokio::test(start_paused = true)]
async fn a_recipient_that_became_suppressed_ends_the_message_without_a_call() {
    let (sim, ids) = waiting(vec![
        to(&["bob@example.org"]),
        to(&["\"Carol, C.\" <carol@example.org>", "Dan <Dan@Example.org>"]),
        to(&["frank@example.org", "Ève <Eve@BÜCHER.example>"]),
    ])
    .await;
    suppress(&sim, Some(0), "bob@example.org").await;
    suppress(&sim, None, "dan@example.org").await;
    suppress(&sim, Some(0), "eve@xn--bcher-kva.example").await;
    let before = sim.provider.call_count();
    sim.run_until_empty(Duration::from_mins(5), STEP * 5).await;
    assert_eq!(sim.provider.call_count(), before, "no call is made for any of them");
    for id in ids {
        assert_eq!(sim.status(id), Status::Suppressed);
        assert_eq!(sim.failure(id), Some(FailureCode::RecipientSuppressed));
    }
    assert_eq!(sim.queue.pending().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn unrelated_suppressions_do_not_stop_a_message() {
    let (sim, ids) = waiting(vec![
        to(&["bob@example.org", "Zoë <zoe@münchen.example>"]),
        to(&["\"quoted local\"@example.org"]),
    ])
    .await;
    suppress(&sim, Some(1), "bob@example.org").await;
    suppress(&sim, None, "bob@sub.example.org").await;
    suppress(&sim, Some(0), "quoted@example.org").await;
    sim.run_until_empty(Duration::from_mins(5), STEP * 5).await;
    assert!(ids.iter().all(|id| sim.status(*id) == Status::Sent));
}
