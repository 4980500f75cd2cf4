//! Import of a data file's rows into an empty database, all or nothing.

use std::error::Error;
use std::pin::pin;

use bytes::BytesMut;
use tokio::sync::mpsc;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::store::StoreOwner;
use crate::store::postgres::accept::digest;
use crate::store::postgres::connection::{Connection, Connector, PostgresServer};
use crate::store::postgres::error::QueryError;
use crate::store::postgres::schema;
use crate::store::postgres::silence::Purpose;
use crate::store::postgres::uuid_of;
use crate::store::transfer::{Chunk, Facts, Field, ImportError, Imported, TransferTable};

/// An import takes as long as it takes.
const NO_LIMITS: &str = "SET statement_timeout = 0; SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = 0";
/// No node joins until the end.
const KEEP_NODES_OUT: &str = "LOCK TABLE node IN EXCLUSIVE MODE";
const NODES: &str = "SELECT name FROM node ORDER BY name";
const IS_EMPTY: &str = "
SELECT NOT (EXISTS (SELECT FROM organisation) OR EXISTS (SELECT FROM message)
    OR EXISTS (SELECT FROM suppression) OR EXISTS (SELECT FROM feed))";
const FACTS: &str = "
UPDATE cluster SET directory_version = directory_version + 1, last_organisation = $1,
    last_key = $2, last_webhook = $3, id_lead = $4, lost_messages = $5, lost_messages_at = $6,
    feed_id = $7, time_record = $8, made_by_dev = $9";
const FEED_COUNTER: &str = "UPDATE feed_counter SET last = greatest(last, $1, 1)";

/// Tables into which rows go first that may be there twice: a provider's id by mistake of the
/// provider, and a key that was used once more after its time. The newer one counts.
const ASIDE: &str = "
CREATE TEMPORARY TABLE imported_key (LIKE idempotency) ON COMMIT DROP;
CREATE TEMPORARY TABLE imported_sent (LIKE sent) ON COMMIT DROP";
const FROM_ASIDE: &str = "
INSERT INTO idempotency SELECT DISTINCT ON (organisation, key) * FROM imported_key
    ORDER BY organisation, key, created_at DESC;
INSERT INTO sent SELECT DISTINCT ON (ses_message_id) * FROM imported_sent
    ORDER BY ses_message_id, sent_at DESC;
ANALYZE";

/// Columns that take a table's rows, and the types of their fields.
const fn target(table: TransferTable) -> (&'static str, &'static [Type]) {
    use TransferTable as T;
    match table {
        T::Organisations => ("organisation (id, organisation)", &[Type::INT4, Type::BYTEA]),
        T::ApiKeys => (
            "api_key (id, organisation, api_key, used_at)",
            &[Type::INT4, Type::INT4, Type::BYTEA, Type::INT8],
        ),
        T::Domains => {
            ("domain (organisation, name, domain)", &[Type::INT4, Type::TEXT, Type::BYTEA])
        }
        T::Suppressions => (
            "suppression (organisation, address, suppression, position)",
            &[Type::INT4, Type::TEXT, Type::BYTEA, Type::INT8],
        ),
        T::Messages => {
            ("message (id, organisation, record)", &[Type::UUID, Type::INT4, Type::BYTEA])
        }
        T::Pending => ("pending (id, node)", &[Type::UUID, Type::INT4]),
        T::IdempotencyKeys => (
            "imported_key (organisation, key, message, created_at)",
            &[Type::INT4, Type::BYTEA, Type::UUID, Type::INT8],
        ),
        T::SentMessages => {
            ("imported_sent (ses_message_id, id, sent_at)", &[Type::TEXT, Type::UUID, Type::INT8])
        }
        T::Events => ("event (message, key, event)", &[Type::UUID, Type::BYTEA, Type::BYTEA]),
        T::Timeline => ("timeline (message, number, step)", &[Type::UUID, Type::INT4, Type::BYTEA]),
        T::UnmatchedEvents => (
            "unmatched_event (ses_message_id, digest, received_at, event)",
            &[Type::TEXT, Type::BYTEA, Type::INT8, Type::BYTEA],
        ),
        T::DeadLetters => {
            ("dead_letter (key, received_at, letter)", &[Type::BYTEA, Type::INT8, Type::BYTEA])
        }
        T::OverturnedFailures => ("overturned_failure (id, failure)", &[Type::UUID, Type::BYTEA]),
        T::Feed => ("feed (organisation, position, entry)", &[Type::INT4, Type::INT8, Type::BYTEA]),
        T::FeedEnds => ("feed_end (organisation, last)", &[Type::INT4, Type::INT8]),
        T::Webhooks => {
            ("webhook (id, organisation, webhook)", &[Type::INT4, Type::INT4, Type::BYTEA])
        }
        T::WebhookCursors => ("webhook_cursor (id, cursor)", &[Type::INT4, Type::BYTEA]),
        T::WaitingDeliveries => (
            "webhook_waiting (webhook, due, position, delivery)",
            &[Type::INT4, Type::INT8, Type::INT8, Type::BYTEA],
        ),
        T::FailedDeliveries => {
            ("webhook_failed (webhook, position, delivery)", &[Type::INT4, Type::INT8, Type::BYTEA])
        }
        T::History => {
            ("history (hour, organisation, counts)", &[Type::INT4, Type::INT4, Type::BYTEA])
        }
    }
}

