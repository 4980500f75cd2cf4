//! Row formats: a version byte, then postcard. Kept apart from the domain's types, because a file
//! that an older version wrote must stay readable if those change.

use std::time::Duration;

use postcard::Deserializer;
use postcard::de_flavors::Slice;
use postcard::ser_flavors::{ExtendFlavor, Flavor as _};
use serde::{Deserialize, Serialize};

use crate::DeadLetter;
use crate::error::RowError;
use pillarbox_domain::admission::Admitted;
use pillarbox_domain::clock_corrections::{
    Assurance, Correction, StoredDoubt, TimeRecord, lead_millis, shifted,
};
use pillarbox_domain::event::{BounceType, Event, EventDetail, EventType, LastEvent};
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::Mailbox;
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Message, State};
use pillarbox_domain::message_terms::{MessagePriority, Priority, Terms, whole_millis};
use pillarbox_domain::request::{IdempotencyKey, KeyOrigin};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;

#[cfg(any(test, fuzzing))]
pub(super) mod check;
#[cfg(test)]
mod tests;

/// The version of every kind of row that has no newer one.
const VERSION: u8 = 1;

/// Declares the stored twin of a domain enum, whose variants have one value or none, and both
/// conversions. The order of the variants is the stored format: new ones go to the end.
macro_rules! stored_enum {
    ($stored:ident = $domain:ident { $($variant:ident $(($value:ident: $type:ty))?),+ $(,)? }) => {
        #[derive(Serialize, Deserialize, Clone, Copy)]
        pub(super) enum $stored { $($variant $(($type))?),+ }

        impl From<$domain> for $stored {
            fn from(value: $domain) -> Self {
                match value { $($domain::$variant $(($value))? => Self::$variant $(($value))?),+ }
            }
        }

        impl From<$stored> for $domain {
            fn from(value: $stored) -> Self {
                match value { $($stored::$variant $(($value))? => Self::$variant $(($value))?),+ }
            }
        }
    };
}

/// An instant, in milliseconds.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Timestamp")]
struct MillisV1(#[serde(getter = "MillisV1::of")] u64);

impl MillisV1 {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn of(at: &Timestamp) -> u64 {
        at.unix_millis()
    }
}

impl From<MillisV1> for Timestamp {
    fn from(row: MillisV1) -> Self {
        Self::from_unix_millis(row.0)
    }
}

// After the macro, which it uses.
pub(super) mod alerts;
pub(super) mod directory;
pub(super) mod history;
pub(super) mod timeline;
pub(super) mod usage;
pub(super) mod webhooks;

stored_enum!(AcceptanceV1 = Acceptance { Excluded, Possible });
stored_enum!(
    FailureCodeV1 = FailureCode {
        BodyLostOnRestart,
        ProviderRejected,
        ProviderUnavailable,
        ProviderThrottled,
        ProviderQuotaExhausted,
        SendingPaused,
        RetriesExhausted,
        OutcomeUnknown,
        RecipientSuppressed,
        DomainUnverified,
        Cancelled,
        Expired,
    }
);
stored_enum!(PriorityV3 = Priority { High, Normal });
stored_enum!(EventTypeV1 = EventType { DeliveryDelay, Delivery, Reject, Bounce, Complaint });
stored_enum!(ReasonV1 = SuppressionReason { Bounce, Complaint, Manual });
stored_enum!(AssuranceV1 = Assurance { Never, Given });

#[derive(Serialize, Deserialize)]
struct MessageV1<'a> {
    organisation: u32,
    created_at: u64,
    #[serde(borrow)]
    from: &'a str,
    #[serde(borrow)]
    recipients: Vec<&'a str>,
    subject: &'a str,
    attempts: u32,
    #[serde(borrow)]
    state: StateV1<'a>,
    last_event: Option<(u64, EventTypeV1)>,
}

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
enum StateV1<'a> {
    Queued(Option<FailureV1<'a>>, AcceptanceV1),
    Sent(&'a str, u64),
    Failed(FailureV1<'a>, AcceptanceV1),
    Suppressed(FailureV1<'a>),
}

#[derive(Serialize, Deserialize)]
struct FailureV1<'a> {
    code: FailureCodeV1,
    message: &'a str,
    provider_code: Option<&'a str>,
}

impl<'a> From<&'a Failure> for FailureV1<'a> {
    fn from(failure: &'a Failure) -> Self {
        Self {
            code: failure.code.into(),
            message: &failure.message,
            provider_code: failure.provider_code.as_deref(),
        }
    }
}

impl From<FailureV1<'_>> for Failure {
    fn from(row: FailureV1<'_>) -> Self {
        Self {
            code: row.code.into(),
            message: row.message.to_owned(),
            provider_code: row.provider_code.map(str::to_owned),
        }
    }
}

