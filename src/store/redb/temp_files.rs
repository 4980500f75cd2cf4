//! Files that are to become a data file or a backup, and the removal of those whose process was
//! killed.
//!
//! The process that makes one holds its lock except for moments, so a file without a lock is of no
//! use to anybody.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

/// Beginning of the name of a file that is to become the data file.
pub(super) const NEW: &str = ".pillarbox-new-";
/// Beginning of the name of a file that is to become a backup.
pub(super) const BACKUP: &str = ".pillarbox-";
/// Number of random letters and digits that follow.
const RANDOM: usize = 6;

/// Makes such a file. It is removed when it is dropped.
pub(super) fn make(directory: &Path, prefix: &str) -> io::Result<NamedTempFile> {
    Builder::new().prefix(prefix).rand_bytes(RANDOM).tempfile_in(directory)
}

/// Makes a file that is to become the data file. It belongs to the service, even if another user
/// makes it.
pub(super) fn make_data_file(directory: &Path) -> io::Result<NamedTempFile> {
    let new = make(directory, NEW)?;
    // If root makes the file for the service, the service must be able to open it.
    let owner = fs::metadata(directory)?;
    if new.as_file().metadata()?.uid() != owner.uid() {
        chown(new.path(), Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(new)
}

/// Decision for a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep it, and make no copy.
    Keep,
    /// Put the copy in its place.
    Replace,
}

/// Puts such a file in its place, and makes its content and its name durable.
pub(super) fn place(new: NamedTempFile, path: &Path, existing: Existing) -> io::Result<File> {
    new.as_file().sync_all()?;
    let placed = match existing {
        Existing::Keep => new.persist_noclobber(path),
        Existing::Replace => new.persist(path),
    };
    let file = placed.map_err(|error| error.error)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()?;
    Ok(file)
}

/// Removes the abandoned files of that kind. If one cannot be removed, it is logged and the others
/// are removed all the same.
pub(super) fn remove(directory: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(|name| is_named(name, prefix)) {
            continue;
        }
        let path = entry.path();
        let removed = remove_unlocked(&path);
        let path = path.display();
        match removed {
            Ok(true) => tracing::info!(%path, "removed a file that a killed process left"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%path, %error, "a file of a killed process could not be deleted");
            }
        }
    }
}

fn is_named(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|random| {
        random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Removes a file unless a process has it locked, or it is no file at all.
fn remove_unlocked(path: &Path) -> io::Result<bool> {
    if !path.symlink_metadata()?.is_file() {
        return Ok(false);
    }
    let file = File::open(path)?;
    match file.try_lock() {
        Ok(()) => fs::remove_file(path).map(|()| true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use redb::Database;

    use super::*;

    #[test]
    fn what_nobody_makes_any_more_goes_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let left = [".pillarbox-new-aB3xY9", ".pillarbox-new-000000"];
        let others = [
            "pillarbox.redb",
            "pillarbox.redb.replaced-1800000000000",
            ".pillarbox-new-",
            ".pillarbox-new-aB3xY",
            ".pillarbox-new-aB3xY9z",
            ".pillarbox-new-aB3.Y9",
            ".pillarbox-new-aB3xY9.bak",
            ".pillarbox-aB3xY9",
            "x.pillarbox-new-aB3xY9",
        ];
        for name in left.iter().chain(&others) {
            fs::write(at(name), name).unwrap();
        }
        fs::create_dir(at(".pillarbox-new-folder")).unwrap();
        symlink(at("pillarbox.redb"), at(".pillarbox-new-linked")).unwrap();
        remove(directory.path(), NEW);
        for name in left {
            assert!(!at(name).exists(), "{name}");
        }
        for name in others {
            assert_eq!(fs::read_to_string(at(name)).unwrap(), name);
        }
        assert!(at(".pillarbox-new-folder").exists() && at(".pillarbox-new-linked").exists());
        remove(directory.path(), BACKUP);
        assert!(!at(".pillarbox-aB3xY9").exists());
        assert!(at("pillarbox.redb").exists());
    }

    #[test]
    fn what_somebody_is_making_stays() {
        let directory = tempfile::tempdir().unwrap();
        let new = make(directory.path(), NEW).unwrap();
        // As redb opens it.
        let database = Database::builder().create_file(new.reopen().unwrap()).unwrap();
        remove(directory.path(), NEW);
        assert!(new.path().exists());
        drop(database);
        // As it is locked while it is copied.
        new.as_file().try_lock().unwrap();
        remove(directory.path(), NEW);
        assert!(new.path().exists());
        new.as_file().unlock().unwrap();
        remove(directory.path(), NEW);
        assert!(!new.path().exists());
    }
}
