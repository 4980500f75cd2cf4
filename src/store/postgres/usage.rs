//! Usage of organisations on a server: rows of counts that acceptance adds to. An organisation with
//! a limit has one row for a month, which each acceptance of it locks; the others have one for each
//! slot, so that connections do not wait for each other.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use crate::StoreError;
use crate::directory::OrganisationIndex;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::tables::{Query, array, bigint};
use crate::postgres::{PostgresStore, millis, number, timestamp};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::organisation::Limits;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::{Count, Period, Usage};

/// A limit applies only to a row that exists: two first acceptances of a month could both be within
/// it.
const BEGIN_MONTH: &str = "
INSERT INTO usage
SELECT organisation, $2, 0, 0, 0, 0, 0, 0, 0, 0 FROM unnest($1::integer[]) AS organisation
ORDER BY organisation ON CONFLICT DO NOTHING";
const USAGE: &str = "
SELECT organisation, month, month_used, day, day_used, hour, hour_used, minute, minute_used
FROM usage WHERE organisation = ANY($1) AND month = $2";
const OF_MONTH: &str = "
SELECT organisation, sum(month_used)::bigint FROM usage
WHERE month = $1 GROUP BY organisation HAVING sum(month_used) > 0";

/// Periods in the order in which rows and statements have them.
pub(super) const PERIODS: [Period; 4] = [Period::Month, Period::Day, Period::Hour, Period::Minute];

/// Beginnings of the [`PERIODS`] that an instant is in, as statements take them.
pub(super) fn periods(at: Timestamp) -> Vec<i64> {
    PERIODS.map(|period| millis(period.start(at))).to_vec()
}

/// Returns those of these organisations that have limits.
pub(super) fn limited(
    organisations: impl Iterator<Item = OrganisationId>,
    directory: &OrganisationIndex,
) -> BTreeMap<OrganisationId, Limits> {
    let limits = organisations.filter_map(|id| {
        let organisation = directory.organisation(id)?;
        (!organisation.limits.is_none()).then_some((organisation.id, organisation.limits))
    });
    limits.collect()
}

/// Returns the usage of these organisations in the periods that `now` is in. Makes the rows of the
/// month that are missing.
pub(super) async fn begin_month(
    connection: &Connection,
    organisations: Vec<OrganisationId>,
    now: Timestamp,
) -> Result<BTreeMap<OrganisationId, Usage>, QueryError> {
    let numbers: Vec<i32> = organisations.iter().copied().map(number).collect();
    let month = millis(Period::Month.start(now));
    connection.execute(BEGIN_MONTH, &[&numbers, &month]).await?;
    let usage = read(connection, &organisations, now).await?;
    Ok(organisations.into_iter().zip(usage).collect())
}

/// Returns the usage of each of these organisations in the periods that `now` is in.
async fn read(
    connection: &Connection,
    organisations: &[OrganisationId],
    now: Timestamp,
) -> Result<Vec<Usage>, QueryError> {
    let numbers: Vec<i32> = organisations.iter().copied().map(number).collect();
    let month = millis(Period::Month.start(now));
    let rows = connection.query(USAGE, &[&numbers, &month]).await?;
    let mut sums: BTreeMap<i32, Usage> = BTreeMap::new();
    for row in rows {
        let sum = sums.entry(row.get(0)).or_default();
        *sum = sum.and(usage_of(&row));
    }
    Ok(numbers.iter().map(|number| sums.get(number).copied().unwrap_or_default().at(now)).collect())
}

/// Writes usage that a data file had, to the first slot.
pub(super) fn put_usage(usage: &[(OrganisationId, Usage)]) -> Query {
    const PUT: &str = "
        INSERT INTO usage SELECT organisation, month, 0, month_used, day, day_used, hour, hour_used,
            minute, minute_used
        FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
            $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[])
            AS new (organisation, month, month_used, day, day_used, hour, hour_used, minute,
                minute_used)";
    let mut parameters = vec![array(usage.iter().map(|(of, _)| number(*of)))];
    for period in PERIODS {
        let counts = || usage.iter().map(|(_, usage)| usage.of(period));
        parameters.push(array(counts().map(|count| millis(count.start))));
        parameters.push(array(counts().map(|count| bigint(count.used))));
    }
    Query::new(PUT, parameters)
}

fn usage_of(row: &Row) -> Usage {
    let count = |at: usize| Count {
        start: timestamp(row.get(at)),
        used: row.get::<_, i64>(at + 1).unsigned_abs(),
    };
    Usage { month: count(1), day: count(3), hour: count(5), minute: count(7) }
}

impl PostgresStore {
    pub(crate) async fn usage(
        &self,
        organisations: &[OrganisationId],
        now: Timestamp,
    ) -> Result<Vec<Usage>, StoreError> {
        let read = async { read(&*self.shared.listers.get().await?, organisations, now).await };
        read.await.map_err(|error| self.shared.refused(error))
    }

    pub(crate) async fn usage_of_month(
        &self,
        month: Timestamp,
    ) -> Result<Vec<(OrganisationId, u64)>, StoreError> {
        let read =
            async { self.shared.listers.get().await?.query(OF_MONTH, &[&millis(month)]).await };
        let rows = read.await.map_err(|error| self.shared.refused(error))?;
        let used = |row: &Row| {
            let organisation = OrganisationId(row.get::<_, i32>(0).unsigned_abs());
            (organisation, row.get::<_, i64>(1).unsigned_abs())
        };
        Ok(rows.iter().map(used).collect())
    }
}
