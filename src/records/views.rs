//! Views of messages and their events: the JSON for API clients and operators.
//!
//! The one place where the names of these fields are written down. Knows neither the caller nor the
//! transport.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use pillarbox_domain::event::{Event, EventDetail, LastEvent};
use pillarbox_domain::feed::{FeedChange, FeedEntry};
use pillarbox_domain::limits::TRANSACTIONAL;
use pillarbox_domain::message::{Failure, Message, State};
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::timeline::{Entry, Step};
use pillarbox_queue::{Live, View};

pub mod resend;

/// Record of a message (specification section 2.2). The state in memory is laid over a row that is
/// not final yet; a failure of the message's own stays visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageView {
    /// Id of the message.
    pub id: String,
    /// Status at this moment.
    pub status: String,
    /// Recipients as given: to, cc and bcc.
    pub to: Vec<String>,
    /// Subject of the message.
    pub subject: String,
    /// Tag of the message.
    pub tag: String,
    /// The client's own names and values, if it gave any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Priority, if the request named it; operators always see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Time until which it may be sent, if it has an end of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Calls to the provider that were started.
    pub attempts: u32,
    /// Failure, if there is one.
    pub error: Option<FailureView>,
    /// The provider's identifier, once sent.
    pub ses_message_id: Option<String>,
    /// Time of acceptance.
    pub created_at: String,
    /// Time at which the provider accepted it.
    pub sent_at: Option<String>,
    /// Latest event; `None` before the first.
    pub last_event: Option<LastEventView>,
    /// True if it is of a test organisation, whose mail never goes to the provider.
    #[serde(default, skip_serializing_if = "is_false")]
    pub test: bool,
}

/// Reason why a message is not sent, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureView {
    /// Code of the failure.
    pub code: String,
    /// Sentence about what happened.
    pub message: String,
    /// The provider's own name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_code: Option<String>,
}

/// Latest event of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEventView {
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Time of the event by the provider's clock.
    pub occurred_at: String,
}

/// Event of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Time of the event by the provider's clock.
    pub occurred_at: String,
    /// Recipients that it concerns.
    pub recipients: Vec<String>,
    /// Details that the provider reported.
    pub detail: DetailView,
}

/// Entry of a message's timeline (contract, section 1, "Timeline").
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineEntryView {
    /// Time at which it happened. Missing for a mark of omitted entries, and for an end whose time
    /// was not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Kind of the entry.
    pub what: String,
    /// Number of the attempt, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Reason, if it failed.
    #[serde(flatten)]
    pub failure: Option<FailureView>,
    /// Earliest time of the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
    /// Event, if the entry is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<EventView>,
    /// Attempts that were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// Entry of the event feed (contract, section 11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FeedEventView {
    /// Identifier, the same in every read and delivery.
    pub id: String,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Time at which the change was committed.
    pub timestamp: String,
    /// True if it is of a test organisation, whose mail never goes to the provider.
    #[serde(default, skip_serializing_if = "is_false")]
    pub test: bool,
    /// The message as it was after the change, and what the type adds.
    pub data: FeedDataView,
}

/// Message of an entry of the event feed, as it was after the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FeedDataView {
    /// Id of the message.
    pub id: String,
    /// Status of the message.
    pub status: String,
    /// Recipients as given: to, cc and bcc.
    pub to: Vec<String>,
    /// The client's own names and values, if it gave any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Failure of a message that failed or was suppressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
    /// The provider's identifier of a message that was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ses_message_id: Option<String>,
    /// Event that the provider reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<EventView>,
}

/// Details of an event from the provider; those that it left out are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DetailView {
    /// `Permanent`, `Transient` or `Undetermined`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounce_type: Option<String>,
    /// SES's finer kind of the bounce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounce_sub_type: Option<String>,
    /// Answer of the server that did not take the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostic_code: Option<String>,
    /// Kind of the complaint, by the mailbox provider's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complaint_feedback_type: Option<String>,
    /// SES's finer kind of the complaint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complaint_sub_type: Option<String>,
    /// Kind of the delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_type: Option<String>,
    /// Reason why SES rejected the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reject_reason: Option<String>,
    /// Answer of the server that took the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smtp_response: Option<String>,
}

impl MessageView {
    /// The view of a row of an organisation of this kind, with the message's live state laid over it.
    pub fn new(kind: OrganisationKind, message: Message, live: Option<&Live>) -> Self {
        let View { status, attempts, failure } = View::of(&message, live);
        let error = failure.map(FailureView::from);
        let priority = message.terms.priority.given().map(|given| given.as_str().to_owned());
        let expires_at = message.expires_at().map(|end| end.to_string());
        let (ses_message_id, sent_at) = match message.state {
            State::Sent { ses_message_id, sent_at } => {
                (Some(ses_message_id), Some(sent_at.to_string()))
            }
            State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => (None, None),
        };
        Self {
            id: message.id.to_string(),
            status: status.as_str().to_owned(),
            to: message.recipients,
            subject: message.subject,
            tag: TRANSACTIONAL.to_owned(),
            metadata: message.metadata,
            priority,
            expires_at,
            attempts,
            error,
            ses_message_id,
            created_at: message.created_at.to_string(),
            sent_at,
            last_event: message.last_event.map(LastEventView::from),
            test: kind == OrganisationKind::Test,
        }
    }
}

