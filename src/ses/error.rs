//! Errors of calls to SES and the other AWS services: in the words of AWS, and in the form for our
//! callers.
//!
//! Knows the places of an error's name and message, but not their meaning for a message. AWS
//! repeats addresses, display names and offending values in its messages: they are redacted before
//! anyone sees them. Domains stay, because they show the set-up that is meant.

use http::StatusCode;

use crate::query;
use crate::request::Reply;
use pillarbox_runtime::error_chain::without_full_stop;

/// Reason why a call other than `SendEmail` brought no answer to go by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There are no credentials to sign with.
    #[error(transparent)]
    Credentials(#[from] LoadError),
    /// AWS could not be reached, or gave no answer.
    #[error("the call to AWS failed: {0}")]
    Unreachable(String),
    /// AWS refused the call.
    #[error("AWS refused the call with {}: {message}", name.as_deref().unwrap_or("an error"))]
    Refused {
        /// HTTP status of the answer.
        status: u16,
        /// The error's name, such as `TooManyRequestsException`.
        name: Option<String>,
        /// AWS's message, without addresses.
        message: String,
    },
    /// The endpoint does not have the call: it answered so, and not as SES does.
    #[error("the endpoint does not have this call; it answered {status}")]
    NotSupported {
        /// HTTP status of the answer.
        status: u16,
    },
    /// The answer is not what AWS answers.
    #[error("AWS's answer cannot be read: {0}")]
    Unreadable(String),
}

impl CallError {
    /// Reads the refusal that an answer is.
    pub(super) fn of(reply: &Reply) -> Self {
        let status = reply.status.as_u16();
        let AwsError { name, message } = AwsError::read(reply);
        let lacking = matches!(
            reply.status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        );
        if lacking && name.is_none() {
            return Self::NotSupported { status };
        }
        let message = message.map_or_else(
            || format!("status {status}"),
            |message| without_full_stop(&redact(&message)).to_owned(),
        );
        Self::Refused { status, name, message }
    }

    /// Returns true if AWS refused the call with one of these names.
    pub fn is_named(&self, names: &[&str]) -> bool {
        matches!(self, Self::Refused { name: Some(name), .. } if names.contains(&name.as_str()))
    }

    /// Returns what a call found, or `None` if it was refused with one of these names.
    pub(super) fn found<T>(answer: Result<T, Self>, not_found: &[&str]) -> Result<Option<T>, Self> {
        match answer {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_named(not_found) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if AWS refused the credentials, and not what they may do.
    pub fn refuses_credentials(&self) -> bool {
        match self {
            Self::Refused { name: Some(name), .. } => {
                !self.refuses_clock()
                    && RefusedCredentials::by(stem(name)) != RefusedCredentials::No
            }
            _ => false,
        }
    }

    /// Returns true if AWS refused the call because of its time, and so because of our clock.
    pub fn refuses_clock(&self) -> bool {
        match self {
            Self::Refused { name: Some(name), message, .. } => is_clock(stem(name), message),
            _ => false,
        }
    }

    /// Returns true if AWS knows the credentials, and they may not make this call.
    pub fn denies_access(&self) -> bool {
        matches!(self, Self::Refused { status: 401 | 403, .. })
            && !self.refuses_credentials()
            && !self.refuses_clock()
    }
}

impl From<TransportError> for CallError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Credentials(error) => Self::Credentials(error),
            TransportError::Signing(_)
            | TransportError::NotWritten(_)
            | TransportError::NoAnswer(_) => Self::Unreachable(redact(&error.to_string())),
        }
    }
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// There is nothing to sign with.
    #[error(transparent)]
    Credentials(#[from] LoadError),
    /// The credentials cannot be used in a request, a key with a line break in it for example.
    #[error("the request could not be signed: {0}")]
    Signing(String),
    /// Not all of the request's body was written, so it cannot have been acted on.
    #[error("the request was not sent: {0}")]
    NotWritten(String),
    /// The last byte was handed to the socket, and no status came back.
    #[error("no answer: {0}")]
    NoAnswer(String),
}

/// Reason why there are no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No source has any.
    #[error(
        "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a shared \
         profile with AWS_PROFILE, or give the machine or container a role"
    )]
    None,
    /// A source is configured and failed.
    #[error("AWS credentials could not be loaded: {0}")]
    Failed(String),
}

/// Error as AWS words it: its name and its message, as far as it gave them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AwsError {
    /// The error's name, such as `MessageRejected`.
    pub(super) name: Option<String>,
    /// The message as AWS wrote it: to be redacted before it is shown.
    pub(super) message: Option<String>,
}

impl AwsError {
    /// Reads the name from `x-amzn-errortype`, else from the body, and the message from the body
    /// (AWS restJson1 protocol, "Operation error serialization"); both from XML if the body is XML.
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
        let members =
            ["__type", "code", "Code"].into_iter().filter_map(|name| body.get(name)?.as_str());
        let mut names = header.into_iter().chain(members).map(bare_name);
        let name = names.find(|name| is_name(name)).map(str::to_owned);
        Self { name, message: text(&["message", "Message"]) }
    }

    /// The name without `Exception` at its end: services and their versions differ in it.
    pub(super) fn stem(&self) -> &str {
        stem(self.name.as_deref().unwrap_or_default())
    }
}

/// An error's name without a namespace before it and `Exception` at its end.
pub(super) fn stem(name: &str) -> &str {
    let name = name.rsplit('.').next().unwrap_or_default();
    name.strip_suffix("Exception").unwrap_or(name)
}

