//! Applying what the provider reports: events, proofs of acceptance and suppressions, in such a
//! way that neither order nor repetition makes a difference.

use crate::domain::message::{Recorded, State};
use crate::domain::time::Timestamp;
use crate::store::redb::message::{note_state, read_row, write_row};
use crate::store::redb::message_events::{is_owner, observe, suppress_recipients};
use crate::store::redb::read_error::ReadError;
use crate::store::redb::suppress::Change;
use crate::store::redb::writer::Batch;
use crate::store::redb::{provider_ids, unmatched};
use crate::store::{Applied, Reference, Report};

/// Applies reports one after the other.
pub(in crate::store) fn apply_all(
    batch: &mut Batch<'_>,
    reports: &[Report],
    now: Timestamp,
) -> Result<Vec<Applied>, ReadError> {
    reports.iter().map(|report| apply(batch, report, now)).collect()
}

fn apply(batch: &mut Batch<'_>, report: &Report, now: Timestamp) -> Result<Applied, ReadError> {
    let id = match report.message {
        Reference::Tag(id) => id,
        Reference::ProviderId => {
            let found =
                provider_ids::find(&mut batch.tables, &report.ses_message_id, report.accepted_at)?;
            let Some(id) = found else {
                unmatched::keep(batch, report, now)?;
                return Ok(Applied::Unmatched);
            };
            id
        }
    };
    let mut message = match read_row(&batch.tables, id) {
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
        provider_ids::note(batch, &mut message)?;
        note_state(batch, &message);
    }
    if let Some(event) = &report.event {
        observe(batch, &mut message, event)?;
    }
    if message != before {
        write_row(&mut batch.tables, &message)?;
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
    let directory = batch.shared.directory();
    let Some(organisation) = directory.organisations.iter().find(|o| o.name.as_str() == named)
    else {
        return Ok(());
    };
    match unmatched::keep(batch, report, now)? {
        Change::Made => suppress_recipients(batch, organisation.id, id, event, reason),
        Change::None => Ok(()),
    }
}
