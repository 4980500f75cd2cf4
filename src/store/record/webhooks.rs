//! Rows of webhooks: endpoints, their cursors, and deliveries that failed at least once.

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::record::{decode, decode_as, encode, encode_as};
use pillarbox_domain::feed::{FeedEventType, FeedPosition, FeedTypes};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{
    AttemptFailure, PausedBy, Redelivery, ReplacedSecret, SigningSecret, Webhook, WebhookCursor,
    WebhookFormat, WebhookId, WebhookState, WebhookUrl,
};

stored_enum!(PausedByV1 = PausedBy { Operator, Endpoint });
stored_enum!(WebhookFormatV1 = WebhookFormat { Standard, Resend });
stored_enum!(AttemptFailureV1 = AttemptFailure { Status(status: u16), TimedOut, Unreachable });

/// Version of an endpoint's row with more than the first one can hold.
const WITH_MORE: u8 = 2;

#[derive(Serialize, Deserialize)]
struct WebhookV1<'a> {
    organisation: u32,
    url: &'a str,
    /// All types if it is empty.
    #[serde(borrow)]
    types: Vec<&'a str>,
    authority: Option<&'a str>,
    created_at: u64,
    secret: &'a [u8],
    /// The secret before that one, and the time until which it signs.
    replaced: Option<(&'a [u8], u64)>,
    paused: Option<(PausedByV1, u64)>,
}

/// Parts that the first version of an endpoint's row cannot hold: secrets before the one that it
/// names as replaced, and another form of events than the standard's.
#[derive(Serialize, Deserialize)]
struct WebhookV2<'a> {
    #[serde(borrow)]
    webhook: WebhookV1<'a>,
    earlier: Vec<(&'a [u8], u64)>,
    format: WebhookFormatV1,
}

pub(crate) fn encode_webhook(webhook: &Webhook) -> Vec<u8> {
    let replaced = webhook.replaced.iter();
    let mut replaced = replaced.map(|one| (one.secret.bytes(), one.until.unix_millis()));
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
        replaced: replaced.next(),
        paused: match webhook.state {
            WebhookState::Active => None,
            WebhookState::Paused { by, since } => Some((by.into(), since.unix_millis())),
        },
    };
    let earlier: Vec<_> = replaced.collect();
    let size_hint = 512 + webhook.authority.as_ref().map_or(0, String::len);
    if earlier.is_empty() && webhook.format == WebhookFormat::Standard {
        return encode(&row, size_hint);
    }
    let row = WebhookV2 { webhook: row, earlier, format: webhook.format.into() };
    encode_as(WITH_MORE, &row, size_hint)
}

pub(crate) fn decode_webhook(id: u32, bytes: &[u8]) -> Result<Webhook, RowError> {
    let WebhookV2 { webhook: row, earlier, format } = if bytes.first() == Some(&WITH_MORE) {
        decode_as(WITH_MORE, bytes)?
    } else {
        let format = WebhookFormatV1::Standard;
        WebhookV2 { webhook: decode(bytes)?, earlier: Vec::new(), format }
    };
    let instant = Timestamp::from_unix_millis;
    Ok(Webhook {
        id: WebhookId(id),
        organisation: OrganisationId(row.organisation),
        url: WebhookUrl::parse(row.url).map_err(|_| RowError::Invalid("the endpoint's URL"))?,
        types: types(&row.types)?,
        format: format.into(),
        authority: row.authority.map(str::to_owned),
        created_at: instant(row.created_at),
        secret: SigningSecret::from_bytes(row.secret),
        replaced: (row.replaced.into_iter().chain(earlier))
            .map(|(secret, until)| ReplacedSecret {
                secret: SigningSecret::from_bytes(secret),
                until: instant(until),
            })
            .collect(),
        state: row.paused.map_or(WebhookState::Active, |(by, since)| WebhookState::Paused {
            by: by.into(),
            since: instant(since),
        }),
    })
}

/// Reads the names of types; an empty list stands for all.
fn types(names: &[&str]) -> Result<FeedTypes, RowError> {
    if names.is_empty() {
        return Ok(FeedTypes::ALL);
    }
    let types = names.iter().map(|name| name.parse::<FeedEventType>());
    types.collect::<Result<_, _>>().map_err(|_| RowError::Invalid("the endpoint's types"))
}

