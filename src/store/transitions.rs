//! Transitions of messages: the rules by which outcomes, reports and events change rows, in such a
//! way that neither order nor repetition makes a difference.
//!
//! An engine gives the rows of one transaction as [`Rows`]. The rules know no engine.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::domain::event::{BounceType, Event, EventDetail};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Failure, FailureCode, Message, Recorded, State, Transition};
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::domain::time::Timestamp;
use crate::organisation_counts::Increment;
use crate::store::error::DamagedRow;
use crate::store::record::{
    EventKey, ReportedChange, UnmatchedEvent, decode_event, encode_event, encode_unmatched,
};
use crate::store::{Applied, Change, Reference, Report};

/// How far our record of an acceptance may be from the provider's, either way: AWS refuses
/// signatures over five minutes off its own clock, and a call may take as long again.
pub(super) const SEARCH_WINDOW: Duration = Duration::from_mins(10);
/// How much of its digest tells an unmatched event from others of the same message.
pub(super) const DIGEST_BYTES: usize = 16;

/// Rows that a transaction reads and changes.
pub(super) trait Rows {
    /// Why a row could not be read or changed.
    type Error: RowsError;

    /// Returns a message, or `None` if there is no record of it.
    fn message(&mut self, id: MessageId) -> Result<Option<Message>, Self::Error>;
    /// Writes a message, and removes its pending mark if its state is final.
    fn put_message(&mut self, message: &Message) -> Result<(), Self::Error>;
    /// Keeps the failure of a message that an event has proved to be sent.
    fn keep_overturned(&mut self, id: MessageId, failure: &Failure) -> Result<(), Self::Error>;

    /// Finds the message that the provider knows by this id and accepted at about this time.
    fn find_sent(
        &mut self,
        ses_message_id: &str,
        accepted_at: Timestamp,
    ) -> Result<Option<MessageId>, Self::Error>;
    /// Notes the provider's id of a message.
    fn add_sent(
        &mut self,
        id: MessageId,
        ses_message_id: &str,
        sent_at: Timestamp,
    ) -> Result<(), Self::Error>;

    /// Returns the row of a message's event.
    fn event(&mut self, id: MessageId, key: &EventKey) -> Result<Option<Vec<u8>>, Self::Error>;
    /// Writes the row of a message's event.
    fn put_event(&mut self, id: MessageId, key: &EventKey, row: &[u8]) -> Result<(), Self::Error>;

    /// Keeps an event whose message has no record, unless it is there already. `digest` tells it
    /// from others of the same message.
    fn keep_unmatched(
        &mut self,
        ses_message_id: &str,
        digest: &[u8],
        row: &[u8],
        now: Timestamp,
    ) -> Result<Change, Self::Error>;
    /// Takes out the events of the message that the provider knows by this id. One that cannot be
    /// read goes as well.
    fn take_unmatched(&mut self, ses_message_id: &str) -> Result<Vec<UnmatchedEvent>, Self::Error>;

