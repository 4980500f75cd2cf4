//! Messages as operators read and cancel them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::failure_explanations::{self, Explanation};
use crate::suppression::Suppression;
use crate::webhook::MessageDelivery;
use crate::{
    Admin, MAX_PAGE, MessageCancel, MessageCount, MessageList, MessageShow, Refusal, Result,
    domain_name, moment,
};
use pillarbox_dispatch::Cancelled;
use pillarbox_domain::event::Event;
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::limits::{IDEMPOTENCY_WINDOW, RECORD_RETENTION_DAYS};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{Cancellation, Message, Status};
use pillarbox_domain::outcome::MessageOutcome;
use pillarbox_domain::request::IdempotencyKey;
use pillarbox_domain::search::{AnyField, MessageFilter, SearchText};
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_domain::timeline::Entry;
use pillarbox_queue::{Live, Selection, View};
use pillarbox_records::listing;
use pillarbox_records::views::{DetailView, EventView, MessageView, TimelineEntryView, is_false};
use pillarbox_store::Lister;

/// The most messages that one command lists.
pub(super) const MAX_LISTED: u64 = 100_000;
/// The most messages that one call cancels by their ids.
pub const MAX_MESSAGES: usize = 1_000;
/// The longest text that is searched for, in characters.
const MAX_SEARCH_CHARS: usize = 200;
/// The same of a text that may be an idempotency key.
const MAX_KEY_CHARS: usize = 256;
/// The most organisations that are asked for an idempotency key.
const MAX_ORGANISATIONS_ASKED: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum QueuedMessages {
    /// Those with these identifiers: at most [`MAX_MESSAGES`].
    WithIds(Vec<String>),
    OfOrganisation {
        name: String,
        /// Only those that this API key has posted, revoked or not.
        key: Option<u32>,
        domain: Option<String>,
    },
}

/// A message as an operator sees it: the client's view, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorsView {
    pub organisation: String,
    pub from: String,
    /// Progress of the message: its status, or after `sent` its latest event.
    pub outcome: String,
    #[serde(flatten)]
    pub message: MessageView,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageShown {
    #[serde(flatten)]
    pub view: OperatorsView,
    pub events: Vec<EventView>,
    /// Acceptance, attempts, end and events, oldest first.
    #[serde(default)]
    pub timeline: Vec<TimelineEntryView>,
    /// Of each entry of the timeline, its cause in plain words and what to do, if there is more to say.
    #[serde(default)]
    pub explanations: Vec<Option<Explained>>,
    pub timelines: Vec<Timeline>,
    /// Key that the client gave; none after 24 hours, and none on a server, which has only a digest.
    #[serde(rename = "idempotencyKey", default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Suppressions of its recipients that hold now.
    #[serde(default)]
    pub suppressions: Vec<Suppression>,
    /// Last attempts to deliver its events to endpoints, since the start of the service.
    #[serde(default)]
    pub deliveries: Vec<MessageDelivery>,
    /// Time of the service's last start, if the message is pending and waited then already.
    #[serde(rename = "restartedAt", default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,
}

/// Cause of an entry of a timeline, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Name of it in the page's help.
    pub topic: String,
    pub cause: String,
    pub advice: String,
}

/// Events of one recipient.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The recipient as given, or as the provider names one that the message does not.
    pub recipient: String,
    /// Its events, oldest first; empty if nothing is known.
    pub events: Vec<RecipientEvent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecipientEvent {
    #[serde(rename = "type")]
    pub event_type: String,
    pub occurred_at: String,
    pub detail: DetailView,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    pub messages: Vec<OperatorsView>,
    /// Value of `before` for the next page, if there is one. A page may be short, or empty, and not
    /// the last: what one call may cost is bounded.
    pub next: Option<String>,
    /// Acceptance of the last message that was read; `None` if all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_back_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<usize>,
    /// True if the text that is searched for names this message alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exact: bool,
    /// Instead of messages, if they are counted: how many there are, by organisation and outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<BTreeMap<String, BTreeMap<String, u64>>>,
}

/// Outcome of a cancellation of several messages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessagesCancelled {
    pub cancelled: usize,
    /// Messages whose call to the provider was under way. They are not tried again after it.
    pub calls_under_way: usize,
    /// Messages that were named and are not pending: they have a final status, or do not exist.
    pub not_pending: usize,
    /// Nodes that did not answer. The messages that they hold are not stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_without_answer: Vec<String>,
}

/// Count of messages that are not final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessagesCounted {
    pub pending: usize,
    /// Nodes that did not answer. The messages that they hold are not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_without_answer: Vec<String>,
}

