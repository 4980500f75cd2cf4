//! The event feed: which changes it reports, in which order, with which data, and for how long.

use std::time::Duration;

use tempfile::TempDir;

use crate::conformance::{Fixture, MILLISECOND, START, event, hard_bounce, in_directory};
use crate::{Acknowledgement, DeadLetter, NewMessage, Reference, Report};
use pillarbox_domain::clock_corrections::{Correction, WindowTime};
use pillarbox_domain::event::{Event, EventDetail};
use pillarbox_domain::feed::{FeedChange, FeedEntry, FeedEventType, FeedPosition, FeedTypes};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Status, Transition};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{AttemptFailure, Redelivery};

const MINUTE: Duration = Duration::from_mins(1);

async fn fixture() -> (TempDir, Fixture) {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    (directory, fixture)
}

fn sent(id: MessageId) -> Transition {
    Transition::Sent { ses_message_id: format!("ses-{id}"), sent_at: START }
}

fn failed(acceptance: Acceptance) -> Transition {
    Transition::Failed {
        failure: Failure::new(FailureCode::OutcomeUnknown, "no answer"),
        acceptance,
    }
}

fn delivery(at: Timestamp) -> Event {
    event(at, EventDetail::Delivery { smtp_response: Some("250 ok".to_owned()) })
}

fn report(id: MessageId, event: Option<Event>) -> Report {
    Report {
        message: Reference::Tag(id),
        organisation: None,
        ses_message_id: format!("ses-{id}"),
        accepted_at: START,
        event,
    }
}

impl Fixture {
    async fn feed_at(&self, after: FeedPosition, now: Timestamp) -> Vec<FeedEntry> {
        let page = self.store.feed(self.organisation, after, FeedTypes::ALL, 100, now).await;
        page.unwrap().entries
    }

    async fn feed(&self) -> Vec<FeedEntry> {
        self.feed_at(FeedPosition::START, START).await
    }
}

fn told(entries: &[FeedEntry]) -> Vec<(FeedEventType, MessageId)> {
    entries.iter().map(|entry| (entry.event_type(), entry.message.id)).collect()
}

#[tokio::test]
async fn each_change_is_reported_once_in_the_order_of_the_commits() {
    use FeedEventType::{Bounce, Delivery, Failed, Sent, Suppressed};
    let (_directory, fixture) = fixture().await;
    let store = &fixture.store;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(fixture.new_message().await);
    }
    let retry = Transition::RetryLater {
        failure: Failure::new(FailureCode::ProviderThrottled, "slow"),
        acceptance: Acceptance::Excluded,
        next_attempt_at: None,
    };
    assert_eq!(fixture.feed().await, [], "acceptance and retries are nothing to tell of");
    store.record(ids[0], 1, retry, START).await.unwrap();
    store.record(ids[0], 2, sent(ids[0]), START.plus(MILLISECOND)).await.unwrap();
    store.record(ids[0], 2, sent(ids[0]), START.plus(MILLISECOND)).await.unwrap();
    store.record(ids[1], 1, failed(Acceptance::Excluded), START.plus(MINUTE)).await.unwrap();
    store.record(ids[2], 1, Transition::Suppressed, START.plus(MINUTE)).await.unwrap();
    let events = [delivery(START), event(START, hard_bounce())];
    for event in events.iter().chain(&events).cloned() {
        store.apply(report(ids[0], Some(event)), START.plus(MINUTE)).await.unwrap();
    }
    // An event that proves that the message was sent reports both, in this order.
    store.apply(report(ids[3], Some(delivery(START))), START).await.unwrap();
    let expected = [
        (Sent, ids[0]),
        (Failed, ids[1]),
        (Suppressed, ids[2]),
        (Delivery, ids[0]),
        (Bounce, ids[0]),
        (Sent, ids[3]),
        (Delivery, ids[3]),
    ];
    let entries = fixture.feed().await;
    assert_eq!(told(&entries), expected);
    assert!(entries.windows(2).all(|pair| pair[0].position < pair[1].position));
    assert_eq!(entries[0].recorded_at, START.plus(MILLISECOND));
    assert!(entries.windows(2).all(|pair| pair[0].recorded_at <= pair[1].recorded_at));
    assert_eq!(entries[0].message.status(), Status::Sent);
    assert_eq!(entries[1].message.failure().unwrap().message, "no answer");
    assert_eq!(entries[2].message.failure().unwrap().code, FailureCode::RecipientSuppressed);
    assert_eq!(entries[4].change, FeedChange::Observed(events[1].clone()));
    let last = entries.last().unwrap();
    assert_eq!(store.feed_end(fixture.organisation), last.position);
    for entry in &entries {
        let again = store.feed_entry(fixture.organisation, entry.position, START).await.unwrap();
        assert_eq!(again.as_ref(), Some(entry));
        assert_eq!(entry.id().to_string().parse(), Ok(entry.id()));
    }
    let none = FeedPosition::from_number(last.position.number() + 1);
    assert_eq!(store.feed_entry(fixture.organisation, none, START).await.unwrap(), None);
}

