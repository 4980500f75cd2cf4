//! Events: which ones SES publishes about an accepted message, when, and their documents in the shape
//! of SES's event publishing, with their SNS and `EventBridge` wraps.
//!
//! The recipients' fates decide. Written from the examples of the Amazon SES Developer Guide. Must not
//! know HTTP, or how the queue keeps a message.
//! Source: <https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html>

use std::collections::BTreeMap;
use std::time::Duration;

use super::address::RecipientFate;
use super::captured::{CapturedMessage, CapturedRecipient};
use super::protocol::ACCOUNT_ID;
use super::queue::NewMessage;
use super::random::IdGenerator;
use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::time::Timestamp;

/// SES: bytes of headers in an event; further headers are left out.
const MAX_HEADERS_BYTES: usize = 10 * 1024;
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
/// SES's subject for the notifications that it publishes through a configuration set.
const NOTIFICATION_SUBJECT: &str = "Amazon SES Email Event Notification";
/// Not a signature: readers of a queue do not check it, since the queue's policy decides who may
/// write there. "EXAMPLE" in base64.
const NOTIFICATION_SIGNATURE: &str = "RVhBTVBMRQ==";
const SIGNING_CERTIFICATE: &str = "SimpleNotificationService-00000000000000000000000000000000.pem";

/// Decides if accepted messages come back as events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Events {
    /// They do not: a queue that nobody reads would only fill.
    #[default]
    Off,
    /// They do.
    On(EventOptions),
}

/// When events come, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// From the acceptance to its `Send` event.
    pub send_after: Duration,
    /// From the acceptance to each recipient's `Delivery` or `Bounce`.
    pub outcome_after: Duration,
    /// From the acceptance to a `Complaint`; never before the delivery that it complains about.
    pub complaint_after: Duration,
    /// The wrapping of each event.
    pub envelope: Envelope,
    /// The messages that have events.
    pub route: EventRoute,
}

impl EventOptions {
    /// `Send` at once, deliveries and bounces after `delay`, complaints after twice that.
    pub fn after(delay: Duration) -> Self {
        Self { outcome_after: delay, complaint_after: 2 * delay, ..Self::default() }
    }
}

/// The messages that have events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventRoute {
    /// Every accepted message, also one that names no configuration set.
    #[default]
    EveryMessage,
    /// As at SES: those whose configuration set has an enabled event destination for the type.
    Destinations,
}

/// Makes the events of an accepted message for which `is_wanted` holds, in the order of their
/// times.
pub(super) fn events_of(
    publisher: Publisher<'_>,
    message: &CapturedMessage,
    options: EventOptions,
    is_wanted: impl Fn(EventType) -> bool,
) -> Vec<NewMessage> {
    let mail = Mail::of(message, publisher.region);
    let mut events = Vec::new();
    let mut publish = |event_type: EventType, after: Duration, detail: Detail<'_>| {
        if !is_wanted(event_type) {
            return;
        }
        let event = mail.event(event_type, &detail);
        let sent_at = message.received_at.plus(after);
        let body = match options.envelope {
            Envelope::Sns => publisher.sns_notification(&event, sent_at),
            Envelope::Raw => event,
            Envelope::EventBridge => {
                publisher.event_bridge_event(event_type, message, &event, sent_at)
            }
        };
        let id = publisher.ids.uuid();
        events.push(NewMessage { id, body: body.into(), sent_at, delay: after });
    };
    publish(EventType::Send, options.send_after, Detail::Send {});
    let outcome_after = options.outcome_after;
    let outcome_at = message.received_at.plus(outcome_after);
    let groups = RecipientGroup::all_of(message);
    for group in &groups {
        let feedback_id = || publisher.ids.message_id(outcome_at);
        match group.fate {
            GroupFate::Delivered => {
                let detail = group.delivery(outcome_at, outcome_after);
                publish(EventType::Delivery, outcome_after, detail);
            }
            GroupFate::Bounced => {
                let detail = group.bounce(outcome_at, feedback_id());
                publish(EventType::Bounce, outcome_after, detail);
            }
            GroupFate::Suppressed => {
                let detail = group.suppression_bounce(outcome_at, feedback_id());
                publish(EventType::Bounce, outcome_after, detail);
            }
        }
    }
    let complaint_after = options.complaint_after.max(outcome_after);
    let complaint_at = message.received_at.plus(complaint_after);
    for group in groups.iter().filter_map(RecipientGroup::complaining) {
        let detail = group.complaint(complaint_at, publisher.ids.message_id(complaint_at));
        publish(EventType::Complaint, complaint_after, detail);
    }
    events
}

/// Wrapping of an event on its way from SES to the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Envelope {
    /// As SNS puts it into a queue: a notification with the event as a string.
    #[default]
    Sns,
    /// As SNS does with raw message delivery: the event alone.
    Raw,
    /// As an `EventBridge` rule puts it into a queue: the event as its detail.
    EventBridge,
}

