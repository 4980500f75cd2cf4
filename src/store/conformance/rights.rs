//! Rights that end between the checks of a message and its commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::conformance::{Fixture, MILLISECOND, START, in_directory};
use crate::{AcceptError, Accepted, BatchMode, MessageFilter, NewApiKey, NewMessage};
use pillarbox_domain::admission::Facts;
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::id::KeyId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message_terms::{MessageDefaults, Priority};
use pillarbox_domain::organisation::{DomainState, KeyRights, Limits};
use pillarbox_domain::request::{Body, IdempotencyKey, RawMessage, SendRequest, Submission};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;

const SECOND: Duration = Duration::from_secs(1);

fn now(clock: &Clock) -> impl Fn() -> Timestamp + Send + Sync + 'static {
    let clock = clock.clone();
    move || clock.now()
}

impl Fixture {
    async fn key(&self, number: u8, lasts: Option<Duration>) -> KeyId {
        let expires_at = lasts.map(|lasts| START.plus(lasts));
        let hash = ApiKeyHash([number; 32]);
        let new = NewApiKey { label: String::new(), expires_at, hash, rights: KeyRights::all() };
        self.store.add_api_key(self.organisation, new, START).await.unwrap().unwrap().id
    }

    async fn put(&self, domain: &str) {
        let domain = DomainName::parse(domain).unwrap();
        let put = self.store.put_domain(self.organisation, domain, DomainState::Assumed, START);
        put.await.unwrap().unwrap();
    }

    /// A message that passed every check, with the right of this key.
    async fn checked(&self, key: Option<KeyId>, clock: &Clock) -> NewMessage {
        let right = self.store.sending_right(self.organisation, key, now(clock)).unwrap();
        let (id, admitted) = (self.ids.next(START), self.admitted(None).await);
        NewMessage::new(id, self.organisation, &admitted, START, START, || {}).by_right(right)
    }

    async fn accepted(&self) -> usize {
        let listed = self.store.list(MessageFilter::default(), 100, START);
        listed.await.unwrap().messages.len()
    }
}

