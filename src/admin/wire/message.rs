//! Messages on the administration's wire: the record that clients read, with what operators alone
//! see of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::event::{self, EventDetail};
use crate::domain::message::{self as domain, State};
use crate::domain::policy::TRANSACTIONAL;
use crate::queue::{Live, View};

mod timeline;

/// A message with its events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageRecord {
    /// Its identifier.
    pub id: String,
    /// The name of the organisation.
    pub organisation: String,
    /// Its status this moment.
    pub status: String,
    /// The sender as given.
    pub from: String,
    /// The recipients as given: to, cc and bcc.
    pub to: Vec<String>,
    /// The subject.
    pub subject: String,
    /// The tag.
    pub tag: String,
    /// Calls to the provider that were started.
    pub attempts: u32,
    /// The failure, if there is one.
    pub error: Option<Failure>,
    /// The provider's identifier, once sent.
    pub ses_message_id: Option<String>,
    /// When it was accepted.
    pub created_at: String,
    /// When the provider accepted it.
    pub sent_at: Option<String>,
    /// Its latest event.
    pub last_event: Option<LastEvent>,
    /// Its events, oldest first.
    pub events: Vec<Event>,
    /// What happened to each recipient.
    pub timelines: Vec<Timeline>,
}

/// What happened to one recipient.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The recipient as given, or as the provider names one that the message does not.
    pub recipient: String,
    /// Its events, oldest first; empty where nothing is known.
    pub events: Vec<RecipientEvent>,
}

/// An event of one recipient.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecipientEvent {
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: String,
    /// When.
    pub occurred_at: String,
    /// What the provider told of it, by SES's names.
    pub detail: BTreeMap<String, String>,
}

/// Why a message is not sent, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The kind.
    pub code: String,
    /// What happened.
    pub message: String,
    /// The provider's own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_code: Option<String>,
}

/// A message's latest event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEvent {
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: String,
    /// When.
    pub occurred_at: String,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: String,
    /// When.
    pub occurred_at: String,
    /// Whom it concerns.
    pub recipients: Vec<String>,
    /// What the provider told of it, by SES's names.
    pub detail: BTreeMap<String, String>,
}

/// A message in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageSummary {
    /// Its identifier.
    pub id: String,
    /// The name of the organisation.
    pub organisation: String,
    /// Its status this moment.
    pub status: String,
    /// The recipients as given.
    pub to: Vec<String>,
    /// The subject.
    pub subject: String,
    /// Calls to the provider that were started.
    pub attempts: u32,
    /// The failure, if there is one.
    pub error: Option<Failure>,
    /// When it was accepted.
    pub created_at: String,
}

/// A page of messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageList {
    /// Newest first.
    pub messages: Vec<MessageSummary>,
    /// What to give as `before` for the next page, if there is one. A page may be short, or empty,
    /// and not the last.
    pub next: Option<String>,
}

/// Which queued messages are to be cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum QueuedMessages {
    /// Those with these identifiers: at most [`MAX_MESSAGES`](crate::admin::wire::MAX_MESSAGES).
    WithIds(Vec<String>),
    /// Those of one organisation.
    OfOrganisation {
        /// The organisation's name.
        name: String,
        /// Only those that this API key has posted, revoked or not.
        key: Option<u32>,
        /// Only those from this sender domain.
        domain: Option<String>,
    },
}

/// What became of the messages that were to be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessagesCancelled {
    /// Messages that were queued and have failed now.
    pub cancelled: usize,
    /// Messages whose call to the provider was under way. They are not tried again after it.
    pub calls_under_way: usize,
    /// Messages that were named and are not pending: they have a final status, or do not exist.
    pub not_pending: usize,
}

impl MessageRecord {
    pub(in crate::admin) fn new(
        message: domain::Message,
        live: Option<&Live>,
        events: &[event::Event],
        organisation: String,
    ) -> Self {
        let View { status, attempts, failure } = View::of(&message, live);
        let error = failure.map(Failure::from);
        let timelines = timeline::of(&message.recipients, events);
        let (ses_message_id, sent_at) = match message.state {
            State::Sent { ses_message_id, sent_at } => {
                (Some(ses_message_id), Some(sent_at.to_string()))
            }
            State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => (None, None),
        };
        Self {
            id: message.id.to_string(),
            organisation,
            status: status.as_str().to_owned(),
            from: message.from,
            to: message.recipients,
            subject: message.subject,
            tag: TRANSACTIONAL.to_owned(),
            attempts,
            error,
            ses_message_id,
            created_at: message.created_at.to_string(),
            sent_at,
            last_event: message.last_event.map(LastEvent::from),
            events: events.iter().map(Event::from).collect(),
            timelines,
        }
    }
}

impl MessageSummary {
    pub(in crate::admin) fn new(
        message: domain::Message,
        live: Option<&Live>,
        organisation: String,
    ) -> Self {
        let View { status, attempts, failure } = View::of(&message, live);
        Self {
            id: message.id.to_string(),
            organisation,
            status: status.as_str().to_owned(),
            error: failure.map(Failure::from),
            to: message.recipients,
            subject: message.subject,
            attempts,
            created_at: message.created_at.to_string(),
        }
    }
}

impl From<&domain::Failure> for Failure {
    fn from(failure: &domain::Failure) -> Self {
        Self {
            code: failure.code.as_str().to_owned(),
            message: failure.message.clone(),
            provider_code: failure.provider_code.clone(),
        }
    }
}

impl From<event::LastEvent> for LastEvent {
    fn from(event: event::LastEvent) -> Self {
        Self {
            event_type: event.event_type.as_str().to_owned(),
            occurred_at: event.occurred_at.to_string(),
        }
    }
}

impl From<&event::Event> for Event {
    fn from(event: &event::Event) -> Self {
        Self {
            event_type: event.event_type().as_str().to_owned(),
            occurred_at: event.occurred_at.to_string(),
            recipients: event.recipients.clone(),
            detail: detail(&event.detail),
        }
    }
}

fn detail(detail: &EventDetail) -> BTreeMap<String, String> {
    let told: Vec<(&str, Option<&str>)> = match detail {
        EventDetail::Delivery { smtp_response } => {
            vec![("smtpResponse", smtp_response.as_deref())]
        }
        EventDetail::Bounce { bounce_type, sub_type, diagnostic_code } => vec![
            ("bounceType", Some(bounce_type.as_str())),
            ("bounceSubType", Some(sub_type)),
            ("diagnosticCode", diagnostic_code.as_deref()),
        ],
        EventDetail::Complaint { feedback_type, sub_type } => vec![
            ("complaintFeedbackType", feedback_type.as_deref()),
            ("complaintSubType", sub_type.as_deref()),
        ],
        EventDetail::Reject { reason } => vec![("reason", Some(reason))],
        EventDetail::DeliveryDelay { delay_type, diagnostic_code } => {
            vec![("delayType", Some(delay_type)), ("diagnosticCode", diagnostic_code.as_deref())]
        }
    };
    told.into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect()
}
