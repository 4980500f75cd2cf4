//! `suppression import`: a CSV file into the store, in steps that acceptances do not notice.

use std::fs::File;
use std::io::{self, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use csv::{ByteRecord, StringRecord};
use serde::Serialize;

use crate::admin::SuppressionImport;
use crate::admin::client::CallError;
use crate::admin::suppression::{ImportMode, ImportRow, MAX_IMPORT_ROWS, Scope};
use crate::cli::connect::{Format, Session};
use crate::cli::error::CliError;
use crate::cli::output::{Progress, escaped};
use crate::cli::suppression::STANDARD;
use crate::cli::suppression::csv::Columns;

/// How many rows are put in order before they are sent: rows that are neighbours in the store share
/// pages, and each commit writes few of them.
const SORTED_ROWS: usize = 100_000;
/// How many bytes of cells one request has at most: also where each is escaped to six, as control
/// characters are, they fit into it.
const BATCH_BYTES: usize = 128 * 1024;

#[derive(Debug, Args)]
pub(in crate::cli) struct Import {
    #[command(flatten)]
    scope: Option<Scope>,
    /// Import nothing if any row is refused.
    #[arg(long)]
    strict: bool,
    /// CSV file with the columns address, reason, since, organisation and message; - for standard
    /// input. Only address is required.
    file: PathBuf,
}

/// What became of a file.
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

/// A row and where it is in the file.
type Placed = (Place, ImportRow);

/// Where the reader was before it read a row: empty lines may stand between this and the row.
#[derive(Debug, Clone, Copy)]
struct Place {
    byte: u64,
    line: u64,
}

impl Place {
    /// The line on which the row begins.
    fn line(self, file: &File) -> io::Result<u64> {
        let Self { mut byte, mut line } = self;
        let mut piece = [0; 64];
        loop {
            let length = file.read_at(&mut piece, byte)?;
            let breaks = piece[..length].iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            let lines = piece[..breaks].split(|b| *b == b'\n').count() - 1;
            line += u64::try_from(lines).unwrap_or(u64::MAX);
            if length == 0 || breaks < length {
                return Ok(line);
            }
            byte += u64::try_from(breaks).unwrap_or(u64::MAX);
        }
    }
}

pub(in crate::cli) async fn import(session: &Session, given: Import) -> Result<String, CliError> {
    let failed = |source| CliError::File { file: given.file.clone(), source };
    let mut file = open(&given.file).map_err(failed)?;
    let mut pass = Pass { given: &given, imported: Imported::default() };
    if given.strict {
        pass.run(session, &mut file, ImportMode::Check).await?;
        if !pass.imported.refused.is_empty() {
            return pass.end(session);
        }
    }
    pass.run(session, &mut file, ImportMode::Apply).await?;
    pass.end(session)
}

/// The file; of standard input, a copy without a name, so that neither a slow writer nor a second
/// look at it matters.
fn open(path: &Path) -> io::Result<File> {
    if path != Path::new(STANDARD) {
        return File::open(path);
    }
    let mut copy = tempfile::tempfile()?;
    io::copy(&mut io::stdin().lock(), &mut copy)?;
    Ok(copy)
}

/// One way through the file.
struct Pass<'a> {
    given: &'a Import,
    imported: Imported,
}

