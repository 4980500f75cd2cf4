//! The JSON of Resend's requests, and their queries: a document becomes a [`Draft`], with types checked
//! and no rule.

use std::borrow::Cow;

use pillarbox_api::json::{self, Form, Json, JsonError};
use pillarbox_api::requests::{
    Members, StringMembers, body_text, limit, message_id, not_type, objects, parameters, string,
    string_members, texts, unknown, wrong_type,
};
use pillarbox_domain::limits::MAX_BATCH;
use pillarbox_domain::mailbox::Mailbox;
use pillarbox_domain::request::{
    AttachmentDraft, BodyText, Draft, FieldError, HeaderPolicy, RequestError, SendRequest,
};
use pillarbox_domain::search::MessageFilter;
use pillarbox_smtp::address_field;

/// The fields of an email.
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
    "attachments",
    "tags",
];
/// Resend's further fields, with the reason why they are refused unless they are null.
pub(super) const REFUSED_FIELDS: [(&str, &str); 5] = [
    ("scheduled_at", "messages are sent at once: send the request when the message is due"),
    ("template", "there are no stored templates: send html or text"),
    ("react", "render it, and send the result as html"),
    ("topic_id", "there are no topics"),
    ("region", "the operator chooses the region"),
];
/// The members of an attachment.
pub(super) const ATTACHMENT_MEMBERS: [&str; 4] =
    ["filename", "content", "content_type", "content_id"];
/// The members of a tag.
const TAG_MEMBERS: [&str; 2] = ["name", "value"];
/// The parameters of a listing's query.
pub(super) const PARAMETERS: [&str; 3] = ["limit", "after", "before"];
/// The field of a draft that tags become.
const METADATA: &str = "metadata";

/// An email's document. The values that are read borrow from it.
#[derive(Debug)]
pub(super) struct EmailDocument<'a>(Json<'a>);

impl<'a> EmailDocument<'a> {
    /// Reads a body as one JSON object, without checking its fields.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, JsonError> {
        json::parse(body, Form::ObjectWithBytes).map(Self)
    }

    /// The fields, with no rule checked but their names and types.
    pub(super) fn draft(&self) -> Result<Draft<'_>, FieldError> {
        email(&self.0)
    }
}

/// The document of a batch.
#[derive(Debug)]
pub(super) struct BatchDocument<'a>(Json<'a>);

impl<'a> BatchDocument<'a> {
    /// Reads a body as one JSON array, without checking its elements.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, JsonError> {
        json::parse(body, Form::ArrayWithBytes).map(Self)
    }

    /// The fields of each email, in the order given.
    pub(super) fn drafts(
        &self,
    ) -> Result<impl Iterator<Item = Result<Draft<'_>, FieldError>>, FieldError> {
        let elements = match &self.0 {
            Json::Array(elements) => elements.as_slice(),
            other => return Err(wrong_type("emails", "an array of objects", other)),
        };
        if !(1..=MAX_BATCH).contains(&elements.len()) {
            let rule = format!("must have 1 to {MAX_BATCH} entries");
            return Err(FieldError::new("emails", rule));
        }
        Ok(elements.iter().map(email))
    }
}

/// The fields of an email, with no rule checked but their names and types.
fn email<'t>(value: &'t Json<'_>) -> Result<Draft<'t>, FieldError> {
    let Json::Object(members) = value else {
        return Err(FieldError { field: None, rule: not_type("an object", value) });
    };
    let mut draft = Draft { header_policy: HeaderPolicy::Submission, ..Draft::default() };
    for (name, value) in members {
        let name = name.shown();
        match name {
            "from" => draft.from = string(name, value)?,
            "to" => draft.to = one_or_more(name, value)?,
            "cc" => draft.cc = one_or_more(name, value)?,
            "bcc" => draft.bcc = one_or_more(name, value)?,
            "reply_to" => draft.reply_to = one_or_more(name, value)?.unwrap_or_default(),
            "subject" => draft.subject = string(name, value)?,
            "html" => draft.html = body_text(name, value)?,
            "text" => draft.text = body_text(name, value)?,
            "headers" => draft.headers = headers(name, value)?,
            "attachments" => draft.attachments = objects(name, value, file)?,
            "tags" => draft.metadata = tags(name, value)?,
            _ => refuse(name, value)?,
        }
    }
    if let Some(headers) = &mut draft.headers {
        let reply_to = &draft.reply_to;
        headers.retain(|header| !repeats(*header, reply_to));
    }
    Ok(draft)
}

