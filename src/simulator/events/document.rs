//! SES's event documents, in the shape of its event publishing.
//!
//! Written from the examples of the Amazon SES Developer Guide. Must not know who reads them.
//! Source: <https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html>

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::super::ACCOUNT;
use super::super::caught::CaughtMessage;
use super::outcome::Group;
use crate::domain::time::Timestamp;

/// SES: the bytes of headers beyond which the rest is left out.
const HEADERS_MAX_BYTES: usize = 10 * 1024;
/// Addresses for documentation (RFC 5737).
const SOURCE_IP: &str = "192.0.2.1";
const OUTGOING_IP: &str = "192.0.2.2";
const REMOTE_MTA_IP: &str = "192.0.2.3";
const CALLER: &str = "simulator";
const REPORTING_MTA: &str = "a1-1.smtp-out.amazonses.com";
const SUPPRESSED: &str = "Amazon SES did not send the message to this address because it is on \
    the suppression list for your account. For more information about removing addresses from \
    the suppression list, see the Amazon SES Developer Guide at \
    https://docs.aws.amazon.com/ses/latest/dg/sending-email-suppression-list.html";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    event_type: &'static str,
    mail: &'a Mail<'a>,
    #[serde(flatten)]
    detail: &'a Detail<'a>,
}

/// The message that an event is about.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mail<'a> {
    timestamp: String,
    source: &'a str,
    source_arn: String,
    sending_account_id: &'static str,
    message_id: &'a str,
    destination: Vec<&'a str>,
    headers_truncated: bool,
    headers: Vec<Header<'a>>,
    common_headers: CommonHeaders<'a>,
    tags: BTreeMap<&'a str, [&'a str; 1]>,
}

#[derive(Serialize)]
struct Header<'a> {
    name: &'a str,
    value: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CommonHeaders<'a> {
    from: [&'a str; 1],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    reply_to: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    to: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cc: &'a [String],
    message_id: &'a str,
    subject: &'a str,
}

/// The part that belongs to the event's type, under the type's own name.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Detail<'a> {
    Send {},
    #[serde(rename_all = "camelCase")]
    Delivery {
        timestamp: String,
        processing_time_millis: u64,
        recipients: Vec<&'a str>,
        smtp_response: &'static str,
        remote_mta_ip: &'static str,
        #[serde(rename = "reportingMTA")]
        reporting_mta: &'static str,
    },
    #[serde(rename_all = "camelCase")]
    Bounce {
        bounce_type: &'static str,
        bounce_sub_type: &'static str,
        bounced_recipients: Vec<BouncedRecipient<'a>>,
        timestamp: String,
        feedback_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        remote_mta_ip: Option<&'static str>,
        #[serde(rename = "reportingMTA")]
        reporting_mta: &'static str,
    },
    #[serde(rename_all = "camelCase")]
    Complaint {
        complained_recipients: Vec<Named<'a>>,
        timestamp: String,
        feedback_id: String,
        user_agent: &'static str,
        complaint_feedback_type: &'static str,
        arrival_date: String,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BouncedRecipient<'a> {
    email_address: &'a str,
    action: &'static str,
    status: &'static str,
    diagnostic_code: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Named<'a> {
    email_address: &'a str,
}

pub(super) fn write(event_type: &'static str, mail: &Mail<'_>, detail: &Detail<'_>) -> String {
    let document = Document { event_type, mail, detail };
    serde_json::to_string(&document).expect("events are plain JSON values")
}

pub(super) fn delivery<'a>(group: &Group<'a>, at: Timestamp, after: Duration) -> Detail<'a> {
    Detail::Delivery {
        timestamp: at.to_string(),
        processing_time_millis: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
        recipients: group.recipients.iter().map(|recipient| recipient.address).collect(),
        smtp_response: "250 2.6.0 Message received",
        remote_mta_ip: REMOTE_MTA_IP,
        reporting_mta: REPORTING_MTA,
    }
}

pub(super) fn bounce<'a>(group: &Group<'a>, at: Timestamp, feedback_id: String) -> Detail<'a> {
    let addresses = group.recipients.iter().map(|recipient| recipient.address);
    let bounced = |email_address| BouncedRecipient {
        email_address,
        action: "failed",
        status: "5.1.1",
        diagnostic_code: "smtp; 550 5.1.1 user unknown",
    };
    Detail::Bounce {
        bounce_type: "Permanent",
        bounce_sub_type: "General",
        bounced_recipients: addresses.map(bounced).collect(),
        timestamp: at.to_string(),
        feedback_id,
        remote_mta_ip: Some(REMOTE_MTA_IP),
        reporting_mta: "dns; a1-1.smtp-out.amazonses.com",
    }
}

