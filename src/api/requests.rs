//! The JSON that requests bring, and their queries: a document becomes a [`Draft`], with types checked
//! and no rule. Knows no HTTP.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::error::{ApiError, MAX_ECHO_CHARS, clip};
use crate::json::{self, Json, JsonError, JsonString, MAX_DECODED_BYTES};
use pillarbox_domain::event::EventType;
use pillarbox_domain::feed::{CursorError, FeedCursor, FeedEventType, FeedTypes};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::likely::likely;
use pillarbox_domain::limits::MAX_BATCH;
use pillarbox_domain::message::Status;
use pillarbox_domain::request::{AttachmentDraft, BodyText, Draft, FieldError};
use pillarbox_domain::search::MessageFilter;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_domain::time::Timestamp;
use pillarbox_store::BatchMode;

/// The fields of a send request (specification section 2.1; `attachments`, `metadata`, `priority` and
/// `expiresIn` are additions).
pub(super) const FIELDS: [&str; 15] = [
    "from",
    "to",
    "cc",
    "bcc",
    "reply_to",
    "subject",
    "html",
    "text",
    "headers",
    "attachments",
    "metadata",
    "idempotencyKey",
    "priority",
    "expiresIn",
    "tag",
];
/// The fields of a batch.
pub(super) const BATCH_FIELDS: [&str; 2] = ["emails", "partial"];
/// The members of an attachment.
pub(super) const ATTACHMENT_MEMBERS: [&str; 4] =
    ["filename", "content", "content_type", "content_id"];
/// Notice in the answer to a request with an `Idempotency-Key` header: nothing is ignored silently.
pub(super) const IDEMPOTENCY_KEY_NOTICE: &str =
    "the Idempotency-Key header is not implemented; put idempotencyKey into the JSON body";
/// The parameters of a listing's query.
pub(super) const PARAMETERS: [&str; 7] =
    ["limit", "before", "status", "recipient", "createdFrom", "createdBefore", "lastEvent"];
/// The parameters of the feed's query.
pub(super) const FEED_PARAMETERS: [&str; 3] = ["after", "limit", "types"];
/// The most messages or events on a page.
const MAX_LISTED: usize = 100;
/// Fields that other services have, without separators, and what to use here.
const ELSEWHERE: [(&str, &str); 12] = [
    ("tags", "use `metadata`, an object of strings"),
    ("sender", "use `from`"),
    ("recipients", "use `to`"),
    ("htmlbody", "use `html`"),
    ("textbody", "use `text`"),
    ("body", "use `html`, `text` or both"),
    ("content", "use `html`, `text` or both"),
    ("scheduledat", "a message is sent at once"),
    ("sendat", "a message is sent at once"),
    ("template", "there are no templates; use `html`, `text` or both"),
    ("templateid", "there are no templates; use `html`, `text` or both"),
    ("react", "there are no templates; use `html`, `text` or both"),
];

impl From<JsonError> for ApiError {
    fn from(error: JsonError) -> Self {
        Self::InvalidJson { message: error.to_string() }
    }
}

/// A send request's document. The draft borrows from it.
#[derive(Debug)]
pub struct SendDocument<'a>(Vec<(JsonString<'a>, Json<'a>)>);

impl<'a> SendDocument<'a> {
    /// Reads a body as one JSON object, without checking its fields.
    pub fn parse(body: &'a [u8]) -> Result<Self, JsonError> {
        match json::parse_object(body)? {
            Json::Object(members) => Ok(Self(members)),
            other => unreachable!("an object is read as one, not as {}", type_name(&other)),
        }
    }

    /// The fields, with no rule checked but their names and types; the first that is wrong is the
    /// answer, in the document's order.
    pub fn draft(&self) -> Result<Draft<'_>, FieldError> {
        draft(&self.0)
    }
}