impl From<&Failure> for FailureView {
    fn from(failure: &Failure) -> Self {
        Self {
            code: failure.code.as_str().to_owned(),
            message: failure.message.clone(),
            provider_code: failure.provider_code.clone(),
        }
    }
}

impl From<LastEvent> for LastEventView {
    fn from(event: LastEvent) -> Self {
        Self {
            event_type: event.event_type.as_str().to_owned(),
            occurred_at: event.occurred_at.to_string(),
        }
    }
}

impl From<&Event> for EventView {
    fn from(event: &Event) -> Self {
        Self {
            event_type: event.event_type().as_str().to_owned(),
            occurred_at: event.occurred_at.to_string(),
            recipients: event.recipients.clone(),
            detail: DetailView::from(&event.detail),
        }
    }
}

impl From<Step> for TimelineEntryView {
    fn from(step: Step) -> Self {
        let Step { at, kind, attempt, attempts: _, failure, next_attempt_at } = step;
        Self {
            at: Some(at.to_string()),
            what: kind.as_str().to_owned(),
            attempt,
            failure: failure.as_ref().map(FailureView::from),
            next_attempt_at: next_attempt_at.map(|at| at.to_string()),
            ..Self::default()
        }
    }
}

impl From<Entry> for TimelineEntryView {
    fn from(entry: Entry) -> Self {
        let named = |what: &str, at: Option<Timestamp>| Self {
            at: at.map(|at| at.to_string()),
            what: what.to_owned(),
            ..Self::default()
        };
        match entry {
            Entry::Accepted(at) => named("accepted", Some(at)),
            Entry::Step(step) => Self::from(step),
            Entry::EndAtUnknownTime(step) => Self { at: None, ..Self::from(step) },
            Entry::Sent { at, attempt } => {
                Self { attempt: Some(attempt), ..named("sent", Some(at)) }
            }
            Entry::Event(event) => {
                let what = named(event.event_type().as_str(), Some(event.occurred_at));
                Self { event: Some(EventView::from(&event)), ..what }
            }
            Entry::Omitted(count) => Self { count: Some(count), ..named("omitted", None) },
        }
    }
}

impl FeedEventView {
    /// The view of an entry of an organisation of this kind.
    pub fn new(kind: OrganisationKind, entry: &FeedEntry) -> Self {
        let FeedEntry { position: _, recorded_at, message, change } = entry;
        let mut data = FeedDataView {
            id: message.id.to_string(),
            status: message.status().as_str().to_owned(),
            to: message.recipients.clone(),
            metadata: message.metadata.clone(),
            error: None,
            ses_message_id: None,
            event: None,
        };
        match (change, &message.state) {
            (FeedChange::Sent, State::Sent { ses_message_id, .. }) => {
                data.ses_message_id = Some(ses_message_id.clone());
            }
            (FeedChange::Failed | FeedChange::Suppressed, _) => {
                data.error = message.failure().map(FailureView::from);
            }
            (FeedChange::Observed(event), _) => data.event = Some(EventView::from(event)),
            (FeedChange::Sent, _) => {}
        }
        Self {
            id: entry.id().to_string(),
            event_type: entry.event_type().as_str().to_owned(),
            timestamp: recorded_at.to_string(),
            test: kind == OrganisationKind::Test,
            data,
        }
    }
}

impl From<&EventDetail> for DetailView {
    fn from(detail: &EventDetail) -> Self {
        let none = Self::default();
        match detail.clone() {
            EventDetail::Delivery { smtp_response } => Self { smtp_response, ..none },
            EventDetail::Bounce { bounce_type, sub_type, diagnostic_code } => Self {
                bounce_type: Some(bounce_type.as_str().to_owned()),
                bounce_sub_type: Some(sub_type),
                diagnostic_code,
                ..none
            },
            EventDetail::Complaint { feedback_type, sub_type } => Self {
                complaint_feedback_type: feedback_type,
                complaint_sub_type: sub_type,
                ..none
            },
            EventDetail::Reject { reason } => Self { reject_reason: Some(reason), ..none },
            EventDetail::DeliveryDelay { delay_type, diagnostic_code } => {
                Self { delay_type: Some(delay_type), diagnostic_code, ..none }
            }
        }
    }
}

/// True if a member of JSON is left out.
pub const fn is_false(is_set: &bool) -> bool {
    !*is_set
}
