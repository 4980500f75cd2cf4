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

use crate::error::{AwsError, RefusedCredentials, is_clock, redact};
use crate::request::Reply;
use pillarbox_domain::attempt::{Outcome, Problem, ProblemKind, ProviderAnswer, Sentence};
use pillarbox_domain::mailbox::DomainName;

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
    let (kind, answer) = meaning(reply.status, &error, sender);
    let message = match &error.message {
        Some(message) => redact(message),
        None => unexplained(reply.status, kind),
    };
    let retry_after = retry_after(reply);
    Outcome::NotSent(Problem { kind, provider_code: error.name, message, retry_after, answer })
}

/// Returns true if an endpoint refuses the override of tracking because it does not know that
/// member of the request.
pub(super) fn refuses_override(reply: &Reply) -> bool {
    if !reply.status.is_client_error() {
        return false;
    }
    let error = AwsError::read(reply);
    let said = error.message.as_deref().unwrap_or_default();
    is_of_the_request(error.stem()) && constant_member(said).is_some_and(is_override)
}

fn accepted(reply: &Reply) -> Outcome {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Accepted {
        message_id: String,
    }
    let unknown = |reason: &str, answer| {
        Outcome::NotSent(Problem {
            kind: ProblemKind::Unknown,
            provider_code: None,
            message: redact(&format!("SES answered {}, but {reason}", reply.status)),
            retry_after: None,
            answer,
        })
    };
    let body = match &reply.body {
        Ok(body) => body,
        Err(error) => return unknown(error, ProviderAnswer::Missing),
    };
    match serde_json::from_slice(body) {
        Ok(Accepted { message_id }) if is_message_id(&message_id) => {
            Outcome::Sent { ses_message_id: message_id }
        }
        _ => unknown("without a message id", unexpected(reply.status)),
    }
}

fn is_message_id(text: &str) -> bool {
    (1..=MAX_MESSAGE_ID_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// Returns the kind of problem in an answer, and the rest of its meaning.
///
/// SES repeats display names, addresses and domains in its messages, and clients choose them. So a
/// sentence counts only if it is SES's own from its start, and as a whole if it repeats nothing.
/// Only what AWS names may stop all mail, and only what AWS calls the message's own fault fails it.
/// Any other name, or none, is tried again, and a condition names it.
fn meaning(
    status: StatusCode,
    error: &AwsError,
    sender: &DomainName<'_>,
) -> (ProblemKind, ProviderAnswer) {
    let (name, said) = (error.stem(), error.message.as_deref().unwrap_or_default());
    // These mean that nothing was done, with any status.
    if let Some(kind) = pace_of(name, said).or_else(|| set_up_fault(name, said)) {
        return (kind, ProviderAnswer::Expected);
    }
    if name == "ServiceUnavailable" {
        return (ProblemKind::Unavailable, unexpected(status));
    }
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return (ProblemKind::Unknown, unexpected(status));
    }
    match status {
        // A ban of any kind is not the message's fault.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            (ProblemKind::DomainFault, unexpected(status))
        }
        StatusCode::TOO_MANY_REQUESTS => (ProblemKind::Throttled, ProviderAnswer::Expected),
        _ if status.is_client_error() => refusal(status, error, sender)
            .unwrap_or_else(|| (ProblemKind::Unavailable, unexpected(status))),
        // A page from a wrong endpoint or a proxy. One such page does not stop all mail; if nothing
        // else comes back, the provider counts as unreachable.
        _ => (ProblemKind::Unavailable, unexpected(status)),
    }
}

fn unexpected(status: StatusCode) -> ProviderAnswer {
    ProviderAnswer::Unexpected { status: status.as_u16() }
}

/// A refusal that concerns the account, its credentials or its set-up, by the error's name alone,
/// but for two sentences that begin with words of AWS's own.
fn set_up_fault(name: &str, said: &str) -> Option<ProblemKind> {
    Some(match name {
        "SendingPaused"
        | "AccountSuspended"
        | "AccountSendingPaused"
        | "ConfigurationSetSendingPaused" => ProblemKind::AccountPaused,
        name if is_clock(name, said) => ProblemKind::ClockWrong,
        // A policy may name the identities that may send. One that leaves out this sender's must
        // not stop the others; if it leaves out all of them, each is paused at its first message.
        "AccessDenied" if denies_an_identity(said) => ProblemKind::DomainFault,
        name if is_access(name) => ProblemKind::SetupFault,
        "NotFound" | "ConfigurationSetDoesNotExist" | "UnknownOperation" => ProblemKind::SetupFault,
        "MailFromDomainNotVerified" => ProblemKind::DomainFault,
        _ => return None,
    })
}

