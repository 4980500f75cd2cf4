//! History: counts by the hour, bounded, in files that never had any, and gone after 90 days.

use std::collections::BTreeMap;

use redb::{ReadableDatabase, ReadableTableMetadata};

use super::{START, in_directory};
use crate::domain::history::{Hour, HourSteps};
use crate::domain::id::OrganisationId;
use crate::domain::policy::RECORD_RETENTION;
use crate::organisation_counts::OrganisationCounts;
use crate::store::history::MAX_ORGANISATIONS;
use crate::store::{CountsByOrganisation, FILE_NAME, History, Store, tables};

fn accepted(accepted: u64) -> OrganisationCounts {
    OrganisationCounts { accepted, ..OrganisationCounts::default() }
}

fn of(counts: impl IntoIterator<Item = (u32, u64)>) -> CountsByOrganisation {
    counts.into_iter().map(|(id, count)| (OrganisationId(id), accepted(count))).collect()
}

async fn last_hours(store: &Store, hours: u32, most: usize) -> History {
    store.history(HourSteps::until(Hour::of(START), 1, hours), most).await.unwrap()
}

#[tokio::test]
async fn what_is_added_to_an_hour_adds_up_and_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START);
    let hour = Hour::of(START);
    let before = Hour::from_number(hour.number() - 1);
    store.add_to_history(hour, of([(1, 2), (2, 5)])).await.unwrap();
    store.add_to_history(hour, of([(1, 1)])).await.unwrap();
    store.add_to_history(before, of([(1, 7)])).await.unwrap();
    drop(store);
    let store = in_directory(&directory, START);
    let history = last_hours(&store, 3, 5).await;
    assert_eq!(history.total, [0, 7, 8].map(accepted));
    let organisations = [(1, [0, 7, 3]), (2, [0, 0, 5])];
    let organisations =
        organisations.map(|(id, steps)| (OrganisationId(id), steps.map(accepted).to_vec()));
    assert_eq!(history.organisations, BTreeMap::from(organisations));
    let one = last_hours(&store, 3, 1).await;
    assert_eq!((one.total, one.organisations.len()), (history.total, 1));
    let day = store.history(HourSteps::until(hour, 24, 2), 5).await.unwrap();
    assert_eq!(day.total, [0, 15].map(accepted), "START is at eight o'clock");
}

#[tokio::test]
async fn only_so_many_organisations_have_rows_in_an_hour_and_the_total_has_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START);
    let hour = Hour::of(START);
    for _ in 0..2 {
        store.add_to_history(hour, of((1..=300).map(|id| (id, u64::from(id))))).await.unwrap();
    }
    let history = last_hours(&store, 1, 1_000).await;
    assert_eq!(history.total, [accepted(300 * 301)]);
    assert_eq!(history.organisations.len(), MAX_ORGANISATIONS);
    assert_eq!(history.organisations[&OrganisationId(300)], [accepted(600)]);
    assert!(!history.organisations.contains_key(&OrganisationId(200)), "those with the most mail");
}

#[tokio::test]
async fn an_hour_goes_90_days_after_it_began_a_bounded_part_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START);
    store.add_to_history(Hour::of(START), of((1..=20).map(|id| (id, 1)))).await.unwrap();
    let rows = async || {
        store.published().await;
        let count = |transaction: &redb::ReadTransaction| {
            Ok(transaction.open_table(tables::HISTORY)?.len()?)
        };
        store.read(&tables::HISTORY, "all", count).unwrap()
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
    drop(in_directory(&directory, START));
    let path = directory.path().join(FILE_NAME);
    let change = |work: &dyn Fn(&redb::WriteTransaction)| {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        work(&transaction);
        transaction.commit().unwrap();
    };
    change(&|transaction| assert!(transaction.delete_table(tables::HISTORY).unwrap()));
    let store = in_directory(&directory, START);
    assert_eq!(last_hours(&store, 1, 5).await.total, [accepted(0)]);
    let hour = Hour::of(START);
    store.add_to_history(hour, of([(1, 1), (2, 2)])).await.unwrap();
    drop(store);
    change(&|transaction| {
        let mut table = transaction.open_table(tables::HISTORY).unwrap();
        table.insert((hour.number(), 1), &[9][..]).unwrap();
    });
    let store = in_directory(&directory, START);
    let history = last_hours(&store, 1, 5).await;
    assert_eq!(history.total, [accepted(3)]);
    assert_eq!(history.organisations.keys().map(|id| id.0).collect::<Vec<_>>(), [2]);
    assert_eq!(store.damaged().len(), 1);
    store.add_to_history(hour, of([(1, 4)])).await.unwrap();
    let history = last_hours(&store, 1, 5).await;
    assert_eq!(history.organisations[&OrganisationId(1)], [accepted(4)], "it is written anew");
    drop(store);
    let rows = redb::Database::open(&path).unwrap().begin_read().unwrap();
    assert_eq!(rows.open_table(tables::HISTORY).unwrap().len().unwrap(), 3);
}
