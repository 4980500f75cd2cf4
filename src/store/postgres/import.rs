//! Import of a data file's rows into an empty database, all or nothing.

use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;

use crate::StoreOwner;
use crate::cluster::FIRST_WITH_WEBHOOK_FORMATS;
use crate::postgres::connection::{Connection, Connector, PostgresServer};
use crate::postgres::error::QueryError;
use crate::postgres::replays::digest;
use crate::postgres::rows::put_key_use;
use crate::postgres::silence::Purpose;
use crate::postgres::tables::{Known, Query, array, bigint, put, set_counter};
use crate::postgres::usage::put_usage;
use crate::postgres::{number, schema, uuid_of};
use crate::rows::Table;
use crate::transfer::{Chunk, Facts, ImportError, Imported};

/// No limits of time, because an import may take hours.
const NO_LIMITS: &str = "SET statement_timeout = 0; SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = 0";
/// No node joins until the end of the import.
const KEEP_NODES_OUT: &str = "LOCK TABLE node IN EXCLUSIVE MODE";
const NODES: &str = "SELECT name FROM node ORDER BY name";
const IS_EMPTY: &str = "
SELECT NOT (EXISTS (SELECT FROM organisation) OR EXISTS (SELECT FROM message)
    OR EXISTS (SELECT FROM suppression) OR EXISTS (SELECT FROM feed))";
/// Held by no node, because its body is lost.
const PENDING: &str = "INSERT INTO pending (id, node) SELECT id, 0 FROM unnest($1::uuid[]) AS id";
/// A key may be there twice, if it was used once more after its window. The newer one counts.
const IDEMPOTENCY_KEYS: &str = "
INSERT INTO idempotency AS known (organisation, key, message, created_at)
SELECT DISTINCT ON (organisation, key) * FROM
    unnest($1::integer[], $2::bytea[], $3::uuid[], $4::bigint[])
    AS new (organisation, key, message, created_at)
ORDER BY organisation, key, created_at DESC
ON CONFLICT (organisation, key) DO UPDATE SET
    message = excluded.message, created_at = excluded.created_at
    WHERE known.created_at < excluded.created_at";
/// A provider's id may be there twice if the provider made a mistake.
const SENT: &str = "
INSERT INTO sent AS known (ses_message_id, id, sent_at)
SELECT DISTINCT ON (ses_message_id) * FROM
    unnest($1::text[], $2::uuid[], $3::bigint[]) AS new (ses_message_id, id, sent_at)
ORDER BY ses_message_id, sent_at DESC
ON CONFLICT (ses_message_id) DO UPDATE SET id = excluded.id, sent_at = excluded.sent_at
    WHERE known.sent_at < excluded.sent_at";
const FACTS: &str = "
UPDATE cluster SET directory_version = directory_version + 1, id_lead = $1, feed_id = $2,
    time_record = $3, made_by_dev = $4, oldest_reader = greatest(oldest_reader, $5)";
const FEED_ENDS: &str =
    "INSERT INTO feed_end SELECT organisation, max(position) FROM feed GROUP BY organisation";
const FEED_COUNTER: &str =
    "UPDATE feed_counter SET last = greatest(last, $1, 1, (SELECT max(last) FROM feed_end))";

/// An import that has begun: its transaction is open, and the database is empty and without nodes.
pub(crate) struct Import {
    connection: Connection,
    done: Imported,
}

impl Import {
    pub(crate) async fn begin(server: &PostgresServer) -> Result<Self, ImportError> {
        let connection = Connector::new(server).connect_for(Purpose::Import).await?;
        let prepared = schema::prepare(&connection, StoreOwner::Service).await;
        prepared.map_err(|error| ImportError::Server(error.to_string()))?;
        connection.batch(NO_LIMITS).await?;
        connection.batch("BEGIN").await?;
        connection.batch(KEEP_NODES_OUT).await?;
        let nodes = connection.query(NODES, &[]).await?;
        if !nodes.is_empty() {
            return Err(ImportError::Nodes(nodes.iter().map(|row| row.get(0)).collect()));
        }
        if !connection.query_one(IS_EMPTY, &[]).await?.get::<_, bool>(0) {
            return Err(ImportError::NotEmpty);
        }
        Ok(Self { connection, done: Imported::default() })
    }