/// A bounce that SES makes itself. No mail server named the recipients, so they appear as the
/// request gave them, display names included.
pub(super) fn suppression<'a>(group: &Group<'a>, at: Timestamp, feedback_id: String) -> Detail<'a> {
    let given = group.recipients.iter().map(|recipient| recipient.given);
    let bounced = |email_address| BouncedRecipient {
        email_address,
        action: "failed",
        status: "5.1.1",
        diagnostic_code: SUPPRESSED,
    };
    Detail::Bounce {
        bounce_type: "Permanent",
        bounce_sub_type: "OnAccountSuppressionList",
        bounced_recipients: given.map(bounced).collect(),
        timestamp: at.to_string(),
        feedback_id,
        remote_mta_ip: None,
        reporting_mta: "dns; amazonses.com",
    }
}

pub(super) fn complaint<'a>(group: &Group<'a>, at: Timestamp, feedback_id: String) -> Detail<'a> {
    let addresses = group.recipients.iter().map(|recipient| recipient.address);
    Detail::Complaint {
        complained_recipients: addresses.map(|email_address| Named { email_address }).collect(),
        timestamp: at.to_string(),
        feedback_id,
        user_agent: "Amazon SES Mailbox Simulator",
        complaint_feedback_type: "abuse",
        arrival_date: at.to_string(),
    }
}

impl<'a> Mail<'a> {
    pub(super) fn of(message: &'a CaughtMessage, region: &str) -> Self {
        let from_domain = domain_of(&message.from);
        let recipients = message.to.iter().chain(&message.cc).chain(&message.bcc);
        let all = headers(message);
        let count = all.len();
        let mut bytes = 0;
        let fits = |header: &Header<'_>| {
            bytes += header.name.len() + header.value.len();
            bytes <= HEADERS_MAX_BYTES
        };
        let headers: Vec<_> = all.into_iter().take_while(fits).collect();
        Self {
            timestamp: message.received_at.to_string(),
            source: &message.from,
            source_arn: format!("arn:aws:ses:{region}:{ACCOUNT}:identity/{from_domain}"),
            sending_account_id: ACCOUNT,
            message_id: &message.id,
            destination: recipients.map(String::as_str).collect(),
            headers_truncated: headers.len() < count,
            headers,
            common_headers: CommonHeaders {
                from: [&message.from],
                reply_to: &message.reply_to,
                to: &message.to,
                cc: &message.cc,
                message_id: &message.id,
                subject: &message.subject,
            },
            tags: tags(message, from_domain),
        }
    }
}

/// What the recipients see, so without bcc.
fn headers(message: &CaughtMessage) -> Vec<Header<'_>> {
    let mut headers = Vec::new();
    let mut add = |name, value: String| headers.push(Header { name, value });
    add("From", message.from.clone());
    for (name, list) in [("Reply-To", &message.reply_to), ("To", &message.to), ("Cc", &message.cc)]
    {
        if !list.is_empty() {
            add(name, list.join(", "));
        }
    }
    add("Subject", message.subject.clone());
    add("MIME-Version", "1.0".to_owned());
    let content_type = match (&message.text, &message.html) {
        (Some(_), Some(_)) => "multipart/alternative; boundary=\"----=_Part_1_1.1\"",
        (None, Some(_)) => "text/html; charset=UTF-8",
        _ => "text/plain; charset=UTF-8",
    };
    add("Content-Type", content_type.to_owned());
    for header in &message.headers {
        add(&header.name, header.value.clone());
    }
    headers
}

fn tags<'a>(message: &'a CaughtMessage, from_domain: &'a str) -> BTreeMap<&'a str, [&'a str; 1]> {
    let mut tags = BTreeMap::from([
        ("ses:operation", ["SendEmail"]),
        ("ses:source-ip", [SOURCE_IP]),
        ("ses:outgoing-ip", [OUTGOING_IP]),
        ("ses:from-domain", [from_domain]),
        ("ses:caller-identity", [CALLER]),
    ]);
    if let Some(set) = &message.configuration_set {
        tags.insert("ses:configuration-set", [set]);
    }
    tags.extend(message.tags.iter().map(|tag| (tag.name.as_str(), [tag.value.as_str()])));
    tags
}

/// The domain of a checked mailbox.
fn domain_of(mailbox: &str) -> &str {
    let after = mailbox.rsplit_once('@').map_or(mailbox, |(_, domain)| domain);
    after.trim_end().trim_end_matches('>').trim_end()
}
