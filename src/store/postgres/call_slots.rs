//! Slots for calls to the provider: start times that all nodes share, an interval apart.
//!
//! The next free one is in a row of `duty` that belongs to no node. It is only of interest for
//! seconds, so its commit waits for neither disk nor standby.

use std::time::Duration;

use tokio::time::timeout;

use crate::StoreError;
use crate::postgres::PostgresStore;
use crate::postgres::error::QueryError;

const NAME: &str = "provider calls";
/// Longest time by which slots are given out in advance. A slot that is further away was written
/// before the clock was set back.
const AHEAD: Duration = Duration::from_mins(5);

/// Takes the next free slot, and returns the seconds until it begins. All of this is one request,
/// which the server runs as one transaction, so a node that vanishes meanwhile does not keep the
/// row locked.
fn take_sql(interval: Duration) -> String {
    let (interval, ahead) = (interval.as_secs_f64(), AHEAD.as_secs_f64());
    format!(
        "SELECT set_config('synchronous_commit', 'off', true);
        INSERT INTO duty (name, node, until)
        VALUES ('{NAME}', 0, clock_timestamp() + interval '{interval} seconds')
        ON CONFLICT (name) DO UPDATE SET until = interval '{interval} seconds' + CASE
            WHEN duty.until > clock_timestamp() + interval '{ahead} seconds' THEN clock_timestamp()
            ELSE greatest(duty.until, clock_timestamp())
        END
        RETURNING extract(epoch FROM until - clock_timestamp()) - {interval} AS wait"
    )
}

impl PostgresStore {
    pub(crate) async fn take_call_slot(&self, interval: Duration) -> Result<Duration, StoreError> {
        let shared = &self.shared;
        let sql = take_sql(interval);
        let taken = async { shared.readers.get().await?.script(&sql).await };
        let taken = timeout(shared.answer_timeout, taken);
        let rows = taken.await.unwrap_or(Err(QueryError::TimedOut(shared.answer_timeout)));
        let rows = rows.map_err(|error| shared.refused(error))?;
        let wait = rows.iter().find_map(|row| row.try_get("wait").ok().flatten());
        let seconds: f64 =
            wait.and_then(|wait| wait.parse().ok()).ok_or(StoreError::Unavailable)?;
        Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(AHEAD))
    }
}
