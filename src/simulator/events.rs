//! Events: which ones SES publishes about an accepted message, when, and their documents in the shape
//! of SES's event publishing, with their SNS and `EventBridge` wraps.
//!
//! The recipients' fates decide. Written from the examples of the Amazon SES Developer Guide. Must not
//! know HTTP, or how the queue keeps a message.
//! Source: <https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html>

use std::time::Duration;

use super::address::RecipientFate;
use super::captured::{CapturedMessage, CapturedRecipient};
use super::protocol::ACCOUNT_ID;
use super::queue::NewMessage;
use super::random::IdGenerator;
use serde_json::{Value, json};

use pillarbox_domain::time::Timestamp;

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
    /// They do not: a queue without readers would only fill.
    #[default]
    Off,
    /// Events are published.
    On(EventOptions),
}

/// Kinds and delays of events.
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
    let mail = mail_of(message, publisher.region);
    let mut events = Vec::new();
    let mut publish = |event_type: EventType, after: Duration, detail: Value| {
        if !is_wanted(event_type) {
            return;
        }
        let mut event = json!({ "eventType": event_type.name(), "mail": mail });
        event[event_type.detail_name()] = detail;
        let sent_at = message.received_at.plus(after);
        let body = match options.envelope {
            Envelope::Sns => publisher.sns_notification(&event.to_string(), sent_at),
            Envelope::Raw => event,
            Envelope::EventBridge => {
                publisher.event_bridge_event(event_type, message, &event, sent_at)
            }
        };
        let id = publisher.ids.uuid();
        events.push(NewMessage { id, body: body.to_string().into(), sent_at, delay: after });
    };
    publish(EventType::Send, options.send_after, json!({}));
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
                let detail = group.bounce(outcome_at, &feedback_id());
                publish(EventType::Bounce, outcome_after, detail);
            }
            GroupFate::Suppressed => {
                let detail = group.suppression_bounce(outcome_at, &feedback_id());
                publish(EventType::Bounce, outcome_after, detail);
            }
        }
    }
    let complaint_after = options.complaint_after.max(outcome_after);
    let complaint_at = message.received_at.plus(complaint_after);
    for group in groups.iter().filter_map(RecipientGroup::complaining) {
        let detail = group.complaint(complaint_at, &publisher.ids.message_id(complaint_at));
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

    /// The name of the member with the part that belongs to the type.
    fn detail_name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Delivery => "delivery",
            Self::Bounce => "bounce",
            Self::Complaint => "complaint",
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

/// Makes an event's `mail`: the message that it is about.
fn mail_of(message: &CapturedMessage, region: &str) -> Value {
    let from_domain = domain_of(&message.from);
    let recipients = message.to.iter().chain(&message.cc).chain(&message.bcc);
    let all = headers(message);
    let count = all.len();
    let mut bytes = 0;
    let fits = |(name, value): &(&str, String)| {
        bytes += name.len() + value.len();
        bytes <= MAX_HEADERS_BYTES
    };
    let headers: Vec<_> = all
        .into_iter()
        .take_while(fits)
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    let mut common_headers = json!({
        "from": [message.from],
        "messageId": message.id,
        "subject": message.subject,
    });
    for (name, list) in [("replyTo", &message.reply_to), ("to", &message.to), ("cc", &message.cc)] {
        if !list.is_empty() {
            common_headers[name] = json!(list);
        }
    }
    json!({
        "timestamp": message.received_at.to_string(),
        "source": message.from,
        "sourceArn": format!("arn:aws:ses:{region}:{ACCOUNT_ID}:identity/{from_domain}"),
        "sendingAccountId": ACCOUNT_ID,
        "messageId": message.id,
        "destination": recipients.collect::<Vec<_>>(),
        "headersTruncated": headers.len() < count,
        "headers": headers,
        "commonHeaders": common_headers,
        "tags": tags(message, from_domain),
    })
}

/// The headers that the recipients see, so without bcc.
fn headers(message: &CapturedMessage) -> Vec<(&str, String)> {
    let mut headers = vec![("From", message.from.clone())];
    for (name, list) in [("Reply-To", &message.reply_to), ("To", &message.to), ("Cc", &message.cc)]
    {
        if !list.is_empty() {
            headers.push((name, list.join(", ")));
        }
    }
    headers.push(("Subject", message.subject.clone()));
    headers.push(("MIME-Version", "1.0".to_owned()));
    let content_type = match (&message.text, &message.html) {
        (Some(_), Some(_)) => "multipart/alternative; boundary=\"----=_Part_1_1.1\"",
        (None, Some(_)) => "text/html; charset=UTF-8",
        _ => "text/plain; charset=UTF-8",
    };
    headers.push(("Content-Type", content_type.to_owned()));
    headers.extend(message.headers.iter().map(|header| (&*header.name, header.value.clone())));
    headers
}

fn tags(message: &CapturedMessage, from_domain: &str) -> Value {
    let mut tags = json!({
        "ses:operation": ["SendEmail"],
        "ses:source-ip": [SOURCE_IP],
        "ses:outgoing-ip": [OUTGOING_IP],
        "ses:from-domain": [from_domain],
        "ses:caller-identity": [CALLER],
    });
    if let Some(set) = &message.configuration_set {
        tags["ses:configuration-set"] = json!([set]);
    }
    for tag in &message.tags {
        tags[&tag.name] = json!([tag.value]);
    }
    tags
}

/// The domain of a checked mailbox.
fn domain_of(mailbox: &str) -> &str {
    let after = mailbox.rsplit_once('@').map_or(mailbox, |(_, domain)| domain);
    after.trim_end().trim_end_matches('>').trim_end()
}

/// Recipients that one event names: those with one fate at one domain. There is at least one.
struct RecipientGroup<'a> {
    fate: GroupFate,
    /// In the case of the first recipient.
    domain: &'a str,
    recipients: Vec<GroupMember<'a>>,
}

