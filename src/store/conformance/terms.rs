//! Priorities and expiries of messages: kept with the record on both engines.

use std::time::Duration;

use super::{Fixture, START, in_directory};
use crate::{Accepted, NewMessage, Reference, Report};
use pillarbox_domain::admission::admit;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Status, Transition};
use pillarbox_domain::message_terms::{MIN_EXPIRES_IN, MessagePriority, Priority, Terms};
use pillarbox_domain::request::{Draft, SendRequest};

async fn accept(fixture: &Fixture, priority: Option<&str>, expires_in: Option<&str>) -> MessageId {
    let draft = Draft {
        from: Some("ann@example.com"),
        to: Some(vec!["bob@example.org"]),
        subject: Some("Hello"),
        text: Some("Body".into()),
        priority,
        expires_in,
        ..Draft::default()
    };
    let facts = fixture.store.facts(fixture.organisation);
    let admitted = admit(SendRequest::parse(draft).unwrap(), &facts).await.unwrap();
    let id = fixture.ids.next(START);
    let message = NewMessage::new(id, fixture.organisation, &admitted, START, START, || {});
    assert_eq!(fixture.store.accept(message).await, Ok(Accepted::New(id)));
    id
}

#[tokio::test]
async fn terms_are_kept_with_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let given = MessagePriority::Given;
    let mut kept = Vec::new();
    for (priority, expires_in, terms) in [
        (None, None, Terms::NONE),
        (Some("high"), None, Terms { priority: given(Priority::High), ..Terms::NONE }),
        (Some("normal"), None, Terms { priority: given(Priority::Normal), ..Terms::NONE }),
        (None, Some("1m"), Terms { expires_in: Some(MIN_EXPIRES_IN), ..Terms::NONE }),
    ] {
        kept.push((accept(&fixture, priority, expires_in).await, terms));
    }
    let store = fixture.store;
    for (id, terms) in &kept {
        let retry = Transition::RetryLater {
            failure: Failure::new(FailureCode::ProviderThrottled, "slow"),
            acceptance: Acceptance::Excluded,
            next_attempt_at: None,
        };
        store.record(*id, 1, retry, START).await.unwrap();
        let message = store.message(*id, START).await.unwrap().unwrap();
        assert_eq!((message.terms, message.attempts), (*terms, 1));
        assert_eq!(message.expires_at(), terms.expires_in.map(|time| START.plus(time)));
    }
    drop(store);
    let store = in_directory(&directory, START).await;
    for (id, terms) in kept {
        assert_eq!(store.message(id, START).await.unwrap().unwrap().terms, terms);
    }
}

#[tokio::test]
async fn an_expired_message_is_final_unless_an_event_proves_its_acceptance() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    for acceptance in [Acceptance::Excluded, Acceptance::Possible] {
        let id = accept(&fixture, None, Some("1m")).await;
        let now = START.plus(Duration::from_mins(1));
        let end = Transition::expired(MIN_EXPIRES_IN, acceptance);
        store.record(id, 0, end, now).await.unwrap();
        let message = store.message(id, START).await.unwrap().unwrap();
        assert_eq!(message.failure().unwrap().code, FailureCode::Expired);
        let steps = store.steps(id, START).await.unwrap();
        assert_eq!(steps.iter().map(|step| step.kind.as_str()).collect::<Vec<_>>(), ["expired"]);
        let report = Report {
            message: Reference::Tag(id),
            organisation: None,
            ses_message_id: format!("ses-{id}"),
            accepted_at: now,
            event: None,
        };
        store.apply(report, now).await.unwrap();
        let message = store.message(id, START).await.unwrap().unwrap();
        let (status, attempts) = match acceptance {
            Acceptance::Excluded => (Status::Failed, 0),
            Acceptance::Possible => (Status::Sent, 1),
        };
        assert_eq!((message.status(), message.attempts), (status, attempts));
        assert_eq!(message.terms.expires_in, Some(MIN_EXPIRES_IN));
    }
}
