//! The API's JSON, both ways: the one place where the names of its fields are written down.
//!
//! Inward, a document becomes a [`Draft`], with types checked and no rule; outward, the domain's
//! values become bytes. Knows no HTTP but what its callers put around it.

use std::collections::BTreeSet;
use std::fmt::Display;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::api::error::{ApiError, MAX_ECHO_CHARS, clip};
use crate::api::json::{self, Json, JsonError, JsonString, MAX_DECODED_BYTES};
use crate::domain::event::{Event, EventDetail, EventType, LastEvent};
use crate::domain::id::MessageId;
use crate::domain::message::{Failure, Message, State, Status};
use crate::domain::policy::TRANSACTIONAL;
use crate::domain::request::{BodyText, Draft, FieldError};
use crate::domain::suppression::SuppressedAddress;
use crate::domain::time::Timestamp;
use crate::listing::Listing;
use crate::queue::{Live, View};
use crate::store::MessageFilter;

/// The fields of a send request (specification section 2.1).
pub(super) const FIELDS: [&str; 11] = [
    "from",
    "to",
    "cc",
    "bcc",
    "reply_to",
    "subject",
    "html",
    "text",
    "headers",
    "idempotencyKey",
    "tag",
];
/// Notice in the answer to a request with an `Idempotency-Key` header: nothing is ignored silently.
pub(super) const IDEMPOTENCY_KEY_NOTICE: &str =
    "the Idempotency-Key header is not implemented; put idempotencyKey into the JSON body";
/// The parameters of a listing's query.
pub(super) const PARAMETERS: [&str; 7] =
    ["limit", "before", "status", "recipient", "createdFrom", "createdBefore", "lastEvent"];
/// The most messages on a page.
const MAX_LISTED: usize = 100;
/// Least likeness, from 0 to 1, at which an unknown field is taken for a misspelling of a known
/// one.
const LIKELY: f64 = 0.8;

impl From<JsonError> for ApiError {
    fn from(error: JsonError) -> Self {
        Self::InvalidJson { message: error.to_string() }
    }
}

/// A send request's document. The draft borrows from it.
#[derive(Debug)]
pub struct SendDocument<'a>(Vec<(JsonString<'a>, Json<'a>)>);

impl<'a> SendDocument<'a> {
    /// Reads a body as one JSON object, without a look at its fields.
    pub fn parse(body: &'a [u8]) -> Result<Self, JsonError> {
        match json::parse_object(body)? {
            Json::Object(members) => Ok(Self(members)),
            other => unreachable!("an object is read as one, not as {}", type_name(&other)),
        }
    }

    /// The fields, with no rule checked but their names and types; the first that is wrong is the
    /// answer, in the document's order.
    pub fn draft(&self) -> Result<Draft<'_>, FieldError> {
        let mut draft = Draft::default();
        for (name, value) in &self.0 {
            let name = name.shown();
            match name {
                "from" => draft.from = string(name, value)?,
                "to" => draft.to = strings(name, value)?,
                "cc" => draft.cc = strings(name, value)?,
                "bcc" => draft.bcc = strings(name, value)?,
                "reply_to" => draft.reply_to = string(name, value)?,
                "subject" => draft.subject = string(name, value)?,
                "html" => draft.html = body_text(name, value)?,
                "text" => draft.text = body_text(name, value)?,
                "headers" => draft.headers = string_members(name, value)?,
                "idempotencyKey" => draft.idempotency_key = string(name, value)?,
                "tag" => draft.tag = string(name, value)?,
                _ => return Err(unknown(name, "field", &FIELDS)),
            }
        }
        Ok(draft)
    }
}

/// A string; `None` for null, which means absent.
fn string<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<&'t str>, FieldError> {
    match value {
        Json::Null => Ok(None),
        Json::String(text) => decoded(text, || path.to_owned()).map(Some),
        other => Err(wrong_type(path, "a string", other)),
    }
}

/// A string's text, if it is one that a field can have.
fn decoded<'t>(
    text: &'t JsonString<'_>,
    path: impl FnOnce() -> String,
) -> Result<&'t str, FieldError> {
    text.text().ok_or_else(|| {
        let rule = format!("must be at most {MAX_DECODED_BYTES} bytes as it is written");
        FieldError::new(path(), rule)
    })
}

