//! A backup while the store refuses writes; all else is tested from outside, in `tests/it/admin.rs`.

use std::ops::Range;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::*;
use crate::clock::Clock;
use crate::domain::time::Timestamp;
use crate::store::{DeadLetter, Store, StoreError};

const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
/// Enough for the slowest machine, and less than a reader of a backup may take for one part.
const PATIENCE: Duration = Duration::from_secs(20);

/// So many that their parts are more than are read ahead.
const LETTERS: u64 = 900;

async fn keep(store: &Store, numbers: Range<u64>) -> Result<(), StoreError> {
    let letter = |number| {
        let document = format!("{number} {}", "x".repeat(DeadLetter::MAX_DOCUMENT_BYTES));
        DeadLetter::new(NOW, "not readable".to_owned(), &document)
    };
    store.keep_dead_letters(numbers.map(letter).collect()).await
}

#[tokio::test]
async fn a_backup_that_nobody_reads_does_not_keep_a_failing_store_from_reading() {
    let (store, fill, free) = Store::on_small_disk(NOW);
    for number in (0..LETTERS).step_by(100) {
        keep(&store, number..number + 100).await.unwrap();
    }
    let admin = Admin::on_file(store.clone(), Clock::manual(NOW));
    let (mut reader, mut writer) = tokio::io::duplex(64);
    let backup = tokio::spawn(async move { back_up(&admin, &mut writer).await });
    // Its first part comes, and nobody reads on.
    while reader.read_u8().await.unwrap() != b'\n' {}
    assert_ne!(reader.read_u32().await.unwrap(), 0);
    // By now it has read ahead as far as it may, and holds its snapshot.
    sleep(Duration::from_millis(500)).await;
    fill();
    let mut number = LETTERS;
    while keep(&store, number..number + 1).await.is_ok() {
        number += 1;
    }
    timeout(PATIENCE, backup).await.expect("the backup ends with the writes").unwrap();
    let read = async {
        while store.dead_letters(usize::MAX).is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, read).await.expect("what is stored can be read");
    free();
    store.writable().await;
    keep(&store, number..number + 1).await.unwrap();
}