/// Version of a message with metadata behind it; one without is a row of the first version.
const WITH_METADATA: u8 = 2;

/// A message with terms, and with metadata if it has any. One without terms is a row of an earlier
/// version.
#[derive(Serialize, Deserialize)]
struct MessageV3<'a> {
    #[serde(borrow)]
    message: MessageV1<'a>,
    #[serde(borrow)]
    metadata: Option<Vec<(&'a str, &'a str)>>,
    priority: PriorityV3,
    /// True if the request named the priority.
    is_given: bool,
    /// Milliseconds after the acceptance.
    expires_in: Option<u64>,
}

const WITH_TERMS: u8 = 3;

impl<'a> MessageV1<'a> {
    fn encode(
        self,
        metadata: Option<Vec<(&'a str, &'a str)>>,
        terms: Terms,
        size_hint: usize,
    ) -> Vec<u8> {
        let pairs = metadata.iter().flatten();
        let text: usize = pairs.map(|(name, value)| name.len() + value.len() + 3).sum();
        if terms != Terms::NONE {
            let Terms { priority, expires_in } = terms;
            let row = MessageV3 {
                message: self,
                metadata,
                priority: priority.effective().into(),
                is_given: priority.given().is_some(),
                expires_in: expires_in.map(whole_millis),
            };
            return encode_as(WITH_TERMS, &row, size_hint + text + 10);
        }
        match metadata {
            None => encode(&self, size_hint),
            Some(metadata) => encode_as(WITH_METADATA, &(self, metadata), size_hint + text + 1),
        }
    }
}

/// The row of a message at its acceptance, straight from the request.
pub(super) fn encode_accepted(
    admitted: &Admitted<'_>,
    organisation: OrganisationId,
    created_at: Timestamp,
) -> Vec<u8> {
    let recipients: Vec<&str> = admitted.recipients().map(Mailbox::as_given).collect();
    let text: usize = recipients.iter().map(|recipient| recipient.len() + 2).sum();
    let from = admitted.from().as_given();
    let size_hint = text + from.len() + admitted.subject().len() + 40;
    let row = MessageV1 {
        organisation: organisation.0,
        created_at: created_at.unix_millis(),
        from,
        recipients,
        subject: admitted.subject(),
        attempts: 0,
        state: StateV1::Queued(None, AcceptanceV1::Excluded),
        last_event: None,
    };
    row.encode(admitted.metadata().map(<[_]>::to_vec), admitted.terms(), size_hint)
}

