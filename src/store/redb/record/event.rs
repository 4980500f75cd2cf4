//! Rows of delivery events.

use serde::{Deserialize, Serialize};

use crate::domain::event::{BounceType, Event, EventDetail};
use crate::domain::time::Timestamp;
use crate::store::redb::record::{RowError, decode, encode};

// The order of the variants is the stored format: new ones go to the end.
stored_enum!(BounceTypeV1 = BounceType { Permanent, Transient, Undetermined });

#[derive(Serialize, Deserialize)]
struct EventV1<'a> {
    occurred_at: u64,
    #[serde(borrow)]
    recipients: Vec<&'a str>,
    #[serde(borrow)]
    detail: EventDetailV1<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
enum EventDetailV1<'a> {
    Delivery(Option<&'a str>),
    Bounce(BounceTypeV1, &'a str, Option<&'a str>),
    Complaint(Option<&'a str>, Option<&'a str>),
    Reject(&'a str),
    DeliveryDelay(&'a str, Option<&'a str>),
}

/// The row of an event.
pub(in crate::store) fn encode_event(event: &Event) -> Vec<u8> {
    let detail = match &event.detail {
        EventDetail::Delivery { smtp_response } => {
            EventDetailV1::Delivery(smtp_response.as_deref())
        }
        EventDetail::Bounce { bounce_type, sub_type, diagnostic_code } => {
            EventDetailV1::Bounce((*bounce_type).into(), sub_type, diagnostic_code.as_deref())
        }
        EventDetail::Complaint { feedback_type, sub_type } => {
            EventDetailV1::Complaint(feedback_type.as_deref(), sub_type.as_deref())
        }
        EventDetail::Reject { reason } => EventDetailV1::Reject(reason),
        EventDetail::DeliveryDelay { delay_type, diagnostic_code } => {
            EventDetailV1::DeliveryDelay(delay_type, diagnostic_code.as_deref())
        }
    };
    let recipients = event.recipients.iter().map(String::as_str).collect();
    encode(&EventV1 { occurred_at: event.occurred_at.unix_millis(), recipients, detail }, 128)
}

/// Reads an event's row.
pub(in crate::store) fn decode_event(bytes: &[u8]) -> Result<Event, RowError> {
    let row: EventV1<'_> = decode(bytes)?;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let detail = match row.detail {
        EventDetailV1::Delivery(response) => {
            EventDetail::Delivery { smtp_response: owned(response) }
        }
        EventDetailV1::Bounce(bounce_type, sub_type, diagnostic) => EventDetail::Bounce {
            bounce_type: bounce_type.into(),
            sub_type: sub_type.to_owned(),
            diagnostic_code: owned(diagnostic),
        },
        EventDetailV1::Complaint(feedback_type, sub_type) => EventDetail::Complaint {
            feedback_type: owned(feedback_type),
            sub_type: owned(sub_type),
        },
        EventDetailV1::Reject(reason) => EventDetail::Reject { reason: reason.to_owned() },
        EventDetailV1::DeliveryDelay(delay_type, diagnostic) => EventDetail::DeliveryDelay {
            delay_type: delay_type.to_owned(),
            diagnostic_code: owned(diagnostic),
        },
    };
    Ok(Event {
        occurred_at: Timestamp::from_unix_millis(row.occurred_at),
        recipients: row.recipients.into_iter().map(str::to_owned).collect(),
        detail,
    })
}