#[tokio::test]
async fn a_page_with_a_limit_of_bytes_ends_there_and_the_next_goes_on() {
    const LARGE: usize = 6_000;
    let (_directory, fixture) = fixture().await;
    let store = &fixture.store;
    for events in [0, 30, 0, 2] {
        let id = fixture.new_message().await;
        store.record(id, 1, sent(id), START).await.unwrap();
        for number in 0..events {
            let answer = if events == 2 { "x".repeat(LARGE) } else { "250 ok".to_owned() };
            let delivery = EventDetail::Delivery { smtp_response: Some(answer) };
            let event = event(START.plus(MINUTE * number), delivery);
            store.apply(report(id, Some(event)), START).await.unwrap();
        }
    }
    let all = fixture.feed().await;
    assert_eq!(all.len(), 4 + 30 + 2);
    let pages = async |max_bytes| {
        let (mut after, mut pages) = (FeedPosition::START, Vec::new());
        loop {
            let types = FeedTypes::ALL;
            let page =
                store.feed_within(fixture.organisation, after, types, 100, max_bytes, START).await;
            let page = page.unwrap();
            if page.entries.is_empty() {
                break;
            }
            after = page.next;
            pages.push(page.entries);
        }
        assert_eq!(pages.concat(), all, "{max_bytes}");
        pages.into_iter().map(|page| page.len()).collect::<Vec<_>>()
    };
    assert_eq!(pages(1).await, [1; 36]);
    assert_eq!(pages(usize::MAX).await, [36]);
    // A message that several entries show counts for each.
    assert!(pages(1_000).await.iter().all(|entries| *entries <= 20));
    assert_eq!(pages(LARGE).await.last(), Some(&1), "the large event before it ended its page");
}

#[tokio::test]
async fn an_event_that_came_before_its_outcome_is_reported_after_it() {
    let (_directory, fixture) = fixture().await;
    let id = fixture.new_message().await;
    let early = Report { message: Reference::ProviderId, ..report(id, Some(delivery(START))) };
    fixture.store.apply(early, START).await.unwrap();
    assert_eq!(fixture.feed().await, []);
    fixture.store.record(id, 1, sent(id), START).await.unwrap();
    let expected = [(FeedEventType::Sent, id), (FeedEventType::Delivery, id)];
    assert_eq!(told(&fixture.feed().await), expected);
}

#[tokio::test]
async fn a_failure_that_an_event_overturns_still_shows_as_it_was() {
    let (directory, fixture) = fixture().await;
    let id = fixture.new_message().await;
    fixture.store.record(id, 1, failed(Acceptance::Possible), START).await.unwrap();
    let lost = fixture.new_message().await;
    let organisation = fixture.organisation;
    drop(fixture);
    let store = in_directory(&directory, START).await;
    let before = store.feed(organisation, FeedPosition::START, FeedTypes::ALL, 9, START).await;
    let before = before.unwrap().entries;
    assert_eq!(told(&before), [(FeedEventType::Failed, id), (FeedEventType::Failed, lost)]);
    assert_eq!(before[1].message.failure().unwrap().code, FailureCode::BodyLostOnRestart);
    for id in [id, lost] {
        store.apply(report(id, None), START).await.unwrap();
        assert_eq!(store.message(id, START).await.unwrap().unwrap().status(), Status::Sent);
    }
    let after = store.feed(organisation, FeedPosition::START, FeedTypes::ALL, 9, START).await;
    let after = after.unwrap().entries;
    let sent = [(FeedEventType::Sent, id), (FeedEventType::Sent, lost)];
    assert_eq!(told(&after[2..]), sent);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.id(), &before.message.state), (after.id(), &after.message.state));
    }
    let types = FeedTypes::from_iter([FeedEventType::Failed]);
    let failures = store.feed(organisation, FeedPosition::START, types, 9, START).await.unwrap();
    assert_eq!(failures.entries, after[..2], "also if nothing else is read");
}

