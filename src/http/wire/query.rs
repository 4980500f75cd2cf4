//! The query of a listing: its parameters and their rules.

use std::collections::BTreeSet;

use crate::domain::event::EventType;
use crate::domain::id::MessageId;
use crate::domain::message::Status;
use crate::domain::request::FieldError;
use crate::domain::suppression::SuppressedAddress;
use crate::domain::time::Timestamp;
use crate::http::wire::unknown;
use crate::store::MessageFilter;

/// The parameters of a listing's query.
pub(in crate::http) const PARAMETERS: [&str; 7] =
    ["limit", "before", "status", "recipient", "createdFrom", "createdBefore", "lastEvent"];
/// The most messages on a page.
const MAX_LISTED: usize = 100;

/// Which of the organisation's messages to list, from a request's query: `None` for every
/// parameter that is absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// What to look for.
    pub filter: MessageFilter,
    /// At most so many on a page.
    pub limit: Option<usize>,
}

impl ListQuery {
    /// Reads a query. Every parameter may be there once; an unknown one is refused, because a
    /// filter that was silently dropped would show what was not asked for.
    pub fn parse(query: &str) -> Result<Self, FieldError> {
        let mut seen = BTreeSet::new();
        let mut list = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let filter = &mut list.filter;
            match &*name {
                "limit" => list.limit = Some(limit(&value)?),
                "before" => filter.before = Some(message_id(&value)?),
                "status" => filter.status = Some(status(&value)?),
                "lastEvent" => filter.last_event = Some(event_type(&name, &value)?),
                "recipient" => filter.recipient = Some(recipient(&value)?),
                "createdFrom" => filter.created_from = Some(instant(&name, &value)?),
                "createdBefore" => filter.created_before = Some(instant(&name, &value)?),
                _ => return Err(unknown(&name, "parameter", &PARAMETERS)),
            }
            if !seen.insert(name.clone()) {
                return Err(FieldError::new(&*name, "is there twice"));
            }
        }
        Ok(list)
    }
}

fn limit(value: &str) -> Result<usize, FieldError> {
    let limit = value.parse().ok().filter(|limit| (1..=MAX_LISTED).contains(limit));
    limit
        .ok_or_else(|| FieldError::new("limit", format!("must be a number from 1 to {MAX_LISTED}")))
}

fn message_id(value: &str) -> Result<MessageId, FieldError> {
    value.parse().map_err(|_| FieldError::new("before", "must be a message id"))
}

fn status(value: &str) -> Result<Status, FieldError> {
    Status::ALL.into_iter().find(|status| status.as_str() == value).ok_or_else(|| {
        let all = Status::ALL.map(Status::as_str).join(", ");
        FieldError::new("status", format!("must be one of {all}"))
    })
}

fn event_type(name: &str, value: &str) -> Result<EventType, FieldError> {
    EventType::ALL.into_iter().find(|known| known.as_str() == value).ok_or_else(|| {
        let all = EventType::ALL.map(EventType::as_str).join(", ");
        FieldError::new(name, format!("must be one of {all}"))
    })
}

fn recipient(value: &str) -> Result<SuppressedAddress, FieldError> {
    SuppressedAddress::parse(value)
        .map_err(|error| FieldError::new("recipient", format!("must be an address: {error}")))
}

fn instant(name: &str, value: &str) -> Result<Timestamp, FieldError> {
    Timestamp::parse_rfc3339(value).map_err(|_| {
        FieldError::new(name, "must be a time in UTC such as 2026-11-21T09:30:00.123Z")
    })
}
