//! Usage of organisations on a server: rows of counts that acceptance adds to. An organisation with a
//! limit has one row for a month, which each acceptance of it locks; the others have one for each slot,
//! so that connections do not wait for each other.

use std::collections::{BTreeMap, HashSet};

use tokio_postgres::Row;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::organisation::Limits;
use crate::domain::time::Timestamp;
use crate::domain::usage::{Count, Period, Usage};
use crate::store::directory::OrganisationIndex;
use crate::store::postgres::accept::{Request, digest, replays};
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::tables::{Parameter, Query, bigint};
use crate::store::postgres::{PostgresStore, Shared, millis, number, timestamp};
use crate::store::{AcceptError, NewMessage, StoreError};

/// A limit applies only to a row that is there: two first acceptances of a month could both be within
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

/// Beginnings of the month, the day, the hour and the minute that an instant is in, as statements take
/// them.
pub(super) fn periods(at: Timestamp) -> Vec<i64> {
    let periods = [Period::Month, Period::Day, Period::Hour, Period::Minute];
    periods.map(|period| millis(period.start(at))).to_vec()
}

/// Limits of the organisations that have any, as arrays of one length.
#[derive(Debug, Default)]
pub(super) struct LimitArrays {
    pub(super) organisations: Vec<i32>,
    /// By month, day, hour and minute, as [`periods`].
    pub(super) limits: [Vec<Option<i64>>; 4],
}

impl LimitArrays {
    /// Returns those of the organisations of a batch.
    pub(super) fn of(batch: &[Request], directory: &OrganisationIndex) -> Self {
        let mut arrays = Self::default();
        for (organisation, limits) in limited(batch, directory) {
            let Limits { per_minute, per_hour, per_day, per_month } = limits;
            arrays.organisations.push(number(organisation));
            let all = [per_month, per_day, per_hour, per_minute];
            for (array, limit) in arrays.limits.iter_mut().zip(all) {
                array.push(limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)));
            }
        }
        arrays
    }
}

fn limited(batch: &[Request], directory: &OrganisationIndex) -> BTreeMap<OrganisationId, Limits> {
    let messages = batch.iter().flat_map(|request| &request.messages);
    let limits = messages.filter_map(|message| {
        let organisation = directory.organisation(message.organisation)?;
        (!organisation.limits.is_none()).then_some((organisation.id, organisation.limits))
    });
    limits.collect()
}

/// Refuses the requests of a batch that exceed a limit of their organisation, and leaves the others.
/// Returns the messages that are replays: those need no limit.
pub(super) async fn refuse_exceeding(
    shared: &Shared,
    directory: &OrganisationIndex,
    batch: &mut Vec<Request>,
    now: Timestamp,
) -> Result<HashSet<MessageId>, QueryError> {
    let limits = limited(batch, directory);
    if limits.is_empty() {
        return Ok(HashSet::new());
    }
    let connection = shared.readers.get(&shared.connector).await?;
    let organisations: Vec<OrganisationId> = limits.keys().copied().collect();
    let numbers: Vec<i32> = organisations.iter().copied().map(number).collect();
    let month = millis(Period::Month.start(now));
    connection.execute(BEGIN_MONTH, &[&numbers, &month]).await?;
    let usage = read(&connection, &organisations, now).await?;
    let mut usage: BTreeMap<_, _> = organisations.iter().copied().zip(usage).collect();
    shared.memory.usage.replace(usage.iter().map(|(organisation, usage)| (*organisation, *usage)));
    let is_limited = |request: &&Request| {
        request.messages.first().is_some_and(|message| limits.contains_key(&message.organisation))
    };
    let asked = replays(&connection, &batch.iter().filter(is_limited).collect::<Vec<_>>());
    let replays = asked.await?;
    // Of two with one key, the second is a replay of the first.
    let mut kept = HashSet::new();
    for request in std::mem::take(batch) {
        let organisation = request.messages.first().map(|message| message.organisation);
        let Some(limit) = organisation.and_then(|organisation| limits.get(&organisation)) else {
            batch.push(request);
            continue;
        };
        let organisation = organisation.expect("it has a limit");
        let key = |message: &NewMessage| {
            message.claim.as_ref().map(|claim| (organisation, digest(claim.key.as_key())))
        };
        let mut own = HashSet::new();
        let mut is_new = |message: &&NewMessage| {
            let is_repeat = |key| kept.contains(&key) || !own.insert(key);
            !replays.contains(&message.id) && !key(message).is_some_and(is_repeat)
        };
        let new = request.messages.iter().filter(|message| is_new(message));
        let recipients = new.map(|message| message.recipients).sum();
        let known = usage.entry(organisation).or_default();
        let used = known.at(now);
        match used.exceeded(limit, recipients, now) {
            Some(exceeded) if recipients > 0 => {
                // The client may be gone.
                let _ = request.reply.send(Err(AcceptError::LimitReached(exceeded)));
            }
            _ => {
                *known = used;
                known.add(recipients);
                kept.extend(own);
                batch.push(request);
            }
        }
    }
    Ok(replays)
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
    let organisations: Vec<i32> = usage.iter().map(|(of, _)| number(*of)).collect();
    let mut parameters: Vec<Parameter> = vec![Box::new(organisations)];
    for period in [Period::Month, Period::Day, Period::Hour, Period::Minute] {
        let counts = || usage.iter().map(|(_, usage)| usage.of(period));
        parameters.push(Box::new(counts().map(|count| millis(count.start)).collect::<Vec<_>>()));
        parameters.push(Box::new(counts().map(|count| bigint(count.used)).collect::<Vec<_>>()));
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
    pub(in crate::store) async fn usage(
        &self,
        organisations: &[OrganisationId],
        now: Timestamp,
    ) -> Result<Vec<Usage>, StoreError> {
        let read = async {
            let connection = self.shared.listers.get(&self.shared.connector).await?;
            read(&connection, organisations, now).await
        };
        read.await.map_err(|error| self.shared.refused(error))
    }

    pub(in crate::store) async fn usage_of_month(
        &self,
        month: Timestamp,
    ) -> Result<Vec<(OrganisationId, u64)>, StoreError> {
        let read = async {
            let connection = self.shared.listers.get(&self.shared.connector).await?;
            connection.query(OF_MONTH, &[&millis(month)]).await
        };
        let rows = read.await.map_err(|error| self.shared.refused(error))?;
        let used = |row: &Row| {
            let organisation = OrganisationId(row.get::<_, i32>(0).unsigned_abs());
            (organisation, row.get::<_, i64>(1).unsigned_abs())
        };
        Ok(rows.iter().map(used).collect())
    }
}
