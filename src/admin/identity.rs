//! Identity of a running service: the data directory that it works on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Admin, Identify, Result};
use pillarbox_store::FileId;

/// Data directory of a service, by path, device and inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Canonical path, without symbolic links.
    pub data_dir: PathBuf,
    #[serde(flatten)]
    id: FileId,
}

impl Identity {
    /// Identifies the service that works on an existing directory.
    pub fn of(data_dir: &Path) -> io::Result<Self> {
        let data_dir = fs::canonicalize(data_dir)?;
        let id = FileId::of(&data_dir)?;
        Ok(Self { data_dir, id })
    }

    /// Returns whether a configuration's data directory is this service's: the same directory under
    /// any name, or a directory of the same path that was moved away or made anew meanwhile.
    pub fn works_on(&self, data_dir: &Path) -> bool {
        let path = fs::canonicalize(data_dir).or_else(|_| std::path::absolute(data_dir));
        FileId::of(data_dir).is_ok_and(|configured| configured == self.id)
            || path.is_ok_and(|path| path == self.data_dir)
    }
}

pub(super) fn identify(admin: &Admin, _: &Identify) -> Result<Identity> {
    Ok(admin.facts()?.identity.clone())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_is_known_by_inode_or_by_path() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [data, other, link, moved] =
            ["data", "other", "link", "moved"].map(|name| root.join(name));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&other).unwrap();
        symlink(&data, &link).unwrap();
        let service = Identity::of(&data).unwrap();
        assert!(service.works_on(&data) && service.works_on(&link));
        assert!(!service.works_on(&other) && !service.works_on(&moved));
        fs::rename(&data, &moved).unwrap();
        assert!(service.works_on(&moved) && service.works_on(&data));
        fs::create_dir(&data).unwrap();
        assert!(service.works_on(&data) && !service.works_on(&other));
    }
}
