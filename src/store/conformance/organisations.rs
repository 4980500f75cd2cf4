//! Organisations, API keys and sender domains.

use std::time::Duration;

use crate::conformance::{Fixture, MILLISECOND, START, in_directory};
use crate::{Change, NewApiKey};
use pillarbox_domain::admission::Facts;
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{
    DomainCheck, DomainState, Finding, KeyRights, Organisation, OrganisationKind, Pause,
    PausedRequests, SenderStatus,
};
use pillarbox_domain::time::Timestamp;

fn new(key: &ApiKey, expires_at: Option<Timestamp>) -> NewApiKey {
    NewApiKey { label: "app".to_owned(), expires_at, hash: key.hash(), rights: KeyRights::all() }
}

#[tokio::test]
async fn keys_and_domains_go_with_their_organisation_and_numbers_are_not_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let key = ApiKey::generate().unwrap();
    store.add_api_key(organisation, new(&key, None), START).await.unwrap();
    assert_eq!(store.authenticate(&key.hash(), START).unwrap().organisation.id, organisation);
    let taken = store.add_organisation("acme".parse().unwrap()).await.unwrap();
    assert!(taken.is_none());
    assert_eq!(store.remove_organisation(organisation).await.unwrap(), Change::Made);
    assert!(store.authenticate(&key.hash(), START).is_none());
    assert!(store.domains().is_empty());
    let again = store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
    assert!(again.id > organisation);
    let all: Vec<_> = store.organisations().iter().map(|one| one.id).collect();
    assert_eq!(all, [again.id]);
}

#[tokio::test]
async fn an_organisation_is_found_by_its_number_with_its_kind_and_pause() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, acme) = (&fixture.store, fixture.organisation);
    let test = store.add_test_organisation("test".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(store.organisation_by_id(test.id), Some(test.clone()));
    let kinds = [acme, test.id, OrganisationId(99)].map(|id| store.organisation_kind(id));
    let expected = [Some(OrganisationKind::Production), Some(OrganisationKind::Test), None];
    assert_eq!(kinds, expected);
    assert_eq!(store.shown_kind(test.id), OrganisationKind::Test);
    let pause = Pause { since: START, requests: PausedRequests::Accepted };
    let change = move |organisation: &mut Organisation| organisation.pause = Some(pause);
    store.change_organisation(acme, change).await.unwrap().unwrap();
    assert_eq!((store.pause(acme), store.pause(test.id)), (Some(pause), None));
    assert_eq!(store.pauses(), [(acme, pause)]);
}

#[tokio::test]
async fn whether_an_organisation_may_send_from_a_domain_follows_every_change_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let name = || DomainName::parse("new.example").unwrap();
    let status = || store.sender_status(organisation, &name());
    assert_eq!(status(), SenderStatus::DomainRemoved);
    for (state, expected) in [
        (DomainState::Pending, SenderStatus::Unverified),
        (DomainState::Verified, SenderStatus::Verified),
        (DomainState::Pending, SenderStatus::Unverified),
        (DomainState::Assumed, SenderStatus::Verified),
    ] {
        store.put_domain(organisation, name(), state, START).await.unwrap();
        assert_eq!(status(), expected);
    }
    let other = store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(store.sender_status(other.id, &name()), SenderStatus::DomainRemoved);
    store.remove_domain(organisation, name()).await.unwrap();
    assert_eq!(status(), SenderStatus::DomainRemoved);
    store.remove_organisation(organisation).await.unwrap();
    assert_eq!(status(), SenderStatus::OrganisationRemoved);
}

#[tokio::test]
async fn a_refusal_names_verified_domains_of_the_organisation_alone() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let other = store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    for (owner, name, state) in [
        (organisation, "verified.example", DomainState::Verified),
        (organisation, "pending.example", DomainState::Pending),
        (other.id, "other.example", DomainState::Verified),
    ] {
        store.put_domain(owner, DomainName::parse(name).unwrap(), state, START).await.unwrap();
    }
    let named = |of| {
        let names = store.facts(of).verified_domains().into_iter();
        names.map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(named(organisation), ["example.com", "verified.example"]);
    assert_eq!(named(other.id), ["other.example"]);
}

