//! History: counts of events in each hour, in total and of single organisations, for as long as
//! records are kept.
//!
//! Each node adds its counts to an hour now and then: a row for each message would cost acceptance.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::limits::{ALL_ORGANISATIONS, MAX_COUNTED_ORGANISATIONS};
use crate::organisation_counts::OrganisationCounts;
use crate::record::history::{decode_counts, encode_counts};
use crate::rows::{InTable, Key, KeyRange, Lock, Rows, Stop, Table, read_all};
use crate::{CountsByOrganisation, History, ListError, Lister, Store, StoreError};
use pillarbox_domain::history::{Hour, HourSteps};
use pillarbox_domain::id::OrganisationId;

const ROWS_PER_LOOK: usize = 10_000;

impl Store {
    /// Adds counts to those of an hour.
    pub async fn add_to_history(
        &self,
        hour: Hour,
        counts: CountsByOrganisation,
    ) -> Result<(), StoreError> {
        let weight = 1 + counts.len().min(MAX_COUNTED_ORGANISATIONS);
        self.change(Lock::Rows, weight, move |rows| add(rows, hour, &counts)).await
    }

    /// Returns the counts of each step, with the organisations that had the most mail, at most
    /// `most`. This is one of the listings that operators may have running.
    pub async fn history(&self, steps: HourSteps, most: usize) -> Result<History, ListError> {
        let _slot = self.memory().listings.slot(Lister::Operators).await?;
        let nothing = vec![OrganisationCounts::default(); steps.count()];
        let mut total = nothing.clone();
        let mut mail = BTreeMap::<u32, u64>::new();
        self.each_count(&steps, |step, organisation, counts| {
            if organisation == ALL_ORGANISATIONS {
                total[step] = total[step].plus(counts);
            } else {
                *mail.entry(organisation).or_default() += counts.accepted + counts.sent;
            }
        })
        .await?;
        // Read again instead of kept: many organisations may have been added and removed.
        let mut by_mail: Vec<_> = mail.into_iter().collect();
        by_mail.sort_by_key(|(organisation, mail)| (Reverse(*mail), *organisation));
        let first = by_mail.into_iter().take(most);
        let first = first.map(|(organisation, _)| (OrganisationId(organisation), nothing.clone()));
        let mut organisations: BTreeMap<_, _> = first.collect();
        self.each_count(&steps, |step, organisation, counts| {
            if let Some(own) = organisations.get_mut(&OrganisationId(organisation)) {
                own[step] = own[step].plus(counts);
            }
        })
        .await?;
        Ok(History { total, organisations })
    }

    /// Returns the counts of these steps together, by organisation. Of an hour in which too many had
    /// mail, those without a row of their own are missing.
    pub async fn history_by_organisation(
        &self,
        steps: HourSteps,
    ) -> Result<CountsByOrganisation, StoreError> {
        let mut sums = CountsByOrganisation::new();
        self.each_count(&steps, |_, organisation, counts| {
            if organisation != ALL_ORGANISATIONS {
                let sum = sums.entry(OrganisationId(organisation)).or_default();
                *sum = sum.plus(counts);
            }
        })
        .await?;
        Ok(sums)
    }

    /// Shows each row of these steps, with the position of its step and the number of its
    /// organisation.
    async fn each_count(
        &self,
        steps: &HourSteps,
        mut show: impl FnMut(usize, u32, &OrganisationCounts),
    ) -> Result<(), StoreError> {
        let mut range = KeyRange::between(steps.first().number(), steps.end().number());
        loop {
            let rows = self.rows(Table::History, range.clone(), ROWS_PER_LOOK).await?;
            for (key, row) in &rows {
                let (hour, organisation) = (Hour::from_number(key.number(0)), key.number(4));
                let id = format_args!("{}, organisation {organisation}", hour.start()).to_string();
                let counts = decode_counts(row).in_table(Table::History, id);
                let counts = self.damage().left_out(counts);
                if let (Some(step), Some(counts)) = (steps.position_of(hour), counts) {
                    show(step, organisation, &counts);
                }
            }
            match rows.into_iter().nth(ROWS_PER_LOOK - 1) {
                Some((last, _)) => range = range.after(last),
                None => return Ok(()),
            }
        }
    }
}

/// Adds counts to an hour. The row of the total comes first: its lock keeps other writers from the
/// hour.
fn add(rows: &mut dyn Rows, hour: Hour, counts: &CountsByOrganisation) -> Result<(), Stop> {
    let hour = hour.number();
    let total = counts.values().fold(OrganisationCounts::default(), |all, one| all.plus(one));
    add_row(rows, &Key::from((hour, ALL_ORGANISATIONS)), &total)?;
    let own = KeyRange::of(hour).after((hour, ALL_ORGANISATIONS));
    let mut own = rows.range(Table::History, &own, usize::MAX)?.len();
    let mut by_mail: Vec<_> = counts.iter().collect();
    by_mail.sort_by_key(|(_, counts)| Reverse(counts.accepted + counts.sent));
    let key = |organisation: &OrganisationId| Key::from((hour, organisation.0));
    let keys: Vec<Key> = by_mail.iter().map(|(organisation, _)| key(organisation)).collect();
    read_all(rows, Table::History, &keys)?;
    for ((_, counts), key) in by_mail.into_iter().zip(keys) {
        if rows.get(Table::History, &key)?.is_none() {
            if own == MAX_COUNTED_ORGANISATIONS {
                continue;
            }
            own += 1;
        }
        add_row(rows, &key, counts)?;
    }
    Ok(())
}

/// Adds to a row. One that cannot be read is written anew.
fn add_row(rows: &mut dyn Rows, key: &Key, counts: &OrganisationCounts) -> Result<(), Stop> {
    let earlier = rows.get(Table::History, key)?.and_then(|row| decode_counts(&row).ok());
    let sum = earlier.map_or(*counts, |earlier| earlier.plus(counts));
    rows.put(Table::History, key, &encode_counts(&sum))
}
