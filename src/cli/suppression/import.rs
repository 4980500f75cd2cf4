//! `suppression import`: a list of pillarbox or another program into the store, in steps that
//! acceptances do not notice.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use clap::Args;
use csv::ByteRecord;
use rustix::fs::MemfdFlags;
use serde::Serialize;

use crate::connect::{Format, Session};
use crate::error::CliError;
use crate::output::{Progress, escaped};
use crate::suppression::STANDARD;
use crate::suppression::csv::{Columns, Layout};
use crate::suppression::text::{NoList, Text};
use pillarbox_admin::client::CallError;
use pillarbox_admin::conditions::several;
use pillarbox_admin::suppression::{ImportMode, ImportRow, MAX_IMPORT_ROWS, Scope};
use pillarbox_admin::{SuppressionImport, SuppressionList};
use pillarbox_domain::suppression::SuppressionReason;

/// Number of rows that are sorted before they are sent: rows that are neighbours in the store share
/// pages, and each commit writes few of them.
const SORTED_ROWS: usize = 100_000;
/// Limit of the cells of one request, in bytes: they fit even if each byte is escaped to six, as
/// control characters are.
const BATCH_BYTES: usize = 128 * 1024;
/// Limit of the refused rows of one cause in the output, and of the causes that are counted apart.
const MAX_SHOWN: u64 = 10;
const MAX_CAUSES: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Import {
    #[command(flatten)]
    scope: Option<Scope>,
    /// Import nothing if any row is refused.
    #[arg(long)]
    strict: bool,
    /// Reason for rows without one.
    #[arg(long, value_name = "REASON", default_value = SuppressionReason::Manual.as_str())]
    #[arg(value_parser = SuppressionReason::ALL.map(SuppressionReason::as_str))]
    reason: String,
    /// CSV file: an export from pillarbox, with the columns address, reason, since, organisation and
    /// message, or a list from another program; - for standard input. Only an address is required.
    file: PathBuf,
}

impl Import {
    fn failed(&self, source: io::Error) -> CliError {
        CliError::File { file: self.file.clone(), source }
    }
}

/// Result of the import of a file.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Imported {
    added: u64,
    already_there: u64,
    refused: Vec<RefusedLine>,
}

#[derive(Debug, Serialize)]
struct RefusedLine {
    line: u64,
    rule: String,
}

/// A row and the line of the file on which it begins.
type Placed = (u64, ImportRow);

pub(crate) async fn import(session: &Session, given: Import) -> Result<String, CliError> {
    if let Some(scope) = &given.scope {
        // An organisation that is not there is one fault, and not one of each row.
        session
            .call(SuppressionList { scope: Some(scope.clone()), after: None, search: None })
            .await?;
    }
    let mut list = List::open(&given.file, given.strict).map_err(|error| given.failed(error))?;
    let (imported, causes) = (Imported::default(), BTreeMap::new());
    let mut pass = Pass { given: &given, imported, causes };
    if given.strict {
        pass.run(session, &list, ImportMode::Check).await?;
        if !pass.imported.refused.is_empty() {
            return pass.end(session);
        }
        list.back().map_err(|error| given.failed(error))?;
    }
    pass.run(session, &list, ImportMode::Apply).await?;
    pass.end(session)
}

/// Source of the import: a file, or standard input.
struct List {
    file: File,
    /// Position at which the list begins, in bytes.
    start: u64,
    /// `None` of a pipe.
    bytes: Option<u64>,
}

impl List {
    /// Opens it. If it is read twice and cannot be, a copy of it in memory, for a container may have no
    /// directory that can be written to.
    fn open(path: &Path, is_read_twice: bool) -> io::Result<Self> {
        let mut file = if path == Path::new(STANDARD) {
            File::from(io::stdin().as_fd().try_clone_to_owned()?)
        } else {
            File::open(path)?
        };
        if !file.metadata()?.is_file() {
            if !is_read_twice {
                return Ok(Self { file, start: 0, bytes: None });
            }
            let mut copy =
                File::from(rustix::fs::memfd_create(c"pillarbox-list", MemfdFlags::CLOEXEC)?);
            io::copy(&mut file, &mut copy)?;
            copy.rewind()?;
            file = copy;
        }
        let (start, bytes) = (file.stream_position()?, Some(file.metadata()?.len()));
        Ok(Self { file, start, bytes })
    }

    fn back(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.start)).map(|_| ())
    }
}

/// One way through the file.
struct Pass<'a> {
    given: &'a Import,
    imported: Imported,
    /// Number of refused rows by cause.
    causes: BTreeMap<String, u64>,
}

