//! `suppression export`: the store's suppressions as a CSV file that `import` takes, a page at a
//! time.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::connect::{Format, Session};
use crate::destination::Destination;
use crate::error::CliError;
use crate::output::Progress;
use crate::suppression::STANDARD;
use crate::suppression::csv::{HEAD, cells};
use pillarbox_admin::conditions::several;
use pillarbox_admin::{REMOVED_MARK, SuppressionList};
use pillarbox_store::{CopyError, Existing};

#[derive(Debug, Args)]
pub(crate) struct Export {
    #[command(flatten)]
    filter: SuppressionList,
    /// CSV file; - for standard output. The file appears only when it is complete.
    file: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Exported {
    exported: u64,
    /// Rows of organisations that were removed: they cannot be imported again.
    left_out: u64,
}

pub(crate) async fn export(session: &Session, given: Export) -> Result<String, CliError> {
    let failed = |source| CliError::File { file: given.file.clone(), source };
    let existing = if given.force { Existing::Replace } else { Existing::Keep };
    let destination = if given.file == Path::new(STANDARD) {
        Destination::Output
    } else {
        let own = session.own_files().await?;
        Destination::of(&given.file, existing, own.as_ref())?
    };
    let path = match destination {
        Destination::Output => return to_stream(session, &given, io::stdout()).await,
        Destination::Stream(path) => {
            let file = File::options().append(true).open(path).map_err(failed)?;
            return to_stream(session, &given, file).await;
        }
        Destination::File(path) => path,
    };
    let directory = path.parent().unwrap_or(&path);
    let file = NamedTempFile::new_in(directory).map_err(failed)?;
    let written = write(session, &given.filter, BufWriter::new(file)).await;
    let (out, exported) = written.map_err(|error| error.of(&given.file))?;
    let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    match existing {
        Existing::Replace => file.persist(&path),
        Existing::Keep => file.persist_noclobber(&path),
    }
    .map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => CopyError::Exists { path: given.file.clone() }.into(),
        _ => failed(error.error),
    })?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    note(session, &Exported { exported: 0, ..exported });
    Ok(session.show(&exported, |exported| {
        let suppressions = several(exported.exported, "suppression");
        format!("{suppressions} written to {}\n", given.file.display())
    }))
}

/// Exports into a stream, whose reader needs no line with its path.
async fn to_stream(session: &Session, given: &Export, out: impl Write) -> Result<String, CliError> {
    match write(session, &given.filter, BufWriter::new(out)).await {
        Ok((_, exported)) => {
            note(session, &exported);
            Ok(String::new())
        }
        // `pillarbox suppression export - | head` has what it wants.
        Err(Failed::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(String::new()),
        Err(error) => Err(error.of(&given.file)),
    }
}

/// Reason why not all was written.
enum Failed {
    Read(CliError),
    Write(io::Error),
}

impl Failed {
    fn of(self, file: &Path) -> CliError {
        match self {
            Self::Read(error) => error,
            Self::Write(source) => CliError::File { file: file.to_owned(), source },
        }
    }
}

/// Writes page after page. Each is read from a snapshot of its own: what changes meanwhile is in
/// the file or is not.
async fn write<W: Write>(
    session: &Session,
    filter: &SuppressionList,
    out: W,
) -> Result<(W, Exported), Failed> {
    let progress = Progress::counting("exporting");
    // Not by `into`, which hides the kind.
    let to_write = |error: csv::Error| match error.into_kind() {
        csv::ErrorKind::Io(error) => Failed::Write(error),
        kind => Failed::Write(io::Error::other(format!("{kind:?}"))),
    };
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(HEAD).map_err(to_write)?;
    let mut exported = Exported::default();
    let mut after = None;
    loop {
        let call = SuppressionList { after, ..filter.clone() };
        let page = session.call(call).await.map_err(Failed::Read)?;
        for suppression in &page.suppressions {
            let organisation = suppression.organisation.as_deref();
            if organisation.is_some_and(|name| name.starts_with(REMOVED_MARK)) {
                exported.left_out += 1;
                continue;
            }
            writer.write_record(cells(suppression)).map_err(to_write)?;
            exported.exported += 1;
        }
        progress.at(exported.exported);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let out = writer.into_inner().map_err(|error| Failed::Write(error.into_error()))?;
    Ok((out, exported))
}

/// To standard error: standard output has the rows, or the command's own answer.
fn note(session: &Session, exported: &Exported) {
    if session.format == Format::Json {
        return;
    }
    let mut err = io::stderr();
    if exported.exported > 0 {
        let _ = writeln!(err, "pillarbox: {}", several(exported.exported, "suppression"));
    }
    if exported.left_out > 0 {
        let left_out = several(exported.left_out, "suppression");
        let _ = writeln!(err, "pillarbox: left out {left_out} of organisations that were removed");
    }
}