    /// Returns an organisation's own suppression of an address.
    fn suppression(
        &mut self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<StoredSuppression, Self::Error>;
    /// Writes an organisation's suppression.
    fn put_suppression(
        &mut self,
        organisation: OrganisationId,
        suppression: &Suppression,
    ) -> Result<(), Self::Error>;

    /// Reports a change of a message in its organisation's feed.
    fn report(
        &mut self,
        message: &Message,
        change: ReportedChange,
        now: Timestamp,
    ) -> Result<(), Self::Error>;
    /// Counts one more message whose body was found lost at `found_at`.
    fn add_lost_message(&mut self, found_at: Timestamp) -> Result<(), Self::Error>;
    /// Counts something of an organisation once the transaction is durable.
    fn count(&mut self, organisation: OrganisationId, increment: Increment);

    /// Returns true if the organisation has this name, or is not known any more.
    fn may_be_named(&self, organisation: OrganisationId, name: &str) -> bool;
    /// Returns the organisation with this name.
    fn organisation_named(&self, name: &str) -> Option<OrganisationId>;
    /// Notes a row that cannot be read.
    fn note_damage(&self, row: DamagedRow);
}

/// Error of [`Rows`].
pub(super) trait RowsError: Sized {
    /// Tells a row that cannot be read from all other errors.
    fn into_damage(self) -> Result<DamagedRow, Self>;
}

/// Suppression as it is stored.
pub(super) enum StoredSuppression {
    /// There is none.
    Missing,
    /// It can be read.
    Readable(Suppression),
    /// It cannot be read. It suppresses all the same.
    Damaged,
}

/// Records the outcome of a message after `attempts` calls to the provider in all.
pub(super) fn record<R: Rows>(
    rows: &mut R,
    id: MessageId,
    attempts: u32,
    transition: Transition,
    now: Timestamp,
) -> Result<Recorded, R::Error> {
    let Some(mut message) = rows.message(id)? else {
        return Ok(Recorded::AlreadyFinal);
    };
    let attempts_before = message.attempts;
    let lost_at = match &transition {
        Transition::BodyLost { found_at, .. } => Some(*found_at),
        Transition::Sent { .. }
        | Transition::RetryLater { .. }
        | Transition::Failed { .. }
        | Transition::Suppressed => None,
    };
    let recorded = message.record(attempts, transition);
    if recorded == Recorded::Changed {
        if let Some(found_at) = lost_at {
            rows.add_lost_message(found_at)?;
        }
        settle(rows, &mut message, now)?;
    }
    if recorded == Recorded::Changed || message.attempts != attempts_before {
        rows.put_message(&message)?;
    }
    Ok(recorded)
}

/// Applies a provider's report: the event, the proof of acceptance and the suppressions that
/// follow. A repeat changes nothing.
pub(super) fn apply<R: Rows>(
    rows: &mut R,
    report: &Report,
    now: Timestamp,
) -> Result<Applied, R::Error> {
    let id = match report.message {
        Reference::Tag(id) => id,
        Reference::ProviderId => {
            let ses_id = &report.ses_message_id;
            let Some(id) = rows.find_sent(ses_id, report.accepted_at)? else {
                // A report without an event says nothing that the outcome itself will not say.
                if let Some(event) = &report.event {
                    keep_unmatched(rows, ses_id, report.organisation.as_deref(), event, now)?;
                }
                return Ok(Applied::Unmatched);
            };
            id
        }
    };
    let mut message = match rows.message(id) {
        Ok(Some(message)) => message,
        Ok(None) => {
            suppress_without_record(rows, report, now)?;
            return Ok(Applied::UnknownMessage);
        }
        // One damaged row must not keep all others' events from being applied.
        Err(error) => {
            let row = error.into_damage()?;
            tracing::error!(%id, "an event's message cannot be read; the event is not on its record");
            rows.note_damage(row);
            suppress_without_record(rows, report, now)?;
            return Ok(Applied::DamagedRecord);
        }
    };
    if !is_owner(rows, &message, report.organisation.as_deref()) {
        return Ok(Applied::OtherOrganisation);
    }
    let before = message.clone();
    if message.prove_accepted(&report.ses_message_id, report.accepted_at) == Recorded::Changed {
        if let State::Failed { failure, .. } = &before.state {
            rows.keep_overturned(id, failure)?;
        }
        settle(rows, &mut message, now)?;
    }
    if let Some(event) = &report.event {
        observe(rows, &mut message, event, now)?;
    }
    if message != before {
        rows.put_message(&message)?;
    }
    // Said also if an earlier report proved it: whoever applied that one may not have lived to
    // cancel the retry.
    Ok(match message.state {
        State::Sent { .. } => Applied::Sent(id),
        State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => Applied::Done,
    })
}

/// Counts the final state that a message has come to, and reports it in the feed. If it is sent,
/// notes the provider's id, and applies the events that came before the outcome.
fn settle<R: Rows>(rows: &mut R, message: &mut Message, now: Timestamp) -> Result<(), R::Error> {
    if let Some(change) = final_change(&message.state) {
        rows.report(message, change, now)?;
    }
    if let State::Sent { ses_message_id, sent_at } = &message.state {
        rows.add_sent(message.id, ses_message_id, *sent_at)?;
        for early in rows.take_unmatched(&ses_message_id.clone())? {
            if is_owner(rows, message, early.organisation.as_deref()) {
                observe(rows, message, &early.event, now)?;
            }
        }
    }
    let increment = match message.state {
        State::Queued { .. } => return Ok(()),
        State::Sent { .. } => Increment::Sent { recipients: message.recipients.len() as u64 },
        State::Failed { ref failure, .. } if failure.code == FailureCode::Cancelled => {
            Increment::Cancelled
        }
        State::Failed { ref failure, .. } if failure.code == FailureCode::BodyLostOnRestart => {
            Increment::BodyLost
        }
        State::Failed { .. } => Increment::Failed,
        State::Suppressed { .. } => Increment::Suppressed,
    };
    rows.count(message.organisation, increment);
    Ok(())
}

/// Returns the change that a final state is reported by.
pub(super) fn final_change(state: &State) -> Option<ReportedChange> {
    match state {
        State::Queued { .. } => None,
        State::Sent { .. } => Some(ReportedChange::Sent),
        State::Failed { .. } => Some(ReportedChange::Failed),
        State::Suppressed { .. } => Some(ReportedChange::Suppressed),
    }
}

/// Returns true if a message is the named organisation's, or no name is given. The name of one
/// that was removed is not known any more: there the message's id has to do.
fn is_owner<R: Rows>(rows: &R, message: &Message, named: Option<&str>) -> bool {
    named.is_none_or(|named| rows.may_be_named(message.organisation, named))
}

/// Puts an event on a message's timeline and into the feed, with the suppressions that follow. A
/// repeat changes nothing: above all, it does not bring back a suppression that an operator has
/// removed.
fn observe<R: Rows>(
    rows: &mut R,
    message: &mut Message,
    event: &Event,
    now: Timestamp,
) -> Result<(), R::Error> {
    let key = event_key(event);
    let row = encode_event(event);
    let reason = event.suppresses();
    let mut is_news = reason.is_some();
    if let Some(known) = rows.event(message.id, &key)? {
        // One that cannot be read is written anew.
        if let Ok(suppressed) = decode_event(&known).map(|known| known.suppresses().is_some()) {
            // Of reports of one event that differ in their details, the same one always stays.
            if (reason.is_some(), &row) <= (suppressed, &known) {
                return Ok(());
            }
            is_news = !suppressed;
        }
    } else {
        rows.count(message.organisation, increment(event));
        rows.report(message, ReportedChange::Observed(key), now)?;
    }
    rows.put_event(message.id, &key, &row)?;
    message.observe(event.summary());
    if let (Some(reason), true) = (reason, is_news) {
        suppress_recipients(rows, message.organisation, message.id, event, reason)?;
    }
    Ok(())
}

/// Suppresses by an event whose message has no readable record: it is purged, damaged, or younger
/// than the backup that was restored. Message id and organisation together say that the message is
/// ours: no other application writes both tags. The event is kept as one without a message, so
/// that a repeat does not bring back a suppression that an operator has removed.
fn suppress_without_record<R: Rows>(
    rows: &mut R,
    report: &Report,
    now: Timestamp,
) -> Result<(), R::Error> {
    let (Reference::Tag(id), Some(named), Some(event)) =
        (report.message, report.organisation.as_deref(), &report.event)
    else {
        return Ok(());
    };
    let Some(reason) = event.suppresses() else { return Ok(()) };
    let Some(organisation) = rows.organisation_named(named) else { return Ok(()) };
    match keep_unmatched(rows, &report.ses_message_id, Some(named), event, now)? {
        Change::Made => suppress_recipients(rows, organisation, id, event, reason),
        Change::None => Ok(()),
    }
}

fn keep_unmatched<R: Rows>(
    rows: &mut R,
    ses_message_id: &str,
    organisation: Option<&str>,
    event: &Event,
    now: Timestamp,
) -> Result<Change, R::Error> {
    let row = encode_unmatched(event, organisation);
    // By all that it says: which of two different reports counts is decided on the record.
    let digest = Sha256::digest(&row);
    rows.keep_unmatched(ses_message_id, &digest[..DIGEST_BYTES], &row, now)
}

/// Suppresses exactly the recipients that an event names.
fn suppress_recipients<R: Rows>(
    rows: &mut R,
    organisation: OrganisationId,
    message: MessageId,
    event: &Event,
    reason: SuppressionReason,
) -> Result<(), R::Error> {
    for recipient in &event.recipients {
        let Some(address) = SuppressedAddress::of_recipient(recipient) else {
            tracing::warn!(id = %message, "a reported recipient is not an address");
            continue;
        };
        let (since, cause) = (event.occurred_at, Some(message));
        add_suppression(rows, organisation, &Suppression { address, reason, since, cause })?;
    }
    Ok(())
}

/// Adds a suppression that a provider's event caused. Of several causes the earliest counts,
/// whatever order they arrive in; an operator's own decision stays.
fn add_suppression<R: Rows>(
    rows: &mut R,
    organisation: OrganisationId,
    suppression: &Suppression,
) -> Result<(), R::Error> {
    let rank = |s: &Suppression| (s.since, s.reason != SuppressionReason::Complaint, s.cause);
    match rows.suppression(organisation, &suppression.address)? {
        StoredSuppression::Damaged => return Ok(()),
        StoredSuppression::Readable(earlier)
            if earlier.cause.is_none() || rank(suppression) >= rank(&earlier) =>
        {
            return Ok(());
        }
        StoredSuppression::Readable(_) | StoredSuppression::Missing => {}
    }
    rows.put_suppression(organisation, suppression)
}

fn increment(event: &Event) -> Increment {
    let is_hard =
        matches!(event.detail, EventDetail::Bounce { bounce_type: BounceType::Permanent, .. });
    let hard_bounces = if is_hard { event.recipients.len() as u64 } else { 0 };
    Increment::Event { event_type: event.event_type(), hard_bounces }
}

/// Returns an event's key among those of its message.
pub(super) fn event_key(event: &Event) -> EventKey {
    let normal = |text: &String| {
        SuppressedAddress::of_recipient(text)
            .map_or_else(|| text.to_ascii_lowercase(), |address| address.as_str().to_owned())
    };
    let mut recipients: Vec<String> = event.recipients.iter().map(normal).collect();
    recipients.sort_unstable();
    recipients.dedup();
    let mut digest = Sha256::new();
    for recipient in recipients {
        digest.update(recipient.as_bytes());
        digest.update([0]);
    }
    EventKey {
        occurred_at: event.occurred_at,
        event_type: event.event_type(),
        recipients: *digest.finalize().first_chunk().expect("a digest has 32 bytes"),
    }
}
