//! History: what happened in each hour on all nodes, in total and of single organisations.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::domain::history::{Hour, HourSteps};
use crate::domain::id::OrganisationId;
use crate::organisation_counts::OrganisationCounts;
use crate::store::error::DamagedRow;
use crate::store::limits::{ALL_ORGANISATIONS, MAX_COUNTED_ORGANISATIONS};
use crate::store::postgres::{PostgresStore, number};
use crate::store::record::history::{decode_counts, encode_counts};
use crate::store::{CountsByOrganisation, History, ListError, Lister, StoreError};

impl PostgresStore {
    pub(in crate::store) async fn add_to_history(
        &self,
        hour: Hour,
        counts: CountsByOrganisation,
    ) -> Result<(), StoreError> {
        // Made first, then locked: two nodes may make it at one time.
        const MAKE: &str = "
            INSERT INTO history (hour, organisation, counts)
            SELECT $1, organisation, ''::bytea FROM unnest($2::integer[]) AS organisation
            ORDER BY organisation ON CONFLICT DO NOTHING";
        const LOCK: &str = "
            SELECT organisation, counts FROM history WHERE hour = $1 AND organisation = ANY($2)
            ORDER BY organisation FOR UPDATE";
        const WRITE: &str = "
            UPDATE history SET counts = new.counts
            FROM unnest($2::integer[], $3::bytea[]) AS new (organisation, counts)
            WHERE history.hour = $1 AND history.organisation = new.organisation";
        let hour = hour_number(hour);
        let total = counts.values().fold(OrganisationCounts::default(), |all, one| all.plus(one));
        let mut by_mail: Vec<_> = counts.into_iter().collect();
        by_mail.sort_by_key(|(_, counts)| Reverse(counts.accepted + counts.sent));
        let mut added: BTreeMap<i32, OrganisationCounts> = by_mail
            .into_iter()
            .take(MAX_COUNTED_ORGANISATIONS)
            .map(|(organisation, counts)| (number(organisation), counts))
            .collect();
        added.insert(number(OrganisationId(ALL_ORGANISATIONS)), total);
        let organisations: Vec<i32> = added.keys().copied().collect();
        let stored = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            connection.execute(MAKE, &[&hour, &organisations]).await?;
            let rows = connection.query(LOCK, &[&hour, &organisations]).await?;
            let mut sums = (Vec::new(), Vec::new());
            for row in rows {
                let organisation: i32 = row.get(0);
                let own = added[&organisation];
                // One that cannot be read is written anew.
                let sum = decode_counts(row.get(1)).map_or(own, |earlier| earlier.plus(&own));
                sums.0.push(organisation);
                sums.1.push(encode_counts(&sum));
            }
            connection.execute(WRITE, &[&hour, &sums.0, &sums.1]).await?;
            change.commit(()).await
        });
        stored.await
    }

    pub(in crate::store) async fn history(
        &self,
        steps: HourSteps,
        most: usize,
    ) -> Result<History, ListError> {
        const READ: &str = "
            SELECT hour, organisation, counts FROM history WHERE hour >= $1 AND hour < $2";
        let _turn = self.shared.listings.turn(Lister::Operators).await?;
        let (first, end) = (hour_number(steps.first()), hour_number(steps.end()));
        let rows = self.list_rows(READ, &[&first, &end]).await?;
        let nothing = vec![OrganisationCounts::default(); steps.count()];
        let mut total = nothing.clone();
        let mut organisations: BTreeMap<OrganisationId, Vec<OrganisationCounts>> = BTreeMap::new();
        for row in rows {
            let (hour, organisation): (i32, i32) = (row.get(0), row.get(1));
            let hour = Hour::from_number(hour.unsigned_abs());
            let id = format_args!("{}, organisation {organisation}", hour.start()).to_string();
            let counts = decode_counts(row.get(2));
            let counts = counts.map_err(|reason| DamagedRow::new("history", id, &reason));
            let counts = self.shared.damage.left_out(counts);
            if let (Some(step), Some(counts)) = (steps.position_of(hour), counts) {
                let sums = match organisation.unsigned_abs() {
                    ALL_ORGANISATIONS => &mut total,
                    own => {
                        organisations.entry(OrganisationId(own)).or_insert_with(|| nothing.clone())
                    }
                };
                sums[step] = sums[step].plus(&counts);
            }
        }
        let mail = |counts: &[OrganisationCounts]| {
            counts.iter().map(|counts| counts.accepted + counts.sent).sum::<u64>()
        };
        let mut by_mail: Vec<_> = organisations.into_iter().collect();
        by_mail.sort_by_key(|(organisation, counts)| (Reverse(mail(counts)), *organisation));
        Ok(History { total, organisations: by_mail.into_iter().take(most).collect() })
    }
}

fn hour_number(hour: Hour) -> i32 {
    i32::try_from(hour.number()).unwrap_or(i32::MAX)
}
