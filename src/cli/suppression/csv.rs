//! Suppressions as rows of a CSV file (RFC 4180): how a row is written so that no spreadsheet takes
//! it for a formula, and how rows of ours and of other programs' lists are read.
//!
//! Knows columns and cells; what is in them is the service's to judge.

use csv::{ByteRecord, StringRecord};

use crate::suppression::values::{Said, said, time};
use pillarbox_admin::UNREADABLE;
use pillarbox_admin::suppression::{ImportRow, Scope, Suppression};
use pillarbox_domain::suppression::{SuppressedAddress, SuppressionReason};
use pillarbox_domain::time::Timestamp;

/// The columns, in the order in which a file without a head has them.
pub(super) const HEAD: [&str; 5] = ["address", "reason", "since", "organisation", "message"];
/// Names of the columns, without spaces and in lower case, the first that there is: those of SES
/// (SES v2 API reference, `SuppressedDestinationSummary`) and of programs such as `SendGrid`,
/// Mailgun, Postmark, `SparkPost` and Mailchimp, whose `Address` is a postal address.
const NAMES: [&[&str]; HEAD.len()] = [
    &[
        "emailaddress",
        "email",
        "emailadresse",
        "recipientemail",
        "recipientaddress",
        "recipient",
        "rcptto",
        "address",
        "to",
        "mail",
    ],
    &["reason", "suppressionreason"],
    &[
        "since",
        "createdat",
        "created",
        "suppressedat",
        "bouncedat",
        "lastupdatetime",
        "cleantime",
        "unsubtime",
        "timestamp",
        "time",
        "date",
        "updatedat",
        "updated",
    ],
    &["organisation", "organization", "org"],
    &["message"],
];
/// Columns that may have the reason, if a list has no reason column or its text is not understood.
const ALSO_REASONS: [&str; 8] =
    ["bouncetype", "type", "source", "lastevent", "status", "code", "error", "unsubreason"];
/// Columns of lists of one kind, and their reason.
const OF_ONE_REASON: [(&str, SuppressionReason); 2] =
    [("cleantime", SuppressionReason::Bounce), ("unsubtime", SuppressionReason::Manual)];
/// A column that says of each address whether it is suppressed, as `true` or `false`.
const UNSUBSCRIBED: &str = "unsubscribed";
/// Separators of cells: a spreadsheet's semicolons, tabs, and rare characters.
const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];
/// Name for all organisations; no organisation has it.
const ALL: &str = "*";
/// With these at its beginning, a spreadsheet takes a cell for a formula (OWASP, "CSV Injection").
/// An address may begin with most of them.
const FORMULA_STARTS: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];
/// Before such a cell; spreadsheets then take it as text.
const GUARD: char = '\'';
/// The longest cell that can mean anything, in bytes: an address has 320 at most.
const MAX_CELL_BYTES: usize = 1_024;
/// The longest cell that says why, or nothing that is needed.
const MAX_TEXT_BYTES: usize = 16 * 1_024;
/// Length of a first line in an error, in characters.
const MAX_SHOWN_CHARS: usize = 100;

/// Positions of the known columns of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns([Option<usize>; HEAD.len()], Others);

/// Columns of other programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Others {
    reasons: [Option<usize>; ALSO_REASONS.len()],
    /// The reason of all rows that give none.
    of_all: Option<SuppressionReason>,
    unsubscribed: Option<usize>,
}

/// Layout of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) separator: u8,
    pub(super) columns: Columns,
    pub(super) has_head: bool,
    /// True if its rows may name their organisation, or if there is none.
    pub(super) has_organisations: bool,
}

