//! Rows of messages and of the idempotency log.

use serde::{Deserialize, Serialize};

use crate::domain::admission::Admitted;
use crate::domain::event::{EventType, LastEvent};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::mailbox::Mailbox;
use crate::domain::message::{Acceptance, Failure, FailureCode, Message, State};
use crate::domain::time::Timestamp;
use crate::store::redb::record::{RowError, decode, encode};

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

// The order of the variants is the stored format: new ones go to the end.
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
    }
);

stored_enum!(EventTypeV1 = EventType { DeliveryDelay, Delivery, Reject, Bounce, Complaint });

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

/// The row of a message at its acceptance, straight from the request.
pub(in crate::store) fn encode_accepted(
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
    encode(&row, size_hint)
}

/// The row of a message.
pub(in crate::store) fn encode_message(message: &Message) -> Vec<u8> {
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
    encode(&row, 512)
}

/// Reads a message's row.
pub(in crate::store) fn decode_message(id: MessageId, bytes: &[u8]) -> Result<Message, RowError> {
    let row: MessageV1<'_> = decode(bytes)?;
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
        attempts: row.attempts,
        state,
        last_event: row.last_event.map(|(at, event_type)| LastEvent {
            occurred_at: Timestamp::from_unix_millis(at),
            event_type: event_type.into(),
        }),
    })
}

/// Whose a message's row is, without a look at the rest; nothing where the row is damaged.
pub(in crate::store) fn organisation_of(bytes: &[u8]) -> Option<OrganisationId> {
    let (number, _) = postcard::take_from_bytes(bytes.get(1..)?).ok()?;
    Some(OrganisationId(number))
}

/// A row of the idempotency log.
#[derive(Serialize, Deserialize)]
pub(in crate::store) struct IdempotencyRow<'a> {
    pub(in crate::store) organisation: u32,
    pub(in crate::store) created_at: u64,
    pub(in crate::store) key: &'a str,
}

impl<'a> IdempotencyRow<'a> {
    pub(in crate::store) fn encode(&self) -> Vec<u8> {
        encode(self, self.key.len() + 16)
    }

    pub(in crate::store) fn decode(bytes: &'a [u8]) -> Result<Self, RowError> {
        decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_reads_back_as_it_was_written() {
        for code in FailureCode::ALL {
            for acceptance in [Acceptance::Excluded, Acceptance::Possible] {
                let failure = Failure::new(code, code.as_str());
                let message = Message {
                    id: MessageId::from_bytes([7; 16]),
                    organisation: OrganisationId(1),
                    created_at: Timestamp::from_unix_millis(1),
                    from: "ann@example.com".to_owned(),
                    recipients: vec!["bob@example.org".to_owned()],
                    subject: "Hello".to_owned(),
                    attempts: 1,
                    state: State::Failed { failure, acceptance },
                    last_event: None,
                };
                let row = encode_message(&message);
                assert_eq!(decode_message(message.id, &row).unwrap(), message);
            }
        }
    }
}