pub(super) async fn show(admin: &Admin, call: MessageShow) -> Result<MessageShown> {
    let id = message_id(&call.id)?;
    // Before the row: a message that is finished in between is shown as finished.
    let live = admin.live().and_then(|live| live.message(id));
    let restarted_at = admin.facts().ok().and_then(|facts| facts.bodies.restarted_at(id));
    let message = admin.store.message(id, admin.clock.window_time()).await?.ok_or_else(|| {
        Refusal::new(format!(
            "there is no message {id}; records are kept for {RECORD_RETENTION_DAYS} days \
             from acceptance"
        ))
    })?;
    let events = admin.store.events(id).await?;
    let timelines = timelines(&message.recipients, &events);
    let shown = events.iter().map(EventView::from).collect();
    let entries = admin.store.timeline(&message, events, admin.clock.window_time()).await?;
    Ok(MessageShown {
        events: shown,
        explanations: entries.iter().map(explained).collect(),
        timeline: entries.into_iter().map(TimelineEntryView::from).collect(),
        timelines,
        idempotency_key: admin.idempotency_key(&message)?,
        suppressions: admin.suppressed_recipients(&message).await?,
        deliveries: admin.deliveries_of(id),
        restarted_at: restarted_at.map(|at| at.to_string()),
        view: admin.view(message, live.as_ref()),
    })
}

pub(super) async fn list(admin: &Admin, call: MessageList) -> Result<Messages> {
    let mut filter = admin.filter(&call)?;
    let ids = match (call.search.as_deref().map(str::trim), &call.before) {
        (None, _) => None,
        (Some(text), None) => admin.named_by(text, filter.organisation).await?,
        // The request for the first page has found what a text names alone.
        (Some(text), Some(_)) => MessageId::beginning_with(text),
    };
    if let Some(ids) = ids {
        let named = MessageFilter { ids: Some(ids), any_field: None, ..filter.clone() };
        let first = MessageFilter { before: None, ..named.clone() };
        let found = admin.listed(first, 2).await?;
        match &found.messages[..] {
            [] => {}
            [_] if !call.count && call.before.is_none() => {
                return Ok(Messages { exact: true, next: None, looked_back_to: None, ..found });
            }
            // The beginning of an id is that of several messages, if they were accepted within the
            // same time.
            _ => filter = named,
        }
    }
    if call.count {
        return admin.counted(filter).await;
    }
    admin.listed(filter, call.limit.min(MAX_PAGE)).await
}

pub(super) async fn cancel(admin: &Admin, call: MessageCancel) -> Result<MessagesCancelled> {
    if admin.live().is_none() {
        return Err(Refusal::new(
            "no service is running, so nothing can be cancelled now. If the service manager keeps \
             the bodies, the next start sends the queued messages; otherwise they fail with \
             body_lost_on_restart. To send none of them, discard the bodies before the start: \
             systemctl clean --what=fdstore pillarbox",
        ));
    }
    let selection = admin.selection(&call.messages)?;
    let (sum, nodes_without_answer) = admin.cancel(selection, Cancellation::ByOperator).await?;
    let Cancelled { cancelled, calls_under_way, not_pending } = sum;
    Ok(MessagesCancelled { cancelled, calls_under_way, not_pending, nodes_without_answer })
}

pub(super) async fn count(admin: &Admin, call: MessageCount) -> Result<MessagesCounted> {
    let selection = admin.selection(&call.messages)?;
    let (pending, nodes_without_answer) = admin.count_pending(&selection).await?;
    Ok(MessagesCounted { pending, nodes_without_answer })
}

impl Admin {
    async fn listed(&self, filter: MessageFilter, limit: usize) -> Result<Messages> {
        let (store, now) = (&self.store, self.clock.window_time());
        let (by, at) = (Lister::Operators, now.clone());
        let listing =
            listing::list(store, by, self.live_states(), filter, limit, at, |all| all).await?;
        let messages = listing.messages.into_iter();
        Ok(Messages {
            messages: messages.map(|(message, live)| self.view(message, live.as_ref())).collect(),
            next: listing.next.map(|id| id.to_string()),
            looked_back_to: listing.next.map(|id| now.corrected(id.instant()).to_string()),
            looked_at: Some(listing.looked_at),
            ..Messages::default()
        })
    }

    async fn counted(&self, filter: MessageFilter) -> Result<Messages> {
        let (store, now) = (&self.store, self.clock.window_time());
        let (by, at) = (Lister::Operators, now.clone());
        let found = listing::count(store, by, self.live_states(), filter, at).await?;
        let mut counts = BTreeMap::<String, BTreeMap<String, u64>>::new();
        for ((organisation, outcome), count) in found.messages {
            let own = counts.entry(self.shown(organisation)).or_default();
            own.insert(outcome.as_str().to_owned(), count);
        }
        Ok(Messages {
            next: found.next.map(|id| id.to_string()),
            looked_back_to: found.next.map(|id| now.corrected(id.instant()).to_string()),
            looked_at: Some(found.looked_at),
            counts: Some(counts),
            ..Messages::default()
        })
    }