pub(super) fn encode_message(message: &Message) -> Vec<u8> {
    let state = match &message.state {
        State::Queued { last_failure, acceptance } => {
            StateV1::Queued(last_failure.as_ref().map(FailureV1::from), (*acceptance).into())
        }
        State::Sent { ses_message_id, sent_at } => {
            StateV1::Sent(ses_message_id, sent_at.unix_millis())
        }
        State::Failed { failure, acceptance } => {
            StateV1::Failed(failure.into(), (*acceptance).into())
        }
        State::Suppressed { failure } => StateV1::Suppressed(failure.into()),
    };
    let row = MessageV1 {
        organisation: message.organisation.0,
        created_at: message.created_at.unix_millis(),
        from: &message.from,
        recipients: message.recipients.iter().map(String::as_str).collect(),
        subject: &message.subject,
        attempts: message.attempts,
        state,
        last_event: message
            .last_event
            .map(|event| (event.occurred_at.unix_millis(), event.event_type.into())),
    };
    let metadata = message.metadata.as_ref().map(|metadata| {
        metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    });
    row.encode(metadata, message.terms, 512)
}

pub(super) fn decode_message(id: MessageId, bytes: &[u8]) -> Result<Message, RowError> {
    let (row, metadata, terms) = match bytes.first() {
        Some(&WITH_METADATA) => {
            let (message, metadata) = decode_as(WITH_METADATA, bytes)?;
            (message, Some(metadata), Terms::NONE)
        }
        Some(&WITH_TERMS) => {
            let MessageV3 { message, metadata, priority, is_given, expires_in } =
                decode_as(WITH_TERMS, bytes)?;
            let origin = if is_given { MessagePriority::Given } else { MessagePriority::Default };
            let expires_in = expires_in.map(Duration::from_millis);
            (message, metadata, Terms { priority: origin(priority.into()), expires_in })
        }
        _ => (decode(bytes)?, None, Terms::NONE),
    };
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let state = match row.state {
        StateV1::Queued(failure, acceptance) => State::Queued {
            last_failure: failure.map(Failure::from),
            acceptance: acceptance.into(),
        },
        StateV1::Sent(ses_message_id, sent_at) => State::Sent {
            ses_message_id: ses_message_id.to_owned(),
            sent_at: Timestamp::from_unix_millis(sent_at),
        },
        StateV1::Failed(failure, acceptance) => {
            State::Failed { failure: failure.into(), acceptance: acceptance.into() }
        }
        StateV1::Suppressed(failure) => State::Suppressed { failure: failure.into() },
    };
    Ok(Message {
        id,
        organisation: OrganisationId(row.organisation),
        created_at: Timestamp::from_unix_millis(row.created_at),
        from: row.from.to_owned(),
        recipients: row.recipients.into_iter().map(str::to_owned).collect(),
        subject: row.subject.to_owned(),
        metadata: metadata.map(|metadata| metadata.into_iter().map(owned).collect()),
        terms,
        attempts: row.attempts,
        state,
        last_event: row.last_event.map(|(at, event_type)| LastEvent {
            occurred_at: Timestamp::from_unix_millis(at),
            event_type: event_type.into(),
        }),
        calling: None,
    })
}

/// Reads the organisation of a message's row, without the rest; `None` if the row is damaged.
pub(super) fn organisation_of(bytes: &[u8]) -> Option<OrganisationId> {
    let (number, _) = postcard::take_from_bytes(bytes.get(1..)?).ok()?;
    Some(OrganisationId(number))
}

/// A row of the idempotency log. Its version shows the origin of the key.
pub(super) struct IdempotencyRow<'a> {
    pub(super) organisation: u32,
    pub(super) created_at: u64,
    pub(super) key: IdempotencyKey<'a>,
}

/// The version of a row whose key was derived here, and not given by a client.
const DERIVED: u8 = 2;

impl<'a> IdempotencyRow<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { organisation, created_at, key } = *self;
        let version = match key.origin() {
            KeyOrigin::Client => VERSION,
            KeyOrigin::Derived => DERIVED,
        };
        let key = key.as_str();
        encode_as(version, &(organisation, created_at, key), key.len() + 16)
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, RowError> {
        let (origin, version) = match bytes.first() {
            Some(&DERIVED) => (KeyOrigin::Derived, DERIVED),
            _ => (KeyOrigin::Client, VERSION),
        };
        let (organisation, created_at, key) = decode_as(version, bytes)?;
        Ok(Self { organisation, created_at, key: IdempotencyKey::from_stored(origin, key) })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Event")]
struct EventV1 {
    #[serde(with = "MillisV1")]
    occurred_at: Timestamp,
    recipients: Vec<String>,
    #[serde(with = "EventDetailV1")]
    detail: EventDetail,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "EventDetail")]
