//! A send request: well-formed, and still untrusted.
//!
//! The rules are those of the specification (sections 2.1 and 8) and SES's own limits on headers.
//! Nothing here checks an organisation; that is `admission`'s part.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::limits::{
    MAX_HEADER_CHARS, MAX_HEADER_NAME_CHARS, MAX_HEADER_VALUE_CHARS, MAX_HEADERS,
    MAX_IDEMPOTENCY_KEY_CHARS, MAX_METADATA, MAX_METADATA_NAME_CHARS, MAX_METADATA_VALUE_CHARS,
    MAX_RECIPIENTS, MAX_SUBJECT_CHARS, TRANSACTIONAL,
};
use crate::mailbox::{DomainName, Mailbox};
use crate::message_terms::{Priority, parse_expires_in};

use attachment::checked_attachments;

pub use attachment::{Attachment, AttachmentDraft};

mod attachment;

/// The fields of a send request as read, with no rule checked but their types.
#[derive(Debug, Clone, Default)]
pub struct Draft<'a> {
    /// Mailbox of the sender.
    pub from: Option<&'a str>,
    /// Mailboxes of the recipients.
    pub to: Option<Vec<&'a str>>,
    /// The recipients of a copy.
    pub cc: Option<Vec<&'a str>>,
    /// Mailboxes of the hidden recipients.
    pub bcc: Option<Vec<&'a str>>,
    /// Mailboxes to which replies go, in the order given.
    pub reply_to: Vec<&'a str>,
    /// The subject.
    pub subject: Option<&'a str>,
    /// The HTML body.
    pub html: Option<BodyText<'a>>,
    /// The plain-text body.
    pub text: Option<BodyText<'a>>,
    /// Custom headers, in the order given.
    pub headers: Option<Vec<(&'a str, &'a str)>>,
    /// Rule for the custom headers.
    pub header_policy: HeaderPolicy,
    /// The files that go with it.
    pub attachments: Option<Vec<AttachmentDraft<'a>>>,
    /// The client's own names and values, in the order given.
    pub metadata: Option<Vec<(&'a str, &'a str)>>,
    /// The key that identifies the logical message.
    pub idempotency_key: Option<&'a str>,
    /// Word for the message's priority: `high` or `normal`.
    pub priority: Option<&'a str>,
    /// Time for which it may be sent, in humantime's words.
    pub expires_in: Option<&'a str>,
    /// Tag of the message: `transactional` is the only one accepted.
    pub tag: Option<&'a str>,
}

/// Rule for the custom headers of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HeaderPolicy {
    /// Only `X-` headers and `List-Unsubscribe` (specification section 2.1).
    #[default]
    Specification,
    /// Headers of a message submitted over SMTP, except those that the request's other fields give
    /// and those that SES writes itself.
    Submission,
}

/// A field that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}")]
pub struct FieldError {
    /// The one field at fault, as a path such as `to[2]` or `headers.X-Foo`; `None` if several are
    /// at fault together.
    pub field: Option<String>,
    /// The rule that it breaks, for the client to read.
    pub rule: String,
}

impl FieldError {
    /// An error of one field.
    pub fn new(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self { field: Some(field.into()), rule: rule.into() }
    }

    /// The error of a field that is required and not there.
    pub fn missing(field: impl Into<String>) -> Self {
        Self::new(field, REQUIRED)
    }

    /// Returns true if the only fault is that something required is missing.
    pub fn is_missing(&self) -> bool {
        [REQUIRED, NO_BODY].contains(&self.rule.as_str())
    }

    /// The same error of a field within another one, such as `filename` within `attachments[2]`.
    #[must_use]
    pub fn within(self, path: &str) -> Self {
        let field = self.field.map_or_else(|| path.to_owned(), |field| format!("{path}.{field}"));
        Self { field: Some(field), ..self }
    }
}

/// Reason why a draft is no send request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// A field breaks a rule.
    Invalid(FieldError),
    /// The tag is not `transactional`.
    UnsupportedTag,
}

impl From<FieldError> for RequestError {
    fn from(error: FieldError) -> Self {
        Self::Invalid(error)
    }
}

