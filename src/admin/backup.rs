//! A backup over the socket: a snapshot of everything, a part at a time, at the reader's pace.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::admin::wire::BackupBegins;
use crate::store::{Chunk, Snapshot};

/// Parts that are read before the first of them is sent.
const AHEAD: usize = 4;
/// How long the reader may take for one part. A snapshot that nobody reads on would hold up the
/// use of freed room in the file.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// What is said before the first part.
pub(super) fn begins(snapshot: &Snapshot) -> BackupBegins {
    BackupBegins { version: env!("CARGO_PKG_VERSION").to_owned(), rows: snapshot.rows() }
}

/// Sends a snapshot. Where that fails there is no end, by which the reader knows.
pub(super) async fn send(snapshot: Snapshot, writer: &mut (impl AsyncWrite + Unpin)) {
    let rows = snapshot.rows();
    let (parts, mut read) = mpsc::channel(AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        snapshot.read(|part| match parts.blocking_send(part) {
            Ok(()) => ControlFlow::Continue(()),
            // The reader of the backup is gone.
            Err(_) => ControlFlow::Break(()),
        })
    });
    while let Some(part) = read.recv().await {
        if let Err(error) = in_time(send_part(writer, &part)).await {
            warn!(%error, "a backup was broken off");
            return;
        }
    }
    match reading.await.expect("reading does not panic and is not aborted") {
        // Where the end is not taken, the reader says so.
        Ok(()) => match in_time(writer.write_u32(0)).await {
            Ok(()) => info!(rows, "a backup was made"),
            Err(error) => warn!(%error, "a backup was broken off"),
        },
        Err(error) => warn!(%error, "a backup was broken off"),
    }
}

async fn send_part(writer: &mut (impl AsyncWrite + Unpin), part: &Chunk) -> io::Result<()> {
    let bytes = part.as_bytes();
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    writer.write_u32(length).await?;
    writer.write_all(bytes).await
}

async fn in_time(work: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    timeout(PART_TIMEOUT, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
