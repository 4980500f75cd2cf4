//! Destination of a command that writes a file: never the service's own files, never a file that
//! is there without `--force`, and never in the place of a link, a pipe or a device.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use crate::error::CliError;
use pillarbox_store::{CopyError, Existing, FileId, OwnFiles};

/// Directory in which open descriptors are files.
const DESCRIPTORS: &str = "/proc";

/// Place that a command writes to.
#[derive(Debug)]
pub(super) enum Destination {
    /// Standard output, under any of its names.
    Output,
    /// A pipe, a device or another descriptor of this process: it is written to as it is.
    Stream(PathBuf),
    /// A regular file, by its path without links, which appears or is replaced in one step.
    File(PathBuf),
}

impl Destination {
    /// Classifies a path of the command line. Refuses the service's own files, and an existing file
    /// unless it is to be replaced.
    pub(super) fn of(
        given: &Path,
        existing: Existing,
        own: Option<&OwnFiles>,
    ) -> Result<Self, CliError> {
        let failed = |source| CliError::File { file: given.to_owned(), source };
        own.map_or(Ok(()), |own| refuse_own(own, given))?;
        let found = match fs::metadata(given) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if given.symlink_metadata().is_ok() {
                    let rule = "is a link without a target; remove it, or name another file";
                    return Err(CliError::Refused(format!("{} {rule}", given.display())));
                }
                let path = std::path::absolute(given).map_err(failed)?;
                return match path.parent() {
                    Some(parent) if !parent.is_dir() => Err(CliError::Refused(format!(
                        "there is no directory {}; create it, or name another file",
                        parent.display()
                    ))),
                    _ => Ok(Self::File(path)),
                };
            }
            Err(error) => return Err(failed(error)),
        };
        if found.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        if is_output(&found) {
            return Ok(Self::Output);
        }
        if !found.is_file() || is_descriptor(given) {
            return Ok(Self::Stream(given.to_owned()));
        }
        match existing {
            Existing::Keep => Err(CopyError::Exists { path: given.to_owned() }.into()),
            Existing::Replace => fs::canonicalize(given).map(Self::File).map_err(failed),
        }
    }
}

/// Refuses a file of the service itself.
pub(super) fn refuse_own(own: &OwnFiles, file: &Path) -> Result<(), CliError> {
    own.name_of(file).map_or(Ok(()), |name| {
        let (file, directory) = (file.to_owned(), own.directory().to_owned());
        Err(CliError::OwnFile { file, name, directory })
    })
}

/// Returns whether this is what standard output goes to. A terminal or pipe has no other name that
/// needs care: it is written to in any case.
fn is_output(found: &fs::Metadata) -> bool {
    let output = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    output
        .and_then(|output| output.metadata())
        .is_ok_and(|output| FileId::from(&output) == FileId::from(found))
}

/// Returns whether a path names an open descriptor of a process, such as `/dev/fd/3`.
fn is_descriptor(path: &Path) -> bool {
    let parent = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
    parent.is_some_and(|parent| parent.starts_with(DESCRIPTORS))
}
