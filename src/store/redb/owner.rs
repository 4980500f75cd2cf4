//! Owner of a data file: the service, or `pillarbox dev`, whose files have a mark.

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableError};

use crate::StoreOwner;
use crate::record::directory::decode_organisation;
use crate::redb::error::{OpenError, ReadError};
use crate::redb::tables::{MADE_BY_DEV, META, ORGANISATIONS, write};

/// Refuses a file of another owner, if that can be seen without its journal. Changes nothing.
pub(super) fn refuse_others(
    database: &Database,
    owner: Option<StoreOwner>,
) -> Result<(), OpenError> {
    match (owner, is_marked(database)?) {
        (Some(StoreOwner::Service), true) => Err(OpenError::MadeByDev),
        (Some(StoreOwner::Dev), false) if has(database, |name| name != DEV)? => {
            Err(OpenError::NotMadeByDev)
        }
        _ => Ok(()),
    }
}

/// Refuses a file of another owner, once it has the content of its journal. Marks a file that `dev`
/// made before there were marks: it has only the organisation of `dev`.
pub(super) fn require(database: &Database, owner: Option<StoreOwner>) -> Result<(), OpenError> {
    refuse_others(database, owner)?;
    if owner != Some(StoreOwner::Dev) || is_marked(database)? {
        return Ok(());
    }
    if !has(database, |name| name == DEV)? {
        return Err(OpenError::NotMadeByDev);
    }
    Ok(mark(database)?)
}

/// Marks a file as one of `dev`.
pub(super) fn mark(database: &Database) -> Result<(), ReadError> {
    write(database, |transaction| {
        transaction.open_table(META)?.insert(MADE_BY_DEV, 1)?;
        Ok(())
    })
}

const DEV: &str = StoreOwner::ORGANISATION_OF_DEV;

fn is_marked(database: &Database) -> Result<bool, ReadError> {
    let meta = database.begin_read()?.open_table(META)?;
    Ok(meta.get(MADE_BY_DEV)?.is_some())
}

/// Returns true if there is such an organisation. One that cannot be read has no name.
fn has(database: &Database, is_wanted: impl Fn(&str) -> bool) -> Result<bool, ReadError> {
    let transaction: ReadTransaction = database.begin_read()?;
    let organisations = match transaction.open_table(ORGANISATIONS) {
        // A file of an early version.
        Err(TableError::TableDoesNotExist(_)) => return Ok(false),
        opened => opened?,
    };
    for row in organisations.iter()? {
        let (id, row) = row?;
        let organisation = decode_organisation(id.value(), row.value());
        if is_wanted(organisation.as_ref().map_or("", |known| known.name.as_str())) {
            return Ok(true);
        }
    }
    Ok(false)
}