#[tokio::test]
async fn pages_follow_one_another_and_know_their_types() {
    let (_directory, fixture) = fixture().await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let mut ids = Vec::new();
    for _ in 0..25 {
        let id = fixture.new_message().await;
        store.record(id, 1, sent(id), START).await.unwrap();
        ids.push(id);
    }
    store.apply(report(ids[3], Some(delivery(START))), START).await.unwrap();
    let other = store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    let none = store.feed(other.id, FeedPosition::START, FeedTypes::ALL, 5, START).await.unwrap();
    assert_eq!((none.entries.len(), none.next), (0, FeedPosition::START), "another's are not seen");
    let of_other = fixture.new_message_of(other.id).await;
    store.record(of_other, 1, sent(of_other), START).await.unwrap();

    let (mut next, mut seen) = (FeedPosition::START, Vec::new());
    loop {
        let page = store.feed(organisation, next, FeedTypes::ALL, 7, START).await.unwrap();
        if page.entries.is_empty() {
            assert_eq!(page.next, next, "the end stays where it is");
            break;
        }
        seen.extend(page.entries);
        next = page.next;
    }
    assert_eq!(seen, fixture.feed().await);
    assert_eq!(seen.len(), 26);
    let types = FeedTypes::from_iter([FeedEventType::Delivery, FeedEventType::Bounce]);
    let page = store.feed(organisation, FeedPosition::START, types, 7, START).await.unwrap();
    assert_eq!((page.entries.as_slice(), page.next), (&seen[25..], next));
    let page = store.feed(organisation, next, types, 7, START).await.unwrap();
    assert_eq!((page.entries, page.next), (Vec::new(), next));
    // One at a time, over many of other types, and no further than to the one.
    store.apply(report(ids[5], Some(delivery(START))), START).await.unwrap();
    let all = fixture.feed().await;
    let page = store.feed(organisation, FeedPosition::START, types, 1, START).await.unwrap();
    assert_eq!((page.entries.as_slice(), page.next), (&all[25..26], all[25].position));
    let page = store.feed(organisation, page.next, types, 1, START).await.unwrap();
    assert_eq!((page.entries.as_slice(), page.next), (&all[26..], all[26].position));
}

