//! Whose journal a file is: a data file is opened with its own. A journal that another data file may
//! still need is never written over.

use std::io;

use redb::StorageBackend;

use crate::redb::journal::head::{Head, Layout, read_head};
use crate::redb::journal::{Checkpoint, Epoch, JournalError, JournalFile};

/// Reason why a journal is not the one that a data file needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::redb) enum OfAnother {
    #[error("the data file was last used with another journal")]
    Start,
    #[error("it is older than the data file, so it does not have the last writes")]
    Older,
    #[error("it is newer than the data file, which does not have the earlier writes")]
    Newer,
}

/// Reads the head of a journal, and checks that it is the journal that a data file with this
/// checkpoint needs.
pub(super) fn required_head(
    file: &JournalFile,
    checkpoint: Checkpoint,
) -> Result<Head, JournalError> {
    let head = read_head(&*file.storage)?.ok_or(OfAnother::Start)?;
    if !head.owners.contains(&checkpoint.epoch) {
        return Err(OfAnother::Start.into());
    }
    if head.layout == Layout::Unmarked || head.marks.contains(&Some(checkpoint)) {
        return Ok(head);
    }
    let is_of_earlier_start = checkpoint.epoch != head.owners[0];
    let is_newer = head.marks.iter().flatten().any(|mark| {
        if mark.epoch == checkpoint.epoch {
            mark.record > checkpoint.record
        } else {
            is_of_earlier_start
        }
    });
    Err(if is_newer { OfAnother::Newer } else { OfAnother::Older }.into())
}

/// Returns the epochs whose journal a storage is, the current one first; `None` if it is no
/// journal, or one that no data file needs any more.
pub(super) fn owners(storage: &dyn StorageBackend) -> io::Result<Option<[Epoch; 2]>> {
    Ok(read_head(storage)?.map(|head| head.owners))
}

/// Returns true if a journal was found and belongs to this epoch.
pub(in crate::redb) fn belongs_to(
    epoch: Epoch,
    found: Option<&JournalFile>,
) -> Result<bool, JournalError> {
    let owners = found.map(|file| owners(&*file.storage)).transpose()?.flatten();
    Ok(owners.is_some_and(|[owner, _]| owner == epoch))
}

/// Keeps a journal that was found, by `set_aside`, if a data file may still need it: that file is not
/// here. Otherwise returns it.
pub(in crate::redb) fn keep_of_another(
    found: Option<JournalFile>,
    set_aside: impl FnOnce(Epoch) -> io::Result<()>,
) -> Result<Option<JournalFile>, JournalError> {
    let Some(file) = found else { return Ok(None) };
    let Some([epoch, _]) = owners(&*file.storage)? else { return Ok(Some(file)) };
    set_aside(epoch)?;
    Ok(None)
}
