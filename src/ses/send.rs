//! `SendEmail`: a message's request, written once, and one attempt at sending it.
//!
//! Knows the shape of the request (SES v2 API reference, `SendEmail`), and neither when to try nor
//! how often.

use std::io;

use bytes::Bytes;
use http::Method;
use serde::{Serialize, Serializer};

use crate::domain::admission::Admitted;
use crate::domain::attempt::{Outcome, Problem, ProblemKind, Provider};
use crate::domain::id::MessageId;
use crate::domain::mailbox::Mailbox;
use crate::domain::organisation::OrganisationName;
use crate::domain::request::Body;
use crate::ses::SesClient;
use crate::ses::classify::classify;
use crate::ses::redact::redact;
use crate::ses::transport::{Call, JSON, TransportError};

/// The message tag that carries our message id; events bring it back.
pub const MESSAGE_ID_TAG: &str = "pillarbox-message-id";
/// The message tag that carries the organisation's name; events bring it back.
pub const ORGANISATION_TAG: &str = "pillarbox-organisation";

/// Up to how many bytes of texts the length of a request is guessed.
const MAX_GUESSED: usize = 64 * 1024;
/// What a request has beyond its texts, more often than not, in bytes.
const REST: usize = 768;

/// The body of a message's `SendEmail` request, shared by all attempts.
///
/// The buffer is of exactly its size in the end. That of a large body is so from the start: its
/// length is found first, which takes as long as writing it.
pub fn encode(
    admitted: &Admitted<'_>,
    id: MessageId,
    organisation: &OrganisationName,
    configuration_set: Option<&str>,
) -> Bytes {
    let id = id.to_string();
    let request = SendEmail {
        from_email_address: admitted.from().to_header(),
        destination: Destination {
            to: headers_of(admitted.to()),
            cc: headers_of(admitted.cc()),
            bcc: headers_of(admitted.bcc()),
        },
        reply_to_addresses: admitted.reply_to().map(|mailbox| [mailbox.to_header()]),
        content: Content {
            simple: Simple {
                subject: Utf8(admitted.subject()),
                body: SimpleBody::from(admitted.body()),
                headers: admitted
                    .headers()
                    .iter()
                    .map(|&(name, value)| Pair { name, value })
                    .collect(),
            },
        },
        email_tags: [
            Pair { name: MESSAGE_ID_TAG, value: &id },
            Pair { name: ORGANISATION_TAG, value: organisation.as_str() },
        ],
        configuration_set_name: configuration_set,
    };
    let texts = text_len(admitted.body());
    let room = if texts > MAX_GUESSED { counted(&request) } else { texts + texts / 8 + REST };
    let mut encoded = Vec::with_capacity(room);
    serde_json::to_writer(&mut encoded, &request).expect("strings and lists become JSON");
    encoded.shrink_to_fit();
    Bytes::from(encoded)
}

const fn text_len(body: Body<'_>) -> usize {
    match body {
        Body::Html(text) | Body::Text(text) => text.len(),
        Body::Both { html, text } => html.len() + text.len(),
    }
}

fn counted(request: &SendEmail<'_>) -> usize {
    let mut length = ByteCount(0);
    serde_json::to_writer(&mut length, request).expect("strings and lists become JSON");
    length.0
}

impl Provider for SesClient {
    async fn send(&self, request: Bytes) -> Outcome {
        let call = Call {
            service: "ses",
            method: Method::POST,
            url: &self.inner.outbound_emails,
            headers: &[JSON],
            body: request.clone(),
        };
        match self.inner.transport.call(&call).await {
            Ok(reply) => classify(&reply, &request),
            Err(error) => Outcome::NotSent(Problem {
                kind: match error {
                    TransportError::Credentials(_) | TransportError::Signing(_) => {
                        ProblemKind::SetupFault
                    }
                    TransportError::NotWritten(_) => ProblemKind::Unavailable,
                    TransportError::NoAnswer(_) => ProblemKind::Unknown,
                },
                provider_code: None,
                message: redact(&error.to_string()),
                retry_after: None,
            }),
        }
    }
}

fn headers_of(mailboxes: &[Mailbox<'_>]) -> Vec<String> {
    mailboxes.iter().map(Mailbox::to_header).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SendEmail<'a> {
    /// First, so that the sender of an encoded request is found at once.
    from_email_address: String,
    destination: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to_addresses: Option<[String; 1]>,
    content: Content<'a>,
    email_tags: [Pair<'a>; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration_set_name: Option<&'a str>,
}

#[derive(Serialize)]
struct Destination {
    #[serde(rename = "ToAddresses")]
    to: Vec<String>,
    #[serde(rename = "CcAddresses", skip_serializing_if = "Vec::is_empty")]
    cc: Vec<String>,
    #[serde(rename = "BccAddresses", skip_serializing_if = "Vec::is_empty")]
    bcc: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Content<'a> {
    simple: Simple<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Simple<'a> {
    subject: Utf8<'a>,
    body: SimpleBody<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<Pair<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SimpleBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Utf8<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<Utf8<'a>>,
}

impl<'a> From<Body<'a>> for SimpleBody<'a> {
    fn from(body: Body<'a>) -> Self {
        match body {
            Body::Html(html) => Self { text: None, html: Some(Utf8(html)) },
            Body::Text(text) => Self { text: Some(Utf8(text)), html: None },
            Body::Both { html, text } => Self { text: Some(Utf8(text)), html: Some(Utf8(html)) },
        }
    }
}

/// SES's `Content`: a text with its character set.
struct Utf8<'a>(&'a str);

impl Serialize for Utf8<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Text<'a> {
            data: &'a str,
            charset: &'static str,
        }
        Text { data: self.0, charset: "UTF-8" }.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Pair<'a> {
    name: &'a str,
    value: &'a str,
}

/// Counts what is written to it.
struct ByteCount(usize);

impl io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