/// Version of a cursor's row with the moves before the last one: generation and position of each.
const WITH_EARLIER_MOVES: u8 = 2;
const MAX_MOVES: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CursorRow {
    pub(crate) cursor: WebhookCursor,
    /// Moves that later ones do not cover, oldest first: each went further than the ones before.
    moves: Vec<CursorMove>,
}

/// Move of a cursor back to a position. Deliveries of earlier generations behind it are void,
/// because the feed is delivered again from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CursorMove {
    /// The first generation after it.
    generation: u32,
    to: FeedPosition,
}

impl CursorRow {
    /// Row of a cursor that was not moved back.
    pub(crate) const fn new(cursor: WebhookCursor) -> Self {
        Self { cursor, moves: Vec::new() }
    }

    /// Returns the row after the cursor was moved back. If there are very many moves, the oldest is
    /// forgotten: a delivery that it made void may then be made once more.
    pub(crate) fn moved_back(mut self, to: FeedPosition) -> Self {
        let generation = self.cursor.generation + 1;
        self.moves.retain(|earlier| earlier.to < to);
        if self.moves.len() == MAX_MOVES {
            self.moves.remove(0);
        }
        self.moves.push(CursorMove { generation, to });
        Self { cursor: WebhookCursor { generation, position: to }, ..self }
    }

    /// Returns true if a delivery of this generation counts.
    pub(crate) fn counts(&self, generation: u32, position: FeedPosition) -> bool {
        // The first move after it reached the furthest back.
        let next = self.moves.iter().find(|next| generation < next.generation);
        next.is_none_or(|next| position <= next.to)
    }
}

#[derive(Serialize, Deserialize)]
struct CursorV1 {
    generation: u32,
    position: u64,
    /// Position of the last move, which began the generation.
    moved_to: Option<u64>,
}

pub(crate) fn encode_cursor(row: &CursorRow) -> Vec<u8> {
    let CursorRow { cursor: WebhookCursor { generation, position }, moves } = row;
    let moved_to = moves.last().map(|last| last.to.number());
    let cursor = CursorV1 { generation: *generation, position: position.number(), moved_to };
    let earlier = moves.split_last().map_or(&[][..], |(_, earlier)| earlier);
    if earlier.is_empty() {
        return encode(&cursor, 24);
    }
    let earlier: Vec<_> = earlier.iter().map(|one| (one.generation, one.to.number())).collect();
    let size_hint = 24 + 14 * earlier.len();
    encode_as(WITH_EARLIER_MOVES, &(cursor, earlier), size_hint)
}

pub(crate) fn decode_cursor(bytes: &[u8]) -> Result<CursorRow, RowError> {
    let (cursor, earlier): (_, Vec<_>) = match bytes.first() {
        Some(&WITH_EARLIER_MOVES) => decode_as(WITH_EARLIER_MOVES, bytes)?,
        _ => (decode(bytes)?, Vec::new()),
    };
    let CursorV1 { generation, position, moved_to } = cursor;
    let moves = earlier.into_iter().chain(moved_to.map(|to| (generation, to)));
    let moves =
        moves.map(|(generation, to)| CursorMove { generation, to: FeedPosition::from_number(to) });
    let cursor = WebhookCursor { generation, position: FeedPosition::from_number(position) };
    Ok(CursorRow { cursor, moves: moves.collect() })
}

/// The row of a delivery of this generation of the cursor; its position is in the key.
pub(crate) fn encode_redelivery(generation: u32, delivery: &Redelivery) -> Vec<u8> {
    let Redelivery { position: _, attempts, last } = *delivery;
    let last = last.map(|(at, failure)| (at.unix_millis(), AttemptFailureV1::from(failure)));
    encode(&(generation, attempts, last), 24)
}

pub(crate) fn decode_redelivery(
    position: u64,
    bytes: &[u8],
) -> Result<(u32, Redelivery), RowError> {
    let (generation, attempts, last): (_, _, Option<(_, AttemptFailureV1)>) = decode(bytes)?;
    let last = last.map(|(at, failure)| (Timestamp::from_unix_millis(at), failure.into()));
    Ok((generation, Redelivery { position: FeedPosition::from_number(position), attempts, last }))
}

