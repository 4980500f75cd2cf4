//! Entries of the event feed, made of the rows that they refer to.

use crate::domain::clock_corrections::WindowTime;
use crate::domain::feed::{FeedChange, FeedEntry, FeedEventType, FeedPosition, FeedTypes};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Acceptance, Message, State};
use crate::store::damage::Damage;
use crate::store::error::{DamagedRow, RowError};
use crate::store::record::{
    EventKey, FeedRow, ReportedChange, decode_event, decode_feed, decode_overturned,
};
use crate::store::transitions::RowsError;

/// What is asked of a feed.
pub(super) struct Query {
    pub(super) organisation: OrganisationId,
    pub(super) types: FeedTypes,
    pub(super) limit: usize,
    pub(super) window_now: WindowTime,
}

/// Rows that entries refer to.
pub(super) trait FeedRows {
    /// Why a row could not be read.
    type Error: RowsError + From<DamagedRow>;

    /// Returns a message as readers see it, or `None` if it is past its retention.
    fn message(&self, id: MessageId) -> Result<Option<Message>, Self::Error>;
    /// Returns the row of a failure that an event overturned.
    fn overturned(&self, id: MessageId) -> Result<Option<Vec<u8>>, Self::Error>;
    /// Returns the row of an event.
    fn event(&self, id: MessageId, key: &EventKey) -> Result<Option<Vec<u8>>, Self::Error>;
    /// Where rows are noted that cannot be read.
    fn damage(&self) -> &Damage;
}

/// Returns the entry at a position, if it is asked for and there to be read.
pub(super) fn entry<R: FeedRows>(
    rows: &R,
    query: &Query,
    position: FeedPosition,
    row: &[u8],
) -> Result<Option<FeedEntry>, R::Error> {
    let row = decode_feed(position, row)
        .map_err(|reason| DamagedRow::new("feed", position.number(), &reason));
    let Some(FeedRow { message: id, change }) = rows.damage().left_out(row) else {
        return Ok(None);
    };
    if !query.types.contains(event_type(&change)) {
        return Ok(None);
    }
    let resolved = match resolve(rows, id, change) {
        Ok(resolved) => resolved,
        // A row that cannot be read costs nobody but itself.
        Err(error) => {
            rows.damage().note(error.into_damage()?);
            None
        }
    };
    let recorded_at = query.window_now.corrected(position.instant());
    Ok(resolved.map(|(message, change)| FeedEntry { position, recorded_at, message, change }))
}

/// Returns the message as it was after the change, and the change.
fn resolve<R: FeedRows>(
    rows: &R,
    id: MessageId,
    change: ReportedChange,
) -> Result<Option<(Message, FeedChange)>, R::Error> {
    let Some(mut message) = rows.message(id)? else { return Ok(None) };
    let change = match change {
        ReportedChange::Sent => FeedChange::Sent,
        ReportedChange::Suppressed => FeedChange::Suppressed,
        ReportedChange::Failed => {
            if !matches!(message.state, State::Failed { .. }) {
                let row = rows.overturned(id)?.ok_or_else(|| missing("overturned_failures", id))?;
                let failure = decode_overturned(&row)
                    .map_err(|reason| DamagedRow::new("overturned_failures", id, &reason))?;
                message.state = State::Failed { failure, acceptance: Acceptance::Possible };
            }
            FeedChange::Failed
        }
        ReportedChange::Observed(key) => {
            let row = rows.event(id, &key)?.ok_or_else(|| missing("events", id))?;
            let event =
                decode_event(&row).map_err(|reason| DamagedRow::new("events", id, &reason))?;
            FeedChange::Observed(event)
        }
    };
    Ok(Some((message, change)))
}

fn missing(table: &str, id: MessageId) -> DamagedRow {
    DamagedRow::new(table, id, &RowError::Invalid("nothing, although the feed refers to it"))
}

/// Type of the change that an entry reports.
pub(super) fn event_type(change: &ReportedChange) -> FeedEventType {
    match change {
        ReportedChange::Sent => FeedEventType::Sent,
        ReportedChange::Failed => FeedEventType::Failed,
        ReportedChange::Suppressed => FeedEventType::Suppressed,
        ReportedChange::Observed(EventKey { event_type, .. }) => (*event_type).into(),
    }
}
