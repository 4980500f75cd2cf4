//! Rows of webhooks: endpoints, their cursors, and deliveries that failed at least once.

use serde::{Deserialize, Serialize};

use crate::domain::feed::{FeedEventType, FeedPosition, FeedTypes};
use crate::domain::id::OrganisationId;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{
    AttemptFailure, PausedBy, Redelivery, ReplacedSecret, SigningSecret, Webhook, WebhookCursor,
    WebhookId, WebhookState, WebhookUrl,
};
use crate::store::error::RowError;
use crate::store::record::{decode, encode};

stored_enum!(PausedByV1 = PausedBy { Operator, Endpoint });

#[derive(Serialize, Deserialize)]
struct WebhookV1<'a> {
    organisation: u32,
    url: &'a str,
    /// All if there is none.
    #[serde(borrow)]
    types: Vec<&'a str>,
    authority: Option<&'a str>,
    created_at: u64,
    secret: &'a [u8],
    /// The secret before that one, and until when it signs.
    replaced: Option<(&'a [u8], u64)>,
    paused: Option<(PausedByV1, u64)>,
}

/// The row of an endpoint.
pub(in crate::store) fn encode_webhook(webhook: &Webhook) -> Vec<u8> {
    let row = WebhookV1 {
        organisation: webhook.organisation.0,
        url: webhook.url.as_str(),
        types: if webhook.types == FeedTypes::ALL {
            Vec::new()
        } else {
            webhook.types.iter().map(FeedEventType::as_str).collect()
        },
        authority: webhook.authority.as_deref(),
        created_at: webhook.created_at.unix_millis(),
        secret: webhook.secret.bytes(),
        replaced: webhook
            .replaced
            .as_ref()
            .map(|replaced| (replaced.secret.bytes(), replaced.until.unix_millis())),
        paused: match webhook.state {
            WebhookState::Active => None,
            WebhookState::Paused { by, since } => Some((by.into(), since.unix_millis())),
        },
    };
    encode(&row, 256 + webhook.authority.as_ref().map_or(0, String::len))
}

/// Reads an endpoint's row.
pub(in crate::store) fn decode_webhook(id: u32, bytes: &[u8]) -> Result<Webhook, RowError> {
    let row: WebhookV1<'_> = decode(bytes)?;
    let instant = Timestamp::from_unix_millis;
    Ok(Webhook {
        id: WebhookId(id),
        organisation: OrganisationId(row.organisation),
        url: WebhookUrl::parse(row.url).map_err(|_| RowError::Invalid("an endpoint's URL"))?,
        types: types(&row.types)?,
        authority: row.authority.map(str::to_owned),
        created_at: instant(row.created_at),
        secret: SigningSecret::from_bytes(row.secret),
        replaced: row.replaced.map(|(secret, until)| ReplacedSecret {
            secret: SigningSecret::from_bytes(secret),
            until: instant(until),
        }),
        state: row.paused.map_or(WebhookState::Active, |(by, since)| WebhookState::Paused {
            by: by.into(),
            since: instant(since),
        }),
    })
}

/// Reads the names of types; none stand for all.
fn types(names: &[&str]) -> Result<FeedTypes, RowError> {
    if names.is_empty() {
        return Ok(FeedTypes::ALL);
    }
    let types = names.iter().map(|name| name.parse::<FeedEventType>());
    types.collect::<Result<_, _>>().map_err(|_| RowError::Invalid("an endpoint's types"))
}

/// An endpoint's cursor as it is stored.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct CursorRow {
    pub(in crate::store) cursor: WebhookCursor,
    /// Position to which the cursor was last moved back: deliveries of earlier turns behind it are
    /// void, because the feed is delivered again from there.
    pub(in crate::store) moved_to: Option<FeedPosition>,
}

impl CursorRow {
    /// Whether a delivery of this turn counts.
    pub(in crate::store) fn counts(&self, turn: u32, position: FeedPosition) -> bool {
        turn >= self.cursor.turn || self.moved_to.is_none_or(|moved_to| position <= moved_to)
    }
}

#[derive(Serialize, Deserialize)]
struct CursorV1 {
    turn: u32,
    position: u64,
    moved_to: Option<u64>,
}

/// The row of an endpoint's cursor.
pub(in crate::store) fn encode_cursor(row: &CursorRow) -> Vec<u8> {
    let CursorRow { cursor: WebhookCursor { turn, position }, moved_to } = *row;
    let moved_to = moved_to.map(FeedPosition::number);
    encode(&CursorV1 { turn, position: position.number(), moved_to }, 24)
}

