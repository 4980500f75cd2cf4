//! `SendEmail`: reads the request and refuses what SES refuses for its form alone.
//!
//! The shapes are those of the SES v2 service model; unknown members are ignored, as AWS does.
//! Must not know identities, limits or what was sent before.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::address::Address;
use super::answer::Refusal;
use super::caught::{CaughtMessage, Header, RecipientOutcome, Tag};
use crate::domain::time::Timestamp;

/// SES: recipients per message, to, cc and bcc together.
const MAX_RECIPIENTS: usize = 50;
/// SES: custom headers per message.
const MAX_HEADERS: usize = 15;
const HEADER_NAME_MAX: usize = 126;
const HEADER_VALUE_MAX: usize = 995;
/// SES: name and value of a custom header together.
const HEADER_MAX: usize = 996;
/// SES: message tags per message.
const MAX_TAGS: usize = 50;
const TAG_MAX: usize = 256;
/// Headers that SES sets itself and refuses as custom ones.
/// Source: <https://docs.aws.amazon.com/ses/latest/dg/header-fields.html>
const RESERVED_HEADERS: [&str; 12] = [
    "bcc",
    "cc",
    "content-disposition",
    "content-type",
    "date",
    "from",
    "message-id",
    "mime-version",
    "reply-to",
    "return-path",
    "subject",
    "to",
];

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SendEmailRequest {
    from_email_address: Option<String>,
    destination: Option<Destination>,
    reply_to_addresses: Option<Vec<String>>,
    feedback_forwarding_email_address: Option<String>,
    content: Option<EmailContent>,
    email_tags: Option<Vec<NameValue>>,
    configuration_set_name: Option<String>,
}

