//! Tests of the parts that only the default engine has: its file, its journal and its writer.

use std::collections::BTreeSet;

use redb::ReadableTableMetadata;
use tempfile::TempDir;

use crate::redb::open::Opener;
use crate::redb::tables::{BY_ORGANISATION, FEED, OVERTURNED, SENT};
use crate::redb::{Pending, RedbStore};
use crate::{Engine, OpenError, Recovery, Store};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

mod damage;
mod disk;
mod journal;
mod operations;
mod power;
mod rows;

impl RedbStore {
    pub(crate) async fn damage_message(&self, id: MessageId) {
        let damage = self.writer.run(0, move |batch| {
            batch.tables.messages.open()?.insert(id.as_bytes(), [9_u8].as_slice())?;
            Ok(())
        });
        damage.await.unwrap();
    }

    /// Rows that find messages: by their organisation, and by the provider's ids.
    pub(crate) fn rows_of_indexes(&self) -> u64 {
        let rows = self.shared.database.read(|transaction| {
            let listed = transaction.open_table(BY_ORGANISATION)?.len()?;
            Ok(listed + transaction.open_table(SENT)?.len()?)
        });
        rows.unwrap()
    }

    pub(crate) fn rows_of_feed(&self) -> u64 {
        let rows = self.shared.database.read(|transaction| {
            let feed = transaction.open_table(FEED)?.len()?;
            Ok(feed + transaction.open_table(OVERTURNED)?.len()?)
        });
        rows.unwrap()
    }
}

impl Store {
    /// Opens the store with this engine on the storage of the opener.
    fn on_redb(opener: Opener, now: Timestamp) -> Result<(Self, Recovery), OpenError> {
        Self::on_redb_with(opener, BTreeSet::new(), now)
    }

    /// As [`Store::on_redb`], with the bodies of these messages.
    fn on_redb_with(
        opener: Opener,
        bodies: BTreeSet<MessageId>,
        now: Timestamp,
    ) -> Result<(Self, Recovery), OpenError> {
        let (redb, recovery) =
            RedbStore::start_by(opener, Pending::Recover, None, |_| bodies, now)?;
        Ok((Self { engine: Engine::Redb(redb) }, recovery))
    }

    pub(super) fn redb(&self) -> &RedbStore {
        match &self.engine {
            Engine::Redb(redb) => redb,
            Engine::Postgres(_) => panic!("the test is of redb"),
        }
    }
}

/// Opens the store in a directory.
pub(super) async fn in_directory(directory: &TempDir, now: Timestamp) -> Store {
    std::future::ready(Store::open(directory.path(), now).unwrap().0).await
}
