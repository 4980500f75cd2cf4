//! Acceptance: the requests that gather while one transaction is under way share the next one.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::directory::OrganisationIndex;
use crate::interface::KeyClaim;
use crate::organisation_counts::Increment;
use crate::postgres::error::QueryError;
use crate::postgres::replays::{self, AskedKey, HashedKey, asked_key};
use crate::postgres::session::{Ran, Session};
use crate::postgres::tables::bigint;
use crate::postgres::usage::{self, PERIODS};
use crate::postgres::{PostgresStore, Shared, answer_to, message_id, millis, number, uuid_of};
use crate::{AcceptError, Accepted, BatchMode, NewMessage, StoreError};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::Exceeded;

/// Largest number of requests that wait for a writer. Beyond it, callers wait to hand over theirs.
pub(super) const QUEUE_CAPACITY: usize = 4_096;
const MAX_MESSAGES: usize = 256;
/// The most bytes of records of one transaction.
const MAX_BYTES: usize = 1 << 20;
/// Number of times that a transaction that met a conflict is repeated.
const CONFLICTS: usize = 5;
const CONFLICT_PAUSE: Duration = Duration::from_millis(5);

/// Accepts messages. `$1` is the directory as this node knows it. If another node has changed it,
/// or the session `$16` is gone, nothing is accepted, and the session counts nothing. A key that is
/// 24 hours old is taken over, else its message is the answer. Keys that are given to the new
/// messages are left out of the answer: they are many. The keys are in order, so that two
/// transactions do not wait for each other. The arrays have one length. Unnested in a list of
/// columns, they make rows without a copy of each.
///
/// `$9` has the number of recipients of each message, `$10` the beginnings of the month, the day,
/// the hour and the minute. `$11` are the organisations with limits, `$12` to `$15` their limits in
/// these: if all messages together exceed one, nothing is accepted either. Replays count too until
/// it is known that they are.
const ACCEPT: &str = "
WITH limited AS (
    SELECT unnest($11::integer[]) AS organisation, unnest($12::bigint[]) AS per_month,
        unnest($13::bigint[]) AS per_day, unnest($14::bigint[]) AS per_hour,
        unnest($15::bigint[]) AS per_minute
), asked AS (
    SELECT organisation, sum(recipients)::bigint AS added
    FROM unnest($3::integer[], $9::bigint[]) AS one (organisation, recipients)
    GROUP BY organisation
), locked AS MATERIALIZED (
    SELECT organisation, month_used, day, day_used, hour, hour_used, minute, minute_used
    FROM usage JOIN limited USING (organisation)
    WHERE month = ($10::bigint[])[1] AND slot = 0 ORDER BY organisation FOR UPDATE OF usage
), counts AS (
    SELECT * FROM locked UNION ALL
    SELECT organisation, month_used, day, day_used, hour, hour_used, minute, minute_used
    FROM usage JOIN limited USING (organisation)
    WHERE month = ($10::bigint[])[1] AND slot <> 0
), used AS (
    SELECT organisation, sum(month_used) AS in_month,
        coalesce(sum(day_used) FILTER (WHERE day >= ($10::bigint[])[2]), 0) AS in_day,
        coalesce(sum(hour_used) FILTER (WHERE hour >= ($10::bigint[])[3]), 0) AS in_hour,
        coalesce(sum(minute_used) FILTER (WHERE minute >= ($10::bigint[])[4]), 0) AS in_minute
    FROM counts GROUP BY organisation
), fitting AS (
    SELECT count(*) = cardinality($11::integer[]) AS fits
    FROM limited JOIN asked USING (organisation) JOIN used USING (organisation)
    WHERE organisation IN (SELECT organisation FROM locked)
        AND in_month + added <= coalesce(per_month, 9223372036854775807)
        AND in_day + added <= coalesce(per_day, 9223372036854775807)
        AND in_hour + added <= coalesce(per_hour, 9223372036854775807)
        AND in_minute + added <= coalesce(per_minute, 9223372036854775807)
), counted AS (
    UPDATE session
    SET writes = writes
        + (SELECT count(*) FROM cluster, fitting WHERE directory_version = $1 AND fits)
    WHERE id = $16 RETURNING writes
), current AS (
    SELECT FROM cluster, counted, fitting WHERE directory_version = $1 AND fits
), given AS MATERIALIZED (
    SELECT unnest($2::uuid[]) AS id, unnest($3::integer[]) AS organisation,
        unnest($4::bytea[]) AS record, unnest($5::bytea[]) AS key,
        unnest($6::bigint[]) AS created_at, unnest($9::bigint[]) AS recipients
    FROM current
), keyed AS (
    INSERT INTO idempotency AS known (organisation, key, message, created_at)
    SELECT organisation, key, id, created_at FROM given WHERE key IS NOT NULL
    ORDER BY organisation, key
    ON CONFLICT (organisation, key) DO UPDATE SET
        message = CASE WHEN known.created_at <= $7 THEN excluded.message ELSE known.message END,
        created_at =
            CASE WHEN known.created_at <= $7 THEN excluded.created_at ELSE known.created_at END
    RETURNING organisation, key, message
), new AS NOT MATERIALIZED (
    SELECT id, organisation, record, recipients FROM given
    WHERE key IS NULL OR id IN (SELECT message FROM keyed)
), stored AS (
    INSERT INTO message (id, organisation, record) SELECT id, organisation, record FROM new
), held AS (
    INSERT INTO pending (id, node) SELECT id, $8 FROM new
), added AS (
    INSERT INTO usage AS known
    SELECT organisation, ($10::bigint[])[1],
        CASE WHEN organisation = ANY($11::integer[]) THEN 0 ELSE 1 + $16::bigint % 15 END,
        sum(recipients), ($10::bigint[])[2], sum(recipients), ($10::bigint[])[3],
        sum(recipients), ($10::bigint[])[4], sum(recipients)
    FROM new GROUP BY organisation ORDER BY organisation
    ON CONFLICT (organisation, month, slot) DO UPDATE SET
        month_used = known.month_used + excluded.month_used,
        day = greatest(known.day, excluded.day),
        day_used = excluded.day_used
            + CASE WHEN known.day >= excluded.day THEN known.day_used ELSE 0 END,
        hour = greatest(known.hour, excluded.hour),
        hour_used = excluded.hour_used
            + CASE WHEN known.hour >= excluded.hour THEN known.hour_used ELSE 0 END,
        minute = greatest(known.minute, excluded.minute),
        minute_used = excluded.minute_used
            + CASE WHEN known.minute >= excluded.minute THEN known.minute_used ELSE 0 END
)
SELECT writes, NULL::integer, NULL::bytea, NULL::uuid FROM counted
UNION ALL SELECT NULL, organisation, key, message FROM keyed
    WHERE message NOT IN (SELECT id FROM given)";

