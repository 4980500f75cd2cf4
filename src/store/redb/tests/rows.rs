//! Rows as they lie in the file.

use std::time::Duration;

use redb::{ReadableDatabase, ReadableTableMetadata};

use crate::conformance::history::{accepted, last_hours, of};
use crate::conformance::list::all;
use crate::conformance::{Fixture, MILLISECOND, START};
use crate::record::{EventKey, FeedRow, ReportedChange, encode_feed};
use crate::redb::tables::FEED;
use crate::redb::tests::in_directory;
use crate::redb::{FILE_NAME, open, tables};
use crate::{Lister, MessageFilter, Store};
use pillarbox_domain::event::EventType;
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::history::Hour;
use pillarbox_domain::id::{MessageIds, OrganisationId};
use pillarbox_domain::limits::RECORD_RETENTION;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn what_is_purged_or_refused_leaves_nothing_in_the_list() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    for _ in 0..3 {
        fixture.new_message().await;
    }
    let end = START.plus(RECORD_RETENTION).plus(MILLISECOND);
    fixture.store.purge(end, 2).await.unwrap();
    drop(fixture);
    let rows = |table: redb::TableDefinition<'_, (u32, tables::IdKey), ()>| {
        use redb::{ReadableDatabase, ReadableTableMetadata};
        let database = redb::Database::open(directory.path().join(FILE_NAME)).unwrap();
        database.begin_read().unwrap().open_table(table).unwrap().len().unwrap()
    };
    assert_eq!(rows(tables::BY_ORGANISATION), 1);
}

#[tokio::test]
async fn a_file_of_version_1_gets_its_lists_when_it_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (id, damaged) = (fixture.new_message().await, fixture.new_message().await);
    let filter =
        MessageFilter { organisation: Some(fixture.organisation), ..MessageFilter::default() };
    drop(fixture);
    let path = directory.path().join(FILE_NAME);
    {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.delete_table(tables::BY_ORGANISATION).unwrap();
        let mut meta = transaction.open_table(tables::META).unwrap();
        meta.insert(tables::FORMAT_KEY, 1).unwrap();
        drop(meta);
        // It keeps neither the other nor the file from being brought to the new layout.
        let mut messages = transaction.open_table(tables::MESSAGES).unwrap();
        messages.insert(damaged.as_bytes(), &[9][..]).unwrap();
        drop(messages);
        transaction.commit().unwrap();
    }
    for _ in 0..2 {
        let opened = open::Opener::file(&path, 1 << 20).unwrap();
        let (store, _) = Store::on_redb(opened, START).unwrap();
        assert_eq!(all(&store, &filter, 5).await, [id]);
    }
}

#[tokio::test]
async fn listings_of_operators_take_no_organisations_share_of_the_listings() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let own = Lister::Organisation(fixture.organisation);
    let listings = &fixture.store.redb().shared.memory.listings;
    let _both = (listings.slot(own).await.unwrap(), listings.slot(own).await.unwrap());
    let filter =
        MessageFilter { organisation: Some(fixture.organisation), ..MessageFilter::default() };
    assert_eq!(all(&fixture.store, &filter, 5).await, [id]);
    let organisations = fixture.store.list_then(own, filter, 5, START, |page| page);
    let waiting = tokio::time::timeout(MILLISECOND, organisations).await;
    assert!(waiting.is_err(), "the organisation's own share is used up");
}

/// As the writer does it: entries of several organisations alternate, some in each commit. Events
/// take the most, and come some seconds after the message.
#[test]
fn an_entry_takes_at_most_80_bytes_of_the_file() {
    for organisations in [1, 2, 50] {
        let directory = tempfile::tempdir().unwrap();
        let database = redb::Database::create(directory.path().join("file")).unwrap();
        let ids = MessageIds::new();
        let mut position = FeedPosition::START;
        for commit in 0..200_u64 {
            let transaction = database.begin_write().unwrap();
            let mut feed = transaction.open_table(FEED).unwrap();
            for number in 0..100_u32 {
                let now = START.plus(MILLISECOND * 7 * u32::try_from(commit).unwrap());
                let key = EventKey {
                    occurred_at: now.minus(SECOND * 2),
                    event_type: EventType::Bounce,
                    recipients: [9; 8],
                };
                let (message, change) =
                    (ids.next(now.minus(SECOND * 2)), ReportedChange::Observed(key));
                position = position.next(now);
                let row = encode_feed(position, &FeedRow { message, change });
                feed.insert((number % organisations, position.number()), row.as_slice()).unwrap();
            }
            drop(feed);
            transaction.commit().unwrap();
        }
        let transaction = database.begin_write().unwrap();
        let feed = transaction.open_table(FEED).unwrap();
        let pages = feed.stats().unwrap();
        let bytes = pages.stored_bytes() + pages.metadata_bytes() + pages.fragmented_bytes();
        let each = bytes / feed.len().unwrap();
        assert!(each <= 80, "{each} bytes an entry with {organisations} organisations");
    }
}

#[tokio::test]
async fn an_hour_goes_90_days_after_it_began_a_bounded_part_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    store.add_to_history(Hour::of(START), of((1..=20).map(|id| (id, 1)))).await.unwrap();
    let rows = async || {
        store.redb().published().await;
        let count = |transaction: &redb::ReadTransaction| {
            Ok(transaction.open_table(tables::HISTORY)?.len()?)
        };
        store.redb().read("history", "all", count).unwrap()
    };
    let last_hour = std::time::Duration::from_hours(1);
    store.purge(START.plus(RECORD_RETENTION), 10).await.unwrap();
    assert_eq!(rows().await, 21);
    for left in [11, 1, 0] {
        store.purge(START.plus(RECORD_RETENTION).plus(last_hour), 10).await.unwrap();
        assert_eq!(rows().await, left);
    }
}

#[tokio::test]
async fn a_file_without_the_table_gets_it_and_a_damaged_row_costs_itself_alone() {
    let directory = tempfile::tempdir().unwrap();
    drop(in_directory(&directory, START).await);
    let path = directory.path().join(FILE_NAME);
    let change = |work: &dyn Fn(&redb::WriteTransaction)| {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        work(&transaction);
        transaction.commit().unwrap();
    };
    change(&|transaction| assert!(transaction.delete_table(tables::HISTORY).unwrap()));
    let store = in_directory(&directory, START).await;
    assert_eq!(last_hours(&store, 1, 5).await.total, [accepted(0)]);
    let hour = Hour::of(START);
    store.add_to_history(hour, of([(1, 1), (2, 2)])).await.unwrap();
    drop(store);
    change(&|transaction| {
        let mut table = transaction.open_table(tables::HISTORY).unwrap();
        table.insert((hour.number(), 1), &[9][..]).unwrap();
    });
    let store = in_directory(&directory, START).await;
    let history = last_hours(&store, 1, 5).await;
    assert_eq!(history.total, [accepted(3)]);
    assert_eq!(history.organisations.keys().map(|id| id.0).collect::<Vec<_>>(), [2]);
    assert_eq!(store.damaged().len(), 1);
    store.add_to_history(hour, of([(1, 4)])).await.unwrap();
    let history = last_hours(&store, 1, 5).await;
    assert_eq!(history.organisations[&OrganisationId(1)], [accepted(4)], "it is written anew");
    drop(store);
    let database = redb::Database::open(&path).unwrap();
    let rows = database.begin_read().unwrap();
    assert_eq!(rows.open_table(tables::HISTORY).unwrap().len().unwrap(), 3);
}
