//! Usage of organisations on a server: rows of counts that acceptance adds to. An organisation with
//! a limit has one row for a month, which each acceptance of it locks; the others have one for each
//! slot, so that connections do not wait for each other.

use std::collections::{BTreeMap, HashSet};

use tokio_postgres::Row;

use crate::StoreError;
use crate::directory::OrganisationIndex;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::replays::{self, Keys};
use crate::postgres::tables::{Query, array, bigint};
use crate::postgres::{PostgresStore, Shared, millis, number, timestamp};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::organisation::Limits;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::{Count, Exceeded, Period, Usage};

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
const PERIODS: [Period; 4] = [Period::Month, Period::Day, Period::Hour, Period::Minute];

/// Beginnings of the [`PERIODS`] that an instant is in, as statements take them.
pub(super) fn periods(at: Timestamp) -> Vec<i64> {
    PERIODS.map(|period| millis(period.start(at))).to_vec()
}

/// Limits of the organisations that have any, as arrays of one length.
#[derive(Debug, Default)]
pub(super) struct LimitArrays {
    pub(super) organisations: Vec<i32>,
    /// Limits of each organisation, by the [`PERIODS`].
    pub(super) limits: [Vec<Option<i64>>; 4],
}

impl LimitArrays {
    /// Returns the limits of these organisations.
    pub(super) fn of(
        organisations: impl Iterator<Item = OrganisationId>,
        directory: &OrganisationIndex,
    ) -> Self {
        let mut arrays = Self::default();
        for (organisation, limits) in limited(organisations, directory) {
            arrays.organisations.push(number(organisation));
            for (array, period) in arrays.limits.iter_mut().zip(PERIODS) {
                array.push(limits.of(period).map(bigint));
            }
        }
        arrays
    }
}

fn limited(
    organisations: impl Iterator<Item = OrganisationId>,
    directory: &OrganisationIndex,
) -> BTreeMap<OrganisationId, Limits> {
    let limits = organisations.filter_map(|id| {
        let organisation = directory.organisation(id)?;
        (!organisation.limits.is_none()).then_some((organisation.id, organisation.limits))
    });
    limits.collect()
}

/// Recipients that a request needs from its organisation's limits.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) organisation: OrganisationId,
    pub(super) messages: Vec<AskedMessage>,
}

#[derive(Debug)]
pub(super) struct AskedMessage {
    pub(super) id: MessageId,
    pub(super) recipients: u64,
    /// Digest of its idempotency key, and the instant after which an earlier use of it is live.
    pub(super) key: Option<(Vec<u8>, i64)>,
}

/// Result of comparing requests with the limits.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The limit that each request would exceed, in their order.
    pub(super) exceeded: Vec<Option<Exceeded>>,
    /// Messages that are replays: they need no limit.
    pub(super) replays: HashSet<MessageId>,
}

/// Compares requests with the limits of their organisations, the earlier one first.
pub(super) async fn judge(
    shared: &Shared,
    directory: &OrganisationIndex,
    asked: Vec<Asked>,
    now: Timestamp,
) -> Result<Judged, QueryError> {
    let limits = limited(asked.iter().map(|request| request.organisation), directory);
    if limits.is_empty() {
        let exceeded = asked.iter().map(|_| None).collect();
        return Ok(Judged { exceeded, ..Judged::default() });
    }
    let connection = shared.readers.get().await?;
    let organisations: Vec<OrganisationId> = limits.keys().copied().collect();
    let numbers: Vec<i32> = organisations.iter().copied().map(number).collect();
    let month = millis(Period::Month.start(now));
    connection.execute(BEGIN_MONTH, &[&numbers, &month]).await?;
    let usage = read(&connection, &organisations, now).await?;
    let mut usage: BTreeMap<_, _> = organisations.iter().copied().zip(usage).collect();
    shared.memory.usage.replace(usage.iter().map(|(organisation, usage)| (*organisation, *usage)));
    let replays = replayed(&connection, &asked, &limits).await?;
    // If two have one key, the second is a replay of the first.
    let mut kept = HashSet::new();
    let judge = |Asked { organisation, messages }: Asked| {
        let limit = limits.get(&organisation)?;
        let (mut own, mut recipients) = (HashSet::new(), 0);
        for AskedMessage { id, recipients: added, key } in messages {
            let key = key.map(|(key, _)| (organisation, key));
            let is_repeat = key.is_some_and(|key| kept.contains(&key) || !own.insert(key));
            if !is_repeat && !replays.contains(&id) {
                recipients += added;
            }
        }
        let known = usage.entry(organisation).or_default();
        let used = known.at(now);
        if let Some(exceeded) = used.exceeded(limit, recipients, now) {
            return Some(exceeded);
        }
        *known = used;
        known.add(recipients);
        kept.extend(own);
        None
    };
    let exceeded = asked.into_iter().map(judge).collect();
    Ok(Judged { exceeded, replays })
}

/// Returns the messages of limited organisations whose keys have made another message, which is
/// live.
async fn replayed(
    connection: &Connection,
    asked: &[Asked],
    limits: &BTreeMap<OrganisationId, Limits>,
) -> Result<HashSet<MessageId>, QueryError> {
    let (mut ids, mut keys) = (Vec::new(), Keys::default());
    for Asked { organisation, messages } in asked {
        let keyed = messages.iter().filter_map(|message| Some((message.id, message.key.as_ref()?)));
        for (id, (key, live_after)) in keyed.filter(|_| limits.contains_key(organisation)) {
            ids.push(id);
            keys.add(number(*organisation), key.clone(), *live_after);
        }
    }
    let live = replays::live(connection, &keys).await?;
    Ok(live.into_iter().map(|place| ids[place]).collect())
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