#[tokio::test]
async fn nothing_is_added_to_an_organisation_that_is_gone_or_to_a_domain_that_was_withdrawn() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let name = || DomainName::parse("new.example").unwrap();
    store.put_domain(organisation, name(), DomainState::Pending, START).await.unwrap();
    let (from, to) = (DomainState::Pending, DomainState::Verified);
    let check = DomainCheck { at: START.plus(Duration::from_mins(5)), finding: Finding::Verified };
    let verify = || store.change_domain(organisation, name(), from, to, check);
    assert_eq!(verify().await.unwrap(), Change::Made);
    let verified = store.domains().into_iter().find(|domain| domain.name == "new.example").unwrap();
    assert_eq!((verified.state, verified.added_at), (DomainState::Verified, START));
    assert_eq!((verified.since, verified.last_check), (check.at, Some(check)));
    assert_eq!(verify().await.unwrap(), Change::None, "it is not pending any more");
    store.remove_domain(organisation, name()).await.unwrap();
    assert_eq!(verify().await.unwrap(), Change::None);
    store.remove_organisation(organisation).await.unwrap();
    let key = ApiKey::generate().unwrap();
    let added = store.add_api_key(organisation, new(&key, None), START).await.unwrap();
    assert!(added.is_none());
    let put = store.put_domain(organisation, name(), DomainState::Pending, START).await.unwrap();
    assert!(put.is_none());
}

#[tokio::test]
async fn a_revoked_key_opens_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let key = ApiKey::generate().unwrap();
    let entry = fixture
        .store
        .add_api_key(fixture.organisation, new(&key, None), START)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(fixture.store.revoke_api_key(entry.id).await.unwrap(), Change::Made);
    assert!(fixture.store.authenticate(&key.hash(), START).is_none());
    assert_eq!(fixture.store.revoke_api_key(entry.id).await.unwrap(), Change::None);
}

#[tokio::test]
async fn a_rotated_key_gets_an_end_and_a_successor_that_lasts_as_long() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let days = |days: u64| START.plus(Duration::from_hours(24 * days));
    let [first, second, third] = [(); 3].map(|()| ApiKey::generate().unwrap());
    let added = store.add_api_key(organisation, new(&first, Some(days(30))), START).await;
    let added = added.unwrap().unwrap();
    let overlap = Duration::from_hours(24);
    let rotate = async |id, key: &ApiKey, now| {
        store.rotate_api_key(id, key.hash(), overlap, now).await.unwrap()
    };
    let rotated = rotate(added.id, &second, days(10)).await.unwrap();
    let (number, lasts) = (rotated.id, (rotated.created_at, rotated.expires_at));
    assert_eq!((number > added.id, lasts), (true, (days(10), Some(days(40)))));
    assert_eq!((rotated.organisation, &*rotated.label), (organisation, "app"));
    let ends = || store.api_keys().into_iter().map(|key| (key.id, key.expires_at));
    let (old, new) = ((added.id, Some(days(11))), (number, Some(days(40))));
    assert_eq!(ends().collect::<Vec<_>>(), [old, new]);
    assert_eq!(store.authenticate(&second.hash(), days(10)).unwrap().key, number);
    let again = rotate(added.id, &third, days(10).plus(MILLISECOND)).await.unwrap();
    assert_eq!(ends().next(), Some(old), "an earlier end stays");
    assert_eq!(again.expires_at, Some(days(21).plus(MILLISECOND)), "it lasts as long as that one");
    assert!(rotate(KeyId(again.id.0 + 1), &first, START).await.is_none());
}

#[tokio::test]
async fn a_key_lets_in_until_it_expires_and_its_last_use_outlasts_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let key = ApiKey::generate().unwrap();
    let end = START.plus(10 * MILLISECOND);
    let entry =
        store.add_api_key(organisation, new(&key, Some(end)), START).await.unwrap().unwrap();
    assert_eq!(store.key_last_used(entry.id), None);
    assert!(store.authenticate(&key.hash(), START).is_some());
    store.store_key_use().await.unwrap();
    let last = end.minus(MILLISECOND);
    assert!(store.authenticate(&key.hash(), last).is_some());
    assert!(store.authenticate(&key.hash(), end).is_none());
    assert_eq!(store.key_last_used(entry.id), Some(last), "a refused use is none");
    store.store_key_use().await.unwrap();
    drop(fixture);

    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    assert_eq!(store.key_last_used(entry.id), Some(last));
    assert_eq!(store.api_keys()[0].expires_at, Some(end));
    assert!(store.authenticate(&key.hash(), end).is_none());
    store.remove_organisation(organisation).await.unwrap();
    store.store_key_use().await.unwrap();
    drop(fixture);
    let store = in_directory(&directory, START).await;
    assert_eq!(store.key_last_used(entry.id), None, "it is gone with its key");
}
