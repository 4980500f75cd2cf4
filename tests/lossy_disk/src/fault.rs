//! Faults of the disk beside cuts, by the words of its commands.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::str::FromStr;

/// Fault that the disk has until the next cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The next `fsync` of a file fails with EIO and loses pages. It happens once.
    EioOnSync,
    /// The next synchronous write (`O_DSYNC`) fails with EIO; any of its sectors are on the drive.
    /// It happens once.
    EioOnWrite,
    /// What needs more space fails with ENOSPC.
    Full,
    /// Half of the writes write less than they were given.
    ShortWrite,
    /// Each sync takes 2 s.
    SlowSync,
}

/// A word that names no fault.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownWord;

impl FromStr for Fault {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        Ok(match word {
            "eio-on-sync" => Self::EioOnSync,
            "eio-on-write" => Self::EioOnWrite,
            "full" => Self::Full,
            "short-write" => Self::ShortWrite,
            "slow-sync" => Self::SlowSync,
            _ => return Err(UnknownWord),
        })
    }
}

/// Syncs that the disk acknowledges and ignores, so that a test shows that it finds their absence.
#[derive(Debug, Default, Clone)]
pub struct IgnoredSyncs {
    /// Files by name, with the offset from which on their synchronous writes are ignored.
    files: BTreeMap<OsString, u64>,
    directories: bool,
}

impl IgnoredSyncs {
    /// Reads a list with commas: names of files, or `directory` for those of all directories. With
    /// `NAME@OFFSET`, only synchronous writes (`O_DSYNC`) from this offset on are ignored.
    pub fn of(list: &str) -> Self {
        let mut ignored = Self::default();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            if word == "directory" {
                ignored.directories = true;
            } else {
                let (name, offset) = word.split_once('@').unwrap_or((word, ""));
                ignored.files.insert(name.into(), offset.parse().unwrap_or(0));
            }
        }
        ignored
    }

    /// Returns true for the sync of a file, or of a write at an offset.
    pub(crate) fn has_file(&self, names: &[&OsStr], offset: u64) -> bool {
        names.iter().any(|name| self.files.get(*name).is_some_and(|from| offset >= *from))
    }

    pub(crate) fn has_directories(&self) -> bool {
        self.directories
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_files_and_directories() {
        let ignored = IgnoredSyncs::of("journal,directory");
        assert!(ignored.has_directories() && ignored.has_file(&[OsStr::new("journal")], 0));
        let ignored = IgnoredSyncs::of("journal@10");
        assert!([9, 10].map(|at| ignored.has_file(&[OsStr::new("journal")], at)) == [false, true]);
        let ignored = IgnoredSyncs::of("");
        assert!(!ignored.has_directories() && !ignored.has_file(&[OsStr::new("")], 0));
    }
}
