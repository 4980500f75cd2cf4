//! `SendEmail`: reads the request, and refuses one whose form SES refuses.
//!
//! The shapes are those of the SES v2 service model; unknown members are ignored, as AWS does.
//! Must not know identities, limits or earlier messages: `ses` refuses for these.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::address::Address;
use super::captured::{CapturedAttachment, CapturedMessage, CapturedRecipient, NameValue};
use super::protocol::{ErrorResponse, read_json, required};
use super::raw_email::{self, Content};
use pillarbox_domain::time::Timestamp;

/// SES: recipients per message, to, cc and bcc together.
const MAX_RECIPIENTS: usize = 50;
/// SES: custom headers per message.
const MAX_HEADERS: usize = 15;
const MAX_HEADER_NAME_LENGTH: usize = 126;
const MAX_HEADER_VALUE_LENGTH: usize = 995;
/// SES: name and value of a custom header together.
const MAX_HEADER_LENGTH: usize = 996;
/// SES: lengths of an attachment's members, in characters.
const MAX_FILENAME_LENGTH: usize = 255;
const MAX_CONTENT_TYPE_LENGTH: usize = 78;
const MAX_CONTENT_ID_LENGTH: usize = 78;
/// SES: extensions of files that it refuses.
/// Source: <https://docs.aws.amazon.com/ses/latest/dg/mime-types.html>
const BLOCKED_EXTENSIONS: &str = "ade adp app asp bas bat cer chm cmd com cpl crt csh der exe fxp \
    gadget hlp hta inf ins isp its js jse ksh lib lnk mad maf mag mam maq mar mas mat mau mav maw \
    mda mdb mde mdt mdw mdz msc msh msh1 msh2 mshxml msh1xml msh2xml msi msp mst ops pcd pif plg \
    prf prg reg scf scr sct shb shs sys ps1 ps1xml ps2 ps2xml psc1 psc2 tmp url vb vbe vbs vps \
    vsmacros vss vst vsw vxd ws wsc wsf wsh xnk";