#[derive(Default, Deserialize)]
struct Destination {
    #[serde(rename = "ToAddresses")]
    to: Option<Vec<String>>,
    #[serde(rename = "CcAddresses")]
    cc: Option<Vec<String>>,
    #[serde(rename = "BccAddresses")]
    bcc: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EmailContent {
    simple: Option<Simple>,
    raw: Option<IgnoredAny>,
    template: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Simple {
    subject: Option<Content>,
    body: Option<Body>,
    headers: Option<Vec<NameValue>>,
    attachments: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Body {
    text: Option<Content>,
    html: Option<Content>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Content {
    data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NameValue {
    name: Option<String>,
    value: Option<String>,
}

/// Reads a `SendEmail` body into the message that it would send under the given id.
pub(super) fn read(
    body: &[u8],
    id: String,
    received_at: Timestamp,
) -> Result<CaughtMessage, Refusal> {
    let request: SendEmailRequest = read_json(body)?;
    let content = request.content.ok_or_else(|| Refusal::missing_member("content"))?;
    let simple = simple_content(content)?;
    let from = request
        .from_email_address
        .ok_or_else(|| Refusal::bad_request("Missing required header 'From'."))?;
    Address::parse(&from)?;
    if let Some(address) = &request.feedback_forwarding_email_address {
        Address::parse(address)?;
    }
    let reply_to = request.reply_to_addresses.unwrap_or_default();
    for address in &reply_to {
        Address::parse(address)?;
    }
    let destination = request.destination.unwrap_or_default();
    let to = destination.to.unwrap_or_default();
    let cc = destination.cc.unwrap_or_default();
    let bcc = destination.bcc.unwrap_or_default();
    let recipients = outcomes([&to, &cc, &bcc])?;
    let subject = data(simple.subject, "content.simple.subject")?
        .ok_or_else(|| Refusal::missing_member("content.simple.subject"))?;
    if subject.contains(['\r', '\n', '\0']) {
        return Err(Refusal::bad_request("Subject contains control characters."));
    }
    let body = simple.body.ok_or_else(|| Refusal::missing_member("content.simple.body"))?;
    let text = data(body.text, "content.simple.body.text")?;
    let html = data(body.html, "content.simple.body.html")?;
    if text.is_none() && html.is_none() {
        return Err(Refusal::bad_request("Body must contain at least one of Text and Html."));
    }
    Ok(CaughtMessage {
        id,
        received_at,
        from,
        to,
        cc,
        bcc,
        reply_to,
        subject,
        text,
        html,
        headers: headers(simple.headers.unwrap_or_default())?,
        tags: tags(request.email_tags.unwrap_or_default())?,
        configuration_set: request.configuration_set_name,
        recipients,
    })
}

/// Reads a JSON body; what does not fit its shape gets AWS's name for that.
pub(super) fn read_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::new(
            http::StatusCode::BAD_REQUEST,
            "SerializationException",
            format!("The request body is not the expected JSON: {error}"),
        )
    })
}

fn simple_content(content: EmailContent) -> Result<Simple, Refusal> {
    if content.raw.is_some() || content.template.is_some() {
        return Err(Refusal::bad_request(
            "Content.Raw and Content.Template are not supported by the simulator.",
        ));
    }
    let simple = content.simple.ok_or_else(|| Refusal::missing_member("content.simple"))?;
    if simple.attachments.as_ref().is_some_and(|list| !list.is_empty()) {
        return Err(Refusal::bad_request("Attachments are not supported by the simulator."));
    }
    Ok(simple)
}

fn data(content: Option<Content>, path: &str) -> Result<Option<String>, Refusal> {
    let Some(content) = content else { return Ok(None) };
    content.data.map(Some).ok_or_else(|| Refusal::missing_member(&format!("{path}.data")))
}

fn outcomes(lists: [&[String]; 3]) -> Result<Vec<RecipientOutcome>, Refusal> {
    let count: usize = lists.iter().map(|list| list.len()).sum();
    if count == 0 {
        return Err(Refusal::bad_request("Destination must contain at least one recipient."));
    }
    if count > MAX_RECIPIENTS {
        return Err(Refusal::bad_request(format!("Recipient count exceeds {MAX_RECIPIENTS}.")));
    }
    let all = lists.into_iter().flatten();
    all.map(|text| {
        let parsed = Address::parse(text)?;
        let address = format!("{}@{}", parsed.local, parsed.domain);
        Ok(RecipientOutcome { address, fate: parsed.fate() })
    })
    .collect()
}

fn headers(list: Vec<NameValue>) -> Result<Vec<Header>, Refusal> {
    const PATH: &str = "content.simple.headers";
    if list.len() > MAX_HEADERS {
        let rule = format!("Member must have length less than or equal to {MAX_HEADERS}");
        return Err(Refusal::constraint(PATH, &rule));
    }
    let mut once = HashSet::new();
    let mut headers = Vec::with_capacity(list.len());
    for (i, pair) in list.into_iter().enumerate() {
        let path = format!("{PATH}.{}.member", i + 1);
        let (name, value) = both(pair, &path)?;
        check_header(&name, &value, &path)?;
        let lower = name.to_ascii_lowercase();
        if RESERVED_HEADERS.contains(&lower.as_str()) {
            return Err(Refusal::bad_request(format!(
                "Header '{name}' is not allowed as a custom header."
            )));
        }
        // Of the standard headers SES takes each only once; X- headers may repeat.
        if !lower.starts_with("x-") && !once.insert(lower) {
            return Err(Refusal::bad_request(format!("Duplicate header '{name}'.")));
        }
        headers.push(Header { name, value });
    }
    Ok(headers)
}

fn check_header(name: &str, value: &str, path: &str) -> Result<(), Refusal> {
    let name_rule = if name.is_empty() || name.len() > HEADER_NAME_MAX {
        Some("Member must have length between 1 and 126")
    } else if name.bytes().any(|b| !b.is_ascii_graphic() || b == b':') {
        Some("Member must satisfy regular expression pattern: ^[!-9;-@A-~]+$")
    } else {
        None
    };
    if let Some(rule) = name_rule {
        return Err(Refusal::constraint(&format!("{path}.name"), rule));
    }
    let value_rule = if value.is_empty() || value.len() > HEADER_VALUE_MAX {
        Some("Member must have length between 1 and 995")
    } else if value.bytes().any(|b| !b.is_ascii_graphic() && b != b' ') {
        Some("Member must satisfy regular expression pattern: [ -~]*")
    } else if name.len() + value.len() > HEADER_MAX {
        Some("The combined length of the header name and value must not exceed 996 characters")
    } else {
        None
    };
    value_rule.map_or(Ok(()), |rule| Err(Refusal::constraint(&format!("{path}.value"), rule)))
}

fn tags(list: Vec<NameValue>) -> Result<Vec<Tag>, Refusal> {
    if list.len() > MAX_TAGS {
        return Err(Refusal::bad_request(format!("Tag count exceeds {MAX_TAGS}.")));
    }
    let mut tags: Vec<Tag> = Vec::with_capacity(list.len());
    for (i, pair) in list.into_iter().enumerate() {
        let (name, value) = both(pair, &format!("emailTags.{}.member", i + 1))?;
        for (what, text) in [("name", &name), ("value", &value)] {
            check_tag(what, text)?;
        }
        if tags.iter().any(|tag| tag.name == name) {
            return Err(Refusal::bad_request(format!("Duplicate tag name <{name}>.")));
        }
        tags.push(Tag { name, value });
    }
    Ok(tags)
}

fn check_tag(what: &str, text: &str) -> Result<(), Refusal> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if text.is_empty() || text.len() > TAG_MAX {
        return Err(Refusal::bad_request(format!(
            "Invalid tag {what} <{text}>: it must have 1 to {TAG_MAX} characters."
        )));
    }
    if !text.bytes().all(allowed) {
        return Err(Refusal::bad_request(format!(
            "Invalid tag {what} <{text}>: only alphanumeric ASCII characters, '_', and '-' are \
             allowed."
        )));
    }
    Ok(())
}

fn both(pair: NameValue, path: &str) -> Result<(String, String), Refusal> {
    let name = pair.name.ok_or_else(|| Refusal::missing_member(&format!("{path}.name")))?;
    let value = pair.value.ok_or_else(|| Refusal::missing_member(&format!("{path}.value")))?;
    Ok((name, value))
}