impl Pass<'_> {
    async fn run(
        &mut self,
        session: &Session,
        file: &mut File,
        mode: ImportMode,
    ) -> Result<(), CliError> {
        let given = self.given;
        let failed = |source| CliError::File { file: given.file.clone(), source };
        file.rewind().map_err(failed)?;
        let total = file.metadata().map_err(failed)?.len();
        let what = match mode {
            ImportMode::Apply => "importing",
            ImportMode::Check => "checking",
        };
        let progress = Progress::of(total, what);
        let places = file.try_clone().map_err(failed)?;
        let mut rows = Rows::new(file);
        loop {
            let from = rows.at();
            let mut sorted = Vec::new();
            while sorted.len() < SORTED_ROWS
                && let Some(read) = rows.next(given.scope.as_ref()).map_err(failed)?
            {
                match read {
                    Ok(row) => sorted.push(row),
                    Err((place, rule)) => {
                        self.refuse(&progress, session, place.line(&places).map_err(failed)?, rule);
                    }
                }
            }
            let read = rows.at() - from;
            sorted.sort_by(|(_, a), (_, b)| order(a).cmp(&order(b)));
            let number = u64::try_from(sorted.len()).unwrap_or(u64::MAX).max(1);
            let mut sent = 0;
            for batch in batches(sorted) {
                let length = u64::try_from(batch.len()).unwrap_or(u64::MAX);
                self.send(session, &progress, &places, batch, mode).await?;
                sent += length;
                progress.at(from + read * sent / number);
            }
            if read == 0 {
                return Ok(());
            }
        }
    }

    async fn send(
        &mut self,
        session: &Session,
        progress: &Progress,
        places: &File,
        batch: Vec<Placed>,
        mode: ImportMode,
    ) -> Result<(), CliError> {
        let (placed, rows): (Vec<Place>, Vec<ImportRow>) = batch.into_iter().unzip();
        let answer = session.call(SuppressionImport { rows, mode }).await;
        let answer = answer.map_err(|source| {
            let done = self.imported.added + self.imported.already_there;
            let rest = "import the list again for the rest";
            CliError::Refused(format!("{source}. {done} rows are in; {rest}"))
        })?;
        self.imported.added += u64::try_from(answer.added).unwrap_or(u64::MAX);
        self.imported.already_there += u64::try_from(answer.already_there).unwrap_or(u64::MAX);
        for refused in answer.refused {
            let unknown = || CallError::Unreadable(format!("no row {}", refused.row));
            let place = placed.get(refused.row).ok_or_else(unknown)?;
            let line = place.line(places).map_err(|source| self.failed(source))?;
            self.refuse(progress, session, line, refused.rule);
        }
        Ok(())
    }

    /// Reports a row: at once to a person, in the answer to a program.
    fn refuse(&mut self, progress: &Progress, session: &Session, line: u64, rule: String) {
        if session.format == Format::People {
            progress.line(&format!("line {line}: {}", escaped(&rule)));
        }
        self.imported.refused.push(RefusedLine { line, rule });
    }

    fn failed(&self, source: io::Error) -> CliError {
        CliError::File { file: self.given.file.clone(), source }
    }

    fn end(mut self, session: &Session) -> Result<String, CliError> {
        self.imported.refused.sort_by_key(|refused| refused.line);
        let report = session.show(&self.imported, |imported| {
            format!(
                "{} suppressed, {} were suppressed already, {} refused\n",
                imported.added,
                imported.already_there,
                imported.refused.len()
            )
        });
        let result = if self.given.strict {
            "nothing was imported"
        } else {
            "put them right and import them again"
        };
        match self.imported.refused.len() {
            0 => Ok(report),
            refused => Err(CliError::Reported {
                report,
                what: format!("{refused} rows were refused; {result}"),
            }),
        }
    }
}

/// The store's own order, as far as texts tell it.
fn order(row: &ImportRow) -> (Option<&str>, String) {
    let organisation = match &row.scope {
        Scope::All => None,
        Scope::Organisation(name) => Some(name.as_str()),
    };
    (organisation, row.address.to_ascii_lowercase())
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
    let organisation = match &row.scope {
        Scope::All => 0,
        Scope::Organisation(name) => name.len(),
    };
    let cells = [&row.reason, &row.since, &row.message];
    let cells: usize = cells.into_iter().flatten().map(String::len).sum();
    organisation + row.address.len() + cells
}

/// The rows of a file.
struct Rows<'a> {
    reader: csv::Reader<&'a mut File>,
    columns: Option<Columns>,
    record: ByteRecord,
}

impl<'a> Rows<'a> {
    fn new(file: &'a mut File) -> Self {
        let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
        Self { reader, columns: None, record: ByteRecord::new() }
    }

    /// How many bytes of the file have been read.
    fn at(&self) -> u64 {
        self.reader.position().byte()
    }

    /// The next row, or the rule that it breaks; `None` at the end.
    fn next(
        &mut self,
        given: Option<&Scope>,
    ) -> io::Result<Option<Result<Placed, (Place, String)>>> {
        loop {
            if !self.reader.read_byte_record(&mut self.record)? {
                return Ok(None);
            }
            let start = self.record.position().expect("a record that was read has a place");
            let place = Place { byte: start.byte(), line: start.line() };
            let refused = |rule| (place, rule);
            let Ok(record) = StringRecord::from_byte_record(self.record.clone()) else {
                return Ok(Some(Err(refused("it is not UTF-8".to_owned()))));
            };
            let Some(columns) = self.columns else {
                if let Some(columns) = Columns::of_head(&record) {
                    self.columns = Some(columns);
                    continue;
                }
                self.columns = Some(Columns::by_position());
                let row = Columns::by_position().read(&record, given);
                return Ok(Some(row.map(|row| (place, row)).map_err(refused)));
            };
            let row = columns.read(&record, given);
            return Ok(Some(row.map(|row| (place, row)).map_err(refused)));
        }
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
            (Place { byte: 0, line: 1 }, row)
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
            assert!(length < crate::admin::MAX_CALL_BYTES, "{length}");
        }
    }
}