#[cfg(test)]
mod tests {
    use super::*;

    use pillarbox_domain::webhook::{EarlierSecrets, MAX_SIGNING_SECRETS};

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    #[test]
    fn endpoints_read_back_as_they_were_written() {
        let plain = Webhook {
            id: WebhookId(7),
            organisation: OrganisationId(3),
            url: WebhookUrl::parse("https://app.example.com/hooks").unwrap(),
            types: FeedTypes::default(),
            format: WebhookFormat::Standard,
            authority: None,
            created_at: NOON,
            secret: SigningSecret::generate().unwrap(),
            replaced: Vec::new(),
            state: WebhookState::Active,
        };
        let full = Webhook {
            types: FeedTypes::from_iter([FeedEventType::Bounce]),
            authority: Some("-----BEGIN CERTIFICATE-----".to_owned()),
            replaced: vec![ReplacedSecret { secret: plain.secret.clone(), until: NOON }],
            state: WebhookState::Paused { by: PausedBy::Endpoint, since: NOON },
            ..plain.clone()
        };
        let mut rotated = full.clone();
        for _ in 0..MAX_SIGNING_SECRETS {
            let secret = SigningSecret::generate().unwrap();
            rotated.rotate(secret, EarlierSecrets::Sign, Timestamp::from_unix_millis(1));
        }
        assert_eq!(rotated.replaced.len(), MAX_SIGNING_SECRETS - 1);
        let of_resend = Webhook { format: WebhookFormat::Resend, ..plain.clone() };
        let rows = [(1, plain), (1, full), (WITH_MORE, of_resend), (WITH_MORE, rotated)];
        for (version, webhook) in rows {
            let row = encode_webhook(&webhook);
            assert_eq!(row[0], version, "versions before read what they can hold");
            assert_eq!(decode_webhook(7, &row).unwrap(), webhook);
        }
    }

    #[test]
    fn cursors_and_deliveries_read_back_and_are_small() {
        let position = FeedPosition::from_number(u64::MAX);
        let row = CursorRow::new(WebhookCursor { generation: 8, position }).moved_back(position);
        assert!(encode_cursor(&row).len() <= 24);
        assert_eq!(decode_cursor(&encode_cursor(&row)).unwrap(), row);
        // As it was written before a row had more than one move.
        let before =
            encode(&CursorV1 { generation: 9, position: u64::MAX, moved_to: Some(u64::MAX) }, 24);
        assert_eq!(encode_cursor(&row), before);
        let mut row = CursorRow::new(WebhookCursor { generation: 0, position });
        for to in 1..100 {
            row = row.moved_back(FeedPosition::from_number(to));
            assert_eq!(decode_cursor(&encode_cursor(&row)).unwrap(), row);
        }
        assert_eq!(row.moves.len(), MAX_MOVES);
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
        let at = FeedPosition::from_number;
        let row =
            CursorRow::new(WebhookCursor { generation: 1, position: at(90) }).moved_back(at(50));
        assert_eq!(row.cursor, WebhookCursor { generation: 2, position: at(50) });
        assert!(row.counts(1, at(50)) && !row.counts(1, at(51)));
        assert!(row.counts(2, at(51)));
        // A later move does not reach as far back, so deliveries that the first made void stay
        // void.
        let row = row.moved_back(at(70));
        assert!(row.counts(1, at(50)) && !row.counts(1, at(51)));
        assert!(row.counts(2, at(70)) && !row.counts(2, at(71)));
        assert!(row.counts(3, at(71)));
        // A move that reaches further back makes more deliveries void.
        let row = row.moved_back(at(60));
        assert!(row.counts(1, at(50)) && !row.counts(1, at(51)));
        assert!(row.counts(2, at(60)) && !row.counts(2, at(61)) && !row.counts(3, at(61)));
        let row = row.moved_back(at(40));
        assert!((1..5).all(|generation| row.counts(generation, at(40)) && !row.counts(generation, at(41))));
    }
}
