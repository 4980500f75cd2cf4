//! Rows, as the rules read and change them: the same on every engine.

use super::{START, in_directory};
use crate::rows::{Key, KeyRange, Lock, Table};
use crate::{Change, Store};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};

async fn put(store: &Store, table: Table, keys: Vec<Key>) {
    let put = move |rows: &mut dyn crate::rows::Rows| {
        keys.iter().try_for_each(|key| rows.put(table, key, b"row"))
    };
    store.change(Lock::Rows, 1, put).await.unwrap();
}

#[tokio::test]
async fn rows_come_in_the_order_of_their_keys_as_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let names = ["a", "a-b.example", "a.example", "ab", "b", "xn--bcher-kva.example"];
    let names = names.iter().flat_map(|name| [1_u32, 255, 256, 65_536].map(|id| (id, *name)));
    let domains: Vec<Key> = names.map(Key::from).collect();
    let events: Vec<Key> = [[0_u8; 16], [1; 16], [0xFF; 16]]
        .iter()
        .flat_map(|id| [[0_u8; 17], [0x7F; 17], [0x80; 17], [0xFF; 17]].map(|key| (*id, key)))
        .map(|(id, key)| Key::from((id, key.as_slice())))
        .collect();
    let numbers = [0_u64, 1, 255, 256, 1 << 31, 1 << 40];
    let deliveries = numbers.iter().flat_map(|due| numbers.map(|position| (7_u32, *due, position)));
    let deliveries: Vec<Key> = deliveries.map(Key::from).collect();
    for (table, mut keys) in
        [(Table::Domains, domains), (Table::Events, events), (Table::WaitingDeliveries, deliveries)]
    {
        put(&store, table, keys.clone()).await;
        keys.sort();
        let read = async |range: KeyRange| -> Vec<Key> {
            let rows = store.rows(table, range, 1_000).await.unwrap();
            rows.into_iter().map(|(key, _)| key).collect()
        };
        assert_eq!(read(KeyRange::all()).await, keys, "{table:?}");
        let descending: Vec<Key> = keys.iter().rev().cloned().collect();
        assert_eq!(read(KeyRange::all().descending()).await, descending, "{table:?}");
        for (place, key) in keys.iter().enumerate() {
            assert_eq!(read(KeyRange::all().after(key.clone())).await, keys[place + 1..]);
            let before = KeyRange { end: Some(key.clone()), ..KeyRange::all() };
            assert_eq!(read(before).await, keys[..place], "{table:?}");
            assert!(store.row(table, key.clone()).await.unwrap().is_some());
        }
        assert_eq!(store.count_rows(table, KeyRange::all()).await.unwrap(), keys.len() as u64);
    }
}

#[tokio::test]
async fn a_rule_reads_what_it_has_changed_however_often_it_has_to_read_more() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let key = |position: u64| Key::from((7_u32, position));
    put(&store, Table::FailedDeliveries, [1, 2, 3, 4].map(key).to_vec()).await;
    // Each of these rows is asked for only once the one before is there: a round each on a server.
    let rule = move |rows: &mut dyn crate::rows::Rows| {
        let first = rows.get(Table::FailedDeliveries, &key(1))?;
        rows.put(Table::FailedDeliveries, &key(2), b"changed")?;
        let second = rows.get(Table::FailedDeliveries, &key(2))?;
        rows.remove(Table::FailedDeliveries, &key(3))?;
        let none = rows.get(Table::FailedDeliveries, &key(9))?;
        rows.put(Table::FailedDeliveries, &key(9), b"new")?;
        let run = rows.range(Table::FailedDeliveries, &KeyRange::of(7_u32), 3)?;
        let run: Vec<(u64, Vec<u8>)> =
            run.into_iter().map(|(key, row)| (key.large(4), row)).collect();
        Ok((first, second, none, run))
    };
    let (first, second, none, run) = store.change(Lock::Rows, 1, rule).await.unwrap();
    assert_eq!(first.as_deref(), Some(b"row".as_slice()));
    assert_eq!(second.as_deref(), Some(b"changed".as_slice()));
    assert_eq!(none, None);
    assert_eq!(run[..2], [(1, b"row".to_vec()), (2, b"changed".to_vec())]);
    let stored = store.rows(Table::FailedDeliveries, KeyRange::all(), 10).await.unwrap();
    let stored: Vec<u64> = stored.iter().map(|(key, _)| key.large(4)).collect();
    assert_eq!(stored, [1, 2, 4, 9]);
}

#[tokio::test]
async fn an_operator_writes_a_suppression_anew_that_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let address = SuppressedAddress::parse("ann@example.org").unwrap();
    put(&store, Table::Suppressions, vec![Key::from((1_u32, address.as_str()))]).await;
    let damaged = store.suppressions(None, 10).await.unwrap().damaged;
    assert_eq!(damaged, [(Some(OrganisationId(1)), address.clone())]);
    assert!(store.is_suppressed(OrganisationId(1), &address).await.unwrap(), "it suppresses");
    assert_eq!(store.damaged().len(), 1);
    let anew = Suppression {
        address: address.clone(),
        reason: SuppressionReason::Manual,
        since: START,
        cause: None,
    };
    let suppress = || store.suppress(Some(OrganisationId(1)), anew.clone());
    assert_eq!(suppress().await, Ok(Change::Made));
    let page = store.suppressions(None, 10).await.unwrap();
    assert_eq!(page.suppressions, [(Some(OrganisationId(1)), anew.clone())]);
    assert_eq!(store.damaged(), [], "nothing is damaged any more");
    assert_eq!(suppress().await, Ok(Change::None), "the first cause counts");
}