/// The types of events that the simulator gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventType {
    Send,
    Delivery,
    Bounce,
    Complaint,
}

impl EventType {
    /// The name in an event destination's `MatchingEventTypes`.
    pub(super) fn matching_name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Delivery => "DELIVERY",
            Self::Bounce => "BOUNCE",
            Self::Complaint => "COMPLAINT",
        }
    }

    /// The name in an event's `eventType`.
    fn name(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Delivery => "Delivery",
            Self::Bounce => "Bounce",
            Self::Complaint => "Complaint",
        }
    }

    fn event_bridge_name(self) -> &'static str {
        match self {
            Self::Send => "Email Sent",
            Self::Delivery => "Email Delivered",
            Self::Bounce => "Email Bounced",
            Self::Complaint => "Email Complaint Received",
        }
    }
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

impl<'a> Mail<'a> {
    pub(super) fn of(message: &'a CapturedMessage, region: &str) -> Self {
        let from_domain = domain_of(&message.from);
        let recipients = message.to.iter().chain(&message.cc).chain(&message.bcc);
        let all = headers(message);
        let count = all.len();
        let mut bytes = 0;
        let fits = |header: &Header<'_>| {
            bytes += header.name.len() + header.value.len();
            bytes <= MAX_HEADERS_BYTES
        };
        let headers: Vec<_> = all.into_iter().take_while(fits).collect();
        Self {
            timestamp: message.received_at.to_string(),
            source: &message.from,
            source_arn: format!("arn:aws:ses:{region}:{ACCOUNT_ID}:identity/{from_domain}"),
            sending_account_id: ACCOUNT_ID,
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

    /// Writes an event about this message.
    pub(super) fn event(&self, event_type: EventType, detail: &Detail<'_>) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Document<'a> {
            event_type: &'static str,
            mail: &'a Mail<'a>,
            #[serde(flatten)]
            detail: &'a Detail<'a>,
        }
        let document = Document { event_type: event_type.name(), mail: self, detail };
        serde_json::to_string(&document).expect("events are plain JSON values")
    }
}

/// The headers that the recipients see, so without bcc.
fn headers(message: &CapturedMessage) -> Vec<Header<'_>> {
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

fn tags<'a>(message: &'a CapturedMessage, from_domain: &'a str) -> BTreeMap<&'a str, [&'a str; 1]> {
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
        complained_recipients: Vec<ComplainedRecipient<'a>>,
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
pub(super) struct ComplainedRecipient<'a> {
    email_address: &'a str,
}

/// Recipients that one event names: those with one fate at one domain. There is at least one.
pub(super) struct RecipientGroup<'a> {
    pub(super) fate: GroupFate,
    /// In the case of the first recipient.
    domain: &'a str,
    recipients: Vec<GroupMember<'a>>,
}

/// The subject of a group's first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupFate {
    Delivered,
    Bounced,
    Suppressed,
}

#[derive(Clone, Copy)]
struct GroupMember<'a> {
    /// The bare address, as a mail server names it.
    address: &'a str,
    /// As the request gave it, display name included.
    given: &'a str,
    fate: RecipientFate,
}

impl<'a> RecipientGroup<'a> {
    /// Groups a message's recipients, in the order of the groups' first recipients. An address
    /// given twice is named once.
    pub(super) fn all_of(message: &'a CapturedMessage) -> Vec<Self> {
        let given = message.to.iter().chain(&message.cc).chain(&message.bcc);
        let mut groups: Vec<Self> = Vec::new();
        for (CapturedRecipient { address, fate }, given) in message.recipients.iter().zip(given) {
            let member = GroupMember { address, given, fate: *fate };
            let domain = address.rsplit_once('@').map_or(address.as_str(), |(_, domain)| domain);
            let fate = GroupFate::of(*fate);
            let same = |g: &&mut Self| g.fate == fate && g.domain.eq_ignore_ascii_case(domain);
            let Some(group) = groups.iter_mut().find(same) else {
                groups.push(Self { fate, domain, recipients: vec![member] });
                continue;
            };
            if !group.recipients.iter().any(|known| known.address.eq_ignore_ascii_case(address)) {
                group.recipients.push(member);
            }
        }
        groups
    }

    /// The members that complain about the message, if there are any.
    pub(super) fn complaining(&self) -> Option<Self> {
        let complains = |r: &&GroupMember<'_>| r.fate == RecipientFate::Complained;
        let recipients: Vec<_> = self.recipients.iter().filter(complains).copied().collect();
        (!recipients.is_empty()).then_some(Self { recipients, ..*self })
    }