enum EventDetailV1 {
    Delivery {
        smtp_response: Option<String>,
    },
    Bounce {
        #[serde(with = "BounceTypeV1")]
        bounce_type: BounceType,
        sub_type: String,
        diagnostic_code: Option<String>,
    },
    Complaint {
        feedback_type: Option<String>,
        sub_type: Option<String>,
    },
    Reject {
        reason: String,
    },
    DeliveryDelay {
        delay_type: String,
        diagnostic_code: Option<String>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "BounceType")]
enum BounceTypeV1 {
    Permanent,
    Transient,
    Undetermined,
}

pub(super) fn encode_event(event: &Event) -> Vec<u8> {
    encode_by(VERSION, 128, |row| EventV1::serialize(event, row))
}

pub(super) fn decode_event(bytes: &[u8]) -> Result<Event, RowError> {
    Ok(EventV1::deserialize(&mut body(VERSION, bytes)?)?)
}

/// Key of an event among those of its message. Orders them by time, and is the same for the same
/// event for each arrival of it, in whatever form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventKey {
    pub(super) occurred_at: Timestamp,
    pub(super) event_type: EventType,
    /// Digest of the recipients.
    pub(super) recipients: [u8; 8],
}

impl EventKey {
    /// Length of a key in the table of events, after the message's id.
    pub(super) const BYTES: usize = 17;

    /// Returns the key in the table of events. Its number of the type is the stored one: of events at
    /// one instant, the highest is the last.
    pub(super) fn of_message(&self, message: MessageId) -> Vec<u8> {
        let occurred_at = self.occurred_at.unix_millis().to_be_bytes();
        let event_type = EventTypeV1::from(self.event_type) as u8;
        [&message.as_bytes()[..], &occurred_at, &[event_type], &self.recipients].concat()
    }
}

/// Change that an entry of the feed reports. The rest of it is in the record and in the event's
/// row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportedChange {
    Sent,
    Failed,
    Suppressed,
    Observed(EventKey),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FeedRow {
    pub(super) message: MessageId,
    pub(super) change: ReportedChange,
}

/// Instants are relative to the entry's own, which is in its key: a row of the feed is small.
#[derive(Serialize, Deserialize)]
struct FeedV1 {
    /// Milliseconds from the instant in the message's id to the entry's own.
    age: i64,
    /// The message's id without its instant.
    message: [u8; 10],
    change: ReportedChangeV1,
}

#[derive(Serialize, Deserialize)]
enum ReportedChangeV1 {
    Sent,
    Failed,
    Suppressed,
    Delivery(ObservedV1),
    Bounce(ObservedV1),
    Complaint(ObservedV1),
    Reject(ObservedV1),
    DeliveryDelay(ObservedV1),
}

/// Milliseconds from the event's instant to the entry's own, and the digest of the recipients.
type ObservedV1 = (i64, [u8; 8]);

/// Length of the instant in a message's id, in bytes.
const ID_INSTANT_BYTES: usize = 6;

pub(super) fn encode_feed(position: FeedPosition, row: &FeedRow) -> Vec<u8> {
    let age = |instant| lead_millis(position.instant(), instant);
    let change = match row.change {
        ReportedChange::Sent => ReportedChangeV1::Sent,
        ReportedChange::Failed => ReportedChangeV1::Failed,
        ReportedChange::Suppressed => ReportedChangeV1::Suppressed,
        ReportedChange::Observed(EventKey { occurred_at, event_type, recipients }) => {
            let observed = (age(occurred_at), recipients);
            match event_type {
                EventType::Delivery => ReportedChangeV1::Delivery(observed),
                EventType::Bounce => ReportedChangeV1::Bounce(observed),
                EventType::Complaint => ReportedChangeV1::Complaint(observed),
                EventType::Reject => ReportedChangeV1::Reject(observed),
                EventType::DeliveryDelay => ReportedChangeV1::DeliveryDelay(observed),
            }
        }
    };
    let message = *row.message.as_bytes().last_chunk().expect("an id has 16 bytes");
    encode(&FeedV1 { age: age(row.message.instant()), message, change }, 32)
}