impl Layout {
    /// Finds out how a file is to be read that begins with this line, whose separator may be known.
    /// A file without a row has none.
    pub(super) fn of(first: &[u8], separator: Option<u8>) -> Result<Self, String> {
        if first.is_empty() {
            let (separator, columns) = (SEPARATORS[0], Columns::by_position());
            return Ok(Self { separator, columns, has_head: false, has_organisations: true });
        }
        let separators = separator.map_or(SEPARATORS.to_vec(), |known| vec![known]);
        let records: Vec<_> =
            separators.into_iter().map(|separator| (separator, split(first, separator))).collect();
        let layout = |columns: Columns, (separator, record): &(u8, StringRecord), has_head| {
            let organisation = columns.0[3].and_then(|column| record.get(column));
            let has_organisations =
                organisation.is_some_and(|cell| has_head || !cell.trim().is_empty());
            Self { separator: *separator, columns, has_head, has_organisations }
        };
        let head =
            records.iter().find_map(|line| Some(layout(Columns::of_head(&line.1)?, line, true)));
        let row =
            || records.iter().find_map(|line| Some(layout(Columns::of_row(&line.1)?, line, false)));
        // A first address that is none is refused as any other.
        let bad_row = || {
            let line = records.first()?;
            let is_address = line.1.get(0)?.contains('@');
            is_address.then(|| layout(Columns::by_position(), line, false))
        };
        head.or_else(row).or_else(bad_row).ok_or_else(|| {
            let line = String::from_utf8_lossy(first);
            let shown: String = line.chars().take(MAX_SHOWN_CHARS).collect();
            format!(
                "its first line neither names a column with addresses, such as address or email, \
                 nor has an address: {shown:?}"
            )
        })
    }

    /// The separator that a line of Excel's says (`sep=;`), if it is one.
    pub(super) fn said_separator(first: &[u8]) -> Option<u8> {
        match first.trim_ascii_end() {
            [b's' | b'S', b'e' | b'E', b'p' | b'P', b'=', separator] => Some(*separator),
            _ => None,
        }
    }
}

/// The cells of a line.
fn split(line: &[u8], separator: u8) -> StringRecord {
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).delimiter(separator).from_reader(line);
    let mut record = ByteRecord::new();
    // Bytes in memory can be read.
    let _ = reader.read_byte_record(&mut record);
    StringRecord::from_byte_record_lossy(record)
}

impl Columns {
    /// The columns that a file's first row names; `None` if it is no head, because it names no
    /// address.
    pub(super) fn of_head(first: &StringRecord) -> Option<Self> {
        let names: Vec<String> = first.iter().map(plain).collect();
        let find = |name: &str| names.iter().position(|found| found == name);
        let mut columns = NAMES.map(|names| names.iter().find_map(|name| find(name)));
        let address = &names[columns[0]?];
        if address != HEAD[0] {
            // Another program's: its organisations and messages are not ours.
            columns[3] = find(HEAD[3]);
            columns[4] = None;
        }
        let of_one = OF_ONE_REASON.iter().find(|(name, _)| find(name).is_some());
        let others = Others {
            reasons: ALSO_REASONS.map(find),
            of_all: of_one.map(|(_, reason)| *reason),
            unsubscribed: find(UNSUBSCRIBED),
        };
        Some(Self(columns, others))
    }

    /// The columns of a file without a head, by its first row; `None` if that has no address.
    fn of_row(first: &StringRecord) -> Option<Self> {
        let find =
            |is_it: fn(&str) -> bool| first.iter().position(|cell| is_it(unguarded(cell.trim())));
        let address = find(|cell| SuppressedAddress::parse_stored(cell).is_ok())?;
        let [reason, since] = [
            find(|cell| SuppressionReason::from_word(cell).is_some()),
            find(|cell| time(cell).is_some()),
        ];
        let is_at = |column: Option<usize>, position| column.is_none_or(|it| it == position);
        if address == 0 && is_at(reason, 1) && is_at(since, 2) {
            return Some(Self::by_position());
        }
        Some(Self([Some(address), reason, since, None, None], Others::default()))
    }

    /// The columns of a file without a head, in the order of ours.
    pub(super) fn by_position() -> Self {
        let mut position = 0..;
        Self([(); HEAD.len()].map(|()| position.next()), Others::default())
    }

    /// Reads a row's cells. Only those that are needed have to be UTF-8.
    pub(super) fn decoded(self, record: &ByteRecord) -> Result<StringRecord, String> {
        let [address, _, since, organisation, message] = self.0;
        let needed = [address, since, organisation, message].into_iter().flatten();
        let mut needed = needed.filter_map(|column| record.get(column));
        if needed.any(|cell| std::str::from_utf8(cell).is_err()) {
            return Err("it is not UTF-8".to_owned());
        }
        Ok(StringRecord::from_byte_record_lossy(record.clone()))
    }

