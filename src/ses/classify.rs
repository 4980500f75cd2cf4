//! What SES's answer to `SendEmail` means for the message.
//!
//! The contract's rule: the message's own fault fails the message, the set-up's fault must not burn
//! the queue, and what may have been accepted is never called refused. Knows no transport.

use std::time::{Duration, SystemTime};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use http::StatusCode;
use http::header::RETRY_AFTER;
use serde::Deserialize;

use crate::domain::attempt::{Outcome, Problem, ProblemKind};
use crate::domain::mailbox::DomainName;
use crate::ses::aws_error::AwsError;
use crate::ses::redact::redact;
use crate::ses::transport::Reply;

/// The longest message id that is believed; SES's have 60 characters.
const MAX_MESSAGE_ID_BYTES: usize = 255;
/// The longest wait that a provider is heard in.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// What an answer means for a message from the domain `sender`.
pub(super) fn classify(reply: &Reply, sender: &DomainName<'_>) -> Outcome {
    if reply.status.is_success() {
        return accepted(reply);
    }
    let error = AwsError::read(reply);
    let kind = kind_of(reply.status, &error, sender);
    let message = match &error.message {
        Some(message) => redact(message),
        None => unexplained(reply.status, kind),
    };
    let retry_after = retry_after(reply);
    Outcome::NotSent(Problem { kind, provider_code: error.name, message, retry_after })
}

fn accepted(reply: &Reply) -> Outcome {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Accepted {
        message_id: String,
    }
    let unknown = |reason: &str| {
        Outcome::NotSent(Problem {
            kind: ProblemKind::Unknown,
            provider_code: None,
            message: redact(&format!("SES answered {}, but {reason}", reply.status)),
            retry_after: None,
        })
    };
    let body = match &reply.body {
        Ok(body) => body,
        Err(error) => return unknown(error),
    };
    match serde_json::from_slice(body) {
        Ok(Accepted { message_id }) if is_message_id(&message_id) => {
            Outcome::Sent { ses_message_id: message_id }
        }
        _ => unknown("without a message id"),
    }
}

fn is_message_id(text: &str) -> bool {
    (1..=MAX_MESSAGE_ID_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

fn kind_of(status: StatusCode, error: &AwsError, sender: &DomainName<'_>) -> ProblemKind {
    if let Some(kind) = pace_of(error) {
        return kind;
    }
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return ProblemKind::Unknown;
    }
    if !status.is_client_error() {
        return ProblemKind::SetupFault;
    }
    let said = error.message.as_deref().unwrap_or_default();
    if is_paused(error.stem(), said) {
        return ProblemKind::AccountPaused;
    }
    if is_access(status, error.stem()) {
        // A policy may name the identities that may send. One domain outside it must not stop the
        // others; where it leaves out all of them, each is paused in its turn.
        return match said.split_once(":identity/") {
            Some((_, identity)) if is_of(identity, sender) => ProblemKind::DomainFault,
            _ => ProblemKind::SetupFault,
        };
    }
    match error.stem() {
        "MailFromDomainNotVerified" => ProblemKind::DomainFault,
        "MessageRejected" => rejection(said, sender),
        "NotFound" | "ConfigurationSetDoesNotExist" => ProblemKind::SetupFault,
        "BadRequest" if is_missing_configuration_set(said) => ProblemKind::SetupFault,
        "BadRequest" => ProblemKind::Rejected,
        _ => kind_of_unnamed(status, error),
    }
}

/// An answer about rate or quota, whatever its status: it says that the message was not taken.
fn pace_of(error: &AwsError) -> Option<ProblemKind> {
    let said = error.message.as_deref().unwrap_or_default().to_ascii_lowercase();
    // The messages tell the two apart where the names do not (SES error "Throttling").
    if said.contains("daily message quota exceeded") {
        return Some(ProblemKind::QuotaExhausted);
    }
    if said.contains("maximum sending rate exceeded") {
        return Some(ProblemKind::Throttled);
    }
    match error.stem() {
        "LimitExceeded" => Some(ProblemKind::QuotaExhausted),
        "TooManyRequests" | "Throttling" | "Throttled" | "RequestThrottled" | "SlowDown" => {
            Some(ProblemKind::Throttled)
        }
        _ => None,
    }
}

fn is_paused(stem: &str, said: &str) -> bool {
    let named = matches!(
        stem,
        "SendingPaused"
            | "AccountSuspended"
            | "AccountSendingPaused"
            | "ConfigurationSetSendingPaused"
    );
    // SES has also been answering `MessageRejected` for an account that may not send.
    let said = said.to_ascii_lowercase();
    named || said.contains("sending suspended for this") || said.contains("sending paused for this")
}

/// Whether AWS refused the caller and not the message: its credentials, signature or rights.
fn is_access(status: StatusCode, stem: &str) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        || matches!(
            stem,
            "AccessDenied"
                | "ExpiredToken"
                | "IncompleteSignature"
                | "InvalidAccessKeyId"
                | "InvalidClientTokenId"
                | "InvalidSignature"
                | "MissingAuthenticationToken"
                | "NotAuthorized"
                | "OptInRequired"
                | "RequestExpired"
                | "SignatureDoesNotMatch"
                | "UnrecognizedClient"
        )
}