/// An import that has begun: its transaction is open, and the database is empty and without nodes.
pub(in crate::store) struct Import {
    connection: Connection,
    done: Imported,
}

impl Import {
    pub(in crate::store) async fn begin(server: &PostgresServer) -> Result<Self, ImportError> {
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
        connection.batch(ASIDE).await?;
        Ok(Self { connection, done: Imported::default() })
    }

    /// Writes rows as they come, until there are no more. `progress` learns how many there were.
    pub(in crate::store) async fn write(
        &mut self,
        chunks: &mut mpsc::Receiver<Chunk>,
        progress: impl Fn(u64),
    ) -> Result<(), ImportError> {
        let mut next = chunks.recv().await;
        while let Some(first) = next {
            let table = first.table;
            let (columns, types) = target(table);
            let sql = format!("COPY {columns} FROM STDIN BINARY");
            let writer = BinaryCopyInWriter::new(self.connection.copy_in(&sql).await?, types);
            let mut writer = pin!(writer);
            let mut chunk = first;
            next = loop {
                for row in &chunk.rows {
                    let fields = row.iter().map(|field| field as &(dyn ToSql + Sync));
                    let fields: Vec<_> = fields.collect();
                    writer.as_mut().write(&fields).await.map_err(QueryError::from)?;
                }
                self.done.rows += chunk.rows.len() as u64;
                progress(self.done.rows);
                match chunks.recv().await {
                    Some(more) if more.table == table => chunk = more,
                    other => break other,
                }
            };
            let written = writer.as_mut().finish().await.map_err(QueryError::from)?;
            match table {
                TransferTable::Messages => self.done.messages += written,
                TransferTable::Pending => self.done.pending += written,
                TransferTable::Organisations => self.done.organisations += written,
                TransferTable::ApiKeys => self.done.keys += written,
                TransferTable::Suppressions => self.done.suppressions += written,
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the facts, and makes all of it durable.
    pub(in crate::store) async fn finish(mut self, facts: Facts) -> Result<Imported, ImportError> {
        let number = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
        let large = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.connection
            .execute(
                FACTS,
                &[
                    &number(facts.last_organisation),
                    &number(facts.last_key),
                    &number(facts.last_webhook),
                    &large(facts.id_lead),
                    &large(facts.lost_messages),
                    &large(facts.lost_messages_at),
                    &facts.feed_id.cast_signed(),
                    &facts.time_record,
                    &facts.made_by_dev,
                ],
            )
            .await?;
        self.connection.execute(FEED_COUNTER, &[&large(facts.feed_last)]).await?;
        self.connection.batch(FROM_ASIDE).await?;
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

impl ToSql for Field {
    fn to_sql(
        &self,
        column: &Type,
        to: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Number(number) => i32::try_from(*number)?.to_sql(column, to),
            Self::Large(number) => i64::try_from(*number)?.to_sql(column, to),
            Self::Optional(number) => number.map(i64::try_from).transpose()?.to_sql(column, to),
            Self::Bytes(bytes) => bytes.to_sql(column, to),
            Self::Text(text) => text.to_sql(column, to),
            Self::Id(id) => uuid_of(*id).to_sql(column, to),
            Self::Key(key) => digest(key.as_key()).to_sql(column, to),
        }
    }

    fn accepts(_: &Type) -> bool {
        // Each table says the types of its fields.
        true
    }

    to_sql_checked!();
}
