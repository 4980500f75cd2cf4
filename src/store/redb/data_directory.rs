//! Data directory: created with those above it, whose names are durable then.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Mode that gives access to the owner only.
const DIRECTORY_MODE: u32 = 0o700;

/// Creates a directory, and missing ones above it, with access for their owner only. All of them
/// are there after a loss of power. Errors name the path at fault.
pub fn create_directory(path: &Path) -> io::Result<()> {
    create(path, &mut sync)
}

/// Makes the names of directories above a new file durable. A process that was killed before it
/// could do so may have created them. Directories that cannot be read are not ours.
pub(super) fn sync_above(directory: &Path) -> io::Result<()> {
    for above in directory.ancestors().skip(1) {
        match sync(here(above)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

fn create(path: &Path, sync: &mut impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    if here(path).is_dir() {
        return Ok(());
    }
    let above = path.parent().unwrap_or(path);
    create(above, sync)?;
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => {}
        // Another process created it first.
        Err(_) if path.is_dir() => {}
        Err(error) => return Err(of_path(path, &error)),
    }
    sync(here(above))
}

fn of_path(path: &Path, error: &io::Error) -> io::Error {
    let shown = path.display();
    if path.exists() {
        return io::Error::new(error.kind(), format!("{shown} is not a directory"));
    }
    io::Error::new(error.kind(), format!("{shown}: {error}"))
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The directory that an empty path stands for.
fn here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_directory_that_gets_a_new_name_is_synced_once_it_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let [above, first, second, last] =
            ["", "a", "a/b", "a/b/c"].map(|path| directory.path().join(path));
        let mut synced = Vec::new();
        let mut note = |path: &Path| {
            let entries = std::fs::read_dir(path)?.count();
            synced.push((path.to_owned(), entries));
            Ok(())
        };
        create(&last, &mut note).unwrap();
        create(&last, &mut note).unwrap();
        let above = above.components().as_path().to_owned();
        assert_eq!(synced, [(above, 1), (first.clone(), 1), (second.clone(), 1)]);
        for path in [&first, &second, &last] {
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
        create_directory(&last.join("d/e")).unwrap();
        sync_above(&last.join("d/e")).unwrap();
        std::fs::write(last.join("file"), "").unwrap();
        for path in ["file", "file/f"] {
            let error = create_directory(&last.join(path)).unwrap_err();
            assert!(error.to_string().ends_with("c/file is not a directory"), "{error}");
        }
    }
}
