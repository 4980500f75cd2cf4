//! A backup over the socket: a snapshot of everything, a part at a time, at the reader's pace.
//!
//! Each part follows its length in bytes: four, the highest first. The first part is
//! [`BackupBegins`]. A length of 0 ends the backup; without it the backup was broken off.

use std::ops::ControlFlow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::{Admin, Result};
use pillarbox_http::body::ResponseBody;
use pillarbox_store::{Snapshot, Store};

/// Name of the call, whose answer is no document.
pub(super) const NAME: &str = "backup";
/// Bytes of a part's length.
pub(super) const LENGTH_BYTES: usize = 4;
/// Parts that are read before the first of them is sent.
const AHEAD: usize = 4;

/// Length of the copy that follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackupBegins {
    /// The version of the service, which the reader must be of too.
    pub(super) version: String,
    pub(super) rows: u64,
}

/// Begins a backup; gives its parts as they are read.
pub(super) async fn begin(admin: &Admin) -> Result<ResponseBody> {
    let snapshot = admin.snapshot().await?;
    let (body, mut parts) = mpsc::channel(1);
    // It ends with the body, which is all that it writes to.
    tokio::spawn(send(admin.store.clone(), snapshot, body));
    Ok(ResponseBody::parts(move |context| parts.poll_recv(context)))
}

async fn send(store: Store, snapshot: Snapshot, body: mpsc::Sender<Bytes>) {
    let rows = snapshot.rows();
    // A snapshot keeps the file from being opened again, and until then nothing can be read: it
    // must not wait for a slow reader of the backup.
    let sent = tokio::select! {
        sent = send_all(snapshot, &body) => sent,
        () = store.refuses() => Err("the store refuses writes".to_owned()),
    };
    match sent {
        Ok(()) => info!(rows, "a backup was made"),
        Err(error) => warn!(error, "a backup was aborted"),
    }
}

async fn send_all(snapshot: Snapshot, body: &mpsc::Sender<Bytes>) -> Result<(), String> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let begins = serde_json::to_vec(&BackupBegins { version, rows: snapshot.rows() });
    send_part(body, &begins.expect("texts and numbers serialize")).await?;
    let (parts, mut read) = mpsc::channel(AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        snapshot.read(|part| match parts.blocking_send(part) {
            Ok(()) => ControlFlow::Continue(()),
            // The reader of the backup has disconnected.
            Err(_) => ControlFlow::Break(()),
        })
    });
    while let Some(part) = read.recv().await {
        send_part(body, part.as_bytes()).await?;
    }
    let read = reading.await.expect("reading does not panic and is not aborted");
    read.map_err(|error| error.to_string())?;
    send_part(body, &[]).await
}

async fn send_part(body: &mpsc::Sender<Bytes>, part: &[u8]) -> Result<(), String> {
    let length = u32::try_from(part.len()).map_err(|error| error.to_string())?;
    let framed = [&length.to_be_bytes(), part].concat();
    body.send(framed.into()).await.map_err(|_| "the command closed the connection".to_owned())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::time::Duration;

    use http_body_util::BodyExt as _;
    use tokio::time::{sleep, timeout};

    use super::*;
    use pillarbox_domain::time::Timestamp;
    use pillarbox_runtime::clock::Clock;
    use pillarbox_store::{DeadLetter, StoreError};

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
        let (store, fail, work) = Store::on_failing_disk(NOW);
        for number in (0..LETTERS).step_by(100) {
            keep(&store, number..number + 100).await.unwrap();
        }
        let admin = Admin::on_file(store.clone(), Clock::manual(NOW));
        let mut body = begin(&admin).await.unwrap();
        // Its first parts come, and the reader stops.
        for _ in 0..2 {
            assert!(body.frame().await.is_some());
        }
        // By now it has read ahead as far as it may, and holds its snapshot.
        sleep(Duration::from_millis(500)).await;
        fail();
        let mut number = LETTERS;
        while keep(&store, number..number + 1).await.is_ok() {
            number += 1;
        }
        let read = async {
            while store.dead_letters(usize::MAX).await.is_err() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, read).await.expect("what is stored can be read");
        let rest =
            timeout(PATIENCE, body.collect()).await.expect("the backup ends with the writes");
        assert!(!rest.unwrap().to_bytes().ends_with(&[0; LENGTH_BYTES]), "no end mark");
        work();
        store.writable().await;
        keep(&store, number..number + 1).await.unwrap();
    }
}
