//! Listings: each organisation's own, in order, filtered, in pages of bounded cost.

use super::{Fixture, MILLISECOND, START, in_directory};
use crate::{MessageFilter, NewMessage, Store};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::{Status, Transition};
use pillarbox_domain::outcome::MessageOutcome;
use pillarbox_domain::search::SearchText;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_domain::time::Timestamp;

impl Fixture {
    /// Accepts a message of another organisation.
    pub(super) async fn new_message_of(&self, organisation: OrganisationId) -> MessageId {
        let (id, admitted) = (self.ids.next(START), self.admitted(None).await);
        let message = NewMessage::new(id, organisation, &admitted, START, START, || {});
        self.store.accept(message).await.unwrap().id()
    }
}

/// A page is made to end early by its limit. The alternative, more messages than a page checks,
/// would take long to accept one by one.
pub(crate) async fn all(store: &Store, filter: &MessageFilter, limit: usize) -> Vec<MessageId> {
    let mut filter = filter.clone();
    let mut found = Vec::new();
    loop {
        let page = store.list(filter.clone(), limit, START).await.unwrap();
        assert!(page.messages.len() <= limit);
        found.extend(page.messages.iter().map(|message| message.id));
        match page.next {
            Some(next) => filter.before = Some(next),
            None => return found,
        }
    }
}

#[tokio::test]
async fn an_organisation_lists_its_own_newest_first_in_pages() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let other = fixture.store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    let mut own = Vec::new();
    for _ in 0..10 {
        own.insert(0, fixture.new_message().await);
        fixture.new_message_of(other.id).await;
    }
    let mine =
        MessageFilter { organisation: Some(fixture.organisation), ..MessageFilter::default() };
    for limit in [1, 3, 10, 11] {
        assert_eq!(all(&fixture.store, &mine, limit).await, own);
    }
    assert_eq!(all(&fixture.store, &MessageFilter::default(), 7).await.len(), 20);
    let page = fixture.store.list(mine, 10, START).await.unwrap();
    assert_eq!(page.next, None, "a page that reaches the end says so");
    assert!(page.looked_at >= own.len(), "{}", page.looked_at);
}

#[tokio::test]
async fn the_page_right_after_a_message_has_the_oldest_that_follow_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let other = fixture.store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    let mut own = Vec::new();
    for _ in 0..10 {
        own.push(fixture.new_message().await);
        fixture.new_message_of(other.id).await;
    }
    let page = async |organisation, after: usize, limit| {
        let after = Some(own[after]);
        let filter = MessageFilter { after, organisation, ..MessageFilter::default() };
        let page = fixture.store.list(filter, limit, START).await.unwrap();
        let mut ids: Vec<_> = page.messages.iter().map(|message| message.id).collect();
        assert!(ids.iter().rev().is_sorted(), "the newest comes first");
        ids.reverse();
        (ids, page.next.is_some())
    };
    let mine = Some(fixture.organisation);
    assert_eq!(page(mine, 0, 3).await, (own[1..4].to_vec(), true));
    assert_eq!(page(mine, 6, 3).await, (own[7..].to_vec(), false));
    assert_eq!(page(mine, 4, 100).await, (own[5..].to_vec(), false));
    assert_eq!(page(mine, 9, 3).await, (Vec::new(), false));
    let (all, has_more) = page(None, 8, 100).await;
    assert_eq!((all.len(), all[1], has_more), (3, own[9], false));
}

#[tokio::test]
async fn filters_find_by_status_and_recipient() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let recipient = |text| MessageFilter {
        recipient: Some(SuppressedAddress::parse(text).unwrap()),
        ..MessageFilter::default()
    };
    let status = |status| MessageFilter { status: Some(status), ..MessageFilter::default() };
    assert_eq!(all(&fixture.store, &recipient("bob@EXAMPLE.org"), 5).await, [id]);
    assert!(all(&fixture.store, &recipient("bo@example.org"), 5).await.is_empty());
    assert_eq!(all(&fixture.store, &status(Status::Queued), 5).await, [id]);
    assert!(all(&fixture.store, &status(Status::Sent), 5).await.is_empty());
}