/// The text of a body. The only rule is that it is present, so a text that came in JSON goes to the
/// provider in JSON again, without being decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyText<'a> {
    /// The text itself.
    Plain(&'a str),
    /// As it is written between the quotes of a well-formed JSON string (RFC 8259 section 7).
    Json(&'a str),
}

impl BodyText<'_> {
    /// Returns true if it has no character. An empty text is never written with escapes.
    pub const fn is_empty(&self) -> bool {
        let (Self::Plain(text) | Self::Json(text)) = self;
        text.is_empty()
    }
}

impl<'a> From<&'a str> for BodyText<'a> {
    fn from(text: &'a str) -> Self {
        Self::Plain(text)
    }
}

/// A message that was submitted whole (RFC 5322), as it goes to the provider.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawMessage<'a> {
    /// The header fields that are sent, each with its line's end.
    pub fields: &'a [u8],
    /// All that follows them, from the empty line on.
    pub rest: &'a [u8],
}

impl fmt::Debug for RawMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawMessage(..)")
    }
}

/// The content of a message: bodies, of which at least one is present and not empty, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// HTML without plain text.
    Html(BodyText<'a>),
    /// Plain text without HTML.
    Text(BodyText<'a>),
    /// Both, as alternatives.
    Both {
        /// The HTML body.
        html: BodyText<'a>,
        /// The plain-text body.
        text: BodyText<'a>,
    },
    /// The whole message, header fields included.
    Raw(RawMessage<'a>),
}

/// Origin of an idempotency key. Keys of different origins are different keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyOrigin {
    /// The client gave it with its request.
    Client,
    /// It was made from a message that was submitted over SMTP, or from the key and the position of
    /// an element of a batch. Texts of the two kinds are always different.
    Derived,
}

/// Begins the text of a key that was made for an element of a batch. No digest of a submission has
/// a colon in it.
const OF_BATCH: &str = "batch:";

/// A key that identifies a logical message within an organisation: 1 to 256 characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdempotencyKey<'a> {
    origin: KeyOrigin,
    text: &'a str,
}

impl<'a> IdempotencyKey<'a> {
    /// Reads a client's key.
    pub fn parse(text: &'a str) -> Result<Self, FieldError> {
        if (1..=MAX_IDEMPOTENCY_KEY_CHARS).contains(&text.chars().count()) {
            Ok(Self { origin: KeyOrigin::Client, text })
        } else {
            let rule = format!("must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters");
            Err(FieldError::new("idempotencyKey", rule))
        }
    }

    /// Key of a message that was submitted over SMTP; `text` is a digest of its identifying parts.
    pub const fn of_submission(text: &'a str) -> Self {
        Self { origin: KeyOrigin::Derived, text }
    }

    /// The key with this origin and text, which a key had before.
    pub const fn from_stored(origin: KeyOrigin, text: &'a str) -> Self {
        Self { origin, text }
    }

    /// The origin of the key.
    pub const fn origin(&self) -> KeyOrigin {
        self.origin
    }

    /// The key's text.
    pub const fn as_str(&self) -> &'a str {
        self.text
    }

    /// The key as a value that does not borrow from the text that it was read from.
    pub fn into_owned(self) -> OwnedIdempotencyKey {
        OwnedIdempotencyKey { origin: self.origin, text: self.text.to_owned() }
    }
}

/// An [`IdempotencyKey`] with a text of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedIdempotencyKey {
    origin: KeyOrigin,
    text: String,
}

impl OwnedIdempotencyKey {
    /// The key.
    pub fn as_key(&self) -> IdempotencyKey<'_> {
        IdempotencyKey { origin: self.origin, text: &self.text }
    }
}

/// The key of an element of a batch whose elements have one key together. It differs from the keys
/// of other elements, of clients and of submissions.
pub fn batch_key(of_batch: IdempotencyKey<'_>, index: usize) -> OwnedIdempotencyKey {
    let mut digest = Sha256::new();
    digest.update((index as u64).to_be_bytes());
    digest.update(of_batch.as_str());
    let text = format!("{OF_BATCH}{}", URL_SAFE_NO_PAD.encode(digest.finalize()));
    OwnedIdempotencyKey { origin: KeyOrigin::Derived, text }
}

