//! The errors of AWS services as their JSON and query protocols carry them.
//!
//! Knows where the name and the message stand, and not what any of them means.

use crate::ses::query;
use crate::ses::transport::Reply;

/// What AWS says of an error: its name and its message, as far as it gave them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AwsError {
    /// The error's name, such as `MessageRejected`.
    pub(super) name: Option<String>,
    /// The message as AWS wrote it: to be redacted before it is shown.
    pub(super) message: Option<String>,
}

impl AwsError {
    /// Reads the name from `x-amzn-errortype`, else from the body, and the message from the body
    /// (AWS restJson1 protocol, "Operation error serialization"); both from XML where it is that.
    pub(super) fn read(reply: &Reply) -> Self {
        let body = reply.body.as_deref().unwrap_or_default();
        if body.trim_ascii_start().starts_with(b"<") {
            let error = str::from_utf8(body).ok().and_then(query::error);
            return error.map_or_else(Self::default, |(name, message)| Self {
                name: Some(name).filter(|name| is_name(name)),
                message,
            });
        }
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |names: &[&str]| {
            names.iter().find_map(|name| body.get(name)?.as_str()).map(str::to_owned)
        };
        let header = reply.headers.get("x-amzn-errortype").and_then(|value| value.to_str().ok());
        let named = header.map(str::to_owned).or_else(|| text(&["__type", "code", "Code"]));
        let name = named.as_deref().map(bare_name).filter(|name| is_name(name)).map(str::to_owned);
        Self { name, message: text(&["message", "Message"]) }
    }

    /// The name without `Exception` at its end: services and their versions differ in it.
    pub(super) fn stem(&self) -> &str {
        stem(self.name.as_deref().unwrap_or_default())
    }
}

/// An error's name without `Exception` at its end.
pub(super) fn stem(name: &str) -> &str {
    name.strip_suffix("Exception").unwrap_or(name)
}

/// Whether an error refuses the credentials rather than what they may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusedCredentials {
    No,
    /// They were good once.
    Expired,
    /// They are not known, or do not match: perhaps they were replaced since they were loaded.
    Unknown,
}

impl RefusedCredentials {
    /// By the error's name without `Exception` (AWS: "Common Error Types" of SES and STS).
    pub(super) fn by(stem: &str) -> Self {
        match stem {
            "ExpiredToken" => Self::Expired,
            "IncompleteSignature"
            | "InvalidAccessKeyId"
            | "InvalidClientTokenId"
            | "InvalidSignature"
            | "MissingAuthenticationToken"
            | "OptInRequired"
            | "RequestExpired"
            | "SignatureDoesNotMatch"
            | "UnrecognizedClient" => Self::Unknown,
            _ => Self::No,
        }
    }
}

/// `com.amazonaws.ses#Name:http://…` without what surrounds the name.
fn bare_name(text: &str) -> &str {
    let text = text.split(':').next().unwrap_or_default();
    text.rsplit('#').next().unwrap_or_default().trim()
}

fn is_name(text: &str) -> bool {
    const MAX_NAME_BYTES: usize = 100;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}
