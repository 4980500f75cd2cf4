//! Tests of what the default engine alone has: its file, its journal and its writer.

use std::collections::BTreeSet;
use std::io;

use redb::ReadableTableMetadata;
use tempfile::TempDir;

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::redb::journal::JournalFile;
use crate::store::redb::open::{Opener, open_with};
use crate::store::redb::overlay::Overlay;
use crate::store::redb::tables::{BY_ORGANISATION, FEED, OVERTURNED, SENT};
use crate::store::redb::{Pending, RedbStore};
use crate::store::{Engine, OpenError, Recovery, Store};

mod damage;
mod disk;
mod journal;
mod operations;
mod power;
mod rows;

impl RedbStore {
    pub(in crate::store) async fn damage_message(&self, id: MessageId) {
        let damage = self.writer.run(0, move |batch| {
            batch.tables.messages.open()?.insert(id.as_bytes(), [9_u8].as_slice())?;
            Ok(())
        });
        damage.await.unwrap();
    }

    /// Rows that find messages: by their organisation, and by the provider's ids.
    pub(in crate::store) fn rows_of_indexes(&self) -> u64 {
        let rows = self.shared.database.read(|transaction| {
            let listed = transaction.open_table(BY_ORGANISATION)?.len()?;
            Ok(listed + transaction.open_table(SENT)?.len()?)
        });
        rows.unwrap()
    }

    pub(in crate::store) fn rows_of_feed(&self) -> u64 {
        let rows = self.shared.database.read(|transaction| {
            let feed = transaction.open_table(FEED)?.len()?;
            Ok(feed + transaction.open_table(OVERTURNED)?.len()?)
        });
        rows.unwrap()
    }
}

impl Opener {
    /// Opens whatever storage `backend` gives, which fails as a test wants it to.
    pub(super) fn backend<B: redb::StorageBackend>(
        cache_bytes: usize,
        backend: impl Fn() -> B + Clone + Send + Sync + 'static,
        journal: impl Fn() -> B + Clone + Send + Sync + 'static,
    ) -> Self {
        let same = backend.clone();
        let (new_journal, read_journal) = (journal.clone(), journal.clone());
        Self {
            open: Box::new(move || open_with(cache_bytes, backend())),
            open_for_reading: Box::new(move || open_with(cache_bytes, Overlay::new(same()))),
            data_file: None,
            journal: Box::new(move || in_memory(journal())),
            journal_for_reading: Box::new(move || in_memory(read_journal())),
            create_journal: Box::new(move || {
                Ok(JournalFile { storage: Box::new(new_journal()), id: None })
            }),
            journal_id: Box::new(|| None),
            set_journal_aside: Box::new(|_| Ok(())),
        }
    }
}

/// The journal that a test has in memory, if there is one.
fn in_memory(journal: impl redb::StorageBackend) -> io::Result<Option<JournalFile>> {
    let is_there = journal.len()? > 0;
    Ok(is_there.then(|| JournalFile { storage: Box::new(journal), id: None }))
}

impl Store {
    /// Opens the store with this engine over what the opener opens.
    fn on_redb(opener: Opener, now: Timestamp) -> Result<(Self, Recovery), OpenError> {
        Self::on_redb_with(opener, BTreeSet::new(), now)
    }

    /// As [`Store::on_redb`], with the bodies of these messages.
    fn on_redb_with(
        opener: Opener,
        bodies: BTreeSet<MessageId>,
        now: Timestamp,
    ) -> Result<(Self, Recovery), OpenError> {
        let (redb, recovery) = RedbStore::start_by(opener, Pending::Settle, None, |_| bodies, now)?;
        Ok((Self { engine: Engine::Redb(redb) }, recovery))
    }

    fn redb(&self) -> &RedbStore {
        match &self.engine {
            Engine::Redb(redb) => redb,
            Engine::Postgres(_) => panic!("the test is of redb"),
        }
    }
}

/// Opens the store in a directory.
async fn in_directory(directory: &TempDir, now: Timestamp) -> Store {
    std::future::ready(Store::open(directory.path(), now).unwrap().0).await
}