/// Checks an email against every rule.
pub(super) fn request(draft: Draft<'_>) -> Result<SendRequest<'_>, RequestError> {
    SendRequest::parse(draft).map_err(|error| match error {
        RequestError::Invalid(error) => RequestError::Invalid(in_own_words(error)),
        RequestError::UnsupportedTag => error,
    })
}

/// The same error, with the field's name in this API.
fn in_own_words(error: FieldError) -> FieldError {
    let rest = error.field.as_ref().and_then(|field| field.strip_prefix(METADATA));
    match rest.map(|rest| format!("tags{rest}")) {
        Some(field) => FieldError { field: Some(field), ..error },
        None => error,
    }
}

fn file<'t>(members: &'t Members<'_>) -> Result<AttachmentDraft<'t>, FieldError> {
    let mut file = AttachmentDraft::default();
    for (name, value) in members {
        let name = name.shown();
        match name {
            "filename" => file.filename = string(name, value)?.map(Cow::Borrowed),
            "content" => file.content = content(name, value)?,
            "content_type" => file.content_type = string(name, value)?.map(without_utf8),
            "content_id" => file.content_id = string(name, value)?,
            "path" if *value == Json::Null => {}
            "path" => {
                let rule = "files are not fetched: give the file's bytes as content";
                return Err(FieldError::new(name, rule));
            }
            _ => return Err(unknown(name, "member", &ATTACHMENT_MEMBERS)),
        }
    }
    if let (Some(name), Some(content_type)) = (&file.filename, file.content_type)
        && let Some(extension) = missing_extension(name, content_type)
    {
        file.filename = Some(format!("{name}.{extension}").into());
    }
    Ok(file)
}

/// The extension by which a file's name says its type, if the name has none: Laravel names an embedded
/// image so, and SES wants an extension.
fn missing_extension<'t>(filename: &str, content_type: &'t str) -> Option<&'t str> {
    let (_, subtype) = content_type.split_once('/')?;
    let extension = subtype.strip_suffix("+xml").unwrap_or(subtype);
    let is_known = mime_guess::from_ext(extension).first_raw() == Some(content_type);
    (is_known && !filename.contains('.')).then_some(extension)
}

/// A media type without the parameter that says the one charset which needs no word: some frameworks add
/// it to each type of text.
fn without_utf8(content_type: &str) -> &str {
    match content_type.split_once(';') {
        Some((bare, parameter))
            if parameter.trim().to_ascii_lowercase().replace('"', "") == "charset=utf-8" =>
        {
            bare.trim_end()
        }
        _ => content_type,
    }
}

/// A field that is none of an email's: refused, unless it is one of Resend's that is not set.
fn refuse(name: &str, value: &Json<'_>) -> Result<(), FieldError> {
    match REFUSED_FIELDS.iter().find(|(refused, _)| *refused == name) {
        Some(_) if *value == Json::Null => Ok(()),
        Some((_, reason)) => Err(FieldError::new(name, format!("is not supported; {reason}"))),
        None => Err(unknown(name, "field", &FIELDS)),
    }
}

/// Returns true for a header that repeats the reply address: some frameworks send both.
fn repeats((name, value): (&str, &str), reply_to: &[&str]) -> bool {
    if !name.eq_ignore_ascii_case("Reply-To") || reply_to.is_empty() {
        return false;
    }
    let given = reply_to.iter().map(|text| Mailbox::parse(text).ok());
    let given: Option<Vec<_>> =
        given.map(|mailbox| Some(mailbox?.address().normalized())).collect();
    let named = address_field::addresses(value.as_bytes());
    given.is_some() && given == named
}