    /// Returns a function that reads the state of pending messages, to lay over the stored records.
    fn live_states(&self) -> impl Fn(MessageId) -> Option<Live> + Send + use<> {
        let live = self.live().map(Arc::clone);
        move |id| live.as_ref().and_then(|live| live.message(id))
    }

    /// Returns the ids among which the message is that a text names: by its own id or its
    /// beginning, by its idempotency key, or by SES's id. Each is found without reading other
    /// messages.
    async fn named_by(
        &self,
        text: &str,
        organisation: Option<OrganisationId>,
    ) -> Result<Option<RangeInclusive<MessageId>>> {
        if let Some(ids) = MessageId::beginning_with(text) {
            return Ok(Some(ids));
        }
        if let Some(id) = self.store.message_sent_as(text).await? {
            return Ok(Some(id..=id));
        }
        let Ok(key) = IdempotencyKey::parse(text) else { return Ok(None) };
        let all = self.store.organisations().into_iter().map(|one| one.id);
        let wanted = all.filter(|id| organisation.is_none_or(|only| only == *id));
        for id in wanted.take(MAX_ORGANISATIONS_ASKED) {
            if let Some(id) = self.store.replay(id, key, self.clock.window_time()).await? {
                return Ok(Some(id..=id));
            }
        }
        Ok(None)
    }

    fn idempotency_key(&self, message: &Message) -> Result<Option<String>> {
        if message.created_at.is_past(IDEMPOTENCY_WINDOW, self.clock.now()) {
            return Ok(None);
        }
        Ok(self.store.idempotency_key(message.id)?)
    }

    async fn suppressed_recipients(&self, message: &Message) -> Result<Vec<Suppression>> {
        let mut found = Vec::new();
        for recipient in &message.recipients {
            let Some(address) = SuppressedAddress::of_recipient(recipient) else { continue };
            let all = self.store.suppressions_of(message.organisation, &address).await?;
            let shown = all.into_iter().map(|(scope, one)| self.shown_suppression(scope, &one));
            found.extend(shown);
        }
        Ok(found)
    }

    fn view(&self, message: Message, live: Option<&Live>) -> OperatorsView {
        let outcome = MessageOutcome::of_message(&message, View::of(&message, live).status);
        let kind = self.store.shown_kind(message.organisation);
        let priority = Some(message.terms.priority.effective().as_str().to_owned());
        OperatorsView {
            organisation: self.shown(message.organisation),
            from: message.from.clone(),
            outcome: outcome.as_str().to_owned(),
            message: MessageView { priority, ..MessageView::new(kind, message, live) },
        }
    }

    fn filter(&self, call: &MessageList) -> Result<MessageFilter> {
        let subject = short(call.subject.as_deref().unwrap_or_default(), MAX_SEARCH_CHARS)?;
        let recipient =
            call.recipient.as_deref().map(|text| short(text, MAX_SEARCH_CHARS)).transpose()?;
        let search = call.search.as_deref().map(|text| short(text, MAX_KEY_CHARS)).transpose()?;
        let organisation = |name| self.organisation_or_removed(name);
        let status = |text| one_of(text, "a status", &Status::ALL, Status::as_str);
        let outcome =
            |text| one_of(text, "an outcome", &MessageOutcome::ALL, MessageOutcome::as_str);
        let read = |text| moment(text, self.clock.now());
        Ok(MessageFilter {
            before: call.before.as_deref().map(message_id).transpose()?,
            organisation: call.organisation.as_deref().map(organisation).transpose()?,
            status: call.status.as_deref().map(status).transpose()?,
            outcome: call.outcome.as_deref().map(outcome).transpose()?,
            recipient_part: recipient.map(SearchText::new),
            sender_domain: owned_domain(call.sender_domain.as_deref())?,
            any_field: search.map(AnyField::new),
            subject_words: subject.split_whitespace().map(SearchText::new).collect(),
            created_from: call.from.as_deref().map(read).transpose()?,
            created_before: call.until.as_deref().map(read).transpose()?,
            ..MessageFilter::default()
        })
    }

    fn selection(&self, messages: &QueuedMessages) -> Result<Selection> {
        Ok(match messages {
            QueuedMessages::WithIds(ids) if ids.len() > MAX_MESSAGES => {
                return Err(Refusal::new(format!(
                    "one request takes at most {MAX_MESSAGES} messages; send them in parts"
                )));
            }
            QueuedMessages::WithIds(ids) => {
                Selection::Ids(ids.iter().map(|id| message_id(id)).collect::<Result<_, _>>()?)
            }
            QueuedMessages::OfOrganisation { name, key, domain } => Selection::Organisation {
                organisation: self.organisation_or_removed(name)?,
                key: key.map(KeyId),
                sender_domain: owned_domain(domain.as_deref())?,
            },
        })
    }
}