/// A body's text, which goes on as it is written.
fn body_text<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<BodyText<'t>>, FieldError> {
    match value {
        Json::Null => Ok(None),
        Json::String(text) => Ok(Some(BodyText::Json(text.written()))),
        other => Err(wrong_type(path, "a string", other)),
    }
}

fn strings<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<Vec<&'t str>>, FieldError> {
    let elements = match value {
        Json::Null => return Ok(None),
        Json::Array(elements) => elements,
        other => return Err(wrong_type(path, "an array of strings", other)),
    };
    let text = |(index, element): (usize, &'t Json<'_>)| match element {
        Json::String(text) => decoded(text, || format!("{path}[{index}]")),
        other => Err(wrong_type(&format!("{path}[{index}]"), "a string", other)),
    };
    elements.iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
}

/// The members of an object of strings, in the order given.
type StringMembers<'t> = Vec<(&'t str, &'t str)>;

fn string_members<'t>(
    path: &str,
    value: &'t Json<'_>,
) -> Result<Option<StringMembers<'t>>, FieldError> {
    let members = match value {
        Json::Null => return Ok(None),
        Json::Object(members) => members,
        other => return Err(wrong_type(path, "an object of strings", other)),
    };
    let text = |(name, value): &'t (JsonString<'_>, Json<'_>)| {
        let name = name.shown();
        let path = || format!("{path}.{}", clip(name, MAX_ECHO_CHARS));
        match value {
            Json::String(text) => Ok((name, decoded(text, path)?)),
            other => Err(wrong_type(&path(), "a string", other)),
        }
    };
    members.iter().map(text).collect::<Result<_, _>>().map(Some)
}

fn wrong_type(path: &str, expected: &str, found: &Json<'_>) -> FieldError {
    FieldError::new(path, format!("must be {expected}, not {}", type_name(found)))
}

const fn type_name(value: &Json<'_>) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
        Json::Omitted => "one of so many values",
    }
}

/// The refusal of a name that is none of `known`: what it is called, and its likely spelling.
fn unknown(name: &str, what: &str, known: &[&'static str]) -> FieldError {
    let name = clip(name, MAX_ECHO_CHARS);
    let rule = match likely(name, known) {
        Some(likely) => format!("unknown {what}; did you mean `{likely}`?"),
        None => format!("unknown {what}; the {what}s are {}", known.join(", ")),
    };
    FieldError::new(name, rule)
}

/// The one of `known` that is most like `name`, whatever its case and separators.
fn likely(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let plain = |name: &str| name.replace(['_', '-', ' '], "").to_lowercase();
    let name = plain(name);
    let likeness = |field: &str| strsim::jaro_winkler(&name, &plain(field));
    known
        .iter()
        .copied()
        .map(|field| (likeness(field), field))
        .filter(|(likeness, _)| *likeness >= LIKELY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, field)| field)
}

/// Which of the organisation's messages to list, from a request's query: `None` for every
/// parameter that is absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// The messages to look for.
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

/// A page of records: `{"emails":[…],"next":…}`, in the order given.
pub fn emails(listing: &Listing) -> Bytes {
    #[derive(Serialize)]
    struct Emails<'a> {
        emails: Vec<Record<'a>>,
        next: Option<Text<MessageId>>,
    }
    let records = listing.messages.iter().map(|(message, live)| Record::of(message, live.as_ref()));
    to_json(&Emails { emails: records.collect(), next: listing.next.map(Text) })
}

/// `{"id":"…"}`: the answer to a send request.
pub fn accepted(id: MessageId) -> Bytes {
    #[derive(Serialize)]
    struct Accepted {
        id: Text<MessageId>,
    }
    to_json(&Accepted { id: Text(id) })
}

/// A message's record (specification section 2.2). What memory knows is laid over a row that is
/// not final yet; a failure of the message's own stays visible.
pub fn message(message: &Message, live: Option<&Live>) -> Bytes {
    to_json(&Record::of(message, live))
}