#[tokio::test]
async fn an_entry_goes_with_its_record_and_positions_do_not_come_again() {
    let (directory, fixture) = fixture().await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let old = fixture.new_message().await;
    store.record(old, 1, failed(Acceptance::Possible), START).await.unwrap();
    store.apply(report(old, Some(delivery(START))), START.plus(MINUTE)).await.unwrap();
    let late = MINUTE * 60;
    let new = fixture.ids.next(START.plus(late));
    let admitted = fixture.admitted(None).await;
    let (at, none) = (START.plus(late), || {});
    store.accept(NewMessage::new(new, organisation, &admitted, at, at, none)).await.unwrap();
    store.record(new, 1, sent(new), at).await.unwrap();

    let end = START.plus(RECORD_RETENTION);
    let last = end.minus(MILLISECOND);
    assert_eq!(fixture.feed_at(FeedPosition::START, last).await.len(), 4);
    let left = fixture.feed_at(FeedPosition::START, end).await;
    assert_eq!(told(&left), [(FeedEventType::Sent, new)], "before any purge");
    let entry = store.feed_entry(organisation, left[0].position, end).await.unwrap();
    assert_eq!(entry.as_ref(), Some(&left[0]));
    let types = FeedTypes::from_iter([FeedEventType::Failed, FeedEventType::Sent]);
    let page = store.feed(organisation, FeedPosition::START, types, 1, end).await.unwrap();
    assert_eq!(page.entries, left, "a page is not empty as long as an entry follows");
    let purged = store.purge(end.plus(MINUTE), 100).await.unwrap();
    assert_eq!((purged.messages, purged.feed_entries), (1, 1), "what was told at that time");
    let purged = store.purge(end.plus(MINUTE).plus(MILLISECOND), 1).await.unwrap();
    assert_eq!((purged.messages, purged.feed_entries), (0, 1));
    let purged = store.purge(end.plus(MINUTE).plus(MILLISECOND), 100).await.unwrap();
    assert_eq!((purged.messages, purged.feed_entries), (0, 1));
    assert_eq!(fixture.feed_at(FeedPosition::START, end).await, left);
    let purged = store.purge(end.plus(late).plus(MILLISECOND), 100).await.unwrap();
    assert_eq!((purged.messages, purged.feed_entries), (1, 1));
    assert_eq!(store.rows_of_feed().await, 0, "nothing is left of it");
    assert_eq!(fixture.feed_at(FeedPosition::START, end).await, []);

    // The feed continues behind the earlier entries.
    let before = store.feed_end(organisation);
    let now = end.plus(late);
    let next = fixture.ids.next(now);
    store
        .accept(NewMessage::new(next, organisation, &fixture.admitted(None).await, now, now, || {}))
        .await
        .unwrap();
    store.record(next, 1, sent(next), now).await.unwrap();
    assert_eq!(told(&fixture.feed_at(before, now).await), [(FeedEventType::Sent, next)]);
    drop(fixture);
    let store = in_directory(&directory, now).await;
    let page = store.feed(organisation, before, FeedTypes::ALL, 9, now).await.unwrap();
    assert_eq!(told(&page.entries), [(FeedEventType::Sent, next)]);
    assert_eq!(store.feed_end(organisation), page.next);
}

/// The clock is behind the last entry: the next entry gets a place behind it all the same.
#[tokio::test]
async fn entries_keep_their_order_if_the_clock_is_set_back() {
    let (directory, fixture) = fixture().await;
    let first = fixture.new_message().await;
    fixture.store.record(first, 1, sent(first), START.plus(MINUTE)).await.unwrap();
    let (second, third) = (fixture.new_message().await, fixture.new_message().await);
    fixture.store.record(second, 1, sent(second), START).await.unwrap();
    let organisation = fixture.organisation;
    drop(fixture);
    let store = in_directory(&directory, START).await;
    let page = store.feed(organisation, FeedPosition::START, FeedTypes::ALL, 9, START).await;
    let expected = [
        (FeedEventType::Sent, first),
        (FeedEventType::Sent, second),
        (FeedEventType::Failed, third),
    ];
    assert_eq!(told(&page.unwrap().entries), expected);
}

/// As applications do it: each asks for entries behind the last one that it has seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_that_polls_while_four_write_skips_nothing_and_sees_nothing_twice() {
    // Together more than the first two looks at a feed take, even if the second takes a quarter.
    const EACH: usize = 170;
    let (_directory, fixture) = fixture().await;
    let fixture = std::sync::Arc::new(fixture);
    let mut grew = fixture.store.feed_grew();
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let fixture = std::sync::Arc::clone(&fixture);
        writers.spawn(async move {
            let mut told = Vec::new();
            for _ in 0..EACH {
                let id = fixture.new_message().await;
                fixture.store.record(id, 1, sent(id), START).await.unwrap();
                fixture.store.apply(report(id, Some(delivery(START))), START).await.unwrap();
                told.push(id);
            }
            told
        });
    }
    let (mut next, mut seen, mut written) = (FeedPosition::START, Vec::new(), Vec::new());
    while seen.len() < 4 * EACH * 2 {
        tokio::select! {
            changed = grew.changed() => changed.unwrap(),
            Some(writer) = writers.join_next() => written.push(writer.unwrap()),
            () = tokio::time::sleep(Duration::from_secs(20)) => panic!("{} were seen", seen.len()),
        }
        let organisation = fixture.organisation;
        let page = fixture.store.feed(organisation, next, FeedTypes::ALL, 10, START).await.unwrap();
        if !page.entries.is_empty() {
            grew.mark_changed();
        }
        next = page.next;
        seen.extend(page.entries);
    }
    written.extend(writers.join_all().await);
    assert!(seen.windows(2).all(|pair| pair[0].position < pair[1].position));
    let seen = told(&seen);
    for writer in written {
        let own: Vec<_> = seen.iter().filter(|(_, id)| writer.contains(id)).copied().collect();
        let both = |id: &MessageId| [(FeedEventType::Sent, *id), (FeedEventType::Delivery, *id)];
        assert_eq!(own, writer.iter().flat_map(both).collect::<Vec<_>>());
    }
    // Who wants failures alone gets no empty page for what it passes over, and none of that again.
    let store = &fixture.store;
    let (id, later) = (fixture.new_message().await, fixture.new_message().await);
    store.record(id, 1, failed(Acceptance::Excluded), START).await.unwrap();
    store.record(later, 1, sent(later), START).await.unwrap();
    let (organisation, types) =
        (fixture.organisation, [FeedEventType::Failed].into_iter().collect());
    let page = store.feed(organisation, FeedPosition::START, types, 10, START).await.unwrap();
    assert_eq!(told(&page.entries), [(FeedEventType::Failed, id)]);
    assert_eq!(page.next, store.feed_end(organisation));
}

