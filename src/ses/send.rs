//! `SendEmail`: a message's request, written once, and one attempt at sending it.
//!
//! Knows the shape of the request (SES v2 API reference, `SendEmail`), and neither when to try nor
//! how often.

use std::borrow::Cow;
use std::io::Write as _;
use std::sync::atomic::Ordering;

use base64::encoded_len;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderStringWriter;
use bytes::Bytes;
use http::{Method, Response};
use memchr::memchr2;

use crate::SesClient;
use crate::classify::{classify, refuses_override};
use crate::error::{TransportError, redact};
use crate::request::{Call, JSON, Reply};
use pillarbox_domain::admission::Admitted;
use pillarbox_domain::attempt::{
    Outcome, Problem, ProblemKind, ProviderAnswer, RequestBody, TrackingOverride,
};
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::Mailbox;
use pillarbox_domain::organisation::OrganisationName;
use pillarbox_domain::request::{Attachment, Body, BodyText, RawMessage};
use pillarbox_runtime::text_buffer::TextBuffer;

/// The message tag that carries our message id; events bring it back.
pub const MESSAGE_ID_TAG: &str = "pillarbox-message-id";
/// The message tag that carries the organisation's name; events bring it back.
pub const ORGANISATION_TAG: &str = "pillarbox-organisation";

/// Members that have SES rewrite no link and add no pixel, even if the account and the
/// configuration set ask for it (SES API v2, `TrackingConfigurationOverrides`).
const TRACKING_OFF: &str = r#","ConfigurationOverrides":{"Tracking":{"OpenTrackingEnabled":"DISABLED","ClickTrackingEnabled":"DISABLED"}}"#;

/// Parts that every message's request has besides the message.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// The configuration set that it names.
    pub configuration_set: Option<String>,
    /// Decision whether it turns open and click tracking off.
    pub tracking_override: TrackingOverride,
}

/// The body of a message's `SendEmail` request, shared by all attempts.
///
/// It is written by hand and not through a model of it: what is large is copied once, into a
/// buffer of exactly the size that it has in the end, and `room` bytes for its owner.
pub fn encode(
    admitted: &Admitted<'_>,
    id: MessageId,
    organisation: &OrganisationName,
    options: &RequestOptions,
    room: usize,
) -> TextBuffer {
    let (text, html) = match admitted.body() {
        Body::Raw(message) => {
            let mut end = Json(String::with_capacity(SMALL_PART));
            end.put("\"}}").end(id, organisation, options);
            return encode_raw(admitted, message, &end.0, room);
        }
        Body::Html(html) => (None, Some(in_json(html))),
        Body::Text(text) => (Some(in_json(text)), None),
        Body::Both { html, text } => (Some(in_json(text)), Some(in_json(html))),
    };
    let before = before_body(admitted);
    let files: Vec<_> = admitted.attachments().iter().map(|file| (head(file), file)).collect();
    let after = after_attachments(admitted, id, organisation, options);
    let mut parts = vec![before.as_str()];
    if let Some(text) = &text {
        parts.extend([TEXT, text, UTF_8]);
    }
    if let Some(html) = &html {
        parts.extend([if text.is_some() { "," } else { "" }, HTML, html, UTF_8]);
    }
    parts.push("}");
    for (index, (head, file)) in files.iter().enumerate() {
        let (BodyText::Plain(content) | BodyText::Json(content)) = file.content;
        parts.extend([if index == 0 { ATTACHMENTS } else { "," }, head, content, "\"}"]);
    }
    parts.extend([if files.is_empty() { "" } else { "]" }, &after]);
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut request = TextBuffer::with_capacity(len + room);
    for part in parts {
        request.push_str(part);
    }
    request
}

