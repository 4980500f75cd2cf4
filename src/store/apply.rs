//! Applying what the provider reports: events, proofs of acceptance and suppressions, in such a
//! way that neither order nor repetition makes a difference.

use crate::domain::event::Event;
use crate::domain::id::MessageId;
use crate::domain::message::{Recorded, State};
use crate::domain::time::Timestamp;
use crate::store::batch::Batch;
use crate::store::dead_letters::keep_unmatched;
use crate::store::error::ReadError;
use crate::store::events::{is_owner, observe, suppress_recipients};
use crate::store::{Change, Store, StoreError, feed, outcomes};

/// About how many bytes a report writes.
const REPORT_WEIGHT: usize = 1_024;

/// What the provider reports of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which message.
    pub message: Reference,
    /// The organisation's name as the report has it; one that is not the message's own makes the
    /// report count for nothing.
    pub organisation: Option<String>,
    /// The provider's identifier for it. That there is a report proves its acceptance.
    pub ses_message_id: String,
    /// When the provider accepted it.
    pub accepted_at: Timestamp,
    /// What happened to recipients; nothing where the report only says that it was accepted.
    pub event: Option<Event>,
}

/// How a report names its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// By our own id, which the message carried as a tag.
    Tag(MessageId),
    /// By the provider's identifier alone.
    ProviderId,
}

/// What a report came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is on the record, now or from an earlier time.
    Done,
    /// It is on the record, and the message is sent: a waiting retry must not happen.
    Sent(MessageId),
    /// There is no message with the id in its tag, and there will be none. Whom its event
    /// suppresses, it suppresses all the same if the organisation in its tag exists.
    UnknownMessage,
    /// The message is not the tagged organisation's. Nothing was changed.
    OtherOrganisation,
    /// No message is known by the provider's identifier. Its event, if it has one, is kept for a
    /// while in case the outcome that names it is recorded yet.
    Unmatched,
    /// The message's record cannot be read, and was not changed. Whom its event suppresses, it
    /// suppresses all the same if the organisation in its tag exists.
    DamagedRecord,
}

impl Store {
    /// Applies a provider's report: the event, the proof of acceptance and the suppressions that
    /// follow, together. A repeat changes nothing.
    pub async fn apply(&self, report: Report, now: Timestamp) -> Result<Applied, StoreError> {
        let applied = self.apply_all(vec![report], now).await?;
        Ok(applied[0])
    }

    /// As [`Store::apply`], for several reports in one transaction; an answer for each, in order.
    pub async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let weight = REPORT_WEIGHT * reports.len();
        self.writer
            .run(weight, move |batch| {
                reports.iter().map(|report| apply(batch, report, now)).collect()
            })
            .await
    }
}

fn apply(batch: &mut Batch<'_>, report: &Report, now: Timestamp) -> Result<Applied, ReadError> {
    let id = match report.message {
        Reference::Tag(id) => id,
        Reference::ProviderId => {
            let (tables, ses_id) = (&mut batch.tables, &report.ses_message_id);
            let Some(id) = outcomes::find_sent(tables, ses_id, report.accepted_at)? else {
                // A report without an event says nothing that the outcome itself will not say.
                if let Some(event) = &report.event {
                    keep_unmatched(batch, ses_id, report.organisation.as_deref(), event, now)?;
                }
                return Ok(Applied::Unmatched);
            };
            id
        }
    };
    let mut message = match outcomes::read(&batch.tables, id) {
        Ok(Some(message)) => message,
        Ok(None) => {
            suppress_without_record(batch, report, now)?;
            return Ok(Applied::UnknownMessage);
        }
        // One damaged row must not keep all others' events from being applied.
        Err(ReadError::Row(row)) => {
            tracing::error!(%id, "an event's message cannot be read; the event is not on its record");
            batch.shared.damage.note(row);
            suppress_without_record(batch, report, now)?;
            return Ok(Applied::DamagedRecord);
        }
        Err(error) => return Err(error),
    };
    if !is_owner(batch, &message, report.organisation.as_deref()) {
        return Ok(Applied::OtherOrganisation);
    }
    let before = message.clone();
    if message.prove_accepted(&report.ses_message_id, report.accepted_at) == Recorded::Changed {
        if let State::Failed { failure, .. } = &before.state {
            feed::keep_overturned(batch, id, failure)?;
        }
        outcomes::settle(batch, &mut message, now)?;
    }
    if let Some(event) = &report.event {
        observe(batch, &mut message, event, now)?;
    }
    if message != before {
        outcomes::write(&mut batch.tables, &message)?;
    }
    // Said also where an earlier report proved it: whoever applied that one may not have lived to
    // cancel the retry.
    Ok(match message.state {
        State::Sent { .. } => Applied::Sent(id),
        State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => Applied::Done,
    })
}

/// Suppresses by an event whose message has no readable record: it is purged, damaged, or younger
/// than the backup that was restored. Message id and organisation together say that the message is
/// ours: no other application writes both tags. The event is kept as one without a message, so
/// that a repeat does not bring back a suppression that an operator has removed.
fn suppress_without_record(
    batch: &mut Batch<'_>,
    report: &Report,
    now: Timestamp,
) -> Result<(), ReadError> {
    let (Reference::Tag(id), Some(named), Some(event)) =
        (report.message, report.organisation.as_deref(), &report.event)
    else {
        return Ok(());
    };
    let Some(reason) = event.suppresses() else { return Ok(()) };
    let index = batch.shared.organisations();
    let Some(organisation) = index.organisations.iter().find(|o| o.name.as_str() == named) else {
        return Ok(());
    };
    match keep_unmatched(batch, &report.ses_message_id, Some(named), event, now)? {
        Change::Made => suppress_recipients(batch, organisation.id, id, event, reason),
        Change::None => Ok(()),
    }
}