fn draft<'t>(members: &'t Members<'_>) -> Result<Draft<'t>, FieldError> {
    let mut draft = Draft::default();
    for (name, value) in members {
        let name = name.shown();
        match name {
            "from" => draft.from = string(name, value)?,
            "to" => draft.to = strings(name, value)?,
            "cc" => draft.cc = strings(name, value)?,
            "bcc" => draft.bcc = strings(name, value)?,
            "reply_to" => draft.reply_to = string(name, value)?.into_iter().collect(),
            "subject" => draft.subject = string(name, value)?,
            "html" => draft.html = body_text(name, value)?,
            "text" => draft.text = body_text(name, value)?,
            "headers" => draft.headers = string_members(name, value)?,
            "attachments" => draft.attachments = objects(name, value, attachment)?,
            "metadata" => draft.metadata = string_members(name, value)?,
            "idempotencyKey" => draft.idempotency_key = string(name, value)?,
            "priority" => draft.priority = string(name, value)?,
            "expiresIn" => draft.expires_in = string(name, value)?,
            "tag" => draft.tag = string(name, value)?,
            _ => return Err(unknown_field(name)),
        }
    }
    Ok(draft)
}

/// Members of an object, as they are read.
pub type Members<'a> = [(JsonString<'a>, Json<'a>)];

/// The document of a batch. Drafts borrow from it.
#[derive(Debug)]
pub struct BatchDocument<'a>(Json<'a>);

impl<'a> BatchDocument<'a> {
    /// Reads a body as one JSON object, without checking its fields.
    pub fn parse(body: &'a [u8]) -> Result<Self, JsonError> {
        json::parse_object(body).map(Self)
    }

    /// Terms of the batch's acceptance, and the fields of each message, in the order given, with no
    /// rule checked but their names and types.
    pub fn drafts(
        &self,
    ) -> Result<(BatchMode, impl ExactSizeIterator<Item = Result<Draft<'_>, FieldError>>), FieldError>
    {
        let Json::Object(members) = &self.0 else {
            unreachable!("an object is read as one, not as {}", type_name(&self.0))
        };
        let (mut emails, mut mode) = (&Json::Null, BatchMode::Whole);
        for (name, value) in members {
            match name.shown() {
                "emails" => emails = value,
                "partial" => {
                    mode = match value {
                        Json::Bool(true) => BatchMode::Partial,
                        Json::Bool(false) | Json::Null => BatchMode::Whole,
                        other => return Err(wrong_type("partial", "a boolean", other)),
                    }
                }
                name => return Err(unknown(name, "field", &BATCH_FIELDS)),
            }
        }
        let elements = match emails {
            Json::Null => return Err(FieldError::new("emails", "is required")),
            Json::Array(elements) => elements,
            other => return Err(wrong_type("emails", "an array of objects", other)),
        };
        if !(1..=MAX_BATCH).contains(&elements.len()) {
            let rule = format!("must have 1 to {MAX_BATCH} entries");
            return Err(FieldError::new("emails", rule));
        }
        let drafts = elements.iter().map(|element| match element {
            Json::Object(members) => draft(members),
            other => Err(FieldError { field: None, rule: not_type("an object", other) }),
        });
        Ok((mode, drafts))
    }
}

/// A string; `None` for null, which means absent.
pub fn string<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<&'t str>, FieldError> {
    match value {
        Json::Null => Ok(None),
        Json::String(text) => decoded(text, || path.to_owned()).map(Some),
        other => Err(wrong_type(path, "a string", other)),
    }
}

/// A string's text, if it is one that a field can have.
pub(crate) fn decoded<'t>(
    text: &'t JsonString<'_>,
    path: impl FnOnce() -> String,
) -> Result<&'t str, FieldError> {
    text.text().ok_or_else(|| {
        let rule = format!("must be at most {MAX_DECODED_BYTES} bytes in JSON, escapes included");
        FieldError::new(path(), rule)
    })
}

/// A body's text, which goes on as it is written.
pub fn body_text<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<BodyText<'t>>, FieldError> {
    match value {
        Json::Null => Ok(None),
        Json::String(text) => Ok(Some(BodyText::Json(text.written()))),
        other => Err(wrong_type(path, "a string", other)),
    }
}