/// The same of a message that came whole: its bytes, in base64, are written into the request and
/// nowhere else.
fn encode_raw(
    admitted: &Admitted<'_>,
    message: RawMessage<'_>,
    end: &str,
    room: usize,
) -> TextBuffer {
    let mut before = mailboxes(admitted);
    before.put(r#","Content":{"Raw":{"Data":""#);
    let parts = [message.fields, message.rest];
    let message_len = parts.iter().map(|part| part.len()).sum();
    let data_len = encoded_len(message_len, true).expect("a message in memory has a size");
    let len = before.0.len() + data_len + end.len();
    let mut request = TextBuffer::with_capacity(len + room);
    request.push_str(&before.0);
    let mut data = EncoderStringWriter::from_consumer(&mut request, &STANDARD);
    for part in parts {
        data.write_all(part).expect("a text takes everything");
    }
    // What it gives back is the request.
    let _ = data.into_inner();
    request.push_str(end);
    request
}

/// SES's `Content`, around a text.
const TEXT: &str = r#""Text":{"Data":""#;
const HTML: &str = r#""Html":{"Data":""#;
const UTF_8: &str = r#"","Charset":"UTF-8"}"#;
/// SES's list of `Attachment`.
const ATTACHMENTS: &str = r#","Attachments":["#;

/// The sender, which is first so that it is found at once, the recipients, and the reply addresses.
fn mailboxes(admitted: &Admitted<'_>) -> Json {
    let mut json = Json(String::with_capacity(SMALL_PART));
    json.put(r#"{"FromEmailAddress":"#).text(&admitted.from_header());
    json.put(r#","Destination":{"ToAddresses":"#).addresses(&admitted.distinct_to());
    for (name, mailboxes) in [("Cc", admitted.cc()), ("Bcc", admitted.bcc())] {
        if !mailboxes.is_empty() {
            json.put(",\"").put(name).put("Addresses\":").addresses(mailboxes);
        }
    }
    json.put("}");
    if !admitted.reply_to().is_empty() {
        json.put(r#","ReplyToAddresses":"#).addresses(admitted.reply_to());
    }
    json
}

/// All that comes before the bodies.
fn before_body(admitted: &Admitted<'_>) -> String {
    let mut json = mailboxes(admitted);
    json.put(r#","Content":{"Simple":{"Subject":{"Data":"#).text(admitted.subject());
    json.put(r#","Charset":"UTF-8"},"Body":{"#);
    json.0
}

/// A file up to its content, which is base64 and so the same in JSON as it is.
fn head(file: &Attachment<'_>) -> String {
    let mut json = Json(String::with_capacity(SMALL_PART));
    json.put(r#"{"FileName":"#).text(&file.filename);
    json.put(r#","ContentType":"#).text(file.content_type);
    // Without an encoding SES takes seven bits of each byte.
    json.put(r#","ContentTransferEncoding":"BASE64","ContentDisposition":"#);
    match file.content_id {
        Some(id) => json.put(r#""INLINE","ContentId":"#).text(id),
        None => {
            json.put(r#""ATTACHMENT""#);
        }
    }
    json.put(r#","RawContent":""#);
    json.0
}

/// All that comes after the attachments.
fn after_attachments(
    admitted: &Admitted<'_>,
    id: MessageId,
    organisation: &OrganisationName,
    options: &RequestOptions,
) -> String {
    let mut json = Json(String::with_capacity(SMALL_PART));
    if !admitted.headers().is_empty() {
        json.put(r#","Headers":"#).pairs(admitted.headers());
    }
    json.put("}}").end(id, organisation, options);
    json.0
}

/// A body's text as it is written between the quotes of a JSON string.
fn in_json(text: BodyText<'_>) -> Cow<'_, str> {
    match text {
        BodyText::Json(written) => Cow::Borrowed(written),
        BodyText::Plain(text) => {
            let mut json = Json(String::new());
            json.text(text);
            json.0.pop();
            json.0.remove(0);
            Cow::Owned(json.0)
        }
    }
}

/// Usual size of either side of the bodies, in bytes.
const SMALL_PART: usize = 512;

/// JSON as it is written, part by part.
struct Json(String);

impl Json {
    /// Appends names and punctuation.
    fn put(&mut self, json: &str) -> &mut Self {
        self.0.push_str(json);
        self
    }

    /// A text, in quotes.
    fn text(&mut self, text: &str) {
        // RFC 8259 section 7: these, quotes and backslashes must be escaped.
        if text.bytes().any(|b| b < b' ') {
            self.0.push_str(&serde_json::to_string(text).expect("a text becomes JSON"));
            return;
        }
        self.put("\"");
        let mut rest = text;
        while let Some(at) = memchr2(b'"', b'\\', rest.as_bytes()) {
            let (escaped, after) = rest.split_at(at + 1);
            self.put(&escaped[..at]).put("\\").put(&escaped[at..]);
            rest = after;
        }
        self.put(rest).put("\"");
    }

    fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        self.put("[");
        for (position, one) in items.into_iter().enumerate() {
            if position > 0 {
                self.put(",");
            }
            item(self, one);
        }
        self.put("]");
    }

    fn addresses(&mut self, mailboxes: &[Mailbox<'_>]) {
        self.list(mailboxes, |json, mailbox| json.text(&mailbox.to_header()));
    }

    /// The tags that events bring back, and what every message has: the end of the request.
    fn end(&mut self, id: MessageId, organisation: &OrganisationName, options: &RequestOptions) {
        let tags = [(MESSAGE_ID_TAG, &*id.to_string()), (ORGANISATION_TAG, organisation.as_str())];
        self.put(r#","EmailTags":"#).pairs(&tags);
        if let Some(name) = &options.configuration_set {
            self.put(r#","ConfigurationSetName":"#).text(name);
        }
        // Last, so that it can be taken away.
        if options.tracking_override != TrackingOverride::Never {
            self.put(TRACKING_OFF);
        }
        self.put("}");
    }

    /// SES's `MessageHeader` and `MessageTag`.
    fn pairs(&mut self, pairs: &[(&str, &str)]) {
        self.list(pairs, |json, (name, value)| {
            json.put(r#"{"Name":"#).text(name);
            json.put(r#","Value":"#).text(value);
            json.put("}");
        });
    }
}

/// A request without the override of tracking; `None` if it has none.
fn without_override(request: &[u8]) -> Option<Bytes> {
    let rest = request.strip_suffix(b"}")?.strip_suffix(TRACKING_OFF.as_bytes())?;
    Some([rest, b"}"].concat().into())
}

impl SesClient {
    /// Makes one attempt with the ready, encoded request of a message with this envelope.
    pub async fn send(&self, envelope: &Envelope<'_>, request: RequestBody) -> Outcome {
        if self.inner.tracking_override != TrackingOverride::Auto {
            return outcome(envelope, self.post_message(request).await);
        }
        let reply = self.post_message(request.clone()).await;
        let refused = reply.as_ref().is_ok_and(refuses_override);
        let bare = refused.then(|| request.whole()).flatten();
        let bare = bare.and_then(|request| without_override(&request));
        let is_bare = bare.is_some();
        let reply = match bare {
            Some(bare) => self.post_message(bare.into()).await,
            None => reply,
        };
        let outcome = outcome(envelope, reply);
        if matches!(outcome, Outcome::Sent { .. }) {
            self.inner.went_without_override.store(is_bare, Ordering::Relaxed);
        }
        outcome
    }

    /// Makes one call of `SendEmail`.
    async fn post_message(&self, request: RequestBody) -> Result<Reply, TransportError> {
        let call = Call {
            service: "ses",
            method: Method::POST,
            url: &self.inner.outbound_emails,
            headers: &[JSON],
            body: request,
        };
        let transport = &self.inner.transport;
        transport.call_on(transport.options_of(call.body.len_bytes()), &call).await
    }
}

/// Returns the meaning of an answer in SES's form for the message with this envelope, from SES or
/// from the simulator.
pub fn outcome_of_answer(envelope: &Envelope<'_>, answer: Response<Bytes>) -> Outcome {
    let (parts, body) = answer.into_parts();
    let reply = Reply { status: parts.status, headers: parts.headers, body: Ok(body) };
    classify(&reply, &envelope.sender_domain())
}

/// Returns what the result of a call means for the message with this envelope.
fn outcome(envelope: &Envelope<'_>, reply: Result<Reply, TransportError>) -> Outcome {
    match reply {
        Ok(reply) => classify(&reply, &envelope.sender_domain()),
        Err(error) => {
            let problem = |kind| Problem {
                kind,
                provider_code: None,
                message: redact(&error.to_string()),
                retry_after: None,
                answer: ProviderAnswer::Missing,
            };
            match &error {
                TransportError::Credentials(_) | TransportError::Signing(_) => {
                    Outcome::NotCalled(problem(ProblemKind::SetupFault))
                }
                TransportError::NotWritten(_) => {
                    Outcome::NotSent(problem(ProblemKind::Unavailable))
                }
                TransportError::NoAnswer(_) => Outcome::NotSent(problem(ProblemKind::Unknown)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