#[tokio::test]
async fn pending_messages_are_found_without_a_look_at_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let other = store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap().id;
    let end = async |id: MessageId| {
        let sent = Transition::Sent { ses_message_id: id.to_string(), sent_at: START };
        store.record(id, 1, sent, START).await.unwrap();
    };
    // Of the one, most are final; of the other, all but the first ones wait.
    let (mut own, mut of_other) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let id = fixture.new_message().await;
        if number % 20 == 7 {
            own.push(id);
        } else {
            end(id).await;
        }
        let id = fixture.new_message_of(other).await;
        if number < 10 { end(id).await } else { of_other.push(id) }
    }
    let mut all_of_both: Vec<_> = own.iter().chain(&of_other).copied().collect();
    all_of_both.sort();
    let of = |organisation| MessageFilter { organisation, ..MessageFilter::default() };
    let by_status = |filter| MessageFilter { status: Some(Status::Queued), ..filter };
    let by_outcome = |filter| MessageFilter { outcome: Some(MessageOutcome::Queued), ..filter };
    let wanted =
        [(None, &all_of_both), (Some(fixture.organisation), &own), (Some(other), &of_other)];
    for (organisation, pending) in wanted {
        for filter in [by_status(of(organisation)), by_outcome(of(organisation))] {
            let newest_first: Vec<_> = pending.iter().rev().copied().collect();
            for limit in [1, 2, 7, 100] {
                assert_eq!(all(store, &filter, limit).await, newest_first);
            }
            let page = store.list(filter.clone(), 100, START).await.unwrap();
            assert!(page.looked_at <= of_other.len() + own.len(), "{}", page.looked_at);
            let after = Some(pending[0]);
            let rest = MessageFilter { after, ..filter.clone() };
            let page = store.list(rest.clone(), 100, START).await.unwrap();
            let ids: Vec<_> = page.messages.iter().map(|message| message.id).collect();
            assert_eq!(ids, newest_first[..pending.len() - 1]);
            let between = MessageFilter { before: pending.last().copied(), ..rest };
            let page = store.list(between, 100, START).await.unwrap();
            assert_eq!(page.messages.len(), pending.len() - 2);
        }
    }
}

#[tokio::test]
async fn a_search_looks_at_so_many_rows_at_a_time_and_goes_on_where_it_ended() {
    const MESSAGES: usize = 10_500;
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let wanted = fixture.new_message().await;
    fixture.new_messages(MESSAGES).await;
    let subject = |word| MessageFilter {
        subject_words: vec![SearchText::new(word)],
        ..MessageFilter::default()
    };
    let page = store.list(subject("hello"), 50, START).await.unwrap();
    assert_eq!((page.messages.len(), page.looked_at), (50, 50), "it ends once enough are found");
    let mut filter = MessageFilter { before: None, ..subject("absent") };
    let (mut looked_at, mut pages) = (0, 0);
    loop {
        let page = store.list(filter.clone(), 50, START).await.unwrap();
        assert!(page.messages.is_empty());
        (looked_at, pages) = (looked_at + page.looked_at, pages + 1);
        // A slow machine ends a page early, but not before this.
        assert!(page.looked_at <= 10_000 && (page.looked_at >= 1_000 || page.next.is_none()));
        let Some(next) = page.next else { break };
        filter.before = Some(next);
    }
    assert_eq!(looked_at, MESSAGES + 1);
    assert!(pages > 1);
    let before = MessageFilter { before: filter.before, ..subject("hello") };
    assert_eq!(all(store, &before, 1_000).await.last(), Some(&wanted));
}

#[tokio::test]
async fn times_of_acceptance_bound_a_listing_also_where_the_clock_was_set_back() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let early = Timestamp::from_unix_millis(START.unix_millis() - 60_000);
    fixture.accept(None, START).await.unwrap();
    // Its id is not before the first one's, though its time is.
    fixture.accept(None, early).await.unwrap();
    let times = async |from, before| {
        let filter = MessageFilter {
            organisation: Some(fixture.organisation),
            created_from: from,
            created_before: before,
            ..MessageFilter::default()
        };
        let page = fixture.store.list(filter, 5, START).await.unwrap();
        page.messages.iter().map(|message| message.created_at).collect::<Vec<_>>()
    };
    assert_eq!(times(None, None).await, [early, START]);
    assert_eq!(times(None, Some(START)).await, [early]);
    assert_eq!(times(None, Some(early)).await, []);
    assert_eq!(times(Some(START), None).await, [START]);
    assert_eq!(times(Some(early), Some(early.plus(MILLISECOND))).await, [early]);
}
