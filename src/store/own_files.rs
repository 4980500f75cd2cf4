//! Files that the service alone may write, by device and inode: links have other paths.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::FILE_NAME;

/// Files of a data directory that no command may write to.
const OWN: [(&str, &str); 2] = [(FILE_NAME, "data file"), ("pillarbox.journal", "journal")];

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Identifies the file that a path leads to.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&fs::metadata(path)?))
    }
}

impl From<&fs::Metadata> for FileId {
    fn from(found: &fs::Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

/// The service's own files in a data directory.
#[derive(Debug, Clone)]
pub struct OwnFiles {
    directory: PathBuf,
}

impl OwnFiles {
    /// Names the files of a data directory.
    pub fn in_directory(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The data directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns what a path leads to, if that is one of the files or the place of one that is
    /// missing now.
    pub fn name_of(&self, path: &Path) -> Option<&'static str> {
        let is_same =
            |a: &Path, b: &Path| FileId::of(a).is_ok_and(|a| FileId::of(b).is_ok_and(|b| a == b));
        let own = OWN.iter().find(|(file, _)| {
            if path.exists() {
                return is_same(&self.directory.join(file), path);
            }
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            path.file_name().is_some_and(|name| name == *file)
                && is_same(parent.unwrap_or(Path::new(".")), &self.directory)
        });
        own.map(|(_, name)| *name)
    }
}