pub(super) fn decode_feed(position: FeedPosition, bytes: &[u8]) -> Result<FeedRow, RowError> {
    let FeedV1 { age, message, change } = decode(bytes)?;
    let instant = |age: i64| shifted(position.instant(), age.saturating_neg());
    let observed = |event_type, (age, recipients): ObservedV1| {
        ReportedChange::Observed(EventKey { occurred_at: instant(age), event_type, recipients })
    };
    let change = match change {
        ReportedChangeV1::Sent => ReportedChange::Sent,
        ReportedChangeV1::Failed => ReportedChange::Failed,
        ReportedChangeV1::Suppressed => ReportedChange::Suppressed,
        ReportedChangeV1::Delivery(event) => observed(EventType::Delivery, event),
        ReportedChangeV1::Bounce(event) => observed(EventType::Bounce, event),
        ReportedChangeV1::Complaint(event) => observed(EventType::Complaint, event),
        ReportedChangeV1::Reject(event) => observed(EventType::Reject, event),
        ReportedChangeV1::DeliveryDelay(event) => observed(EventType::DeliveryDelay, event),
    };
    let mut id = *MessageId::first_of(instant(age)).as_bytes();
    id[ID_INSTANT_BYTES..].copy_from_slice(&message);
    Ok(FeedRow { message: MessageId::from_bytes(id), change })
}

pub(super) fn encode_overturned(failure: &Failure) -> Vec<u8> {
    encode(&FailureV1::from(failure), failure.message.len() + 32)
}