/// A message's events: `{"events":[…]}`, in the order given.
pub fn events(events: &[Event]) -> Bytes {
    #[derive(Serialize)]
    struct Events<'a> {
        events: Vec<EventView<'a>>,
    }
    to_json(&Events { events: events.iter().map(EventView::from).collect() })
}

fn to_json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("strings, numbers and lists serialize").into()
}

/// A value that is written as the text it displays.
struct Text<T>(T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    id: Text<MessageId>,
    status: &'static str,
    to: &'a [String],
    subject: &'a str,
    tag: &'static str,
    attempts: u32,
    error: Option<FailureView<'a>>,
    ses_message_id: Option<&'a str>,
    created_at: Text<Timestamp>,
    sent_at: Option<Text<Timestamp>>,
    last_event: Option<LastEventView>,
}

impl<'a> Record<'a> {
    fn of(message: &'a Message, live: Option<&'a Live>) -> Self {
        let view = View::of(message, live);
        let (ses_message_id, sent_at) = match &message.state {
            State::Sent { ses_message_id, sent_at } => {
                (Some(ses_message_id.as_str()), Some(*sent_at))
            }
            State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => (None, None),
        };
        Self {
            id: Text(message.id),
            status: view.status.as_str(),
            to: &message.recipients,
            subject: &message.subject,
            tag: TRANSACTIONAL,
            attempts: view.attempts,
            error: view.failure.map(FailureView::from),
            ses_message_id,
            created_at: Text(message.created_at),
            sent_at: sent_at.map(Text),
            last_event: message.last_event.map(LastEventView::from),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureView<'a> {
    code: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_code: Option<&'a str>,
}

impl<'a> From<&'a Failure> for FailureView<'a> {
    fn from(failure: &'a Failure) -> Self {
        Self {
            code: failure.code.as_str(),
            message: &failure.message,
            provider_code: failure.provider_code.as_deref(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LastEventView {
    #[serde(rename = "type")]
    event_type: &'static str,
    occurred_at: Text<Timestamp>,
}

impl From<LastEvent> for LastEventView {
    fn from(event: LastEvent) -> Self {
        Self { event_type: event.event_type.as_str(), occurred_at: Text(event.occurred_at) }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventView<'a> {
    #[serde(rename = "type")]
    event_type: &'static str,
    occurred_at: Text<Timestamp>,
    recipients: &'a [String],
    detail: DetailView<'a>,
}

impl<'a> From<&'a Event> for EventView<'a> {
    fn from(event: &'a Event) -> Self {
        Self {
            event_type: event.event_type().as_str(),
            occurred_at: Text(event.occurred_at),
            recipients: &event.recipients,
            detail: DetailView::from(&event.detail),
        }
    }
}

/// Details of an event from the provider; those that it left out are absent.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct DetailView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    bounce_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bounce_sub_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diagnostic_code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    complaint_feedback_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    complaint_sub_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reject_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    smtp_response: Option<&'a str>,
}

impl<'a> From<&'a EventDetail> for DetailView<'a> {
    fn from(detail: &'a EventDetail) -> Self {
        match detail {
            EventDetail::Delivery { smtp_response } => {
                Self { smtp_response: smtp_response.as_deref(), ..Self::default() }
            }
            EventDetail::Bounce { bounce_type, sub_type, diagnostic_code } => Self {
                bounce_type: Some(bounce_type.as_str()),
                bounce_sub_type: Some(sub_type),
                diagnostic_code: diagnostic_code.as_deref(),
                ..Self::default()
            },
            EventDetail::Complaint { feedback_type, sub_type } => Self {
                complaint_feedback_type: feedback_type.as_deref(),
                complaint_sub_type: sub_type.as_deref(),
                ..Self::default()
            },
            EventDetail::Reject { reason } => {
                Self { reject_reason: Some(reason), ..Self::default() }
            }
            EventDetail::DeliveryDelay { delay_type, diagnostic_code } => Self {
                delay_type: Some(delay_type),
                diagnostic_code: diagnostic_code.as_deref(),
                ..Self::default()
            },
        }
    }
}

#[cfg(test)]
mod tests;