/// A message that came whole, with its envelope; no rule of it is checked but its form.
#[derive(Debug, Clone)]
pub struct Submission<'a> {
    /// The sender: the mailbox of the message's `From` field, in clear.
    pub from: &'a str,
    /// The same mailbox as it goes upstream, if its display name needs no encoding of ours.
    pub from_header: Option<&'a str>,
    /// Domains of the envelope's sender and of the other senders that the message names.
    pub other_senders: Vec<DomainName<'a>>,
    /// The envelope's recipients.
    pub recipients: Vec<&'a str>,
    /// The subject for the record.
    pub subject: &'a str,
    /// The submitted message itself.
    pub message: RawMessage<'a>,
    /// The key that identifies the logical message.
    pub idempotency_key: Option<IdempotencyKey<'a>>,
}

/// A well-formed send request. Its sender and recipients are not yet checked for permission.
#[derive(Debug, Clone)]
pub struct SendRequest<'a> {
    pub(crate) from: Mailbox<'a>,
    pub(crate) from_header: Option<&'a str>,
    pub(crate) other_senders: Vec<DomainName<'a>>,
    pub(crate) to: Vec<Mailbox<'a>>,
    pub(crate) cc: Vec<Mailbox<'a>>,
    pub(crate) bcc: Vec<Mailbox<'a>>,
    pub(crate) reply_to: Vec<Mailbox<'a>>,
    pub(crate) subject: &'a str,
    pub(crate) body: Body<'a>,
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    pub(crate) attachments: Vec<Attachment<'a>>,
    pub(crate) metadata: Option<Vec<(&'a str, &'a str)>>,
    pub(crate) idempotency_key: Option<IdempotencyKey<'a>>,
    pub(crate) priority: Option<Priority>,
    pub(crate) expires_in: Option<Duration>,
}

impl<'a> SendRequest<'a> {
    /// Checks a message that came whole, by the rules for mailboxes, recipients and subjects.
    pub fn of_submission(submission: Submission<'a>) -> Result<Self, FieldError> {
        let Submission {
            from,
            from_header,
            other_senders,
            recipients,
            subject,
            message,
            idempotency_key,
        } = submission;
        let to = mailboxes("to", recipients)?;
        if to.is_empty() {
            return Err(FieldError::new("to", "must have at least one recipient"));
        }
        Ok(Self {
            from: mailbox("from", from)?,
            from_header,
            other_senders,
            to,
            cc: Vec::new(),
            bcc: Vec::new(),
            reply_to: Vec::new(),
            subject: checked_subject(subject)?,
            body: Body::Raw(message),
            headers: Vec::new(),
            attachments: Vec::new(),
            metadata: None,
            idempotency_key,
            // SMTP has no field for them: the key's defaults count.
            priority: None,
            expires_in: None,
        })
    }

