//! History: what happened in each hour on all nodes, in total and of single organisations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use tokio_postgres::types::ToSql;

use crate::domain::history::{Hour, HourSteps};
use crate::domain::id::OrganisationId;
use crate::organisation_counts::OrganisationCounts;
use crate::store::error::DamagedRow;
use crate::store::limits::{ALL_ORGANISATIONS, MAX_COUNTED_ORGANISATIONS};
use crate::store::postgres::{PostgresStore, number};
use crate::store::record::history::{decode_counts, encode_counts};
use crate::store::{CountsByOrganisation, History, ListError, Lister, StoreError};

/// How many rows are read at one time.
const ROWS_PER_LOOK: usize = 10_000;

impl PostgresStore {
    pub(in crate::store) async fn add_to_history(
        &self,
        hour: Hour,
        counts: CountsByOrganisation,
    ) -> Result<(), StoreError> {
        // Made first, then locked: two nodes may make it at one time. No more than `$3`, the first
        // of those that have no row.
        const MAKE: &str = "
            WITH there AS (
                SELECT organisation FROM history WHERE hour = $1
            ), missing AS (
                SELECT organisation, row_number() OVER (ORDER BY place) AS rank
                FROM unnest($2::integer[]) WITH ORDINALITY AS new (organisation, place)
                WHERE organisation NOT IN (SELECT organisation FROM there)
            )
            INSERT INTO history (hour, organisation, counts)
            SELECT $1, organisation, ''::bytea FROM missing
            WHERE rank <= $3 - (SELECT count(*) FROM there)
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
        // The total first: it has a row in any case.
        let all = [(OrganisationId(ALL_ORGANISATIONS), total)];
        let added = all.into_iter().chain(by_mail);
        let added: Vec<_> = added.map(|(id, counts)| (number(id), counts)).collect();
        let organisations: Vec<i32> = added.iter().map(|(organisation, _)| *organisation).collect();
        let added: HashMap<i32, OrganisationCounts> = added.into_iter().collect();
        let most = i64::try_from(MAX_COUNTED_ORGANISATIONS + 1).unwrap_or(i64::MAX);
        let stored = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            connection.execute(MAKE, &[&hour, &organisations, &most]).await?;
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
        let _turn = self.shared.listings.turn(Lister::Operators).await?;
        let nothing = vec![OrganisationCounts::default(); steps.count()];
        let mut total = nothing.clone();
        let mut mail = BTreeMap::<u32, u64>::new();
        self.each_count(&steps, None, |step, organisation, counts| {
            if organisation == ALL_ORGANISATIONS {
                total[step] = total[step].plus(counts);
            } else {
                *mail.entry(organisation).or_default() += counts.accepted + counts.sent;
            }
        })
        .await?;
        // Read again instead of kept: many organisations may have come and gone.
        let mut by_mail: Vec<_> = mail.into_iter().collect();
        by_mail.sort_by_key(|(organisation, mail)| (Reverse(*mail), *organisation));
        let first: Vec<_> =
            by_mail.into_iter().take(most).map(|(id, _)| OrganisationId(id)).collect();
        let mut organisations: BTreeMap<_, _> =
            first.iter().map(|organisation| (*organisation, nothing.clone())).collect();
        let first: Vec<i32> = first.into_iter().map(number).collect();
        self.each_count(&steps, Some(&first), |step, organisation, counts| {
            if let Some(own) = organisations.get_mut(&OrganisationId(organisation)) {
                own[step] = own[step].plus(counts);
            }
        })
        .await?;
        Ok(History { total, organisations })
    }

    /// Shows each row of these steps, or those of some organisations alone, with the position of its
    /// step and the number of its organisation.
    async fn each_count(
        &self,
        steps: &HourSteps,
        organisations: Option<&[i32]>,
        mut show: impl FnMut(usize, u32, &OrganisationCounts),
    ) -> Result<(), StoreError> {
        const READ: &str = "
            SELECT hour, organisation, counts FROM history
            WHERE (hour, organisation) > ($1, $2) AND hour < $3
                AND ($4::integer[] IS NULL OR organisation = ANY($4))
            ORDER BY hour, organisation LIMIT $5";
        let end = hour_number(steps.end());
        let (mut hour, mut organisation) = (hour_number(steps.first()), -1_i32);
        let most = i64::try_from(ROWS_PER_LOOK).unwrap_or(i64::MAX);
        loop {
            let parameters: [&(dyn ToSql + Sync); 5] =
                [&hour, &organisation, &end, &organisations, &most];
            let rows = self.list_rows(READ, &parameters).await?;
            for row in &rows {
                (hour, organisation) = (row.get(0), row.get(1));
                let start = Hour::from_number(hour.unsigned_abs());
                let id = format_args!("{}, organisation {organisation}", start.start()).to_string();
                let counts = decode_counts(row.get(2));
                let counts = counts.map_err(|reason| DamagedRow::new("history", id, &reason));
                let counts = self.shared.damage.left_out(counts);
                if let (Some(step), Some(counts)) = (steps.position_of(start), counts) {
                    show(step, organisation.unsigned_abs(), &counts);
                }
            }
            if rows.len() < ROWS_PER_LOOK {
                return Ok(());
            }
        }
    }
}

fn hour_number(hour: Hour) -> i32 {
    i32::try_from(hour.number()).unwrap_or(i32::MAX)
}