/// Returns true if AWS refused a call because of its time (AWS: "Troubleshoot AWS Signature Version
/// 4" and "Common Error Types"). Both sentences are AWS's own from their start.
pub(super) fn is_clock(stem: &str, said: &str) -> bool {
    const OF_TIME: [&str; 2] = ["Signature expired: ", "Signature not yet current: "];
    match stem {
        "RequestTimeTooSkewed" | "RequestInTheFuture" | "RequestExpired" => true,
        "InvalidSignature" | "SignatureDoesNotMatch" => {
            OF_TIME.iter().any(|start| said.starts_with(start))
        }
        _ => false,
    }
}

/// Refusal of the credentials, as against what they may do.
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
            "AuthFailure"
            | "IncompleteSignature"
            | "InvalidAccessKeyId"
            | "InvalidClientTokenId"
            | "InvalidSignature"
            | "MissingAuthenticationToken"
            | "OptInRequired"
            | "SignatureDoesNotMatch"
            | "UnrecognizedClient" => Self::Unknown,
            _ => Self::No,
        }
    }
}

/// `com.amazonaws.ses#Name:http://…` without what surrounds the name. The namespace may be a URI.
fn bare_name(text: &str) -> &str {
    let text = text.trim();
    let is_uri = text.starts_with("http://") || text.starts_with("https://");
    let text = if is_uri { text } else { text.split(':').next().unwrap_or_default() };
    text.rsplit('#').next().unwrap_or_default().split(':').next().unwrap_or_default().trim()
}

fn is_name(text: &str) -> bool {
    const MAX_NAME_BYTES: usize = 100;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// The longest message that is kept, in characters.
pub(super) const MAX_MESSAGE_CHARS: usize = 500;

/// Placeholder for a part that is left out.
const LEFT_OUT: char = '…';

/// The text without local parts, display names before an address, values that a validation
/// repeats, and control characters; cut to `MAX_MESSAGE_CHARS`.
pub(super) fn redact(text: &str) -> String {
    let without_values = without_repeated_values(text);
    let mut shown = String::with_capacity(without_values.len().min(MAX_MESSAGE_CHARS * 4));
    let mut rest = without_values.as_str();
    while let Some(at) = rest.find('@') {
        let before = &rest[..at];
        shown.push_str(&before[..address_start(before)]);
        shown.push(LEFT_OUT);
        shown.push('@');
        rest = &rest[at + 1..];
    }
    shown.push_str(rest);
    shown
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_MESSAGE_CHARS)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Place where the local part at the end of `before` starts, with the display name if it has one.
fn address_start(before: &str) -> usize {
    let local_start = if let Some(quoted) = before.strip_suffix('"') {
        quoted.rfind('"').unwrap_or(0)
    } else {
        before.rfind(ends_a_word).map_or(0, |index| index + char_len(before, index))
    };
    let Some(phrase) = before[..local_start].strip_suffix('<') else { return local_start };
    if let Some(quoted) = phrase.trim_end().strip_suffix('"') {
        return quoted.rfind('"').unwrap_or(0);
    }
    let start = phrase.rfind([',', ':', ';']).map_or(0, |index| index + 1);
    // The space after the separator stays.
    start + leading_spaces(&phrase[start..])
}

fn ends_a_word(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '<' | '>' | ',' | ';' | ':' | '(' | ')' | '[' | '\'' | '"' | '`')
}

fn char_len(text: &str, index: usize) -> usize {
    text[index..].chars().next().map_or(0, char::len_utf8)
}

fn leading_spaces(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// AWS's validation errors read `Value '<what was sent>' at 'content.simple…' failed to satisfy`.
fn without_repeated_values(text: &str) -> String {
    const OPEN: &str = "Value '";
    const CLOSE: &str = "' at '";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find(OPEN) {
        let value = &rest[open + OPEN.len()..];
        shown.push_str(&rest[..open + OPEN.len()]);
        shown.push(LEFT_OUT);
        // Without its end, all that follows may be the value.
        rest = value.find(CLOSE).map_or("", |close| &value[close..]);
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn local_parts_and_display_names_go_and_domains_stay() {
        let text = "Email address is not verified. The following identities failed the check in \
                    region EU-WEST-1: Bob Lee <bob@example.com>, ann@example.org, \"a b\"@x.org";
        assert_eq!(
            redact(text),
            "Email address is not verified. The following identities failed the check in region \
             EU-WEST-1: …@example.com>, …@example.org, …@x.org"
        );
        assert_eq!(redact(r#"No: "Lee, Bob" <bob@example.com>"#), "No: …@example.com>");
        assert_eq!(redact("Invalid 'bob.lee+x@example.com'."), "Invalid '…@example.com'.");
    }

    #[test]
    fn values_that_a_validation_repeats_go() {
        let text = "1 validation error detected: Value 'my secret text' at 'content.simple.subject' \
                    failed to satisfy constraint";
        assert_eq!(
            redact(text),
            "1 validation error detected: Value '…' at 'content.simple.subject' failed to satisfy \
             constraint"
        );
        assert_eq!(redact("Value 'my secret"), "Value '…");
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_short_line_without_the_local_part(
            before in "\\PC{0,40}", local in "[a-z]{12}", after in "(?s).{0,600}"
        ) {
            let shown = redact(&format!("{before} {local}@{after}"));
            prop_assert!(shown.chars().count() <= MAX_MESSAGE_CHARS);
            prop_assert!(!shown.chars().any(char::is_control));
            prop_assert!(!shown.contains(&local) || after.contains(&local) || before.contains(&local));
        }
    }
}
