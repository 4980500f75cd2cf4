//! Classification of SES's answers to `SendEmail`: what each means for the message.
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
use crate::ses::error::{AwsError, RefusedCredentials, redact};
use crate::ses::request::Reply;

/// The longest message id that is believed; SES's have 60 characters.
const MAX_MESSAGE_ID_BYTES: usize = 255;
/// The longest wait that a provider is heard in.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Returns what an answer means for a message from the domain `sender`.
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

/// The kind of problem that an answer tells, by its status and its error's name.
///
/// SES repeats display names, addresses and domains in its messages, and clients choose them. So a
/// sentence counts only if it is SES's own from its start, and as a whole if it repeats nothing.
/// Only what AWS names may stop all mail. The rest concerns the message, or at most the domain of
/// its sender.
fn kind_of(status: StatusCode, error: &AwsError, sender: &DomainName<'_>) -> ProblemKind {
    let said = error.message.as_deref().unwrap_or_default();
    if let Some(kind) = pace_of(error.stem(), said) {
        return kind;
    }
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return ProblemKind::Unknown;
    }
    let kind = match error.stem() {
        "SendingPaused"
        | "AccountSuspended"
        | "AccountSendingPaused"
        | "ConfigurationSetSendingPaused" => ProblemKind::AccountPaused,
        // A policy may name the identities that may send. One that leaves out this sender's must
        // not stop the others; if it leaves out all of them, each is paused in its turn.
        "AccessDenied" if denies_an_identity(said) => ProblemKind::DomainFault,
        name if is_access(name) => ProblemKind::SetupFault,
        "NotFound" | "ConfigurationSetDoesNotExist" | "UnknownOperation" => ProblemKind::SetupFault,
        "MailFromDomainNotVerified" => ProblemKind::DomainFault,
        "MessageRejected" => rejection(said, sender),
        "BadRequest" if is_missing_configuration_set(said) => ProblemKind::SetupFault,
        "BadRequest" => ProblemKind::Rejected,
        _ => kind_of_unnamed(status, error),
    };
    match (status, kind) {
        // Whatever is forbidden, it is not the message's fault.
        (
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN,
            ProblemKind::Rejected | ProblemKind::Unavailable,
        ) => ProblemKind::DomainFault,
        _ => kind,
    }
}

/// An answer about rate or quota, whatever its status: it says that the message was not taken.
/// (AWS: "Errors related to the sending quotas for your Amazon SES account".)
fn pace_of(name: &str, said: &str) -> Option<ProblemKind> {
    let by_name = match name {
        "LimitExceeded" => ProblemKind::QuotaExhausted,
        "TooManyRequests" | "Throttling" | "Throttled" | "RequestThrottled" | "SlowDown" => {
            ProblemKind::Throttled
        }
        _ => return None,
    };
    // One name stands for both, and the sentence tells them apart.
    Some(match said.trim_end_matches('.') {
        "Daily message quota exceeded" => ProblemKind::QuotaExhausted,
        "Maximum sending rate exceeded" => ProblemKind::Throttled,
        _ => by_name,
    })
}

/// Returns true if AWS refused the caller and not the message: its credentials, signature or rights.
/// (AWS: SES API v2 Reference, "Common Error Types".)
fn is_access(name: &str) -> bool {
    matches!(name, "AccessDenied" | "NotAuthorized")
        || RefusedCredentials::by(name) != RefusedCredentials::No
}

/// Returns true if a refusal of rights is about an identity: "User: ARN is not authorized to
/// perform: ses:SendEmail on resource: arn:aws:ses:REGION:ACCOUNT:identity/…". The resource comes
/// before all that a client chose, which begins after its slash.
fn denies_an_identity(said: &str) -> bool {
    let Some((_caller, resource)) = said.split_once(" on resource") else { return false };
    let arn = resource.trim_start_matches([':', ' ', '`', '\'', '"']);
    let mut parts = arn.splitn(6, ':');
    parts.next() == Some("arn") && parts.nth(4).is_some_and(|name| name.starts_with("identity/"))
}

/// `MessageRejected` is the message's own fault, but for two cases: the account is paused, and
/// "Email address is not verified. The following identities failed the check in region …: …".
///
/// If the sender is among these, its domain is not set up at SES, and every message from it would
/// fail alike. If only recipients are, the account is in SES's sandbox, which takes verified
/// recipients alone: waiting does not help such a message, and pausing would hold up those that may
/// be sent. A list that cannot be read counts as naming the sender. Either way the answer concerns
/// nobody but this sender.
fn rejection(said: &str, sender: &DomainName<'_>) -> ProblemKind {
    const PAUSED: [&str; 2] =
        ["Sending paused for this account", "Sending suspended for this account"];
    const SEE_INBOX: &str = "For more information, please check the inbox of the email address \
                             associated with your AWS account";
    const NOT_VERIFIED: &str = "Email address is not verified";
    const LIST: &str = ". The following identities failed the check in region ";
    let sentence = said.trim_end_matches('.');
    let is_paused = PAUSED.iter().filter_map(|paused| sentence.strip_prefix(paused)).any(|rest| {
        rest.is_empty() || rest.strip_prefix(". ").is_some_and(|rest| rest == SEE_INBOX)
    });
    if is_paused {
        return ProblemKind::AccountPaused;
    }
    let Some(rest) = said.strip_prefix(NOT_VERIFIED) else { return ProblemKind::Rejected };
    let listed = rest.strip_prefix(LIST).and_then(|rest| rest.split_once(':'));
    match listed {
        Some((_region, identities)) if !identities.trim().is_empty() => {
            if identities_of(identities).any(|identity| is_of(identity, sender)) {
                ProblemKind::DomainFault
            } else {
                ProblemKind::Rejected
            }
        }
        _ => ProblemKind::DomainFault,
    }
}

/// "Configuration set <NAME> does not exist." as a whole. The name is the configuration's, and SES
/// lets it have nothing but these characters.
fn is_missing_configuration_set(said: &str) -> bool {
    let name = said
        .trim_end_matches('.')
        .strip_prefix("Configuration set <")
        .and_then(|rest| rest.strip_suffix("> does not exist"));
    name.is_some_and(|name| {
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    })
}

/// Answers that do not name their error as SES does. Only what reads like an API's refusal of
/// this message fails it: a page from a wrong endpoint or a proxy must not. Nor does one such page
/// stop all mail; if nothing else comes back, the provider counts as unreachable.
fn kind_of_unnamed(status: StatusCode, error: &AwsError) -> ProblemKind {
    let explained = error.name.is_some() || error.message.is_some();
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => ProblemKind::Rejected,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY if explained => {
            ProblemKind::Rejected
        }
        StatusCode::TOO_MANY_REQUESTS => ProblemKind::Throttled,
        _ => ProblemKind::Unavailable,
    }
}

/// The mailboxes of a list, as SES repeats them: separated by commas outside of double quotes.
fn identities_of(list: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    list.split(move |c| {
        let is_quote = c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        quoted ^= is_quote;
        c == ',' && !quoted
    })
}

/// Returns true if an identity's text is an address or a domain that is the sender's.
fn is_of(identity: &str, sender: &DomainName<'_>) -> bool {
    let named = identity.rsplit(['@', '/']).next().unwrap_or_default();
    let named = named.trim_matches([' ', '<', '>', '\'', '`', '.', '\n', '\r']);
    named.eq_ignore_ascii_case(sender.as_str())
}

fn unexplained(status: StatusCode, kind: ProblemKind) -> String {
    match kind {
        ProblemKind::Unavailable | ProblemKind::DomainFault => format!(
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
