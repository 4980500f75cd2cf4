//! Copies of the file, as the store's callers see them: backup, restoration, compaction.

use std::path::Path;

use crate::store::redb::copy::{CopyError, Existing, FileCopy, behind_link};
use crate::store::redb::snapshot::Snapshot;
use crate::store::redb::tables::META;
use crate::store::{FILE_NAME, Store, StoreError};

impl Store {
    /// This moment of everything that is stored.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.noticed(&META, "all tables", Snapshot::take(&self.shared))
    }

    /// Begins a copy in the place of a directory's data file, which is to be finished while that
    /// one is open: its lock keeps others off until then.
    pub fn replacement(directory: &Path) -> Result<FileCopy, CopyError> {
        FileCopy::begin(&behind_link(directory.join(FILE_NAME)), Existing::Replace)
    }
}