/// Messages that are accepted in one transaction.
pub(super) struct Request {
    /// Messages that are not refused.
    messages: Vec<Asked>,
    mode: BatchMode,
    /// Answers to the refused messages, by their places.
    refused: BTreeMap<usize, Result<Accepted, AcceptError>>,
    reply: oneshot::Sender<Result<Answers, AcceptError>>,
}

/// Message of a request.
struct Asked {
    place: usize,
    message: NewMessage,
    /// Its idempotency key; a use of the key after this instant is live.
    key: Option<AskedKey>,
}

/// Messages that keys have made.
type Found = HashMap<HashedKey, MessageId>;

/// Answers to the messages of a request, in their order.
type Answers = Vec<Result<Accepted, AcceptError>>;

impl Asked {
    fn new((place, message): (usize, NewMessage)) -> Self {
        let claim = message.claim.as_ref();
        let key = claim.map(|KeyClaim { key, window_now }| {
            asked_key(message.organisation, key.as_key(), window_now)
        });
        Self { place, message, key }
    }

    /// Returns its key, if it has one.
    fn key(&self) -> Option<&HashedKey> {
        self.key.as_ref().map(|(key, _)| key)
    }
}

impl Request {
    fn messages(&self) -> impl Iterator<Item = &NewMessage> {
        self.messages.iter().map(|asked| &asked.message)
    }

    /// Refuses the whole request.
    fn refuse(self, error: AcceptError) {
        // The caller may have disconnected.
        let _ = self.reply.send(Err(error));
    }