/// A refusal that AWS calls the message's own fault (SES API v2 Reference, `SendEmail` and "Common
/// Error Types"), unless its sentence is SES's own about the set-up. `None` if it is no such
/// refusal.
fn refusal(
    status: StatusCode,
    error: &AwsError,
    sender: &DomainName<'_>,
) -> Option<(ProblemKind, ProviderAnswer)> {
    let said = error.message.as_deref().unwrap_or_default();
    let is_of_the_request = is_of_the_request(error.stem());
    let is_of_the_content = match error.stem() {
        "MessageRejected" | "RequestEntityTooLarge" => true,
        _ => error.name.is_none() && status == StatusCode::PAYLOAD_TOO_LARGE,
    };
    if !is_of_the_request && !is_of_the_content {
        return None;
    }
    let names_ours = is_of_the_request && constant_member(said).is_some();
    if names_ours || is_missing_configuration_set(said) {
        return Some((ProblemKind::SetupFault, ProviderAnswer::Expected));
    }
    let kind = rejection(said, sender);
    let is_disputable = is_of_the_request && kind == ProblemKind::Rejected;
    let answer = if is_disputable {
        ProviderAnswer::Disputable(Sentence::of(said))
    } else {
        ProviderAnswer::Expected
    };
    Some((kind, answer))
}

/// An answer about rate or quota, with any status: it says that the message was not taken. (AWS:
/// "Errors related to the sending quotas for your Amazon SES account".)
fn pace_of(name: &str, said: &str) -> Option<ProblemKind> {
    let by_name = match name {
        "LimitExceeded" => ProblemKind::QuotaExhausted,
        "TooManyRequests"
        | "Throttling"
        | "Throttled"
        | "RequestThrottled"
        | "SlowDown"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => ProblemKind::Throttled,
        _ => return None,
    };
    // The name is the same for both; the sentence separates them.
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

/// A refusal is the message's own fault, but for two cases: the account is paused, and "Email
/// address is not verified. The following identities failed the check in region …: …".
///
/// If the sender is among these, its domain is not set up at SES, and every message from it would
/// fail. If only recipients are, the account is in SES's sandbox, which takes verified recipients
/// alone: waiting does not help such a message, and pausing would hold up those that may be sent. A
/// list that cannot be read counts as naming the sender. In both cases the answer concerns only
/// this sender.
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

/// Returns true if an error says that the request breaks a rule of the API.
fn is_of_the_request(stem: &str) -> bool {
    matches!(stem, "BadRequest" | "Validation" | "ValidationError" | "InvalidParameterValue")
}

/// The path of the member that a refusal names, if it is the same for every message. A client must
/// not be able to make one: the name counts only behind words that stand before nothing but names
/// of members.
fn constant_member(said: &str) -> Option<&str> {
    const OTHERS: [&str; 3] = ["EmailTags", "ConfigurationSetName", "Charset"];
    let path = member_of_constraint(said).or_else(|| unknown_member(said))?;
    let is = |part: &str, names: &[&str]| names.iter().any(|name| part.eq_ignore_ascii_case(name));
    let first = path.split('.').next().unwrap_or_default();
    let last = path.rsplit('.').next().unwrap_or_default();
    (is_override(path) || is(first, &OTHERS) || is(last, &OTHERS[2..])).then_some(path)
}

fn is_override(path: &str) -> bool {
    const MEMBERS: [&str; 3] =
        ["ConfigurationOverrides", "OpenTrackingEnabled", "ClickTrackingEnabled"];
    let first = path.split('.').next().unwrap_or_default();
    MEMBERS.iter().any(|name| first.eq_ignore_ascii_case(name))
}

/// The path in "1 validation error detected: Value 'VALUE' at 'PATH' failed to satisfy constraint:
/// …". A value may be a client's and have such words in it, so the last path counts: only AWS's own
/// words follow it.
fn member_of_constraint(said: &str) -> Option<&str> {
    let (count, _) = said.split_once(" validation error")?;
    let (before, rule) = said.rsplit_once("' failed to satisfy constraint: ")?;
    let (_, path) = before.rsplit_once(" at '")?;
    let is_count = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
    let is_path = path.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
    (is_count && is_path && !rule.contains('\'')).then_some(path)
}

/// The name in "Unknown parameter in input: \"NAME\"", "Unrecognized field 'NAME'", "NAME is not
/// supported" and the like, as endpoints that know fewer members than SES say it.
fn unknown_member(said: &str) -> Option<&str> {
    const LACKS: [&str; 5] = ["Unknown", "Unexpected", "Unrecognized", "Unsupported", "Extraneous"];
    const NOUNS: [&str; 6] = ["parameter", "member", "field", "key", "property", "attribute"];
    const VERBS: [&str; 4] = [" is not ", " is unknown", " must ", " cannot "];
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
    let name = |text: &str| text.bytes().take_while(|b| is_name(*b)).count();
    let Some(rest) = LACKS.iter().find_map(|word| said.strip_prefix(word)?.strip_prefix(' '))
    else {
        let (member, rest) = said.split_at(name(said));
        return VERBS.iter().any(|verb| rest.starts_with(verb)).then_some(member);
    };
    let rest = NOUNS.iter().find_map(|noun| rest.strip_prefix(noun))?;
    let rest = rest.strip_prefix(" in input").unwrap_or(rest);
    let rest = rest.strip_prefix(':').unwrap_or(rest).strip_prefix(' ')?;
    let rest = rest.strip_prefix(['"', '\'', '`', '[']).unwrap_or(rest);
    Some(&rest[..name(rest)])
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
            "the endpoint answered {status}, but not as SES does: check the SES region and endpoint"
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
