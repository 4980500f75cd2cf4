//! History: what happened in each hour, in total and of single organisations, for as long as
//! records are kept.
//!
//! Whoever counts adds to an hour now and then: a row for each message would cost acceptance.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use redb::{ReadTransaction, ReadableTable};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::history::{Hour, HourSteps};
use crate::domain::id::OrganisationId;
use crate::domain::policy::RECORD_RETENTION;
use crate::organisation_counts::OrganisationCounts;
use crate::store::damage::Damage;
use crate::store::limits::{ALL_ORGANISATIONS, MAX_COUNTED_ORGANISATIONS};
use crate::store::record::history::{decode_counts, encode_counts};
use crate::store::redb::batch::Batch;
use crate::store::redb::changes::Table;
use crate::store::redb::error::{InRow, ReadError};
use crate::store::redb::tables::{HISTORY, Row, Tables};
use crate::store::redb::{ROW_WEIGHT, RedbStore};
use crate::store::{CountsByOrganisation, History, Lister};
use crate::store::{ListError, StoreError};

impl RedbStore {
    pub(in crate::store) async fn add_to_history(
        &self,
        hour: Hour,
        counts: CountsByOrganisation,
    ) -> Result<(), StoreError> {
        let weight = ROW_WEIGHT * (1 + counts.len().min(MAX_COUNTED_ORGANISATIONS));
        self.writer.run(weight, move |batch| add(batch, hour, &counts)).await
    }

    pub(in crate::store) async fn history(
        &self,
        steps: HourSteps,
        most: usize,
    ) -> Result<History, ListError> {
        let reading = self.read_in_turn(Lister::Operators, None, move |shared| {
            let damage = &shared.damage;
            shared.database.read(|transaction| read(transaction, damage, steps, most))
        });
        Ok(self.checked(&HISTORY, "the history", reading.await?)?)
    }
}

fn add(batch: &mut Batch<'_>, hour: Hour, counts: &CountsByOrganisation) -> Result<(), ReadError> {
    let hour = hour.number();
    let table = batch.tables.history.open()?;
    let total = counts.values().fold(OrganisationCounts::default(), |all, one| all.plus(one));
    add_row(table, (hour, ALL_ORGANISATIONS), &total)?;
    let mut own = 0;
    for row in table.range((hour, ALL_ORGANISATIONS + 1)..=(hour, u32::MAX))? {
        row?;
        own += 1;
    }
    let mut by_mail: Vec<_> = counts.iter().collect();
    by_mail.sort_by_key(|(_, counts)| Reverse(counts.accepted + counts.sent));
    for (organisation, counts) in by_mail {
        let key = (hour, organisation.0);
        if table.get(key)?.is_none() {
            if own == MAX_COUNTED_ORGANISATIONS {
                continue;
            }
            own += 1;
        }
        add_row(table, key, counts)?;
    }
    Ok(())
}

/// Adds to a row. One that cannot be read is written anew.
fn add_row(
    table: &mut Table<'_, (u32, u32), Row>,
    key: (u32, u32),
    counts: &OrganisationCounts,
) -> Result<(), ReadError> {
    let earlier = table.get(key)?.and_then(|row| decode_counts(row.value()).ok());
    let sum = earlier.map_or(*counts, |earlier| earlier.plus(counts));
    Ok(table.insert(key, encode_counts(&sum).as_slice())?)
}

fn read(
    transaction: &ReadTransaction,
    damage: &Damage,
    steps: HourSteps,
    most: usize,
) -> Result<History, ReadError> {
    let nothing = vec![OrganisationCounts::default(); steps.count()];
    let mut total = nothing.clone();
    let mut mail = BTreeMap::<u32, u64>::new();
    each(transaction, damage, steps, |step, organisation, counts| {
        if organisation == ALL_ORGANISATIONS {
            total[step] = total[step].plus(counts);
        } else {
            *mail.entry(organisation).or_default() += counts.accepted + counts.sent;
        }
    })?;
    // Read again instead of kept: many organisations may have come and gone.
    let mut by_mail: Vec<_> = mail.into_iter().collect();
    by_mail.sort_by_key(|(organisation, mail)| (Reverse(*mail), *organisation));
    let first = by_mail.into_iter().take(most);
    let mut organisations: BTreeMap<_, _> =
        first.map(|(organisation, _)| (OrganisationId(organisation), nothing.clone())).collect();
    each(transaction, damage, steps, |step, organisation, counts| {
        if let Some(own) = organisations.get_mut(&OrganisationId(organisation)) {
            own[step] = own[step].plus(counts);
        }
    })?;
    Ok(History { total, organisations })
}

/// Shows each row of these steps, with the position of its step and the number of its organisation.
fn each(
    transaction: &ReadTransaction,
    damage: &Damage,
    steps: HourSteps,
    mut show: impl FnMut(usize, u32, &OrganisationCounts),
) -> Result<(), ReadError> {
    let range = (steps.first().number(), 0)..(steps.end().number(), 0);
    for row in transaction.open_table(HISTORY)?.range(range)? {
        let (key, row) = row?;
        let (hour, organisation) = key.value();
        let hour = Hour::from_number(hour);
        let read = decode_counts(row.value())
            .in_row(HISTORY, format_args!("{}, organisation {organisation}", hour.start()));
        if let (Some(step), Some(counts)) = (steps.position_of(hour), damage.left_out(read)) {
            show(step, organisation, &counts);
        }
    }
    Ok(())
}

/// Removes hours that are past the retention of records, at most `limit` rows.
pub(super) fn purge(
    tables: &mut Tables<'_>,
    window_now: &WindowTime,
    limit: usize,
) -> Result<(), ReadError> {
    let end = Hour::of(window_now.now().minus(RECORD_RETENTION)).number();
    let table = tables.history.open()?;
    let mut last = None;
    for row in table.range(..(end, 0))?.take(limit) {
        last = Some(row?.0.value());
    }
    if let Some(last) = last {
        table.retain_in(..=last, |_, _| false)?;
    }
    Ok(())
}