const DISPOSITIONS: [&str; 2] = ["ATTACHMENT", "INLINE"];
/// SES: words for a feature that is on or off.
const FEATURE_STATUSES: [&str; 2] = ["ENABLED", "DISABLED"];
const TRANSFER_ENCODINGS: [&str; 3] = ["BASE64", "QUOTED_PRINTABLE", "SEVEN_BIT"];
/// SES: message tags per message.
const MAX_TAGS: usize = 50;
const MAX_TAG_LENGTH: usize = 256;
/// Headers that SES sets itself. It refuses them as custom headers.
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
struct SendEmailWire {
    from_email_address: Option<String>,
    destination: Option<DestinationWire>,
    reply_to_addresses: Option<Vec<String>>,
    feedback_forwarding_email_address: Option<String>,
    content: Option<EmailContentWire>,
    email_tags: Option<Vec<NameValueWire>>,
    configuration_set_name: Option<String>,
    configuration_overrides: Option<OverridesWire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OverridesWire {
    tracking: Option<TrackingWire>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TrackingWire {
    open_tracking_enabled: Option<String>,
    click_tracking_enabled: Option<String>,
}

#[derive(Deserialize)]
struct DestinationWire {
    #[serde(rename = "ToAddresses")]
    to: Option<Vec<String>>,
    #[serde(rename = "CcAddresses")]
    cc: Option<Vec<String>>,
    #[serde(rename = "BccAddresses")]
    bcc: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EmailContentWire {
    simple: Option<SimpleWire>,
    raw: Option<ContentWire>,
    template: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SimpleWire {
    subject: Option<ContentWire>,
    body: Option<BodyWire>,
    headers: Option<Vec<NameValueWire>>,
    attachments: Option<Vec<AttachmentWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AttachmentWire {
    file_name: Option<String>,
    raw_content: Option<String>,
    content_type: Option<String>,
    content_disposition: Option<String>,
    content_id: Option<String>,
    content_transfer_encoding: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BodyWire {
    text: Option<ContentWire>,
    html: Option<ContentWire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContentWire {
    data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NameValueWire {
    name: Option<String>,
    value: Option<String>,
}

/// Reads a `SendEmail` body into the message that SES would send under the given id.
pub(super) fn read(
    body: &[u8],
    id: String,
    received_at: Timestamp,
) -> Result<CapturedMessage, ErrorResponse> {
    let request: SendEmailWire = read_json(body)?;
    let content = required(request.content, "content")?;
    let content = read_content(content)?;
    let missing_from = || ErrorResponse::bad_request("Missing required header 'From'.");
    if let Some(from) = &content.from {
        Address::parse(from)?;
    } else if content.raw.is_some() {
        return Err(missing_from());
    }
    let from = request.from_email_address.or(content.from).ok_or_else(missing_from)?;
    Address::parse(&from)?;
    if let Some(address) = &request.feedback_forwarding_email_address {
        Address::parse(address)?;
    }
    let reply_to = request.reply_to_addresses.unwrap_or(content.reply_to);
    for address in &reply_to {
        Address::parse(address)?;
    }
    // Without a destination, SES takes the recipients from the raw message.
    let (to, cc, bcc) = match request.destination {
        Some(DestinationWire { to, cc, bcc }) => {
            (to.unwrap_or_default(), cc.unwrap_or_default(), bcc.unwrap_or_default())
        }
        None => (content.to, content.cc, content.bcc),
    };
    let recipients = recipients([&to, &cc, &bcc])?;
    let tracking = request.configuration_overrides.and_then(|overrides| overrides.tracking);
    let tracking = checked_tracking(tracking.unwrap_or_default())?;
    Ok(CapturedMessage {
        id,
        received_at,
        from,
        to,
        cc,
        bcc,
        reply_to,
        subject: content.subject,
        text: content.text,
        html: content.html,
        headers: content.headers,
        attachments: content.attachments,
        raw: content.raw,
        tags: tags(request.email_tags.unwrap_or_default())?,
        configuration_set: request.configuration_set_name,
        open_tracking: tracking.open_tracking_enabled,
        click_tracking: tracking.click_tracking_enabled,
        recipients,
    })
}

fn checked_tracking(tracking: TrackingWire) -> Result<TrackingWire, ErrorResponse> {
    const PATH: &str = "configurationOverrides.tracking";
    for (member, value) in [
        ("openTrackingEnabled", &tracking.open_tracking_enabled),
        ("clickTrackingEnabled", &tracking.click_tracking_enabled),
    ] {
        if value.as_deref().is_some_and(|value| !FEATURE_STATUSES.contains(&value)) {
            let values = FEATURE_STATUSES.join(", ");
            let rule = format!("Member must satisfy enum value set: [{values}]");
            return Err(ErrorResponse::constraint(&format!("{PATH}.{member}"), &rule));
        }
    }
    Ok(tracking)
}

/// Reads the content of a message, whether it came in parts or whole.
fn read_content(content: EmailContentWire) -> Result<Content, ErrorResponse> {
    if content.template.is_some() {
        return Err(ErrorResponse::bad_request(
            "Content.Template is not supported by the simulator.",
        ));
    }
    match (content.simple, content.raw) {
        (Some(_), Some(_)) => Err(ErrorResponse::bad_request(
            "Content must contain exactly one of Simple, Raw and Template.",
        )),
        (simple, None) => read_simple(required(simple, "content.simple")?),
        (None, Some(raw)) => {
            let content = raw_email::read(&required(raw.data, "content.raw.data")?)?;
            for attachment in &content.attachments {
                check_extension(&attachment.filename)?;
            }
            Ok(content)
        }
    }
}

fn read_simple(simple: SimpleWire) -> Result<Content, ErrorResponse> {
    let subject = data(simple.subject, "content.simple.subject")?;
    let subject = required(subject, "content.simple.subject")?;
    if subject.contains(['\r', '\n', '\0']) {
        return Err(ErrorResponse::bad_request("Subject contains control characters."));
    }
    let body = required(simple.body, "content.simple.body")?;
    let text = data(body.text, "content.simple.body.text")?;
    let html = data(body.html, "content.simple.body.html")?;
    if text.is_none() && html.is_none() {
        return Err(ErrorResponse::bad_request("Body must contain at least one of Text and Html."));
    }
    Ok(Content {
        subject,
        text,
        html,
        headers: headers(simple.headers.unwrap_or_default())?,
        attachments: attachments(simple.attachments.unwrap_or_default())?,
        ..Content::default()
    })
}

/// Refuses a file with an extension that SES blocks.
fn check_extension(filename: &str) -> Result<(), ErrorResponse> {
    let extension = filename.rsplit_once('.').map_or("", |(_, extension)| extension.trim());
    let lower = extension.to_ascii_lowercase();
    if !lower.is_empty() && BLOCKED_EXTENSIONS.split(' ').any(|blocked| blocked == lower) {
        return Err(ErrorResponse::bad_request(format!(
            "Attachment file extension .{extension} is not supported."
        )));
    }
    Ok(())
}

fn data(content: Option<ContentWire>, path: &str) -> Result<Option<String>, ErrorResponse> {
    let Some(content) = content else { return Ok(None) };
    required(content.data, &format!("{path}.data")).map(Some)
}

fn recipients(lists: [&[String]; 3]) -> Result<Vec<CapturedRecipient>, ErrorResponse> {
    let count: usize = lists.iter().map(|list| list.len()).sum();
    if count == 0 {
        return Err(ErrorResponse::bad_request("Destination must contain at least one recipient."));
    }
    if count > MAX_RECIPIENTS {
        return Err(ErrorResponse::bad_request(format!(
            "Recipient count exceeds {MAX_RECIPIENTS}."
        )));
    }
    let all = lists.into_iter().flatten();
    all.map(|text| {
        let parsed = Address::parse(text)?;
        let address = format!("{}@{}", parsed.local, parsed.domain);
        Ok(CapturedRecipient { address, fate: parsed.fate() })
    })
    .collect()
}

fn headers(list: Vec<NameValueWire>) -> Result<Vec<NameValue>, ErrorResponse> {
    const PATH: &str = "content.simple.headers";
    if list.len() > MAX_HEADERS {
        let rule = format!("Member must have length less than or equal to {MAX_HEADERS}");
        return Err(ErrorResponse::constraint(PATH, &rule));
    }
    let mut once = HashSet::new();
    let mut headers = Vec::with_capacity(list.len());
    for (i, pair) in list.into_iter().enumerate() {
        let path = format!("{PATH}.{}.member", i + 1);
        let NameValue { name, value } = name_and_value(pair, &path)?;
        check_header(&name, &value, &path)?;
        let lower = name.to_ascii_lowercase();
        if RESERVED_HEADERS.contains(&lower.as_str()) {
            return Err(ErrorResponse::bad_request(format!(
                "Header '{name}' is not allowed as a custom header."
            )));
        }
        // SES takes each standard header only once; X- headers may repeat.
        if !lower.starts_with("x-") && !once.insert(lower) {
            return Err(ErrorResponse::bad_request(format!("Duplicate header '{name}'.")));
        }
        headers.push(NameValue { name, value });
    }
    Ok(headers)
}

fn attachments(list: Vec<AttachmentWire>) -> Result<Vec<CapturedAttachment>, ErrorResponse> {
    let paths = (1..).map(|number| format!("content.simple.attachments.{number}.member"));
    list.into_iter().zip(paths).map(|(wire, path)| attachment(wire, &path)).collect()
}

fn attachment(wire: AttachmentWire, path: &str) -> Result<CapturedAttachment, ErrorResponse> {
    let filename = required(wire.file_name, &format!("{path}.fileName"))?;
    let raw_content = required(wire.raw_content, &format!("{path}.rawContent"))?;
    let content_type = wire.content_type.as_deref();
    for (member, text, least, most) in [
        ("fileName", Some(filename.as_str()), 0, MAX_FILENAME_LENGTH),
        ("contentType", content_type, 1, MAX_CONTENT_TYPE_LENGTH),
        ("contentId", wire.content_id.as_deref(), 1, MAX_CONTENT_ID_LENGTH),
    ] {
        if text.is_some_and(|text| !(least..=most).contains(&text.chars().count())) {
            let rule = format!("Member must have length between {least} and {most}");
            return Err(ErrorResponse::constraint(&format!("{path}.{member}"), &rule));
        }
    }
    for (member, value, values) in [
        ("contentDisposition", &wire.content_disposition, &DISPOSITIONS[..]),
        ("contentTransferEncoding", &wire.content_transfer_encoding, &TRANSFER_ENCODINGS[..]),
    ] {
        if value.as_deref().is_some_and(|value| !values.contains(&value)) {
            let values = values.join(", ");
            let rule = format!("Member must satisfy enum value set: [{values}]");
            return Err(ErrorResponse::constraint(&format!("{path}.{member}"), &rule));
        }
    }
    let extension = filename.rsplit_once('.').map_or("", |(_, extension)| extension.trim());
    if extension.is_empty() {
        return Err(ErrorResponse::bad_request("Attachment file name must have an extension."));
    }
    check_extension(&filename)?;
    let content = STANDARD.decode(raw_content).map_err(|_| {
        ErrorResponse::new(
            StatusCode::BAD_REQUEST,
            "SerializationException",
            format!("The value at '{path}.rawContent' is not base64."),
        )
    })?;
    Ok(CapturedAttachment {
        filename,
        content: content.into(),
        content_type: wire.content_type,
        disposition: wire.content_disposition,
        content_id: wire.content_id,
        transfer_encoding: wire.content_transfer_encoding,
    })
}

fn check_header(name: &str, value: &str, path: &str) -> Result<(), ErrorResponse> {
    let name_rule = if name.is_empty() || name.len() > MAX_HEADER_NAME_LENGTH {
        Some("Member must have length between 1 and 126")
    } else if name.bytes().any(|b| !b.is_ascii_graphic() || b == b':') {
        Some("Member must satisfy regular expression pattern: ^[!-9;-@A-~]+$")
    } else {
        None
    };
    if let Some(rule) = name_rule {
        return Err(ErrorResponse::constraint(&format!("{path}.name"), rule));
    }
    let value_rule = if value.is_empty() || value.len() > MAX_HEADER_VALUE_LENGTH {
        Some("Member must have length between 1 and 995")
    } else if value.bytes().any(|b| !b.is_ascii_graphic() && b != b' ') {
        Some("Member must satisfy regular expression pattern: [ -~]*")
    } else if name.len() + value.len() > MAX_HEADER_LENGTH {
        Some("The combined length of the header name and value must not exceed 996 characters")
    } else {
        None
    };
    value_rule.map_or(Ok(()), |rule| Err(ErrorResponse::constraint(&format!("{path}.value"), rule)))
}

fn tags(list: Vec<NameValueWire>) -> Result<Vec<NameValue>, ErrorResponse> {
    if list.len() > MAX_TAGS {
        return Err(ErrorResponse::bad_request(format!("Tag count exceeds {MAX_TAGS}.")));
    }
    let mut tags: Vec<NameValue> = Vec::with_capacity(list.len());
    for (i, pair) in list.into_iter().enumerate() {
        let tag = name_and_value(pair, &format!("emailTags.{}.member", i + 1))?;
        for (what, text) in [("name", &tag.name), ("value", &tag.value)] {
            check_tag(what, text)?;
        }
        if tags.iter().any(|known| known.name == tag.name) {
            return Err(ErrorResponse::bad_request(format!("Duplicate tag name <{}>.", tag.name)));
        }
        tags.push(tag);
    }
    Ok(tags)
}

fn check_tag(what: &str, text: &str) -> Result<(), ErrorResponse> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if text.is_empty() || text.len() > MAX_TAG_LENGTH {
        return Err(ErrorResponse::bad_request(format!(
            "Invalid tag {what} <{text}>: it must have 1 to {MAX_TAG_LENGTH} characters."
        )));
    }
    if !text.bytes().all(allowed) {
        return Err(ErrorResponse::bad_request(format!(
            "Invalid tag {what} <{text}>: only alphanumeric ASCII characters, '_', and '-' are \
             allowed."
        )));
    }
    Ok(())
}

fn name_and_value(pair: NameValueWire, path: &str) -> Result<NameValue, ErrorResponse> {
    let name = required(pair.name, &format!("{path}.name"))?;
    let value = required(pair.value, &format!("{path}.value"))?;
    Ok(NameValue { name, value })
}