    pub(super) fn delivery(&self, at: Timestamp, after: Duration) -> Detail<'a> {
        Detail::Delivery {
            timestamp: at.to_string(),
            processing_time_millis: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            recipients: self.recipients.iter().map(|member| member.address).collect(),
            smtp_response: "250 2.6.0 Message received",
            remote_mta_ip: REMOTE_MTA_IP,
            reporting_mta: REPORTING_MTA,
        }
    }

    pub(super) fn bounce(&self, at: Timestamp, feedback_id: String) -> Detail<'a> {
        let addresses = self.recipients.iter().map(|member| member.address);
        Detail::Bounce {
            bounce_type: "Permanent",
            bounce_sub_type: "General",
            bounced_recipients: bounced(addresses, "smtp; 550 5.1.1 user unknown"),
            timestamp: at.to_string(),
            feedback_id,
            remote_mta_ip: Some(REMOTE_MTA_IP),
            reporting_mta: "dns; a1-1.smtp-out.amazonses.com",
        }
    }

    /// A bounce that SES makes itself. No mail server named the recipients, so they appear as the
    /// request gave them, display names included.
    pub(super) fn suppression_bounce(&self, at: Timestamp, feedback_id: String) -> Detail<'a> {
        Detail::Bounce {
            bounce_type: "Permanent",
            bounce_sub_type: "OnAccountSuppressionList",
            bounced_recipients: bounced(self.recipients.iter().map(|r| r.given), SUPPRESSED),
            timestamp: at.to_string(),
            feedback_id,
            remote_mta_ip: None,
            reporting_mta: "dns; amazonses.com",
        }
    }

    pub(super) fn complaint(&self, at: Timestamp, feedback_id: String) -> Detail<'a> {
        let addresses = self.recipients.iter().map(|member| member.address);
        Detail::Complaint {
            complained_recipients: addresses
                .map(|email_address| ComplainedRecipient { email_address })
                .collect(),
            timestamp: at.to_string(),
            feedback_id,
            user_agent: "Amazon SES Mailbox Simulator",
            complaint_feedback_type: "abuse",
            arrival_date: at.to_string(),
        }
    }
}

impl GroupFate {
    fn of(fate: RecipientFate) -> Self {
        match fate {
            RecipientFate::Delivered | RecipientFate::Complained | RecipientFate::OutOfOffice => {
                Self::Delivered
            }
            RecipientFate::Bounced => Self::Bounced,
            RecipientFate::Suppressed => Self::Suppressed,
        }
    }
}

fn bounced<'a>(
    addresses: impl Iterator<Item = &'a str>,
    diagnostic_code: &'static str,
) -> Vec<BouncedRecipient<'a>> {
    let bounced = |email_address| BouncedRecipient {
        email_address,
        action: "failed",
        status: "5.1.1",
        diagnostic_code,
    };
    addresses.map(bounced).collect()
}

/// The publisher of one simulator's events: its region, its SNS topic and its ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct Publisher<'a> {
    pub(super) ids: &'a IdGenerator,
    pub(super) region: &'a str,
    /// The ARN of the topic.
    pub(super) topic: &'a str,
}

impl Publisher<'_> {
    /// Writes an SNS notification with the event as its message.
    pub(super) fn sns_notification(self, event: &str, at: Timestamp) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Notification<'a> {
            r#type: &'static str,
            message_id: String,
            topic_arn: &'a str,
            subject: &'static str,
            message: &'a str,
            timestamp: String,
            signature_version: &'static str,
            signature: &'static str,
            #[serde(rename = "SigningCertURL")]
            signing_cert_url: String,
            #[serde(rename = "UnsubscribeURL")]
            unsubscribe_url: String,
        }
        let Self { ids, region, topic } = self;
        let host = format!("https://sns.{region}.amazonaws.com");
        let notification = Notification {
            r#type: "Notification",
            message_id: ids.uuid(),
            topic_arn: topic,
            subject: NOTIFICATION_SUBJECT,
            message: event,
            timestamp: at.to_string(),
            signature_version: "2",
            signature: NOTIFICATION_SIGNATURE,
            signing_cert_url: format!("{host}/{SIGNING_CERTIFICATE}"),
            unsubscribe_url: format!(
                "{host}/?Action=Unsubscribe&SubscriptionArn={topic}:{}",
                ids.uuid()
            ),
        };
        serde_json::to_string(&notification).expect("a notification is plain JSON")
    }

    /// Writes an `EventBridge` event with the event as its detail.
    pub(super) fn event_bridge_event(
        self,
        event_type: EventType,
        message: &CapturedMessage,
        event: &str,
        at: Timestamp,
    ) -> String {
        let region = self.region;
        let set = message.configuration_set.as_ref();
        let resources: Vec<_> = set
            .map(|name| format!("arn:aws:ses:{region}:{ACCOUNT_ID}:configuration-set/{name}"))
            .into_iter()
            .collect();
        let detail: Value = serde_json::from_str(event).expect("events are JSON");
        let seconds = at.to_string();
        let seconds = seconds.split('.').next().expect("a split has a first part");
        json!({
            "version": "0",
            "id": self.ids.uuid(),
            "detail-type": event_type.event_bridge_name(),
            "source": "aws.ses",
            "account": ACCOUNT_ID,
            "time": format!("{seconds}Z"),
            "region": region,
            "resources": resources,
            "detail": detail,
        })
        .to_string()
    }
}