    /// Refuses messages whose right has ended; `None` if that refuses the whole request.
    fn check_rights(mut self, directory: &OrganisationIndex) -> Option<Self> {
        for asked in std::mem::take(&mut self.messages) {
            match asked.message.check_right(self.mode, asked.place, directory) {
                Ok(Ok(())) => self.messages.push(asked),
                Ok(Err(error)) => drop(self.refused.insert(asked.place, Err(error))),
                Err(error) => {
                    self.refuse(error);
                    return None;
                }
            }
        }
        Some(self)
    }
}

pub(super) type Requests = Mutex<mpsc::Receiver<Request>>;

impl PostgresStore {
    pub(crate) async fn accept_all(
        &self,
        messages: Vec<NewMessage>,
        mode: BatchMode,
    ) -> Result<Answers, AcceptError> {
        let messages = messages.into_iter().enumerate().map(Asked::new).collect();
        let request = |reply| Request { messages, mode, refused: BTreeMap::new(), reply };
        let accepted = answer_to(&self.accepting, request);
        let accepted = timeout(self.shared.answer_timeout, accepted).await;
        accepted.unwrap_or(Err(StoreError::OutcomeOpen.into()))
    }
}

/// Accepts queued requests, until nobody can queue any more.
pub(super) async fn work(shared: Arc<Shared>, mut session: Session, requests: Arc<Requests>) {
    while let Some(batch) = gather(&requests).await {
        accept(&shared, &mut session, batch).await;
        // A caller that was answered may ask again at once. Such callers go first, so that their
        // messages share the next transaction: one of few messages takes the server nearly as long
        // as one of many.
        yield_now().await;
    }
}

/// Takes queued requests, as many as fit into one transaction.
async fn gather(requests: &Requests) -> Option<Vec<Request>> {
    let mut queue = requests.lock().await;
    let mut batch = vec![queue.recv().await?];
    let bytes = |request: &Request| request.messages().map(|m| m.row.len()).sum::<usize>();
    let (mut count, mut size) = (batch[0].messages.len(), bytes(&batch[0]));
    while count < MAX_MESSAGES && size < MAX_BYTES {
        let Ok(request) = queue.try_recv() else { break };
        count += request.messages.len();
        size += bytes(&request);
        batch.push(request);
    }
    Some(batch)
}

/// Makes a batch one transaction, and answers all.
async fn accept(shared: &Shared, session: &mut Session, mut batch: Vec<Request>) {
    let began = Instant::now();
    // Messages that are known to be replays.
    let mut replays = HashSet::new();
    let decided = loop {
        // The statement compares this version with the server's, so the checked directory is the
        // one that counts.
        let directory = shared.memory.directory.load();
        batch = batch.into_iter().filter_map(|one| one.check_rights(&directory)).collect();
        if batch.is_empty() {
            return;
        }
        let now = batch.iter().flat_map(Request::messages).map(|m| m.counted_at).max();
        let now = now.unwrap_or_default();
        let parameters = Parameters::of(&batch, &directory, &replays, now);
        if let Some(decided) = decide(shared, session, parameters).await.transpose() {
            break decided;
        }
        // Another node has changed the directory, and withdrawn rights must not be used; or a limit
        // is reached.
        if let Err(error) = refuse_exceeding(shared, &mut batch, &mut replays, now).await {
            break Err(error);
        }
    };
    match decided {
        Ok(found) => {
            let mut increments = Vec::new();
            let operations = batch.len();
            let mut answers = Vec::with_capacity(operations);
            for Request { messages, refused: mut told, reply, .. } in batch {
                let mut has_panicked = false;
                told.extend(messages.into_iter().map(|asked| {
                    let earlier = asked.key().and_then(|key| found.get(key));
                    let Asked { place, message, .. } = asked;
                    if let Some(earlier) = earlier.filter(|earlier| **earlier != message.id) {
                        return (place, Ok(Accepted::Replayed(*earlier)));
                    }
                    increments.push((message.organisation, Increment::Accepted));
                    // A panic for one message does not fail the others.
                    has_panicked |= catch_unwind(AssertUnwindSafe(message.on_new)).is_err();
                    (place, Ok(Accepted::New(message.id)))
                }));
                let answer = if has_panicked {
                    Err(StoreError::OutcomeOpen.into())
                } else {
                    Ok(told.into_values().collect())
                };
                answers.push((answer, reply));
            }
            shared.memory.metrics.committed(operations, began.elapsed(), increments);
            for (answer, reply) in answers {
                // The caller may have disconnected; the messages are accepted all the same.
                let _ = reply.send(answer);
            }
        }
        Err(error) => {
            shared.memory.metrics.commit_failed();
            shared.lost(&error);
            for request in batch {
                request.refuse(StoreError::Unavailable.into());
            }
        }
    }
}

