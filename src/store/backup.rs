//! Copies of the file, as the store's callers see them: backup, restoration, compaction.

use std::fs::DirBuilder;
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::domain::time::Timestamp;
use crate::store::redb::copy::{CopyError, Existing, FileCopy, behind_link};
use crate::store::redb::snapshot::Snapshot;
use crate::store::redb::tables::META;
use crate::store::{FILE_NAME, FileLoss, Store, StoreError};

/// Entered by its owner alone.
const DIRECTORY_MODE: u32 = 0o700;

/// Why what a lost file held could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file has other content.
    #[error("another process wrote over it")]
    WrittenOver,
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// The copy cannot be written.
    #[error(transparent)]
    Write(#[from] CopyError),
}

impl Store {
    /// This moment of everything that is stored.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.noticed(&META, "all tables", Snapshot::take(&self.shared))
    }

    /// Saves what the open file holds if that is not at its path any more: in its place if there is
    /// none, else beside the file that is there. Returns the path of the copy. Blocks.
    pub fn save_lost_file(&self, now: Timestamp) -> Result<Option<PathBuf>, SaveError> {
        let Some((loss, file)) = self.shared.look().zip(self.shared.opener.data_file()) else {
            return Ok(None);
        };
        let path = match loss {
            FileLoss::WrittenOver => return Err(SaveError::WrittenOver),
            // A link that leads nowhere takes up the place as well.
            FileLoss::Gone if file.path().symlink_metadata().is_err() => file.path().to_owned(),
            FileLoss::Gone | FileLoss::Replaced => {
                file.path().with_file_name(format!("{FILE_NAME}.saved-{}", now.unix_millis()))
            }
        };
        // The directory may be gone with the file. If it cannot be made, the copy says so.
        let _ = path.parent().map(|directory| {
            DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)
        });
        let snapshot = self.snapshot()?;
        let rows = snapshot.rows();
        let mut copy = FileCopy::begin(&path, Existing::Keep)?;
        let mut failed = None;
        snapshot.read(|chunk| match copy.add(&chunk) {
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        copy.finish(rows)?;
        Ok(Some(path))
    }

    /// Begins a copy in the place of a directory's data file, which is to be finished while that
    /// one is open: its lock keeps others off until then.
    pub fn replacement(directory: &Path) -> Result<FileCopy, CopyError> {
        FileCopy::begin(&behind_link(directory.join(FILE_NAME)), Existing::Replace)
    }
}