#[tokio::test]
async fn a_right_has_the_sender_domains_and_defaults_of_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    fixture.put("other.example").await;
    let defaults = MessageDefaults { priority: Priority::High, expires_in: None };
    let domains = ["example.com".to_owned()].into();
    let rights = KeyRights { domains, defaults, ..KeyRights::all() };
    let hash = ApiKeyHash([1; 32]);
    let new = NewApiKey { label: String::new(), expires_at: None, hash, rights };
    let key = store.add_api_key(organisation, new, START).await.unwrap().unwrap().id;
    let right = store.sending_right(organisation, Some(key), || START).unwrap();
    assert_eq!(right.key(), Some(key));
    let facts = store.facts(organisation).by_right(&right);
    assert_eq!(facts.defaults(), defaults);
    let domain = |name| DomainName::parse(name).unwrap();
    assert!(facts.allows_sender(&domain("example.com")));
    assert!(!facts.allows_sender(&domain("other.example")));
    assert_eq!(facts.verified_domains(), [domain("example.com")]);
    let right = store.sending_right(organisation, None, || START).unwrap();
    assert_eq!(right.key(), None);
    assert!(store.facts(organisation).by_right(&right).allows_sender(&domain("other.example")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_ended_since_the_checks_accepts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, clock) = (&fixture.store, Clock::manual(START));

    // Another change of the directory ends no right.
    let (key, revoked) = (fixture.key(1, None).await, fixture.key(2, None).await);
    let message = fixture.checked(Some(key), &clock).await;
    let of_nobody = fixture.checked(None, &clock).await;
    let of_revoked = fixture.checked(Some(revoked), &clock).await;
    let two_of_revoked = vec![
        fixture.checked(Some(revoked), &clock).await,
        fixture.checked(Some(revoked), &clock).await,
    ];
    fixture.put("other.example").await;
    store.revoke_api_key(revoked).await.unwrap();
    assert!(matches!(store.accept(message).await, Ok(Accepted::New(_))));
    assert!(matches!(store.accept(of_nobody).await, Ok(Accepted::New(_))));
    assert_eq!(store.accept(of_revoked).await, Err(AcceptError::KeyEnded));
    let refused = store.accept_all(two_of_revoked, BatchMode::Partial).await;
    assert_eq!(refused, Err(AcceptError::KeyEnded), "it concerns all");
    assert!(store.sending_right(fixture.organisation, Some(revoked), now(&clock)).is_none());

    // A key that expires needs no change to end.
    let expiring = fixture.key(3, Some(SECOND)).await;
    let in_time = fixture.checked(Some(expiring), &clock).await;
    let late = fixture.checked(Some(expiring), &clock).await;
    clock.advance(SECOND.saturating_sub(MILLISECOND));
    assert!(matches!(store.accept(in_time).await, Ok(Accepted::New(_))));
    clock.advance(MILLISECOND);
    assert_eq!(store.accept(late).await, Err(AcceptError::KeyEnded));
    assert!(store.sending_right(fixture.organisation, Some(expiring), now(&clock)).is_none());

    // A domain, that of the sender or of another that the message names.
    let domain = || DomainName::parse("example.com").unwrap();
    let unverified = |index| AcceptError::UnverifiedDomain { index, domain: domain() };
    let one = fixture.checked(Some(key), &clock).await;
    let two =
        vec![fixture.checked(Some(key), &clock).await, fixture.checked(Some(key), &clock).await];
    store.remove_domain(fixture.organisation, domain()).await.unwrap();
    assert_eq!(store.accept(one).await, Err(unverified(0)));
    assert_eq!(store.accept_all(two, BatchMode::Whole).await, Err(unverified(0)));
    fixture.put("example.com").await;
    let mut one = fixture.checked(Some(key), &clock).await;
    one.other_senders = vec![DomainName::parse("other.example").unwrap()];
    store.remove_domain(fixture.organisation, one.other_senders[0].clone()).await.unwrap();
    let two = vec![fixture.checked(Some(key), &clock).await, one];
    let refused = store.accept_all(two, BatchMode::Whole).await;
    let other = DomainName::parse("other.example").unwrap();
    assert_eq!(refused, Err(AcceptError::UnverifiedDomain { index: 1, domain: other }));

    // The organisation itself.
    let of_key = fixture.checked(Some(key), &clock).await;
    let of_nobody = fixture.checked(None, &clock).await;
    store.remove_organisation(fixture.organisation).await.unwrap();
    assert_eq!(store.accept(of_key).await, Err(AcceptError::KeyEnded));
    assert_eq!(store.accept(of_nobody).await, Err(unverified(0)));
    assert_eq!(fixture.accepted().await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_batch_leaves_out_what_has_no_right_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let domain = || DomainName::parse("other.example").unwrap();
    let handed_over = Arc::new(AtomicUsize::new(0));
    let batch = async |messages: &[(Option<&str>, bool)]| {
        fixture.put("other.example").await;
        let mut all = Vec::new();
        for (key, is_withdrawn) in messages {
            let right = store.sending_right(organisation, None, || START).unwrap();
            let (id, admitted) = (fixture.ids.next(START), fixture.admitted(*key).await);
            let handed_over = Arc::clone(&handed_over);
            let on_new = move || {
                handed_over.fetch_add(1, Ordering::SeqCst);
            };
            let message = NewMessage::new(id, organisation, &admitted, START, START, on_new);
            let other_senders = if *is_withdrawn { vec![domain()] } else { Vec::new() };
            all.push(NewMessage { other_senders, recipients: 1, ..message.by_right(right) });
        }
        store.remove_domain(organisation, domain()).await.unwrap();
        store.accept_all(all, BatchMode::Partial).await
    };
    let withdrawn =
        |index| Err(AcceptError::UnverifiedDomain { index, domain: domain().into_owned() });
    fixture.limit(Limits { per_day: Some(2), ..Limits::NONE }).await;
    // Of equal keys, the first that has its right makes the message. What is left out does not
    // count.
    let messages =
        [(Some("k"), true), (None, false), (Some("k"), false), (Some("k"), false), (None, true)];
    let told = batch(&messages).await.unwrap();
    let [_, Ok(second), Ok(third), ..] = told[..] else { panic!("{told:?}") };
    let expected = [
        withdrawn(0),
        Ok(Accepted::New(second.id())),
        Ok(Accepted::New(third.id())),
        Ok(Accepted::Replayed(third.id())),
        withdrawn(4),
    ];
    assert_eq!(told, expected);
    assert_eq!((handed_over.load(Ordering::SeqCst), fixture.accepted().await), (2, 2));
    // The limit concerns all of it, and a replay that has its right needs none.
    let refused = batch(&[(Some("l"), true), (Some("l"), false)]).await;
    assert!(matches!(refused, Err(AcceptError::LimitReached(_))), "{refused:?}");
    let told = batch(&[(Some("l"), true), (Some("k"), false), (None, true)]).await.unwrap();
    assert_eq!(told, [withdrawn(0), Ok(Accepted::Replayed(third.id())), withdrawn(2)]);
    assert_eq!(batch(&[(Some("l"), true)]).await.unwrap(), [withdrawn(0)]);
    assert_eq!((handed_over.load(Ordering::SeqCst), fixture.accepted().await), (2, 2));
    assert_eq!(
        store.replay(organisation, IdempotencyKey::parse("l").unwrap(), START).await,
        Ok(None)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_carries_the_domains_of_all_who_send_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    fixture.put("other.example").await;
    let domain = || DomainName::parse("other.example").unwrap();
    let submission = Submission {
        from: "ann@example.com",
        from_header: None,
        other_senders: vec![domain()],
        recipients: vec!["bob@example.org"],
        subject: "Hello",
        message: RawMessage { fields: b"From: ann@example.com\r\n", rest: b"\r\n" },
        idempotency_key: Some(IdempotencyKey::of_submission("k")),
    };
    let request = SendRequest::of_submission(submission).unwrap();
    let facts = fixture.store.facts(fixture.organisation);
    let admitted = pillarbox_domain::admission::admit(request, &facts).await.unwrap();
    assert!(matches!(admitted.body(), Body::Raw(_)));
    let id = fixture.ids.next(START);
    let right = fixture.store.sending_right(fixture.organisation, None, || START).unwrap();
    let message = NewMessage::new(id, fixture.organisation, &admitted, START, START, || {});
    fixture.store.remove_domain(fixture.organisation, domain()).await.unwrap();
    let refused = fixture.store.accept(message.by_right(right)).await;
    assert_eq!(refused, Err(AcceptError::UnverifiedDomain { index: 0, domain: domain() }));
}
