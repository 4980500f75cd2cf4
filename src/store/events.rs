//! Events on the timelines of messages, with the suppressions that follow from them.

use redb::ReadableTable;
use sha2::{Digest, Sha256};

use crate::domain::event::{BounceType, Event, EventDetail};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::Message;
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::domain::time::Timestamp;
use crate::organisation_counts::Increment;
use crate::store::batch::Batch;
use crate::store::error::{InRow, ReadError};
use crate::store::feed;
use crate::store::record::{EventKey, ReportedChange, decode_event, encode_event};
use crate::store::suppressions::insert_caused;
use crate::store::tables::EVENTS;
use crate::store::{Store, StoreError};

impl Store {
    /// A message's events, oldest first. Rows that cannot be read are left out.
    pub fn events(&self, id: MessageId) -> Result<Vec<Event>, StoreError> {
        self.read(&EVENTS, id, |transaction| {
            let mut events = Vec::new();
            let (first, last) = (id.as_bytes().as_slice(), last_key(id));
            for row in transaction.open_table(EVENTS)?.range::<&[u8]>(first..=last.as_slice())? {
                let event = decode_event(row?.1.value()).in_row(EVENTS, id);
                events.extend(self.shared.damage.left_out(event));
            }
            Ok(events)
        })
    }
}

/// Whether a message is the named organisation's, where a name is given. The name of one that was
/// removed is not known any more: there the message's id has to do.
pub(super) fn is_owner(batch: &Batch<'_>, message: &Message, named: Option<&str>) -> bool {
    let Some(named) = named else { return true };
    let organisations = batch.shared.organisations();
    let owner = organisations.organisation(message.organisation);
    owner.is_none_or(|owner| owner.name.as_str() == named)
}

/// Puts an event on a message's timeline and into the feed, with the suppressions that follow. A
/// repeat changes nothing: above all, it does not bring back a suppression that an operator has
/// removed.
pub(super) fn observe(
    batch: &mut Batch<'_>,
    message: &mut Message,
    event: &Event,
    now: Timestamp,
) -> Result<(), ReadError> {
    let event_key = event_key(event);
    let key = event_key.of_message(message.id);
    let row = encode_event(event);
    let known = batch.tables.events.open()?.get(key.as_slice())?.map(|row| row.value().to_vec());
    let reason = event.suppresses();
    let mut is_news = reason.is_some();
    if let Some(known) = known {
        // One that cannot be read is written anew.
        if let Ok(suppressed) = decode_event(&known).map(|known| known.suppresses().is_some()) {
            // Of reports of one event that differ in their details, the same one always stays.
            if (reason.is_some(), &row) <= (suppressed, &known) {
                return Ok(());
            }
            is_news = !suppressed;
        }
    } else {
        batch.increments.push((message.organisation, increment(event)));
        feed::report(batch, message, ReportedChange::Observed(event_key), now)?;
    }
    batch.tables.events.open()?.insert(key.as_slice(), row.as_slice())?;
    message.observe(event.summary());
    if let (Some(reason), true) = (reason, is_news) {
        suppress_recipients(batch, message.organisation, message.id, event, reason)?;
    }
    Ok(())
}

/// Suppresses exactly the recipients that an event names.
pub(super) fn suppress_recipients(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    message: MessageId,
    event: &Event,
    reason: SuppressionReason,
) -> Result<(), ReadError> {
    for recipient in &event.recipients {
        let Some(address) = SuppressedAddress::of_recipient(recipient) else {
            tracing::warn!(id = %message, "a reported recipient is not an address");
            continue;
        };
        let (since, cause) = (event.occurred_at, Some(message));
        insert_caused(batch, organisation, &Suppression { address, reason, since, cause })?;
    }
    Ok(())
}

fn increment(event: &Event) -> Increment {
    let is_hard =
        matches!(event.detail, EventDetail::Bounce { bounce_type: BounceType::Permanent, .. });
    let hard_bounces = if is_hard { event.recipients.len() as u64 } else { 0 };
    Increment::Event { event_type: event.event_type(), hard_bounces }
}

/// Returns an event's key among those of its message.
fn event_key(event: &Event) -> EventKey {
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

/// Returns a key that no event of the message is after.
pub(super) fn last_key(message: MessageId) -> Vec<u8> {
    [message.as_bytes().as_slice(), &[u8::MAX; EventKey::BYTES]].concat()
}
