//! Rows of what the provider reported and no record has yet, or ever will have.

use serde::{Deserialize, Serialize};

use crate::domain::event::Event;
use crate::domain::time::Timestamp;
use crate::store::DeadLetter;
use crate::store::redb::record::event::{decode_event, encode_event};
use crate::store::redb::record::{RowError, decode, encode};

/// An event whose message is not known yet.
pub(in crate::store) struct EarlyEvent {
    /// The organisation's name, where the report had one.
    pub(in crate::store) organisation: Option<String>,
    pub(in crate::store) event: Event,
}

#[derive(Serialize, Deserialize)]
struct EarlyV1<'a> {
    organisation: Option<&'a str>,
    /// The event's own row.
    event: &'a [u8],
}

/// The row of an early event.
pub(in crate::store) fn encode_early(event: &Event, organisation: Option<&str>) -> Vec<u8> {
    encode(&EarlyV1 { organisation, event: &encode_event(event) }, 192)
}

/// Reads an early event's row.
pub(in crate::store) fn decode_early(bytes: &[u8]) -> Result<EarlyEvent, RowError> {
    let row: EarlyV1<'_> = decode(bytes)?;
    let organisation = row.organisation.map(str::to_owned);
    Ok(EarlyEvent { organisation, event: decode_event(row.event)? })
}

#[derive(Serialize, Deserialize)]
struct DeadLetterV1<'a> {
    reason: &'a str,
    document: &'a str,
    length: usize,
}

/// The row of a dead letter, without the time of its arrival.
pub(in crate::store) fn encode_dead_letter(letter: &DeadLetter) -> Vec<u8> {
    let DeadLetter { reason, document, length, .. } = letter;
    encode(&DeadLetterV1 { reason, document, length: *length }, document.len() + 128)
}

/// Reads a dead letter's row.
pub(in crate::store) fn decode_dead_letter(
    received_at: Timestamp,
    bytes: &[u8],
) -> Result<DeadLetter, RowError> {
    let DeadLetterV1 { reason, document, length } = decode(bytes)?;
    let (reason, document) = (reason.to_owned(), document.to_owned());
    Ok(DeadLetter { received_at, reason, document, length })
}