    /// Parses a row, for the organisation that it names or else for `given`; or returns the rule
    /// that it breaks.
    pub(super) fn read(
        self,
        record: &StringRecord,
        given: Option<&Scope>,
    ) -> Result<ImportRow, String> {
        let [address, reason, since, organisation, message] = self.0;
        let needed = [address, since, organisation, message];
        for (column, cell) in record.iter().enumerate() {
            let max = if needed.contains(&Some(column)) { MAX_CELL_BYTES } else { MAX_TEXT_BYTES };
            if cell.len() > max {
                return Err(format!(
                    "a cell has more than {max} bytes; is a double quote not closed?"
                ));
            }
        }
        let cell = |column: Option<usize>| {
            let cell = unguarded(record.get(column?)?.trim());
            (!cell.is_empty()).then(|| cell.to_owned())
        };
        if cell(self.1.unsubscribed).is_some_and(|cell| cell.eq_ignore_ascii_case("false")) {
            return Err(NOT_SUPPRESSED.to_owned());
        }
        let reason = self.reason(cell(reason), |column| cell(Some(column)))?;
        // What the service reads itself stays as it is given.
        let since = cell(since).map(|cell| match Timestamp::parse_rfc3339_with_offset(&cell) {
            Ok(_) => cell,
            Err(_) => time(&cell).map_or(cell, |time| time.to_string()),
        });
        let [address, organisation, message] = [address, organisation, message].map(cell);
        let named = organisation.map(|name| match name.as_str() {
            ALL => Scope::All,
            _ => Scope::Organisation(name),
        });
        let scope = match (named, given) {
            (Some(named), Some(given)) if named != *given => {
                return Err(
                    "it names a different organisation from the one in the command".to_owned()
                );
            }
            (Some(scope), _) => scope,
            (None, Some(given)) => given.clone(),
            (None, None) => {
                return Err("it names no organisation; give --org NAME or --all, or add an \
                     organisation column (* stands for all)"
                    .to_owned());
            }
        };
        let address = address.ok_or("it has no address")?;
        Ok(ImportRow { scope, address, reason, since, message })
    }

    /// Reason of a suppression, as one of our words: from the column for it, or from others. An
    /// unknown text stays as it is, for the service to refuse.
    fn reason(
        self,
        given: Option<String>,
        cell: impl Fn(usize) -> Option<String>,
    ) -> Result<Option<String>, String> {
        let also = self.1.reasons.into_iter().flatten().filter_map(cell);
        let found = given.clone().into_iter().chain(also).find_map(|text| said(&text));
        match found {
            Some(Said::NotSuppressed) => Err(NOT_SUPPRESSED.to_owned()),
            Some(Said::Suppressed(reason)) => Ok(Some(reason.as_str().to_owned())),
            None => Ok(given.or_else(|| self.1.of_all.map(|reason| reason.as_str().to_owned()))),
        }
    }
}

/// The rule that a row breaks whose address takes mail.
const NOT_SUPPRESSED: &str = "it says that the address accepts mail";

/// A suppression's cells, in the order of the head. A reason that cannot be read is left empty, so
/// that an import takes it for the operator's own decision.
pub(super) fn cells(suppression: &Suppression) -> [String; HEAD.len()] {
    let reason = &*suppression.reason;
    [
        &*suppression.address,
        if reason == UNREADABLE { "" } else { reason },
        &suppression.since,
        suppression.organisation.as_deref().unwrap_or(ALL),
        suppression.message.as_deref().unwrap_or_default(),
    ]
    .map(guarded)
}

/// The cell as a spreadsheet leaves it alone. [`unguarded`] gives back every cell, also one that
/// begins with the guard itself.
fn guarded(cell: &str) -> String {
    if cell.starts_with(FORMULA_STARTS) || cell.starts_with(GUARD) {
        format!("{GUARD}{cell}")
    } else {
        cell.to_owned()
    }
}