/// The clock was 95 days behind when all of it was stored, and has been put right since.
#[tokio::test]
async fn what_was_stored_under_a_wrong_clock_is_purged_by_its_true_age() {
    const BEHIND: Duration = Duration::from_hours(95 * 24);
    let (_directory, fixture) = fixture().await;
    let store = &fixture.store;
    let webhook = fixture.webhook().await;
    let id = fixture.new_message().await;
    store.record(id, 1, sent(id), START).await.unwrap();
    let position = fixture.feed().await[0].position;
    let attempt = (START, AttemptFailure::Status(500));
    let failed = Redelivery { position, attempts: 9, last: Some(attempt) };
    let acknowledgement = Acknowledgement {
        cursor: Some(position),
        waiting: Vec::new(),
        tried: Vec::new(),
        failed: vec![failed],
        gone: None,
    };
    store.acknowledge_deliveries(webhook.id, 0, acknowledgement).await.unwrap();
    let early = Report { message: Reference::ProviderId, ..report(id, Some(delivery(START))) };
    let early = Report { ses_message_id: "ses-unknown".to_owned(), ..early };
    store.apply(early, START).await.unwrap();
    store.keep_dead_letters(vec![DeadLetter::new(START, "no JSON", "{")]).await.unwrap();

    let right = START.plus(BEHIND);
    let shift_millis = i64::try_from(BEHIND.as_millis()).unwrap();
    let corrections =
        [Correction { from: START, shift_millis }, Correction { from: right, shift_millis: 0 }];
    let at = |now: Timestamp| WindowTime::new(now, &corrections.into());
    assert_eq!(store.message(id, at(right)).await.unwrap().unwrap().created_at, right);
    let purge = async |now: Timestamp| {
        store.purge(at(now), 100).await.unwrap();
        store.sweep_webhooks(at(now), 100).await.unwrap();
    };
    let left = async || {
        let backlog = store.event_backlog().await.unwrap();
        let failed = store.failed_deliveries(webhook.id, 9).await.unwrap().len();
        (store.rows_of_feed().await, failed, backlog.unmatched, backlog.dead_letters)
    };
    purge(right.plus(MINUTE)).await;
    assert_eq!(left().await, (1, 1, 1, 1), "a minute old");
    purge(right.plus(Duration::from_hours(24)).minus(MILLISECOND)).await;
    assert_eq!(left().await, (1, 1, 1, 1), "nearly a day old");
    purge(right.plus(Duration::from_hours(24))).await;
    assert_eq!(left().await, (1, 1, 0, 1), "a day old");
    purge(right.plus(RECORD_RETENTION).minus(MILLISECOND)).await;
    assert_eq!(left().await, (1, 1, 0, 1), "nearly 90 days old");
    purge(right.plus(RECORD_RETENTION).plus(MILLISECOND)).await;
    assert_eq!(left().await, (0, 0, 0, 0), "90 days old");
}
