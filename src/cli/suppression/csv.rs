//! Suppressions as rows of a CSV file (RFC 4180): how a row is written so that no spreadsheet takes
//! it for a formula, and how rows of ours and of SES's own list are read.
//!
//! Knows columns and cells; what is in them is the service's to judge.

use csv::StringRecord;

use crate::admin::UNREADABLE;
use crate::admin::suppression::{ImportRow, Scope, Suppression};

/// The columns, in the order in which a file without a head has them.
pub(super) const HEAD: [&str; 5] = ["address", "reason", "since", "organisation", "message"];
/// Other names of the columns, without spaces and in lower case: `EmailAddress` and
/// `LastUpdateTime` are SES's own (SES v2 API reference, `SuppressedDestinationSummary`).
const ALIASES: [(&str, &[&str]); 5] = [
    ("address", &["emailaddress", "email", "recipient"]),
    ("reason", &[]),
    ("since", &["lastupdatetime", "time", "timestamp", "date"]),
    ("organisation", &["organization", "org"]),
    ("message", &["messageid"]),
];
/// Stands for all organisations; no organisation has this name.
const ALL: &str = "*";
/// With these at its beginning, a spreadsheet takes a cell for a formula (OWASP, "CSV Injection").
/// An address may begin with most of them.
const FORMULA_STARTS: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];
/// Before such a cell; spreadsheets then take it as text.
const GUARD: char = '\'';
/// The longest cell that can mean anything, in bytes: an address has 320 at most.
const MAX_CELL_BYTES: usize = 1_024;

/// Where the columns of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns([Option<usize>; HEAD.len()]);

impl Columns {
    /// The columns that a file's first row names; `None` where it is no head, for it says nothing
    /// of an address.
    pub(super) fn of_head(first: &StringRecord) -> Option<Self> {
        let names: Vec<String> = first.iter().map(plain).collect();
        let find = |(name, aliases): &(&str, &[&str])| {
            names.iter().position(|found| found == name || aliases.contains(&found.as_str()))
        };
        let columns = ALIASES.each_ref().map(find);
        columns[0].is_some().then_some(Self(columns))
    }

    /// The columns of a file without a head.
    pub(super) fn by_position() -> Self {
        let mut position = 0..;
        Self([(); HEAD.len()].map(|()| position.next()))
    }

    /// What a row says, for the organisation that it names or else for `given`; or the rule that it
    /// breaks.
    pub(super) fn read(
        self,
        record: &StringRecord,
        given: Option<&Scope>,
    ) -> Result<ImportRow, String> {
        if record.iter().any(|cell| cell.len() > MAX_CELL_BYTES) {
            return Err(format!(
                "a cell has more than {MAX_CELL_BYTES} bytes; is a double quote not closed?"
            ));
        }
        let [address, reason, since, organisation, message] = self.0.map(|column| {
            let cell = unguarded(record.get(column?)?.trim());
            (!cell.is_empty()).then(|| cell.to_owned())
        });
        let named = organisation.map(|name| match name.as_str() {
            ALL => Scope::All,
            _ => Scope::Organisation(name),
        });
        let scope = match (named, given) {
            (Some(named), Some(given)) if named != *given => {
                return Err("it names another organisation than the command does".to_owned());
            }
            (Some(scope), _) => scope,
            (None, Some(given)) => given.clone(),
            (None, None) => {
                return Err("it names no organisation; give --org NAME or --all, or a column \
                     organisation, in which * stands for all"
                    .to_owned());
            }
        };
        let address = address.ok_or("it has no address")?;
        Ok(ImportRow { scope, address, reason, since, message })
    }
}

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