fn unguarded(cell: &str) -> &str {
    match cell.strip_prefix(GUARD) {
        Some(rest) if rest.starts_with(FORMULA_STARTS) || rest.starts_with(GUARD) => rest,
        Some(_) | None => cell,
    }
}

/// A column's name without what writers of heads differ in.
fn plain(name: &str) -> String {
    // Spreadsheets begin a file with a byte order mark.
    let name = name.trim_start_matches('\u{feff}');
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn acme() -> Scope {
        Scope::Organisation("acme".to_owned())
    }

    fn read(columns: Columns, cells: &[&str], given: Option<&Scope>) -> Result<ImportRow, String> {
        columns.read(&StringRecord::from(cells), given)
    }

    #[test]
    fn a_head_is_told_from_a_row_and_its_columns_may_stand_anywhere() {
        let ses = StringRecord::from(vec!["\u{feff}Email Address", "Reason", "LastUpdateTime"]);
        let columns = Columns::of_head(&ses).unwrap();
        let row = read(columns, &["a@x.org", "BOUNCE", "2020-04-10T21:03:05Z"], Some(&acme()));
        assert_eq!(row.unwrap().since.as_deref(), Some("2020-04-10T21:03:05Z"));
        let turned = StringRecord::from(vec!["note", "organisation", "address"]);
        let columns = Columns::of_head(&turned).unwrap();
        let row = read(columns, &["x", "*", "a@x.org"], None).unwrap();
        assert_eq!((row.scope, row.address.as_str()), (Scope::All, "a@x.org"));
        assert_eq!(Columns::of_head(&StringRecord::from(vec!["a@x.org", "bounce"])), None);
        assert_eq!(Columns::of_head(&StringRecord::from(HEAD.to_vec())).unwrap().0[4], Some(4));
        assert_eq!(Columns::by_position().0, [0, 1, 2, 3, 4].map(Some));
    }

    #[test]
    fn a_row_is_for_one_organisation_without_doubt() {
        let columns = Columns::by_position();
        assert_eq!(read(columns, &["a@x.org"], Some(&acme())).unwrap().scope, acme());
        assert_eq!(read(columns, &["a@x.org", "", "", "acme"], None).unwrap().scope, acme());
        assert_eq!(
            read(columns, &["a@x.org", "", "", "acme"], Some(&acme())).unwrap().reason,
            None
        );
        assert!(read(columns, &["a@x.org", "", "", "*"], Some(&acme())).is_err());
        assert!(read(columns, &["a@x.org"], None).unwrap_err().contains("--org NAME"));
        assert!(read(columns, &["", "bounce"], Some(&acme())).unwrap_err().contains("no address"));
        let long = "a".repeat(MAX_CELL_BYTES + 1);
        assert!(read(columns, &[&long], Some(&acme())).unwrap_err().contains("not closed"));
    }

    #[test]
    fn a_spreadsheet_finds_no_formula() {
        for cell in ["=1+1@x.org", "+a@x.org", "-a@x.org", "@x", "'a@x.org", "'=a@x.org"] {
            let shown = guarded(cell);
            assert!(shown.starts_with(GUARD), "{shown}");
            assert_eq!(unguarded(&shown), cell);
        }
        assert_eq!(guarded("a=b@x.org"), "a=b@x.org");
        assert_eq!(unguarded("'a@x.org"), "'a@x.org", "it is another program's, and an address");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_is_written_is_read(cells in proptest::collection::vec("[=+@'\",;\\\\ a\u{e9}-]{0,6}", 5)) {
            let guarded: Vec<String> = cells.iter().map(|cell| guarded(cell)).collect();
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(&guarded).unwrap();
            let bytes = writer.into_inner().unwrap();
            let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..]);
            let record = reader.records().next().unwrap().unwrap();
            for (cell, read) in cells.iter().zip(&record) {
                prop_assert_eq!(unguarded(read), cell);
                prop_assert!(!read.starts_with(FORMULA_STARTS));
            }
        }

        #[test]
        fn no_row_makes_the_reader_fail(cells in proptest::collection::vec(any::<String>(), 0..7)) {
            let record = StringRecord::from(cells);
            let columns = Columns::of_head(&record).unwrap_or(Columns::by_position());
            let _ = columns.read(&record, None);
        }
    }
}