/// Refuses requests that exceed a limit of their organisation, by the directory and the usage of
/// now; the earlier request counts first. Messages whose keys have made another message, which is
/// live, need no limit: they are added to `replays`.
async fn refuse_exceeding(
    shared: &Shared,
    batch: &mut Vec<Request>,
    replays: &mut HashSet<MessageId>,
    now: Timestamp,
) -> Result<(), QueryError> {
    shared.reload_directory().await?;
    let directory = shared.memory.directory.load_full();
    let organisations =
        batch.iter().flat_map(Request::messages).map(|message| message.organisation);
    let limits = usage::limited(organisations, &directory);
    if limits.is_empty() {
        return Ok(());
    }
    let connection = shared.readers.get().await?;
    let mut usage = usage::begin_month(&connection, limits.keys().copied().collect(), now).await?;
    shared.memory.usage.replace(usage.iter().map(|(organisation, usage)| (*organisation, *usage)));
    let messages = batch.iter().flat_map(|request| &request.messages);
    let limited = messages.filter(|asked| limits.contains_key(&asked.message.organisation));
    let keyed = limited.filter_map(|Asked { message, key, .. }| Some((message.id, key.clone()?)));
    let (ids, keys): (Vec<MessageId>, Vec<AskedKey>) = keyed.unzip();
    let live = replays::live(&connection, &keys).await?;
    let live: HashSet<MessageId> = live.into_iter().map(|(place, _)| ids[place]).collect();
    // If two have one key, the second is a replay of the first.
    let mut kept = HashSet::new();
    let exceeded = batch.iter().map(|request| {
        let organisation = request.messages().next()?.organisation;
        let limit = limits.get(&organisation)?;
        let (mut own, mut recipients) = (HashSet::new(), 0);
        for asked in &request.messages {
            let is_repeat = asked.key().is_some_and(|key| kept.contains(key) || !own.insert(key));
            if !is_repeat && !live.contains(&asked.message.id) {
                recipients += asked.message.recipients;
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
    });
    let exceeded: Vec<Option<Exceeded>> = exceeded.collect();
    let judged = std::mem::take(batch).into_iter().zip(exceeded);
    let left = judged.filter_map(|(request, exceeded)| match exceeded {
        None => Some(request),
        Some(exceeded) => {
            request.refuse(AcceptError::LimitReached(exceeded));
            None
        }
    });
    batch.extend(left);
    replays.extend(live);
    Ok(())
}

#[derive(Default)]
struct Parameters<'a> {
    /// Of the directory.
    version: i64,
    /// Largest skew of an id ahead of its acceptance, in milliseconds.
    lead: i64,
    ids: Vec<Uuid>,
    organisations: Vec<i32>,
    records: Vec<&'a [u8]>,
    keys: Vec<Option<&'a [u8]>>,
    times: Vec<i64>,
    live_after: i64,
    recipients: Vec<i64>,
    periods: Vec<i64>,
    /// Organisations with limits, and the limits by the [`PERIODS`].
    limited: Vec<i32>,
    limits: [Vec<Option<i64>>; 4],
    /// The answer, if nobody has used one of the keys before.
    found: Found,
}

impl<'a> Parameters<'a> {
    fn of(
        batch: &'a [Request],
        directory: &OrganisationIndex,
        replays: &HashSet<MessageId>,
        now: Timestamp,
    ) -> Self {
        let messages = || batch.iter().flat_map(Request::messages);
        let organisations = messages().map(|message| message.organisation);
        let lead = messages().map(|m| millis(m.id.instant()) - millis(m.created_at)).max();
        let mut parameters = Self {
            version: directory.version.cast_signed(),
            lead: lead.unwrap_or_default(),
            live_after: i64::MAX,
            periods: usage::periods(now),
            ..Self::default()
        };
        for (organisation, limits) in usage::limited(organisations, directory) {
            parameters.limited.push(number(organisation));
            for (array, period) in parameters.limits.iter_mut().zip(PERIODS) {
                array.push(limits.of(period).map(bigint));
            }
        }
        for Asked { message, key, .. } in batch.iter().flat_map(|request| &request.messages) {
            if let Some((key, live_after)) = key {
                // If two have one key, the second is a replay of the first.
                match parameters.found.entry(key.clone()) {
                    Entry::Occupied(_) => continue,
                    Entry::Vacant(entry) => entry.insert(message.id),
                };
                parameters.live_after = parameters.live_after.min(*live_after);
            }
            parameters.ids.push(uuid_of(message.id));
            parameters.organisations.push(number(message.organisation));
            parameters.records.push(&message.row);
            parameters.keys.push(key.as_ref().map(|((_, digest), _)| &**digest));
            parameters.times.push(millis(message.created_at));
            let is_replay = replays.contains(&message.id);
            let recipients = if is_replay { 0 } else { message.recipients };
            parameters.recipients.push(bigint(recipients));
        }
        parameters
    }

    fn all<'p>(&'p self, node: &'p i32) -> [&'p (dyn ToSql + Sync); 15] {
        let [per_month, per_day, per_hour, per_minute] = &self.limits;
        [
            &self.version,
            &self.ids,
            &self.organisations,
            &self.records,
            &self.keys,
            &self.times,
            &self.live_after,
            node,
            &self.recipients,
            &self.periods,
            &self.limited,
            per_month,
            per_day,
            per_hour,
            per_minute,
        ]
    }
}

