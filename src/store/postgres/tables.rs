//! Tables of the database as the rules of the store know them, and the statements that read and
//! write their rows.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::locks::{Mutex, locked};
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::{message_id, millis, number, timestamp, uuid_of};
use crate::rows::{Counter, Key, KeyRange, KeyedRow, NewRow, Table, split_timed, timed};
use crate::tables::with_tables;

/// Column of a key. A key's bytes are its columns' one after the other; a text that another column
/// follows ends with a NUL.
#[derive(Debug, Clone, Copy)]
enum Column {
    Number(&'static str),
    Large(&'static str),
    Id(&'static str),
    Text(&'static str),
    Bytes(&'static str),
}

/// Column beside the key and the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Organisation of the row.
    Organisation,
    /// Time since which the row is kept.
    Time(&'static str),
    /// Position of the commit in the order of commits.
    Position,
}

struct Layout {
    name: &'static str,
    key: &'static [Column],
    row: &'static str,
    beside: Beside,
}

/// Declares [`layout`].
macro_rules! declare_layouts {
    (
        $($(#[$about:meta])* $field:ident: $table:ident = $name:literal ($key:ty => $row:ty) $seen:ident
            $($rows:ident ($server:literal [$($column:expr),+] $row_column:literal $beside:expr))?,)+
    ) => {
        const fn layout(table: Table) -> Layout {
            use Beside::{Nothing, Organisation, Position, Time};
            use Column::{Bytes, Id, Large, Number, Text};
            let (name, key, row, beside): (_, &[Column], _, _) = match table {
                $($(Table::$rows => ($server, &[$($column),+], $row_column, $beside),)?)+
            };
            Layout { name, key, row, beside }
        }
    };
}

with_tables!(declare_layouts);

impl Column {
    /// Returns its name and its type.
    const fn in_sql(self) -> (&'static str, &'static str) {
        match self {
            Self::Number(name) => (name, "integer"),
            Self::Large(name) => (name, "bigint"),
            Self::Id(name) => (name, "uuid"),
            Self::Text(name) => (name, "text"),
            Self::Bytes(name) => (name, "bytea"),
        }
    }

    /// Returns this column of keys, in which it begins at the byte at its key's place in `at`.
    fn of(self, keys: &[&Key], at: &mut [usize]) -> Parameter {
        match self {
            Self::Number(_) => each(keys, at, |key, at| (integer(key.number(at)), 4)),
            Self::Large(_) => each(keys, at, |key, at| (bigint(key.large(at)), 8)),
            Self::Id(_) => each(keys, at, |key, at| (uuid_of(key.id(at)), 16)),
            Self::Text(_) => each(keys, at, |key, at| {
                let text = key.text_to_nul(at);
                (text.to_owned(), text.len() + 1)
            }),
            Self::Bytes(_) => each(keys, at, |key, at| {
                let bytes = key.bytes().get(at..).unwrap_or_default();
                (bytes.to_vec(), bytes.len())
            }),
        }
    }

    /// Adds this column of a row to a key.
    fn add_to(self, key: Key, row: &Row, index: usize, is_last: bool) -> Key {
        match self {
            Self::Number(_) => key.and(row.get::<_, i32>(index).unsigned_abs()),
            Self::Large(_) => key.and(row.get::<_, i64>(index).unsigned_abs()),
            Self::Id(_) => key.and(message_id(row.get(index))),
            Self::Text(_) if is_last => key.and(row.get::<_, &str>(index)),
            Self::Text(_) => key.and(row.get::<_, &str>(index)).and("\0"),
            Self::Bytes(_) => key.and(row.get::<_, &[u8]>(index)),
        }
    }
}

/// Reads a value of each key, and advances by its length.
fn each<T>(keys: &[&Key], at: &mut [usize], read: impl Fn(&Key, usize) -> (T, usize)) -> Parameter
where
    T: ToSql + Sync + Send + 'static,
{
    let values = keys.iter().zip(at).map(|(key, at)| {
        let (value, length) = read(key, *at);
        *at += length;
        value
    });
    array(values)
}

/// Number as the server keeps it. A number that is too large becomes the largest one.
pub(super) fn integer(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Large number, as [`integer`].
pub(super) fn bigint(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

pub(super) type Parameter = Box<dyn ToSql + Sync + Send>;

/// A column of rows, as one parameter.
pub(super) fn array<T: ToSql + Sync + Send + 'static>(
    values: impl IntoIterator<Item = T>,
) -> Parameter {
    Box::new(values.into_iter().collect::<Vec<T>>())
}

pub(super) struct Query {
    pub(super) sql: &'static str,
    parameters: Vec<Parameter>,
}

impl Query {
    pub(super) const fn new(sql: &'static str, parameters: Vec<Parameter>) -> Self {
        Self { sql, parameters }
    }

    pub(super) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|one| &**one as &(dyn ToSql + Sync)).collect()
    }
}

/// Sends all statements at once; the server answers one after the other. Returns the first error.
pub(super) async fn ask_all(
    connection: &Connection,
    queries: &[Query],
) -> Result<Vec<Vec<Row>>, QueryError> {
    for query in queries {
        connection.prepare(query.sql).await?;
    }
    let asked =
        queries.iter().map(async |query| connection.query(query.sql, &query.parameters()).await);
    join_all(asked).await.into_iter().collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Get,
    GetUpTo,
    Lock,
    Range(Span),
    Count(Span),
    Put(Known),
    Remove,
    Limit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    is_after: bool,
    has_end: bool,
    is_descending: bool,
}

impl Span {
    const fn of(range: &KeyRange) -> Self {
        let KeyRange { is_after, is_descending, .. } = *range;
        Self { is_after, has_end: range.end.is_some(), is_descending }
    }
}

/// Returns a statement's text. There are few, and each is made once.
fn text(table: Table, kind: Kind) -> &'static str {
    static TEXTS: Mutex<BTreeMap<(Table, Kind), &str>> = Mutex::new(BTreeMap::new());
    let mut texts = locked(&TEXTS);
    texts.entry((table, kind)).or_insert_with(|| String::leak(make_text(&layout(table), kind)))
}

fn make_text(layout: &Layout, kind: Kind) -> String {
    let Layout { name, key, row, beside } = layout;
    let list = |each: &dyn Fn(usize, (&str, &str)) -> String| {
        let each = key.iter().enumerate().map(|(index, column)| each(index, column.in_sql()));
        each.collect::<Vec<_>>().join(", ")
    };
    let keys = list(&|_, (column, _)| column.to_owned());
    let arrays = list(&|index, (_, sql_type)| format!("${}::{sql_type}[]", index + 1));
    let own = list(&|_, (column, _)| format!("{name}.{column}"));
    let new = list(&|_, (column, _)| format!("new.{column}"));
    let columns = key.len();
    let (extra, extra_type) = match *beside {
        Beside::Nothing => ("", ""),
        Beside::Organisation => ("organisation", "integer"),
        Beside::Time(time) => (time, "bigint"),
        Beside::Position => ("position", "bigint"),
    };
    let and = |text: &str| if extra.is_empty() { String::new() } else { format!(", {text}") };
    let read = match *beside {
        Beside::Time(time) => format!("{own}, {name}.{row}, {name}.{time}"),
        _ => format!("{own}, {name}.{row}"),
    };
    // Rows that are put, as parameters.
    let put = format!(
        "unnest({arrays}, ${}::bytea[]{})",
        columns + 1,
        and(&format!("${}::{extra_type}[]", columns + 2))
    );
    let put_columns = format!("{keys}, {row}{}", and(extra));
    let insert = format!("INSERT INTO {name} ({put_columns}) SELECT * FROM {put}");
    let span = |span: Span| {
        let bound = |first: usize| {
            list(&|index, (_, sql_type)| format!("(${}::{sql_type}[])[1]", first + index))
        };
        let above = if span.is_after { ">" } else { ">=" };
        let end = if span.has_end {
            format!(" AND ({own}) < ({})", bound(columns + 1))
        } else {
            String::new()
        };
        (format!("({own}) {above} ({}){end}", bound(1)), columns * if span.has_end { 2 } else { 1 })
    };
    let get =
        format!("SELECT {read} FROM {name} JOIN unnest({arrays}) AS asked ({keys}) USING ({keys})");
    match kind {
        Kind::Get => get,
        // The size of a large row is known without reading it.
        Kind::GetUpTo => format!(
            "SELECT * FROM (
                SELECT {read}, sum(octet_length({name}.{row})) OVER (ORDER BY asked.place) AS bytes
                FROM {name} JOIN unnest({arrays}) WITH ORDINALITY AS asked ({keys}, place)
                    USING ({keys})) AS sized
            WHERE bytes - octet_length({row}) < ${}",
            columns + 1
        ),
        Kind::Lock => format!("{get} ORDER BY {own} FOR UPDATE OF {name}"),
        Kind::Range(of) => {
            let (condition, parameters) = span(of);
            let direction = if of.is_descending { " DESC" } else { "" };
            let order = list(&|_, (column, _)| format!("{name}.{column}{direction}"));
            format!(
                "SELECT {read} FROM {name} WHERE {condition} ORDER BY {order} LIMIT ${}",
                parameters + 1
            )
        }
        Kind::Count(of) => format!("SELECT count(*) FROM {name} WHERE {}", span(of).0),
        Kind::Put(Known::Missing) => insert,
        Kind::Put(Known::Nothing) => {
            let and = and(&format!("{extra} = excluded.{extra}"));
            format!("{insert} ON CONFLICT ({keys}) DO UPDATE SET {row} = excluded.{row}{and}")
        }
        Kind::Put(Known::There) => {
            // The organisation of a row does not change.
            let is_kept = *beside == Beside::Organisation;
            let set = if is_kept { String::new() } else { and(&format!("{extra} = new.{extra}")) };
            format!(
                "UPDATE {name} SET {row} = new.{row}{set} FROM {put} AS new ({put_columns}) \
                 WHERE ({own}) = ({new})"
            )
        }
        Kind::Limit => format!(
            "DELETE FROM {name} WHERE ({keys}) IN (
                SELECT {keys} FROM {name} ORDER BY {extra} DESC OFFSET $1) RETURNING 1"
        ),
        Kind::Remove => format!(
            "DELETE FROM {name} USING unnest({arrays}) AS new ({keys}) WHERE ({own}) = ({new})"
        ),
    }
}

fn key_parameters(table: Table, keys: &[&Key]) -> Vec<Parameter> {
    let mut at = vec![0; keys.len()];
    layout(table).key.iter().map(|column| column.of(keys, &mut at)).collect()
}

pub(super) fn get(table: Table, keys: &[&Key]) -> Query {
    Query::new(text(table, Kind::Get), key_parameters(table, keys))
}

/// As [`get`], by the order of the keys until the rows have so many bytes.
pub(super) fn get_up_to(table: Table, keys: &[&Key], max_bytes: usize) -> Query {
    let mut parameters = key_parameters(table, keys);
    parameters.push(Box::new(bigint(max_bytes)));
    Query::new(text(table, Kind::GetUpTo), parameters)
}

/// As [`get`], and locks the rows against changes by others.
pub(super) fn lock(table: Table, keys: &[&Key]) -> Query {
    Query::new(text(table, Kind::Lock), key_parameters(table, keys))
}

fn span_parameters(table: Table, range: &KeyRange) -> Vec<Parameter> {
    let mut parameters = key_parameters(table, &[&range.from]);
    parameters.extend(range.end.iter().flat_map(|end| key_parameters(table, &[end])));
    parameters
}

pub(super) fn range(table: Table, range: &KeyRange, limit: usize) -> Query {
    let mut parameters = span_parameters(table, range);
    parameters.push(Box::new(bigint(limit)));
    Query::new(text(table, Kind::Range(Span::of(range))), parameters)
}

pub(super) fn count(table: Table, range: &KeyRange) -> Query {
    Query::new(text(table, Kind::Count(Span::of(range))), span_parameters(table, range))
}

/// Returns the key and the row that a statement answers with.
pub(super) fn keyed_row(table: Table, row: &Row) -> KeyedRow {
    let Layout { key: columns, beside, .. } = layout(table);
    let mut key = Key::default();
    for (index, column) in columns.iter().enumerate() {
        key = column.add_to(key, row, index, index + 1 == columns.len());
    }
    let bytes: &[u8] = row.get(columns.len());
    match beside {
        Beside::Time(_) => (key, timed(timestamp(row.get(columns.len() + 1)), bytes)),
        Beside::Nothing | Beside::Organisation | Beside::Position => (key, bytes.to_vec()),
    }
}

/// Known state of a row that is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Known {
    /// The row exists, and is locked.
    There,
    /// The row did not exist. If it does now, the transaction fails.
    Missing,
    Nothing,
}

/// Puts rows, about all of which the same is known. `position` is that of the commit.
pub(super) fn put(
    table: Table,
    known: Known,
    rows: &[(&Key, &NewRow)],
    position: Option<i64>,
) -> Query {
    let keys: Vec<&Key> = rows.iter().map(|(key, _)| *key).collect();
    let mut parameters = key_parameters(table, &keys);
    let rows = || rows.iter().map(|(_, new)| *new);
    let beside = layout(table).beside;
    parameters.push(match beside {
        Beside::Time(_) => array(rows().map(|new| split_timed(&new.row).1.to_vec())),
        Beside::Nothing | Beside::Organisation | Beside::Position => {
            array(rows().map(|new| new.row.clone()))
        }
    });
    parameters.extend(match beside {
        Beside::Nothing => None,
        Beside::Organisation => Some(array(rows().map(|new| new.organisation.map_or(0, number)))),
        Beside::Time(_) => Some(array(rows().map(|new| millis(split_timed(&new.row).0)))),
        Beside::Position => Some(array(rows().map(|_| position.unwrap_or_default()))),
    });
    Query::new(text(table, Kind::Put(known)), parameters)
}

pub(super) fn remove(table: Table, keys: &[&Key]) -> Query {
    Query::new(text(table, Kind::Remove), key_parameters(table, keys))
}

/// Removes the oldest rows, beyond `most`, of a table whose rows are kept for a while.
pub(super) fn limit(table: Table, most: usize) -> Query {
    Query::new(text(table, Kind::Limit), vec![Box::new(bigint(most))])
}

/// The columns of all numbers, in the order of [`Counter::ALL`].
macro_rules! counters {
    () => {
        "last_organisation::bigint, last_key::bigint, last_webhook::bigint, lost_messages, \
         lost_messages_at"
    };
}

pub(super) const COUNTERS: &str = concat!("SELECT ", counters!(), " FROM cluster");

/// As [`COUNTERS`], and locks them against changes by others.
pub(super) const LOCK_COUNTERS: &str = concat!("SELECT ", counters!(), " FROM cluster FOR UPDATE");

/// Counts a change of the directory. Its lock makes changes come one after the other. Returns what
/// [`COUNTERS`] returns, and the number of the change.
pub(super) const CHANGE_DIRECTORY: &str = concat!(
    "UPDATE cluster SET directory_version = directory_version + 1 RETURNING ",
    counters!(),
    ", directory_version"
);

/// Returns the numbers of a row that [`COUNTERS`] has read.
pub(super) fn counters_of(row: &Row) -> BTreeMap<Counter, u64> {
    let value = |index| row.get::<_, i64>(index).unsigned_abs();
    Counter::ALL.into_iter().enumerate().map(|(index, counter)| (counter, value(index))).collect()
}

pub(super) fn set_counter(counter: Counter, value: u64) -> Query {
    let sql = match counter {
        Counter::LastOrganisation => "UPDATE cluster SET last_organisation = $1::bigint",
        Counter::LastKey => "UPDATE cluster SET last_key = $1::bigint",
        Counter::LastWebhook => "UPDATE cluster SET last_webhook = $1::bigint",
        Counter::LostMessages => "UPDATE cluster SET lost_messages = $1::bigint",
        Counter::LostMessagesAt => "UPDATE cluster SET lost_messages_at = $1::bigint",
    };
    Query::new(sql, vec![Box::new(bigint(value))])
}
