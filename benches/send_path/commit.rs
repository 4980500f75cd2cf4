//! Speed of the disk: redb alone, one small row in a commit, as durable as the service's own.

use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use redb::{Database, Durability, TableDefinition};

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("rows");
/// About the size of a message's record with its key, in bytes.
pub(crate) const ROW_BYTES: usize = 400;

/// Times of single commits, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Commit {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Commits one row at a time for `time`.
#[expect(clippy::cast_precision_loss, reason = "times are far below 2^53 microseconds")]
pub(crate) fn measure(directory: &Path, time: Duration) -> anyhow::Result<Commit> {
    let path = directory.join("commits.redb");
    let database = Database::create(&path)?;
    let row = [7; ROW_BYTES];
    let mut times = Histogram::<u64>::new(3)?;
    let begun = Instant::now();
    for number in 0.. {
        if begun.elapsed() >= time {
            break;
        }
        let start = Instant::now();
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        transaction.set_quick_repair(true);
        transaction.open_table(TABLE)?.insert(number, row.as_slice())?;
        transaction.commit()?;
        times.record(u64::try_from(start.elapsed().as_micros())?)?;
    }
    drop(database);
    std::fs::remove_file(path)?;
    Ok(Commit {
        p50_us: times.value_at_quantile(0.5) as f64,
        p99_us: times.value_at_quantile(0.99) as f64,
    })
}