/// The subject of a group's first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupFate {
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
    fn all_of(message: &'a CapturedMessage) -> Vec<Self> {
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
    fn complaining(&self) -> Option<Self> {
        let complains = |r: &&GroupMember<'_>| r.fate == RecipientFate::Complained;
        let recipients: Vec<_> = self.recipients.iter().filter(complains).copied().collect();
        (!recipients.is_empty()).then_some(Self { recipients, ..*self })
    }

    /// The addresses as a mail server names them.
    fn addresses(&self) -> impl Iterator<Item = &'a str> {
        self.recipients.iter().map(|member| member.address)
    }

    fn delivery(&self, at: Timestamp, after: Duration) -> Value {
        json!({
            "timestamp": at.to_string(),
            "processingTimeMillis": u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            "recipients": self.addresses().collect::<Vec<_>>(),
            "smtpResponse": "250 2.6.0 Message received",
            "remoteMtaIp": REMOTE_MTA_IP,
            "reportingMTA": REPORTING_MTA,
        })
    }

    fn bounce(&self, at: Timestamp, feedback_id: &str) -> Value {
        json!({
            "bounceType": "Permanent",
            "bounceSubType": "General",
            "bouncedRecipients": bounced(self.addresses(), "smtp; 550 5.1.1 user unknown"),
            "timestamp": at.to_string(),
            "feedbackId": feedback_id,
            "remoteMtaIp": REMOTE_MTA_IP,
            "reportingMTA": "dns; a1-1.smtp-out.amazonses.com",
        })
    }

    /// A bounce that SES makes itself. No mail server named the recipients, so they appear as the
    /// request gave them, display names included.
    fn suppression_bounce(&self, at: Timestamp, feedback_id: &str) -> Value {
        json!({
            "bounceType": "Permanent",
            "bounceSubType": "OnAccountSuppressionList",
            "bouncedRecipients": bounced(self.recipients.iter().map(|r| r.given), SUPPRESSED),
            "timestamp": at.to_string(),
            "feedbackId": feedback_id,
            "reportingMTA": "dns; amazonses.com",
        })
    }

    fn complaint(&self, at: Timestamp, feedback_id: &str) -> Value {
        let complained = self.addresses().map(|address| json!({ "emailAddress": address }));
        json!({
            "complainedRecipients": complained.collect::<Vec<_>>(),
            "timestamp": at.to_string(),
            "feedbackId": feedback_id,
            "userAgent": "Amazon SES Mailbox Simulator",
            "complaintFeedbackType": "abuse",
            "arrivalDate": at.to_string(),
        })
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

fn bounced<'a>(addresses: impl Iterator<Item = &'a str>, diagnostic_code: &str) -> Vec<Value> {
    let bounced = |address| {
        json!({
            "emailAddress": address,
            "action": "failed",
            "status": "5.1.1",
            "diagnosticCode": diagnostic_code,
        })
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
    /// Wraps the text of an event into an SNS notification.
    pub(super) fn sns_notification(self, event: &str, at: Timestamp) -> Value {
        let Self { ids, region, topic } = self;
        let host = format!("https://sns.{region}.amazonaws.com");
        json!({
            "Type": "Notification",
            "MessageId": ids.uuid(),
            "TopicArn": topic,
            "Subject": NOTIFICATION_SUBJECT,
            "Message": event,
            "Timestamp": at.to_string(),
            "SignatureVersion": "2",
            "Signature": NOTIFICATION_SIGNATURE,
            "SigningCertURL": format!("{host}/{SIGNING_CERTIFICATE}"),
            "UnsubscribeURL":
                format!("{host}/?Action=Unsubscribe&SubscriptionArn={topic}:{}", ids.uuid()),
        })
    }

    /// Wraps an event into an `EventBridge` event, as its detail.
    fn event_bridge_event(
        self,
        event_type: EventType,
        message: &CapturedMessage,
        event: &Value,
        at: Timestamp,
    ) -> Value {
        let region = self.region;
        let set = message.configuration_set.as_ref();
        let resources: Vec<_> = set
            .map(|name| format!("arn:aws:ses:{region}:{ACCOUNT_ID}:configuration-set/{name}"))
            .into_iter()
            .collect();
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
            "detail": event,
        })
    }
}
