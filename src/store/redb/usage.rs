//! Usage of organisations in the data file: a row for each organisation and month.

use redb::{ReadTransaction, ReadableTable as _};
use rustc_hash::FxHashMap;

use crate::StoreError;
use crate::record::usage::{decode_usage, encode_usage};
use crate::redb::RedbStore;
use crate::redb::error::{InRow as _, ReadError};
use crate::redb::tables::{Tables, USAGE};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::Usage;

/// Usage that a batch has changed.
pub(super) type ChangedUsage = FxHashMap<OrganisationId, Usage>;

/// Writes the usage that a batch has changed.
pub(super) fn write(tables: &mut Tables<'_>, changed: &ChangedUsage) -> Result<(), ReadError> {
    for (OrganisationId(number), usage) in changed {
        let key = (*number, usage.month.start.unix_millis());
        tables.usage.insert_later(key, encode_usage(usage).as_slice())?;
    }
    Ok(())
}

/// Reads the usage of each organisation in the last month in which it had any.
pub(super) fn read_last(transaction: &ReadTransaction) -> Result<ChangedUsage, ReadError> {
    let mut last = ChangedUsage::default();
    for row in transaction.open_table(USAGE)?.iter()? {
        let (key, row) = row?;
        let (organisation, month) = key.value();
        // The months of an organisation follow one another.
        last.insert(OrganisationId(organisation), read(organisation, month, row.value())?);
    }
    Ok(last)
}

fn read(organisation: u32, month: u64, row: &[u8]) -> Result<Usage, ReadError> {
    let at = Timestamp::from_unix_millis(month);
    let id = format_args!("of organisation {organisation} from {at}");
    Ok(decode_usage(month, row).in_row(USAGE, id)?)
}

impl RedbStore {
    pub(crate) fn usage(&self, organisations: &[OrganisationId]) -> Vec<Usage> {
        let known = &self.shared.memory.usage;
        organisations.iter().map(|organisation| known.of(*organisation)).collect()
    }

    pub(crate) async fn usage_of_month(
        &self,
        month: Timestamp,
    ) -> Result<Vec<(OrganisationId, u64)>, StoreError> {
        self.published().await;
        let month = month.unix_millis();
        self.read("usage", "of a month", |transaction| {
            let mut usage = Vec::new();
            for row in transaction.open_table(USAGE)?.iter()? {
                let (key, row) = row?;
                let (organisation, of) = key.value();
                if of == month {
                    let used = read(organisation, of, row.value())?.month.used;
                    usage.push((OrganisationId(organisation), used));
                }
            }
            Ok(usage)
        })
    }
}