impl Pass<'_> {
    async fn run(
        &mut self,
        session: &Session,
        list: &List,
        mode: ImportMode,
    ) -> Result<(), CliError> {
        let given = self.given;
        let what = match mode {
            ImportMode::Apply => "importing",
            ImportMode::Check => "checking",
        };
        let mut rows = Rows::new(&list.file, given)?;
        let progress =
            list.bytes.map_or_else(|| Progress::counting(what), |all| Progress::of(all, what));
        loop {
            let from = rows.at();
            let mut sorted = Vec::new();
            let mut is_end = false;
            while sorted.len() < SORTED_ROWS && !is_end {
                match rows.next(given).map_err(|error| given.failed(error))? {
                    Some(Ok(row)) => sorted.push(row),
                    Some(Err((line, rule))) => self.refuse(&progress, session, line, rule),
                    None => is_end = true,
                }
            }
            let read = rows.at() - from;
            sorted.sort_by(|(_, a), (_, b)| order(a).cmp(&order(b)));
            let number = sorted.len().max(1) as u64;
            let mut sent = 0;
            for batch in batches(sorted) {
                let length = batch.len() as u64;
                self.send(session, &progress, batch, mode).await?;
                sent += length;
                progress.at(from + read * sent / number);
            }
            if is_end {
                return Ok(());
            }
        }
    }

    async fn send(
        &mut self,
        session: &Session,
        progress: &Progress,
        batch: Vec<Placed>,
        mode: ImportMode,
    ) -> Result<(), CliError> {
        let (lines, rows): (Vec<u64>, Vec<ImportRow>) = batch.into_iter().unzip();
        let answer = session.call(SuppressionImport { rows, mode }).await;
        let answer = answer.map_err(|source| {
            let done = self.imported.added + self.imported.already_there;
            let rest = "import the list again for the rest";
            CliError::Refused(format!("{source}. {} done; {rest}", several(done, "row")))
        })?;
        self.imported.added += answer.added as u64;
        self.imported.already_there += answer.already_there as u64;
        for refused in answer.refused {
            let unknown = || CallError::Unreadable(format!("no row {}", refused.row));
            let line = *lines.get(refused.row).ok_or_else(unknown)?;
            self.refuse(progress, session, line, refused.rule);
        }
        Ok(())
    }

    /// Reports a row: in the answer to a program, and to a person at once, unless enough were shown
    /// for the same cause.
    fn refuse(&mut self, progress: &Progress, session: &Session, line: u64, rule: String) {
        if session.format == Format::People {
            let cause = cause(&rule);
            let is_told = self.causes.contains_key(cause) || self.causes.len() < MAX_CAUSES;
            let cause = if is_told { cause } else { "for other reasons" };
            let refused = self.causes.entry(cause.to_owned()).or_default();
            *refused += 1;
            if *refused <= MAX_SHOWN {
                progress.line(&format!("line {line}: {}", escaped(&rule)));
            }
        }
        self.imported.refused.push(RefusedLine { line, rule });
    }

    fn end(mut self, session: &Session) -> Result<String, CliError> {
        self.imported.refused.sort_by_key(|refused| refused.line);
        let progress = Progress::counting("");
        for (cause, refused) in &self.causes {
            if let Some(more) = refused.checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
                let more = several(more, "more line");
                progress.line(&format!("{more}: {} (--json lists all)", escaped(cause)));
            }
        }
        let report = session.show(&self.imported, |imported| {
            format!(
                "{} suppressed, {} were already suppressed, {} refused\n",
                imported.added,
                imported.already_there,
                imported.refused.len()
            )
        });
        let result = if self.given.strict {
            "nothing was imported"
        } else {
            "correct what was refused and import it again"
        };
        match self.imported.refused.len() as u64 {
            0 => Ok(report),
            refused => {
                let what = format!("{} refused; {result}", several(refused, "row"));
                Err(CliError::Reported { report, what })
            }
        }
    }
}

/// A rule without the text that breaks it, which it begins with, in quotes.
fn cause(rule: &str) -> &str {
    let Some(quoted) = rule.strip_prefix('"') else { return rule };
    let mut is_escaped = false;
    let end = quoted.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    end.map_or(rule, |end| quoted[end + 1..].trim_start())
}

/// The store's own order, as far as it follows from texts.
fn order(row: &ImportRow) -> (Option<&str>, String) {
    (organisation(row), row.address.to_ascii_lowercase())
}

