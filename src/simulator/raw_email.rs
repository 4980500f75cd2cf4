//! Raw content of `SendEmail`: reads a whole message, and refuses one that SES refuses.
//!
//! Reads with a parser that is not the sending side's, and keeps the bytes beside what it read. Must
//! not know identities, limits or earlier messages.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use mail_parser::{Address, MessageParser, MessagePart, MimeHeaders, PartType};

use super::captured::{CapturedAttachment, NameValue};
use super::protocol::ErrorResponse;

/// SES: octets of a line without its end.
/// Source: <https://docs.aws.amazon.com/ses/latest/dg/send-email-raw.html>
const MAX_LINE_LENGTH: usize = 998;
/// Header fields that a message may have once.
/// Source: <https://docs.aws.amazon.com/ses/latest/dg/header-fields.html>
const ONCE: [&str; 13] = [
    "bcc",
    "cc",
    "content-transfer-encoding",
    "content-type",
    "date",
    "from",
    "message-id",
    "mime-version",
    "reply-to",
    "return-path",
    "sender",
    "subject",
    "to",
];

/// The content of a message. Only one that came whole has addresses and its bytes.
#[derive(Default)]
pub(super) struct Content {
    pub(super) from: Option<String>,
    pub(super) to: Vec<String>,
    pub(super) cc: Vec<String>,
    pub(super) bcc: Vec<String>,
    pub(super) reply_to: Vec<String>,
    pub(super) subject: String,
    pub(super) text: Option<String>,
    pub(super) html: Option<String>,
    /// Custom headers; all header fields, unfolded, of a message that came whole.
    pub(super) headers: Vec<NameValue>,
    pub(super) attachments: Vec<CapturedAttachment>,
    pub(super) raw: Option<Bytes>,
}

/// Reads a message from base64.
pub(super) fn read(data: &str) -> Result<Content, ErrorResponse> {
    let bytes = STANDARD.decode(data).map_err(|_| {
        let message = "The value at 'content.raw.data' is not base64.";
        ErrorResponse::new(StatusCode::BAD_REQUEST, "SerializationException", message)
    })?;
    if bytes.is_empty() {
        let rule = "Member must have length greater than or equal to 1";
        return Err(ErrorResponse::constraint("content.raw.data", rule));
    }
    if bytes.split(|byte| *byte == b'\n').any(|line| line.trim_ascii_end().len() > MAX_LINE_LENGTH)
    {
        return Err(ErrorResponse::bad_request("Line length exceeds 998 octets."));
    }
    let message = MessageParser::default().parse(&bytes);
    let message = message.ok_or_else(|| ErrorResponse::bad_request("Missing required header."))?;
    let mut once = HashSet::new();
    for (name, _) in message.headers_raw() {
        let lower = name.to_ascii_lowercase();
        if ONCE.contains(&lower.as_str()) && !once.insert(lower) {
            return Err(ErrorResponse::bad_request(format!("Duplicate header '{name}'.")));
        }
    }
    let text = message.text_bodies().find_map(|part| match &part.body {
        PartType::Text(text) => Some(text.clone().into_owned()),
        _ => None,
    });
    let html = message.html_bodies().find_map(|part| match &part.body {
        PartType::Html(html) => Some(html.clone().into_owned()),
        _ => None,
    });
    let headers = message.headers_raw().map(|(name, value)| NameValue {
        name: name.to_owned(),
        value: value.replace("\r\n", "").trim().to_owned(),
    });
    Ok(Content {
        from: addresses(message.from()).into_iter().next(),
        to: addresses(message.to()),
        cc: addresses(message.cc()),
        bcc: addresses(message.bcc()),
        reply_to: addresses(message.reply_to()),
        subject: message.subject().unwrap_or_default().to_owned(),
        text,
        html,
        headers: headers.collect(),
        attachments: message.attachments().map(attachment).collect(),
        raw: Some(bytes.clone().into()),
    })
}

fn addresses(header: Option<&Address<'_>>) -> Vec<String> {
    let all = header.into_iter().flat_map(|header| header.iter());
    all.filter_map(|one| one.address().map(str::to_owned)).collect()
}

fn attachment(part: &MessagePart<'_>) -> CapturedAttachment {
    let content_type = part.content_type().map(|one| match &one.c_subtype {
        Some(subtype) => format!("{}/{subtype}", one.c_type),
        None => one.c_type.to_string(),
    });
    CapturedAttachment {
        filename: part.attachment_name().unwrap_or_default().to_owned(),
        content: Bytes::copy_from_slice(part.contents()),
        content_type,
        disposition: part.content_disposition().map(|one| one.c_type.to_uppercase()),
        content_id: part.content_id().map(str::to_owned),
        transfer_encoding: part.content_transfer_encoding().map(str::to_owned),
    }
}