pub(super) fn owned_domain(text: Option<&str>) -> Result<Option<DomainName<'static>>> {
    text.map(|text| Ok(domain_name(text)?.into_owned())).transpose()
}

/// Returns a text that is to be searched for, if it is short enough.
fn short(text: &str, max: usize) -> Result<&str> {
    if text.chars().count() > max {
        return Err(Refusal::new(format!(
            "a text to search for has at most {max} characters; give a part of it"
        )));
    }
    Ok(text)
}

fn message_id(text: &str) -> Result<MessageId> {
    text.parse().map_err(|_| {
        Refusal::new(format!(
            "{text:?} is not a message id; ids look like 019a5b7c-0000-7000-8000-000000000000"
        ))
    })
}

fn one_of<T: Copy>(text: &str, what: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| {
        let all = all.iter().copied().map(name).collect::<Vec<_>>().join(", ");
        Refusal::new(format!("{text:?} is not {what}; give one of: {all}"))
    })
}

/// The timeline of each of the message's recipients, in their order, and then of those that only
/// events name. A recipient given twice has one. An event without recipients belongs to all of
/// them.
fn timelines(recipients: &[String], events: &[Event]) -> Vec<Timeline> {
    let named = events.iter().flat_map(|event| &event.recipients);
    let mut known: Vec<String> = Vec::new();
    let mut timelines = Vec::new();
    for recipient in recipients.iter().chain(named) {
        let address = normal(recipient);
        if known.contains(&address) {
            continue;
        }
        let own = events.iter().filter(|event| concerns(event, &address));
        let events = own.map(|event| RecipientEvent {
            event_type: event.event_type().as_str().to_owned(),
            occurred_at: event.occurred_at.to_string(),
            detail: DetailView::from(&event.detail),
        });
        timelines.push(Timeline { recipient: recipient.clone(), events: events.collect() });
        known.push(address);
    }
    timelines
}

fn concerns(event: &Event, address: &str) -> bool {
    event.recipients.is_empty() || event.recipients.iter().any(|named| normal(named) == address)
}

/// The form in which recipients are compared, as the store does it.
fn normal(recipient: &str) -> String {
    SuppressedAddress::of_recipient(recipient)
        .map_or_else(|| recipient.to_ascii_lowercase(), |address| address.as_str().to_owned())
}

/// Returns what there is to say of an entry of a timeline beside its kind.
fn explained(entry: &Entry) -> Option<Explained> {
    let Explanation { topic, cause, advice } = match entry {
        Entry::Event(event) => failure_explanations::of_event(event),
        Entry::Step(step) | Entry::EndAtUnknownTime(step) => {
            failure_explanations::of_failure(step.failure.as_ref()?.code)
        }
        Entry::Accepted(_) | Entry::Sent { .. } | Entry::Omitted(_) => return None,
    };
    Some(Explained { topic: topic.into(), cause: cause.into(), advice: advice.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::event::EventDetail;
    use pillarbox_domain::time::Timestamp;

    fn event(at: u64, recipients: &[&str], detail: EventDetail) -> Event {
        Event {
            occurred_at: Timestamp::from_unix_millis(at),
            recipients: recipients.iter().map(|&text| text.to_owned()).collect(),
            detail,
        }
    }

    #[test]
    fn each_recipient_has_its_own_events_and_one_without_any_is_there_too() {
        let to = ["Ann <Ann@x.org>", "bob@x.org", "ann@X.org", "eve@x.org"].map(str::to_owned);
        let delivery = EventDetail::Delivery { smtp_response: None };
        let delay =
            EventDetail::DeliveryDelay { delay_type: "General".to_owned(), diagnostic_code: None };
        let events = [
            event(1, &["ann@x.org", "bob@x.org"], delay),
            event(2, &["ann@x.org"], delivery.clone()),
            event(3, &["forwarded@y.org"], delivery),
        ];
        let found: Vec<_> = timelines(&to, &events)
            .into_iter()
            .map(|line| {
                let types: Vec<_> = line.events.into_iter().map(|event| event.event_type).collect();
                (line.recipient, types.join(" "))
            })
            .collect();
        let expected = [
            ("Ann <Ann@x.org>", "delivery_delay delivery"),
            ("bob@x.org", "delivery_delay"),
            ("eve@x.org", ""),
            ("forwarded@y.org", "delivery"),
        ];
        assert_eq!(found, expected.map(|(who, what)| (who.to_owned(), what.to_owned())));

        let reject = event(1, &[], EventDetail::Reject { reason: "Bad content".to_owned() });
        assert!(timelines(&to, &[reject]).iter().all(|line| line.events.len() == 1));
    }
}