/// An array of objects, each as `read` takes its members; `None` for null.
pub fn objects<'t, 'j, T>(
    path: &str,
    value: &'t Json<'j>,
    read: impl Fn(&'t Members<'j>) -> Result<T, FieldError>,
) -> Result<Option<Vec<T>>, FieldError> {
    let elements = match value {
        Json::Null => return Ok(None),
        Json::Array(elements) => elements,
        other => return Err(wrong_type(path, "an array of objects", other)),
    };
    let one = |(index, element): (usize, &'t Json<'j>)| {
        let path = || format!("{path}[{index}]");
        match element {
            Json::Object(members) => read(members).map_err(|error| error.within(&path())),
            other => Err(wrong_type(&path(), "an object", other)),
        }
    };
    elements.iter().enumerate().map(one).collect::<Result<_, _>>().map(Some)
}

fn attachment<'t>(members: &'t Members<'_>) -> Result<AttachmentDraft<'t>, FieldError> {
    let mut draft = AttachmentDraft::default();
    for (name, value) in members {
        let name = name.shown();
        match name {
            "filename" => draft.filename = string(name, value)?.map(Cow::Borrowed),
            "content" => draft.content = body_text(name, value)?,
            "content_type" => draft.content_type = string(name, value)?,
            "content_id" => draft.content_id = string(name, value)?,
            _ => return Err(unknown(name, "member", &ATTACHMENT_MEMBERS)),
        }
    }
    Ok(draft)
}

fn strings<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<Vec<&'t str>>, FieldError> {
    let elements = match value {
        Json::Null => return Ok(None),
        Json::Array(elements) => elements,
        other @ Json::String(_) => {
            let rule = not_type("an array of strings", other);
            let rule = format!("{rule}; write [\"ada@example.net\"], even for one address");
            return Err(FieldError::new(path, rule));
        }
        other => return Err(wrong_type(path, "an array of strings", other)),
    };
    texts(path, elements).map(Some)
}

/// The strings of an array that has nothing else.
pub fn texts<'t>(path: &str, elements: &'t [Json<'_>]) -> Result<Vec<&'t str>, FieldError> {
    let text = |(index, element): (usize, &'t Json<'_>)| match element {
        Json::String(text) => decoded(text, || format!("{path}[{index}]")),
        other => Err(wrong_type(&format!("{path}[{index}]"), "a string", other)),
    };
    elements.iter().enumerate().map(text).collect()
}

/// The members of an object of strings, in the order given.
pub type StringMembers<'t> = Vec<(&'t str, &'t str)>;

/// The members of an object of strings; `None` for null.
pub fn string_members<'t>(
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

/// Refusal of a value of another type; `expected` has its article.
pub fn wrong_type(path: &str, expected: &str, found: &Json<'_>) -> FieldError {
    FieldError::new(path, not_type(expected, found))
}

/// Says that a value is of another type; `expected` has its article.
pub fn not_type(expected: &str, found: &Json<'_>) -> String {
    format!("must be {expected}, not {}", type_name(found))
}

const fn type_name(value: &Json<'_>) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) | Json::Bytes(_) => "an array",
        Json::Object(_) => "an object",
        Json::Omitted => "a value in a request with too many values",
    }
}

/// The refusal of an unknown field of a message: what is to be used instead, if other services have
/// it.
fn unknown_field(name: &str) -> FieldError {
    let plain = name.replace(['_', '-'], "").to_lowercase();
    match ELSEWHERE.into_iter().find(|(field, _)| *field == plain) {
        Some((_, advice)) => FieldError::new(name, format!("unknown field; {advice}")),
        None => unknown(name, "field", &FIELDS),
    }
}

/// The refusal of a name that is none of `known`: what it is called, and its likely spelling.
pub fn unknown(name: &str, what: &str, known: &[&'static str]) -> FieldError {
    let name = clip(name, MAX_ECHO_CHARS);
    let rule = match likely(name, known.iter().copied()) {
        Some(likely) => format!("unknown {what}; did you mean `{likely}`?"),
        None => format!("unknown {what}; the {what}s are {}", known.join(", ")),
    };
    FieldError::new(name, rule)
}

/// Requires a body that is one JSON object without fields.
pub fn require_no_fields(body: &[u8]) -> Result<(), ApiError> {
    match SendDocument::parse(body)?.0.first() {
        None => Ok(()),
        Some((name, _)) => {
            let name = clip(name.shown(), MAX_ECHO_CHARS);
            Err(FieldError::new(name, "unknown field; the body must be {}").into())
        }
    }
}

/// Reads the parameters of a query, one after the other. Each may be there once.
pub fn parameters(
    query: &str,
    mut read: impl FnMut(&str, &str) -> Result<(), FieldError>,
) -> Result<(), FieldError> {
    let mut seen = BTreeSet::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        read(&name, &value)?;
        if !seen.insert(name.clone()) {
            return Err(FieldError::new(&*name, "is given twice"));
        }
    }
    Ok(())
}

