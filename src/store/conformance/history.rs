//! History: counts by the hour, bounded, in files that had none before, and deleted after 90 days.

use std::collections::BTreeMap;

use super::{START, in_directory, in_memory};
use crate::organisation_counts::OrganisationCounts;
use crate::{CountsByOrganisation, History, Store};
use pillarbox_domain::history::{Hour, HourSteps};
use pillarbox_domain::id::OrganisationId;

pub(crate) fn accepted(accepted: u64) -> OrganisationCounts {
    OrganisationCounts { accepted, ..OrganisationCounts::default() }
}

pub(crate) fn of(counts: impl IntoIterator<Item = (u32, u64)>) -> CountsByOrganisation {
    counts.into_iter().map(|(id, count)| (OrganisationId(id), accepted(count))).collect()
}

pub(crate) async fn last_hours(store: &Store, hours: u32, most: usize) -> History {
    store.history(HourSteps::until(Hour::of(START), 1, hours), most).await.unwrap()
}

#[tokio::test]
async fn what_is_added_to_an_hour_adds_up_and_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let hour = Hour::of(START);
    let before = Hour::from_number(hour.number() - 1);
    store.add_to_history(hour, of([(1, 2), (2, 5)])).await.unwrap();
    store.add_to_history(hour, of([(1, 1)])).await.unwrap();
    store.add_to_history(before, of([(1, 7)])).await.unwrap();
    drop(store);
    let store = in_directory(&directory, START).await;
    let history = last_hours(&store, 3, 5).await;
    assert_eq!(history.total, [0, 7, 8].map(accepted));
    let organisations = [(1, [0, 7, 3]), (2, [0, 0, 5])];
    let organisations =
        organisations.map(|(id, steps)| (OrganisationId(id), steps.map(accepted).to_vec()));
    assert_eq!(history.organisations, BTreeMap::from(organisations));
    let one = last_hours(&store, 3, 1).await;
    assert_eq!((one.total, one.organisations.len()), (history.total, 1));
    let sums = store.history_by_organisation(HourSteps::until(hour, 1, 3)).await.unwrap();
    assert_eq!(sums, of([(1, 10), (2, 5)]));
    let day = store.history(HourSteps::until(hour, 24, 2), 5).await.unwrap();
    assert_eq!(day.total, [0, 15].map(accepted), "START is at eight o'clock");
    // Accepted and sent messages together are an organisation's mail.
    let sent = OrganisationCounts { sent: 9, ..accepted(2) };
    store.add_to_history(hour, [(OrganisationId(3), sent)].into()).await.unwrap();
    let one = last_hours(&store, 3, 1).await;
    assert_eq!(one.organisations.into_keys().collect::<Vec<_>>(), [OrganisationId(3)]);
    store.add_to_history(hour, of([(4, 12)])).await.unwrap();
    let one = last_hours(&store, 3, 1).await;
    assert_eq!(one.organisations.into_keys().collect::<Vec<_>>(), [OrganisationId(4)]);
}

#[tokio::test]
async fn only_so_many_organisations_have_rows_in_an_hour_and_the_total_has_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let hour = Hour::of(START);
    for _ in 0..2 {
        store.add_to_history(hour, of((1..=300).map(|id| (id, u64::from(id))))).await.unwrap();
    }
    let history = last_hours(&store, 1, 1_000).await;
    assert_eq!(history.total, [accepted(300 * 301)]);
    assert_eq!(history.organisations.len(), 100);
    assert_eq!(history.organisations[&OrganisationId(300)], [accepted(600)]);
    assert!(!history.organisations.contains_key(&OrganisationId(200)), "those with the most mail");
    // Organisations that come later in the hour are only in the total.
    store.add_to_history(hour, of((250..=400).map(|id| (id, 1)))).await.unwrap();
    let history = last_hours(&store, 1, 1_000).await;
    assert_eq!(history.total, [accepted(300 * 301 + 151)]);
    assert_eq!(history.organisations.len(), 100);
    assert_eq!(history.organisations[&OrganisationId(300)], [accepted(601)]);
    // Sent messages count as much as accepted ones for who has a row.
    let next = Hour::from_number(hour.number() + 1);
    let sent = OrganisationCounts { sent: 2, ..OrganisationCounts::default() };
    let mut counts = of((1..=150).map(|id| (id, 1)));
    counts.extend((151..=170).map(|id| (OrganisationId(id), sent)));
    store.add_to_history(next, counts).await.unwrap();
    let sums = store.history_by_organisation(HourSteps::until(next, 1, 1)).await.unwrap();
    assert_eq!(sums.len(), 100);
    assert!((151..=170).all(|id| sums[&OrganisationId(id)] == sent));
}

#[tokio::test]
async fn many_rows_of_history_are_read_to_the_last() {
    const HOURS: u32 = 101;
    let directory = tempfile::tempdir().unwrap();
    let store = in_memory(&directory, START).await;
    let last = Hour::of(START);
    for hour in last.number() + 1 - HOURS..=last.number() {
        store
            .add_to_history(Hour::from_number(hour), of((1..=100).map(|id| (id, 1))))
            .await
            .unwrap();
    }
    let sums = store.history_by_organisation(HourSteps::until(last, 1, HOURS)).await.unwrap();
    assert_eq!(sums, of((1..=100).map(|id| (id, u64::from(HOURS)))));
}