pub(super) fn decode_overturned(bytes: &[u8]) -> Result<Failure, RowError> {
    Ok(decode::<FailureV1<'_>>(bytes)?.into())
}

pub(super) struct UnmatchedEvent {
    /// The organisation's name, if the report had one.
    pub(super) organisation: Option<String>,
    pub(super) event: Event,
}

pub(super) fn encode_unmatched(event: &Event, organisation: Option<&str>) -> Vec<u8> {
    encode(&(organisation, encode_event(event)), 192)
}

pub(super) fn decode_unmatched(bytes: &[u8]) -> Result<UnmatchedEvent, RowError> {
    let (organisation, event): (_, &[u8]) = decode(bytes)?;
    Ok(UnmatchedEvent { organisation, event: decode_event(event)? })
}

pub(super) fn encode_dead_letter(letter: &DeadLetter) -> Vec<u8> {
    let DeadLetter { reason, document, length, .. } = letter;
    encode(&(reason, document, length), document.len() + 128)
}

pub(super) fn decode_dead_letter(
    received_at: Timestamp,
    bytes: &[u8],
) -> Result<DeadLetter, RowError> {
    let (reason, document, length) = decode(bytes)?;
    Ok(DeadLetter { received_at, reason, document, length })
}

/// The row of a record in quarantine: the reason, and the record's row as it was found.
pub(super) fn encode_quarantined(reason: &str, record: &[u8]) -> Vec<u8> {
    encode(&(reason, record), reason.len() + record.len() + 8)
}

/// Reads the reason why a record is in quarantine.
pub(super) fn decode_quarantined(bytes: &[u8]) -> Result<String, RowError> {
    let (reason, _): (_, &[u8]) = decode(bytes)?;
    Ok(reason)
}

/// The row of a suppression; its address is the key.
pub(super) fn encode_suppression(suppression: &Suppression) -> Vec<u8> {
    let reason = ReasonV1::from(suppression.reason);
    let cause = suppression.cause.map(|id| *id.as_bytes());
    encode(&(reason, suppression.since.unix_millis(), cause), 32)
}

pub(super) fn decode_suppression(address: &str, bytes: &[u8]) -> Result<Suppression, RowError> {
    let (reason, since, cause): (ReasonV1, _, Option<_>) = decode(bytes)?;
    Ok(Suppression {
        address: SuppressedAddress::from_stored(address),
        reason: reason.into(),
        since: Timestamp::from_unix_millis(since),
        cause: cause.map(MessageId::from_bytes),
    })
}

#[derive(Serialize, Deserialize)]
struct TimeV1 {
    stamp: u64,
    /// The corrected instant at which window time has stopped, and the first unsure stored instant.
    doubt: Option<(u64, u64)>,
    assurance: AssuranceV1,
    corrections: Vec<(u64, i64)>,
}

pub(super) fn encode_time(record: &TimeRecord) -> Vec<u8> {
    let TimeRecord { stamp, doubt, assurance, corrections } = record;
    let millis = |instant: Timestamp| instant.unix_millis();
    let row = TimeV1 {
        stamp: millis(*stamp),
        doubt: doubt.map(|doubt| (millis(doubt.frozen_at), millis(doubt.unsure_from))),
        assurance: (*assurance).into(),
        corrections: corrections
            .iter()
            .map(|Correction { from, shift_millis }| (millis(*from), *shift_millis))
            .collect(),
    };
    encode(&row, 64)
}

pub(super) fn decode_time(bytes: &[u8]) -> Result<TimeRecord, RowError> {
    let row: TimeV1 = decode(bytes)?;
    let instant = Timestamp::from_unix_millis;
    let corrections: Vec<_> = row
        .corrections
        .into_iter()
        .map(|(from, shift_millis)| Correction { from: instant(from), shift_millis })
        .collect();
    if !corrections.is_sorted_by(|a, b| a.from < b.from) {
        return Err(RowError::Invalid("its corrections are not in order"));
    }
    Ok(TimeRecord {
        stamp: instant(row.stamp),
        doubt: row.doubt.map(|(frozen_at, unsure_from)| StoredDoubt {
            frozen_at: instant(frozen_at),
            unsure_from: instant(unsure_from),
        }),
        assurance: row.assurance.into(),
        corrections,
    })
}

fn encode<T: Serialize>(row: &T, size_hint: usize) -> Vec<u8> {
    encode_as(VERSION, row, size_hint)
}

fn encode_as<T: Serialize>(version: u8, row: &T, size_hint: usize) -> Vec<u8> {
    encode_by(version, size_hint, |bytes| row.serialize(bytes))
}

type RowSerializer = postcard::Serializer<ExtendFlavor<Vec<u8>>>;

fn encode_by(
    version: u8,
    size_hint: usize,
    serialize: impl FnOnce(&mut RowSerializer) -> postcard::Result<()>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_hint);
    bytes.push(version);
    let mut row = RowSerializer { output: ExtendFlavor::new(bytes) };
    let written = serialize(&mut row).and_then(|()| row.output.finalize());
    written.expect("rows are plain data and a Vec takes any length")
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RowError> {
    decode_as(VERSION, bytes)
}

fn decode_as<'a, T: Deserialize<'a>>(version: u8, bytes: &'a [u8]) -> Result<T, RowError> {
    Ok(T::deserialize(&mut body(version, bytes)?)?)
}

/// Returns what is behind the version.
fn body(version: u8, bytes: &[u8]) -> Result<Deserializer<'_, Slice<'_>>, RowError> {
    match bytes.split_first() {
        Some((&found, row)) if found == version => Ok(Deserializer::from_bytes(row)),
        Some((&found, _)) => Err(RowError::Version(found)),
        None => Err(RowError::Invalid("it is empty")),
    }
}