/// Reads the row of an endpoint's cursor.
pub(in crate::store) fn decode_cursor(bytes: &[u8]) -> Result<CursorRow, RowError> {
    let CursorV1 { turn, position, moved_to } = decode(bytes)?;
    let cursor = WebhookCursor { turn, position: FeedPosition::from_number(position) };
    Ok(CursorRow { cursor, moved_to: moved_to.map(FeedPosition::from_number) })
}

#[derive(Serialize, Deserialize)]
enum AttemptFailureV1 {
    Status(u16),
    TimedOut,
    Unreachable,
}

impl From<AttemptFailure> for AttemptFailureV1 {
    fn from(failure: AttemptFailure) -> Self {
        match failure {
            AttemptFailure::Status(status) => Self::Status(status),
            AttemptFailure::TimedOut => Self::TimedOut,
            AttemptFailure::Unreachable => Self::Unreachable,
        }
    }
}

impl From<AttemptFailureV1> for AttemptFailure {
    fn from(failure: AttemptFailureV1) -> Self {
        match failure {
            AttemptFailureV1::Status(status) => Self::Status(status),
            AttemptFailureV1::TimedOut => Self::TimedOut,
            AttemptFailureV1::Unreachable => Self::Unreachable,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RedeliveryV1 {
    turn: u32,
    attempts: u32,
    last: Option<(u64, AttemptFailureV1)>,
}

/// The row of a delivery of this turn of the cursor; its position is in the key.
pub(in crate::store) fn encode_redelivery(turn: u32, delivery: &Redelivery) -> Vec<u8> {
    let Redelivery { position: _, attempts, last } = *delivery;
    let last = last.map(|(at, failure)| (at.unix_millis(), failure.into()));
    encode(&RedeliveryV1 { turn, attempts, last }, 24)
}

/// Reads a delivery's row, with the turn of the cursor.
pub(in crate::store) fn decode_redelivery(
    position: u64,
    bytes: &[u8],
) -> Result<(u32, Redelivery), RowError> {
    let RedeliveryV1 { turn, attempts, last } = decode(bytes)?;
    let last = last.map(|(at, failure)| (Timestamp::from_unix_millis(at), failure.into()));
    Ok((turn, Redelivery { position: FeedPosition::from_number(position), attempts, last }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    #[test]
    fn endpoints_read_back_as_they_were_written() {
        let plain = Webhook {
            id: WebhookId(7),
            organisation: OrganisationId(3),
            url: WebhookUrl::parse("https://app.example.com/hooks").unwrap(),
            types: FeedTypes::default(),
            authority: None,
            created_at: NOON,
            secret: SigningSecret::generate().unwrap(),
            replaced: None,
            state: WebhookState::Active,
        };
        let full = Webhook {
            types: FeedTypes::from_iter([FeedEventType::Bounce]),
            authority: Some("-----BEGIN CERTIFICATE-----".to_owned()),
            replaced: Some(ReplacedSecret { secret: plain.secret.clone(), until: NOON }),
            state: WebhookState::Paused { by: PausedBy::Endpoint, since: NOON },
            ..plain.clone()
        };
        for webhook in [plain, full] {
            assert_eq!(decode_webhook(7, &encode_webhook(&webhook)).unwrap(), webhook);
        }
    }

    #[test]
    fn cursors_and_deliveries_read_back_and_are_small() {
        let position = FeedPosition::from_number(u64::MAX);
        let row =
            CursorRow { cursor: WebhookCursor { turn: 9, position }, moved_to: Some(position) };
        let read = decode_cursor(&encode_cursor(&row)).unwrap();
        assert_eq!((read.cursor, read.moved_to), (row.cursor, row.moved_to));
        for failure in
            [AttemptFailure::Status(503), AttemptFailure::TimedOut, AttemptFailure::Unreachable]
        {
            let delivery = Redelivery { position, attempts: 3, last: Some((NOON, failure)) };
            let bytes = encode_redelivery(9, &delivery);
            assert!(bytes.len() <= 16, "{} bytes", bytes.len());
            assert_eq!(decode_redelivery(u64::MAX, &bytes).unwrap(), (9, delivery));
        }
    }

    #[test]
    fn deliveries_of_an_earlier_turn_behind_the_place_that_was_moved_to_are_void() {
        let row = CursorRow {
            cursor: WebhookCursor { turn: 2, position: FeedPosition::from_number(90) },
            moved_to: Some(FeedPosition::from_number(50)),
        };
        assert!(
            row.counts(1, FeedPosition::from_number(50))
                && !row.counts(1, FeedPosition::from_number(51))
        );
        assert!(row.counts(2, FeedPosition::from_number(51)));
    }
}