    /// Checks a draft against every rule. The error is the first broken rule, in the order of the
    /// specification's table of fields, with the tag last.
    pub fn parse(draft: Draft<'a>) -> Result<Self, RequestError> {
        let from = mailbox("from", required("from", draft.from)?)?;
        let to = mailboxes("to", required("to", draft.to)?)?;
        if to.is_empty() {
            return Err(FieldError::new("to", "must have at least one recipient").into());
        }
        let cc = mailboxes("cc", draft.cc.unwrap_or_default())?;
        let bcc = mailboxes("bcc", draft.bcc.unwrap_or_default())?;
        if to.len() + cc.len() + bcc.len() > MAX_RECIPIENTS {
            let rule =
                format!("to, cc and bcc together must have at most {MAX_RECIPIENTS} entries");
            return Err(FieldError { field: None, rule }.into());
        }
        let reply_to = if let [one] = *draft.reply_to {
            vec![mailbox("reply_to", one)?]
        } else {
            mailboxes("reply_to", draft.reply_to)?
        };
        let subject = checked_subject(required("subject", draft.subject)?)?;
        let body = checked_body(draft.html, draft.text)?;
        let headers = checked_headers(draft.headers.unwrap_or_default(), draft.header_policy)?;
        let attachments = checked_attachments(draft.attachments.unwrap_or_default())?;
        let metadata = draft.metadata.map(checked_metadata).transpose()?;
        let idempotency_key = draft.idempotency_key.map(IdempotencyKey::parse).transpose()?;
        let priority = draft.priority.map(checked_priority).transpose()?;
        let expires_in = draft.expires_in.map(parse_expires_in).transpose();
        let expires_in =
            expires_in.map_err(|error| FieldError::new("expiresIn", error.to_string()))?;
        if draft.tag.is_some_and(|tag| tag != TRANSACTIONAL) {
            return Err(RequestError::UnsupportedTag);
        }
        Ok(Self {
            from,
            from_header: None,
            other_senders: Vec::new(),
            to,
            cc,
            bcc,
            reply_to,
            subject,
            body,
            headers,
            attachments,
            metadata,
            idempotency_key,
            priority,
            expires_in,
        })
    }

    /// The same request with this key in place of its own.
    #[must_use]
    pub fn identified_by(self, key: IdempotencyKey<'a>) -> Self {
        Self { idempotency_key: Some(key), ..self }
    }
}

/// The rule for required fields.
const REQUIRED: &str = "is required";
const NO_BODY: &str = "at least one of html and text must be present and not empty";

fn required<T>(field: &str, value: Option<T>) -> Result<T, FieldError> {
    value.ok_or_else(|| FieldError::missing(field))
}

fn mailbox<'a>(field: &str, text: &'a str) -> Result<Mailbox<'a>, FieldError> {
    Mailbox::parse(text).map_err(|error| FieldError::new(field, error.to_string()))
}

fn mailboxes<'a>(field: &str, texts: Vec<&'a str>) -> Result<Vec<Mailbox<'a>>, FieldError> {
    // Counted before they are read: a list of a million entries is one error, not a million reads.
    if texts.len() > MAX_RECIPIENTS {
        return Err(FieldError::new(field, format!("must have at most {MAX_RECIPIENTS} entries")));
    }
    texts
        .into_iter()
        .enumerate()
        .map(|(index, text)| {
            Mailbox::parse(text)
                .map_err(|error| FieldError::new(format!("{field}[{index}]"), error.to_string()))
        })
        .collect()
}

fn checked_subject(subject: &str) -> Result<&str, FieldError> {
    if subject.chars().any(char::is_control) {
        return Err(FieldError::new("subject", "must not contain control characters"));
    }
    if subject.trim().is_empty() {
        return Err(FieldError::new("subject", "must not be blank"));
    }
    if subject.chars().count() > MAX_SUBJECT_CHARS {
        let rule = format!("must be at most {MAX_SUBJECT_CHARS} characters");
        return Err(FieldError::new("subject", rule));
    }
    Ok(subject)
}

fn checked_body<'a>(
    html: Option<BodyText<'a>>,
    text: Option<BodyText<'a>>,
) -> Result<Body<'a>, FieldError> {
    let present = |body: Option<BodyText<'a>>| body.filter(|body| !body.is_empty());
    match (present(html), present(text)) {
        (Some(html), Some(text)) => Ok(Body::Both { html, text }),
        (Some(html), None) => Ok(Body::Html(html)),
        (None, Some(text)) => Ok(Body::Text(text)),
        (None, None) => Err(FieldError { field: None, rule: NO_BODY.to_owned() }),
    }
}