/// `MessageRejected` is the message's own fault, but for one case: "Email address is not verified.
/// The following identities failed the check in region …: …".
///
/// Where the sender is among them, its domain is not set up at SES, and every message from it
/// would fail alike. Where only recipients are, the account is in SES's sandbox, which takes
/// verified recipients alone: waiting does not help such a message, and pausing would hold up
/// those that may be sent. A list that cannot be read counts as naming the sender.
fn rejection(said: &str, sender: &DomainName<'_>) -> ProblemKind {
    const LIST_STARTS: &str = "failed the check in region ";
    if !said.contains("not verified") {
        return ProblemKind::Rejected;
    }
    let listed = said.split_once(LIST_STARTS).and_then(|(_, rest)| rest.split_once(':'));
    match listed {
        Some((_region, identities)) if !identities.trim().is_empty() => {
            let mut identities = identities.split(',');
            if identities.any(|identity| is_of(identity, sender)) {
                ProblemKind::DomainFault
            } else {
                ProblemKind::Rejected
            }
        }
        _ => ProblemKind::DomainFault,
    }
}

fn is_missing_configuration_set(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    said.contains("configuration set")
        && (said.contains("does not exist") || said.contains("doesn't exist"))
}

/// Answers that do not name their error as SES does. Only what reads like an API's refusal of
/// this message fails it: a page from a wrong endpoint or a proxy must not.
fn kind_of_unnamed(status: StatusCode, error: &AwsError) -> ProblemKind {
    let explained = error.name.is_some() || error.message.is_some();
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => ProblemKind::Rejected,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY if explained => {
            ProblemKind::Rejected
        }
        StatusCode::TOO_MANY_REQUESTS => ProblemKind::Throttled,
        StatusCode::CONFLICT | StatusCode::LOCKED | StatusCode::TOO_EARLY => {
            ProblemKind::Unavailable
        }
        _ => ProblemKind::SetupFault,
    }
}

/// Whether an identity's text starts with an address or a domain that is the sender's.
fn is_of(identity: &str, sender: &DomainName<'_>) -> bool {
    let named = identity.rsplit('@').next().unwrap_or_default().trim_start();
    let in_domain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let end = named.find(|c| !in_domain(c)).unwrap_or(named.len());
    named[..end].trim_end_matches('.').eq_ignore_ascii_case(sender.as_str())
}

fn unexplained(status: StatusCode, kind: ProblemKind) -> String {
    match kind {
        ProblemKind::SetupFault => format!(
            "the endpoint answered {status}, and not as SES does: check the SES region and endpoint"
        ),
        _ => format!("SES answered {status} without saying why"),
    }
}

/// `Retry-After` in seconds or as a date (RFC 9110 section 10.2.3).
fn retry_after(reply: &Reply) -> Option<Duration> {
    let text = reply.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if let Ok(seconds) = text.parse() {
        Duration::from_secs(seconds)
    } else {
        let until = DateTime::from_str(text, Format::HttpDate).ok()?;
        SystemTime::try_from(until).ok()?.duration_since(SystemTime::now()).unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests;