fn organisation(row: &ImportRow) -> Option<&str> {
    match &row.scope {
        Scope::All => None,
        Scope::Organisation(name) => Some(name),
    }
}

/// The rows in requests of bounded size.
fn batches(rows: Vec<Placed>) -> impl Iterator<Item = Vec<Placed>> {
    let mut rows = rows.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut batch = Vec::new();
        while let Some(row) = rows.next_if(|(_, row)| {
            bytes += size(row);
            batch.is_empty() || (batch.len() < MAX_IMPORT_ROWS && bytes <= BATCH_BYTES)
        }) {
            batch.push(row);
        }
        (!batch.is_empty()).then_some(batch)
    })
}

fn size(row: &ImportRow) -> usize {
    let cells = [&row.reason, &row.since, &row.message];
    let cells: usize = cells.into_iter().flatten().map(String::len).sum();
    organisation(row).map_or(0, str::len) + row.address.len() + cells
}

/// The rows of a list.
struct Rows<R> {
    reader: csv::Reader<Text<R>>,
    columns: Columns,
    /// Lines that the reader does not know of.
    skipped: u64,
    record: ByteRecord,
}

impl<R: Read> Rows<R> {
    /// Begins to read; refuses what cannot be read for its one cause.
    fn new(from: R, given: &Import) -> Result<Self, CliError> {
        let name = match given.file.as_path() {
            path if path == Path::new(STANDARD) => "the list".to_owned(),
            path => path.display().to_string(),
        };
        let refused =
            |cause: &str| CliError::Refused(format!("{name}: {cause}. Nothing was imported"));
        let mut text = Text::new(from).map_err(|error| match error {
            NoList::Cause(cause) => refused(cause),
            NoList::Io(error) => given.failed(error),
        })?;
        let separator = Layout::said_separator(text.first_line());
        if separator.is_some() {
            text.skip_line();
        }
        let layout = Layout::of(text.first_line(), separator).map_err(|cause| refused(&cause))?;
        if given.scope.is_none() && !layout.has_organisations {
            return Err(refused(
                "it has no organisation column; give --org NAME, or --all for every organisation",
            ));
        }
        let mut reader = csv::ReaderBuilder::new();
        reader.has_headers(layout.has_head).flexible(true).delimiter(layout.separator);
        Ok(Self {
            reader: reader.from_reader(text),
            columns: layout.columns,
            skipped: u64::from(separator.is_some()),
            record: ByteRecord::new(),
        })
    }

    /// Number of bytes of the file that have been read.
    fn at(&self) -> u64 {
        self.reader.get_ref().taken
    }

    /// The next row, or its line and the rule that it breaks; `None` at the end.
    fn next(&mut self, given: &Import) -> io::Result<Option<Result<Placed, (u64, String)>>> {
        if !self.reader.read_byte_record(&mut self.record)? {
            return Ok(None);
        }
        // Every line of the text ends in a line feed.
        let bytes = self.record.as_slice();
        let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
        let line = self.reader.position().line() - lines + self.skipped;
        let row = self.columns.decoded(&self.record);
        let row = row.and_then(|record| self.columns.read(&record, given.scope.as_ref()));
        Ok(Some(row.map_err(|rule| (line, rule)).map(|mut row| {
            row.reason.get_or_insert_with(|| given.reason.clone());
            (line, row)
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_and_no_row_is_lost() {
        let row = |length: usize| {
            let scope = Scope::All;
            let address = "\"".repeat(length);
            let row = ImportRow { scope, address, reason: None, since: None, message: None };
            (1, row)
        };
        let many = vec![row(20); 2 * MAX_IMPORT_ROWS + 1];
        let lengths: Vec<usize> = batches(many).map(|batch| batch.len()).collect();
        assert_eq!(lengths, [MAX_IMPORT_ROWS, MAX_IMPORT_ROWS, 1]);
        let mut large = vec![row(5 * 1_024); 200];
        for (_, row) in &mut large {
            row.address = "\u{1}".repeat(row.address.len());
        }
        let requests: Vec<_> = batches(large).collect();
        assert_eq!(requests.iter().map(Vec::len).sum::<usize>(), 200);
        for batch in requests {
            let rows = batch.into_iter().map(|(_, row)| row).collect();
            let call = SuppressionImport { rows, mode: ImportMode::Apply };
            let length = serde_json::to_vec(&call).unwrap().len();
            assert!(length < pillarbox_admin::MAX_CALL_BYTES, "{length}");
        }
    }
}