/// Filter and page of a listing of the organisation's messages, from a request's query: `None` for
/// every parameter that is absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Filter of the messages.
    pub filter: MessageFilter,
    /// At most so many on a page.
    pub limit: Option<usize>,
}

impl ListQuery {
    /// Reads a query. Every parameter may be there once; an unknown one is refused, because a
    /// filter that was silently dropped would show what was not asked for.
    pub fn parse(query: &str) -> Result<Self, FieldError> {
        let mut list = Self::default();
        parameters(query, |name, value| {
            let filter = &mut list.filter;
            match name {
                "limit" => list.limit = Some(limit(value)?),
                "before" => filter.before = Some(message_id(name, value)?),
                "status" => filter.status = Some(status(value)?),
                "lastEvent" => filter.last_event = Some(event_type(name, value)?),
                "recipient" => filter.recipient = Some(recipient(value)?),
                "createdFrom" => filter.created_from = Some(instant(name, value)?),
                "createdBefore" => filter.created_before = Some(instant(name, value)?),
                _ => return Err(unknown(name, "parameter", &PARAMETERS)),
            }
            Ok(())
        })?;
        Ok(list)
    }
}

/// Filter and page of the feed's entries, from a request's query.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FeedQuery {
    /// Only those after this cursor.
    pub after: Option<FeedCursor>,
    /// Only those of these types.
    pub types: FeedTypes,
    /// At most so many on a page.
    pub limit: Option<usize>,
}

impl FeedQuery {
    /// Reads a query, with `cursor` for the cursor's text. Parameters are judged as
    /// [`ListQuery::parse`] does.
    pub fn parse(
        query: &str,
        cursor: impl Fn(&str) -> Result<FeedCursor, CursorError>,
    ) -> Result<Self, FieldError> {
        let mut feed = Self::default();
        parameters(query, |name, value| {
            match name {
                "after" => {
                    let after = cursor(value);
                    feed.after =
                        Some(after.map_err(|error| FieldError::new("after", error.to_string()))?);
                }
                "limit" => feed.limit = Some(limit(value)?),
                "types" => feed.types = feed_types(value)?,
                _ => return Err(unknown(name, "parameter", &FEED_PARAMETERS)),
            }
            Ok(())
        })?;
        Ok(feed)
    }
}

fn feed_types(value: &str) -> Result<FeedTypes, FieldError> {
    let types = value.split(',').map(str::parse::<FeedEventType>);
    types.collect::<Result<_, _>>().map_err(|error| {
        FieldError::new("types", format!("must be a comma-separated list; each entry {error}"))
    })
}

/// Reads how many messages a page has at most.
pub fn limit(value: &str) -> Result<usize, FieldError> {
    let limit = value.parse().ok().filter(|limit| (1..=MAX_LISTED).contains(limit));
    limit
        .ok_or_else(|| FieldError::new("limit", format!("must be a number from 1 to {MAX_LISTED}")))
}

/// Reads the id of a message from the parameter or field with this name.
pub fn message_id(name: &str, value: &str) -> Result<MessageId, FieldError> {
    value.parse().map_err(|_| FieldError::new(name, "must be a message id"))
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
    // A record of an earlier version may have one that is refused today.
    SuppressedAddress::parse_stored(value)
        .map_err(|error| FieldError::new("recipient", format!("is not an address: {error}")))
}

fn instant(name: &str, value: &str) -> Result<Timestamp, FieldError> {
    Timestamp::parse_rfc3339(value).map_err(|_| {
        FieldError::new(name, "must be a time in UTC such as 2026-11-21T09:30:00.123Z")
    })
}

#[cfg(test)]
mod tests;