    /// Writes rows as they come, until there are no more. `progress` gets their number.
    pub(crate) async fn write(
        &mut self,
        chunks: &mut mpsc::Receiver<Chunk>,
        progress: impl Fn(u64),
    ) -> Result<(), ImportError> {
        while let Some(chunk) = chunks.recv().await {
            let query = self.written(chunk);
            self.run(&query).await?;
            progress(self.done.rows);
        }
        Ok(())
    }

    /// Counts rows, and returns the statement that writes them.
    fn written(&mut self, chunk: Chunk) -> Query {
        let done = &mut self.done;
        let (rows, query) = match chunk {
            Chunk::Rows(table, rows) => {
                let count = rows.len() as u64;
                match table {
                    Table::Messages => done.messages += count,
                    Table::Organisations => done.organisations += count,
                    Table::ApiKeys => done.keys += count,
                    Table::Suppressions => done.suppressions += count,
                    _ => {}
                }
                let rows: Vec<_> = rows.iter().map(|(key, row)| (key, row)).collect();
                // The first position: followers of suppressions begin before it.
                (rows.len(), put(table, Known::Missing, &rows, Some(1)))
            }
            Chunk::Pending(pending) => {
                done.pending += pending.len() as u64;
                let ids = array(pending.iter().copied().map(uuid_of));
                (pending.len(), Query::new(PENDING, vec![ids]))
            }
            Chunk::IdempotencyKeys(keys) => {
                let organisations = array(keys.iter().map(|(of, ..)| number(*of)));
                let digests = array(keys.iter().map(|(_, key, ..)| digest(key.as_key())));
                let ids = array(keys.iter().map(|(_, _, id, _)| uuid_of(*id)));
                let times = array(keys.iter().map(|(.., at)| bigint(*at)));
                let parameters = vec![organisations, digests, ids, times];
                (keys.len(), Query::new(IDEMPOTENCY_KEYS, parameters))
            }
            Chunk::Usage(usage) => (usage.len(), put_usage(&usage)),
            Chunk::Sent(sent) => {
                let ids = array(sent.iter().map(|(_, id, _)| uuid_of(*id)));
                let times = array(sent.iter().map(|(.., at)| bigint(*at)));
                let rows = sent.len();
                let ses_ids = array(sent.into_iter().map(|(ses_id, ..)| ses_id));
                (rows, Query::new(SENT, vec![ses_ids, ids, times]))
            }
        };
        done.rows += rows as u64;
        query
    }

    async fn run(&self, query: &Query) -> Result<u64, QueryError> {
        self.connection.execute(query.sql, &query.parameters()).await
    }

    /// Writes the facts, and makes all of it durable.
    pub(crate) async fn finish(mut self, facts: Facts) -> Result<Imported, ImportError> {
        let Facts { counters, id_lead, feed_id, time_record, made_by_dev, key_uses, .. } = facts;
        let (id_lead, feed_id) = (bigint(id_lead), feed_id.cast_signed());
        let facts_of_cluster: [&(dyn ToSql + Sync); 5] =
            [&id_lead, &feed_id, &time_record, &made_by_dev, &FIRST_WITH_WEBHOOK_FORMATS];
        self.connection.execute(FACTS, &facts_of_cluster).await?;
        for (counter, value) in counters {
            self.run(&set_counter(counter, value)).await?;
        }
        self.run(&put_key_use(&key_uses)).await?;
        self.done.rows += self.connection.execute(FEED_ENDS, &[]).await?;
        self.connection.execute(FEED_COUNTER, &[&bigint(facts.last_cursor)]).await?;
        self.connection.batch("ANALYZE").await?;
        let warnings = self.connection.warnings();
        let committed = self.connection.batch("COMMIT").await;
        if committed.is_err() || self.connection.warnings() != warnings {
            return Err(ImportError::Unanswered);
        }
        self.done.left_out = facts.left_out;
        Ok(self.done)
    }
}

impl From<QueryError> for ImportError {
    fn from(error: QueryError) -> Self {
        Self::Server(error.to_string())
    }
}
