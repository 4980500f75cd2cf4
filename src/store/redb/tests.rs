//! Tests of what the default engine alone has: its file, its journal and its writer.

use redb::ReadableTableMetadata;
use tempfile::TempDir;

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::Store;
use crate::store::redb::RedbStore;
use crate::store::redb::tables::{FEED, OVERTURNED};

mod damage;
pub(in crate::store) mod disk;
mod journal;
mod operations;
mod power;
mod rows;

impl RedbStore {
    pub(in crate::store) async fn damage_message(&self, id: MessageId) {
        let damage = self.writer.run(0, move |batch| {
            batch.tables.messages.insert(id.as_bytes(), [9_u8].as_slice())?;
            Ok(())
        });
        damage.await.unwrap();
    }

    pub(in crate::store) fn rows_of_feed(&self) -> u64 {
        let rows = self.shared.database.read(|transaction| {
            let feed = transaction.open_table(FEED)?.len()?;
            Ok(feed + transaction.open_table(OVERTURNED)?.len()?)
        });
        rows.unwrap()
    }
}

/// Opens the store in a directory.
async fn in_directory(directory: &TempDir, now: Timestamp) -> Store {
    std::future::ready(Store::open(directory.path(), now).unwrap().0).await
}