/// Makes a batch one transaction; `None` if the directory had another version.
async fn decide(
    shared: &Shared,
    session: &mut Session,
    mut parameters: Parameters<'_>,
) -> Result<Option<Found>, QueryError> {
    if parameters.ids.is_empty() {
        return Ok(Some(parameters.found));
    }
    shared.note_lead(parameters.lead).await?;
    let node = shared.node.id();
    let mut attempt = 1;
    let rows = loop {
        match session.run(ACCEPT, &parameters.all(&node)).await {
            Ok(Ran::Answered(rows)) => break rows,
            Ok(Ran::WroteNothing) => return Ok(None),
            Ok(Ran::Unanswered) => return Ok(Some(found_after_all(shared, &parameters).await)),
            Err(error) if attempt <= CONFLICTS && error.may_be_repeated(attempt) => {
                attempt += 1;
                sleep(CONFLICT_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    };
    let keyed = rows.iter().filter_map(|row| {
        let organisation = row.get::<_, Option<i32>>(1)?;
        Some(((organisation, row.get(2)), message_id(row.get(3))))
    });
    parameters.found.extend(keyed);
    Ok(Some(parameters.found))
}

/// Reads the messages that the keys of a transaction have. The transaction was made, and its answer
/// was lost.
async fn found_after_all(shared: &Shared, parameters: &Parameters<'_>) -> Found {
    // As in `ACCEPT`: a key's earlier message counts only if the key was not taken over.
    const KEYS: &str = "
        SELECT known.organisation, known.key, known.message FROM idempotency AS known
        JOIN unnest($1::integer[], $2::bytea[], $3::uuid[]) AS asked (organisation, key, message)
        USING (organisation, key)
        WHERE known.message = asked.message OR known.created_at > $4";
    let Parameters { organisations, keys, ids, live_after, .. } = parameters;
    loop {
        let parameters: [&(dyn ToSql + Sync); 4] = [organisations, keys, ids, live_after];
        let read = async { shared.readers.get().await?.query(KEYS, &parameters).await };
        match read.await {
            Ok(rows) => {
                let keyed =
                    rows.iter().map(|row| ((row.get(0), row.get(1)), message_id(row.get(2))));
                return keyed.collect();
            }
            // It is accepted. The caller has to learn that, or a queue would miss it.
            Err(error) => shared.lost(&error),
        }
        sleep(Duration::from_millis(200)).await;
    }
}