/// A string, or a list of strings.
fn one_or_more<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<Vec<&'t str>>, FieldError> {
    let Json::Array(elements) = value else {
        let expected = "a string or an array of strings";
        return match value {
            Json::Null | Json::String(_) => Ok(string(path, value)?.map(|one| vec![one])),
            other => Err(wrong_type(path, expected, other)),
        };
    };
    texts(path, elements).map(Some)
}

/// An object of strings. PHP writes one without members as an empty list, and so Laravel sends that.
fn headers<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<StringMembers<'t>>, FieldError> {
    match value {
        Json::Array(elements) if elements.is_empty() => Ok(None),
        _ => string_members(path, value),
    }
}

/// Tags, as a list or as one object of strings, as some frameworks send them.
fn tags<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<StringMembers<'t>>, FieldError> {
    let Json::Array(elements) = value else { return string_members(path, value) };
    let mut tags: StringMembers<'t> = Vec::with_capacity(elements.len());
    for (index, element) in elements.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (name, value) = match element {
            Json::Object(members) => tag(members).map_err(|error| error.within(&path))?,
            other => return Err(wrong_type(&path, "an object", other)),
        };
        if tags.iter().any(|(other, _)| *other == name) {
            return Err(FieldError::new(path, "has the name of an earlier tag"));
        }
        tags.push((name, value));
    }
    Ok(Some(tags))
}

/// A tag: `{"name":…,"value":…}`, or `{NAME: VALUE}`, as Symfony sends it.
fn tag<'t>(members: &'t Members<'_>) -> Result<(&'t str, &'t str), FieldError> {
    let (mut name, mut value) = (None, None);
    for (member, given) in members {
        match member.shown() {
            "name" => name = string("name", given)?,
            "value" => value = string("value", given)?,
            other if members.len() == 1 => {
                (name, value) = (Some(other), string(other, given)?);
            }
            other => return Err(unknown(other, "member", &TAG_MEMBERS)),
        }
    }
    let missing = FieldError::missing;
    Ok((name.ok_or_else(|| missing("name"))?, value.ok_or_else(|| missing("value"))?))
}

/// A file's bytes: base64, a list of bytes, or what Node makes of a `Buffer`.
fn content<'t>(path: &str, value: &'t Json<'_>) -> Result<Option<BodyText<'t>>, FieldError> {
    let member = |name: &str| match value {
        Json::Object(members) if members.len() == 2 => {
            members.iter().find(|(member, _)| member.shown() == name).map(|(_, value)| value)
        }
        _ => None,
    };
    let is_buffer = matches!(member("type"), Some(Json::String(kind)) if kind.shown() == "Buffer");
    let of_buffer = member("data").filter(|_| is_buffer);
    match of_buffer.unwrap_or(value) {
        Json::Bytes(base64) => Ok(Some(BodyText::Plain(base64))),
        Json::Null | Json::String(_) => body_text(path, value),
        _ => Err(wrong_type(path, "base64 or a list of bytes", value)),
    }
}

/// Filter and page of a listing of the organisation's messages, from a request's query.
#[derive(Debug, Default)]
pub(super) struct ListQuery {
    pub(super) filter: MessageFilter,
    pub(super) limit: Option<usize>,
}

impl ListQuery {
    /// Reads a query. The newest messages come first, so what follows a message is older.
    pub(super) fn parse(query: &str) -> Result<Self, FieldError> {
        let mut list = Self::default();
        parameters(query, |name, value| {
            match name {
                "limit" => list.limit = Some(limit(value)?),
                "after" => list.filter.before = Some(message_id(name, value)?),
                "before" => list.filter.after = Some(message_id(name, value)?),
                _ => return Err(unknown(name, "parameter", &PARAMETERS)),
            }
            Ok(())
        })?;
        if list.filter.before.is_some() && list.filter.after.is_some() {
            return Err(FieldError::new("before", "must not be given together with after"));
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests;