fn checked_headers<'a>(
    headers: Vec<(&'a str, &'a str)>,
    policy: HeaderPolicy,
) -> Result<Vec<(&'a str, &'a str)>, FieldError> {
    if headers.len() > MAX_HEADERS {
        return Err(FieldError::new("headers", format!("must have at most {MAX_HEADERS} entries")));
    }
    for (index, (name, value)) in headers.iter().enumerate() {
        let wrong = |rule: String| {
            Err(FieldError::new(format!("headers.{name:.MAX_HEADER_NAME_CHARS$}"), rule))
        };
        // RFC 5322 section 2.2: printable ASCII without the colon.
        if !name.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
            return wrong("a header name is printable ASCII without spaces or colons".to_owned());
        }
        if !(1..=MAX_HEADER_NAME_CHARS).contains(&name.len()) {
            return wrong(format!("a header name has 1 to {MAX_HEADER_NAME_CHARS} characters"));
        }
        if has_prefix(name, "X-SES-") {
            return wrong("X-SES- headers are instructions to SES and are refused".to_owned());
        }
        if let Some(rule) = policy.refusal(name) {
            return wrong(rule.to_owned());
        }
        if headers[..index].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return wrong(
                "is given twice; upper and lower case make no difference in header names"
                    .to_owned(),
            );
        }
        if !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
            return wrong("must be printable ASCII".to_owned());
        }
        if !(1..=MAX_HEADER_VALUE_CHARS).contains(&value.len()) {
            return wrong(format!("must be 1 to {MAX_HEADER_VALUE_CHARS} characters"));
        }
        if name.len() + value.len() > MAX_HEADER_CHARS {
            return wrong(format!(
                "name and value together must be at most {MAX_HEADER_CHARS} characters"
            ));
        }
    }
    Ok(headers)
}

/// Header fields that other fields of a request give, or that SES writes: sender, recipients, date,
/// and the structure of the message (RFC 5322, section 3.6).
const OTHERWISE_GIVEN: [&str; 12] = [
    "From",
    "Sender",
    "Reply-To",
    "To",
    "Cc",
    "Bcc",
    "Subject",
    "Date",
    "Message-ID",
    "MIME-Version",
    "Return-Path",
    "Received",
];

impl HeaderPolicy {
    /// The rule that forbids a header of this name, if there is one.
    fn refusal(self, name: &str) -> Option<&'static str> {
        match self {
            Self::Specification => {
                let is_permitted =
                    has_prefix(name, "X-") || name.eq_ignore_ascii_case("List-Unsubscribe");
                (!is_permitted).then_some("only X- headers and List-Unsubscribe are permitted")
            }
            Self::Submission => {
                let is_given = OTHERWISE_GIVEN.iter().any(|given| given.eq_ignore_ascii_case(name))
                    || has_prefix(name, "Resent-")
                    || has_prefix(name, "Content-");
                is_given.then_some(
                    "is not a custom header: sender, recipients, date and structure come from \
                     other fields of the request, or from SES; use the field for it, if there is \
                     one",
                )
            }
        }
    }
}

/// A name that is given twice is an error of the JSON already.
fn checked_metadata<'a>(
    metadata: Vec<(&'a str, &'a str)>,
) -> Result<Vec<(&'a str, &'a str)>, FieldError> {
    if metadata.len() > MAX_METADATA {
        let rule = format!("must have at most {MAX_METADATA} members");
        return Err(FieldError::new("metadata", rule));
    }
    for (name, value) in &metadata {
        let wrong = |rule: String| Err(FieldError::new(format!("metadata.{name:.100}"), rule));
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !(1..=MAX_METADATA_NAME_CHARS).contains(&name.len()) || !name.bytes().all(is_name) {
            let rule = "characters of A-Z, a-z, 0-9, _ and -";
            return wrong(format!("a name has 1 to {MAX_METADATA_NAME_CHARS} {rule}"));
        }
        if value.chars().any(char::is_control) {
            return wrong("must not contain control characters".to_owned());
        }
        if !(1..=MAX_METADATA_VALUE_CHARS).contains(&value.chars().count()) {
            return wrong(format!("must be 1 to {MAX_METADATA_VALUE_CHARS} characters"));
        }
    }
    Ok(metadata)
}

fn checked_priority(text: &str) -> Result<Priority, FieldError> {
    let known = Priority::ALL.into_iter().find(|priority| priority.as_str() == text);
    known.ok_or_else(|| FieldError::new("priority", "must be high or normal"))
}

fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests;
