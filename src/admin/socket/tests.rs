//! A backup while the store refuses writes; all else is tested from outside, in `tests/admin`.

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::*;
use crate::clock::Clock;
use crate::domain::time::Timestamp;
use crate::store::{DeadLetter, Store};

const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
/// Enough for the slowest machine, and less than a reader of a backup may take for one part.
const PATIENCE: Duration = Duration::from_secs(20);

async fn keep(store: &Store, number: u64) -> bool {
    let document = format!("{number} {}", "x".repeat(DeadLetter::MAX_DOCUMENT_BYTES - 32));
    let letter = DeadLetter::new(NOW, "not readable".to_owned(), &document);
    store.keep_dead_letters(vec![letter]).await.is_ok()
}

#[tokio::test]
async fn a_backup_that_nobody_reads_does_not_keep_a_failing_store_from_reading() {
    let (store, fill, free) = Store::on_small_disk(NOW);
    for number in 0..40 {
        assert!(keep(&store, number).await);
    }
    let admin = Admin::on_file(store.clone(), Clock::manual(NOW));
    let (mut reader, mut writer) = tokio::io::duplex(64);
    let backup = tokio::spawn(async move { back_up(&admin, &mut writer).await });
    // It has begun, and goes no further.
    reader.read_exact(&mut [0; 16]).await.unwrap();
    fill();
    let mut number = 40;
    while keep(&store, number).await {
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
    assert!(keep(&store, number).await);
}
