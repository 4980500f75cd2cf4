//! Webhooks: endpoints added, listed, changed and tested, and their deliveries.

use serde::{Deserialize, Serialize};

use crate::key::SecretInClear;
use crate::{
    Admin, Refusal, Result, WebhookAdd, WebhookDeliveryList, WebhookList, WebhookPause,
    WebhookReach, WebhookRemove, WebhookReplay, WebhookResume, WebhookRotate, WebhookShow,
    WebhookTest, moment,
};
use pillarbox_domain::feed::{FeedEventId, FeedEventType, FeedPosition, FeedTypes};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{
    EarlierSecrets, PausedBy, SigningSecret, Webhook as Endpoint, WebhookFormat, WebhookId,
    WebhookState, WebhookUrl,
};
use pillarbox_records::views::resend::event_name;
use pillarbox_store::{
    Change, Duty, FIRST_WITH_WEBHOOK_FORMATS, MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE, NewWebhook,
    WebhookAdded as Added,
};
use pillarbox_webhooks::{self as webhooks, AttemptResult, Attempted, EndpointStatus};

/// The most deliveries of each state that are listed.
const MAX_DELIVERIES: usize = 100;
/// The longest file of certificates, in bytes.
const MAX_AUTHORITY_BYTES: usize = 256 << 10;
/// The most of a test's answer that is shown, in bytes.
const MAX_BODY_SHOWN: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WhichDeliveries {
    /// The last ones since the start of the service, those that wait, and those that failed.
    All,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReplayedEvents {
    /// All that were recorded at a time or later.
    Since(String),
    One(String),
}

/// A new endpoint, or a new secret of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookSecret {
    pub id: u32,
    pub secret: SecretInClear,
    pub organisation: String,
    pub url: String,
    /// Number of secrets that sign from now on, with this one.
    #[serde(default)]
    pub signing: usize,
}

/// An endpoint as it is listed: never its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    pub id: u32,
    pub organisation: String,
    pub url: String,
    pub types: Vec<String>,
    /// Format of the body: `standard` or `resend`.
    pub format: String,
    /// `active`, `paused` or `gone`; `gone` is paused because it answered 410.
    pub state: String,
    pub paused_at: Option<String>,
    pub created_at: String,
    /// Until when secrets before the present one sign as well.
    pub rotating_until: Option<String>,
    /// State of its deliveries; `None` if no service runs.
    pub deliveries: Option<WebhookDeliveries>,
}

/// Deliveries to an endpoint since the start of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDeliveries {
    pub failing: bool,
    pub failures_in_a_row: u32,
    /// Last answer, or what came in its place.
    pub last_answer: Option<String>,
    pub last_answer_at: Option<String>,
    pub in_flight: usize,
    pub waiting: u64,
    /// Time of the oldest event that no attempt was made for.
    pub behind_since: Option<String>,
    pub delivered: u64,
    pub failed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhooks {
    pub webhooks: Vec<Webhook>,
}

/// Answer to a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookTested {
    pub delivered: bool,
    /// Status, or what went wrong.
    pub answer: String,
    pub took_millis: u64,
    pub body: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDelivery {
    /// `delivered`, `waiting` for its next attempt, or `failed` for good.
    pub state: String,
    /// Identifier of the event; `None` if the event is past its retention.
    pub event: Option<String>,
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    pub message: Option<String>,
    pub attempts: u32,
    /// Time at which the last attempt ended; `None` if there was none.
    pub attempted_at: Option<String>,
    /// Answer to the last attempt, or what came in its place.
    pub answer: Option<String>,
    pub next_attempt_at: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookDeliveryPage {
    /// Delivered ones, newest first; then those that wait, by the time of their next attempt; then
    /// those that failed, newest first. At most 100 of each.
    pub deliveries: Vec<WebhookDelivery>,
}

/// An endpoint with its last attempts since the start of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookShown {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// At most 100, newest first.
    pub attempts: Vec<WebhookAttempt>,
}

/// Attempt to deliver an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookAttempt {
    /// State of the delivery after it: `delivered`, `waiting` or `failed`.
    pub state: String,
    pub event: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub message: String,
    /// Its number, from 1 on.
    pub attempt: u32,
    pub at: String,
    pub took_millis: u64,
    /// Status of the answer, or what went wrong.
    pub answer: String,
    /// Beginning of the answer's body.
    pub body: String,
    pub next_attempt_at: Option<String>,
}

/// Attempt to deliver an event of a message, with the endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageDelivery {
    pub webhook: u32,
    pub url: String,
    #[serde(flatten)]
    pub attempt: WebhookAttempt,
}

/// Events that are delivered again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookReplayed {
    pub id: u32,
    /// True if some events are delivered again; if not, all of them are still to come.
    pub replayed: bool,
}

/// Result of a HEAD request to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookReached {
    /// Status of its answer to a HEAD request, if there was one.
    pub status: Option<u16>,
    pub reason: Option<String>,
    /// The proxy that it was asked through.
    pub proxy: Option<String>,
}

pub(super) async fn reach(admin: &Admin, call: WebhookReach) -> Result<WebhookReached> {
    let webhook = admin.webhook(call.id)?;
    let reached = webhooks::reach(&webhook, &admin.webhooks_proxy).await;
    let (answer, proxy) = reached.unwrap_or_else(|error| (Err(error.to_string()), None));
    Ok(WebhookReached { status: answer.as_ref().ok().copied(), reason: answer.err(), proxy })
}

pub(super) async fn add(admin: &Admin, call: WebhookAdd) -> Result<WebhookSecret> {
    let WebhookAdd { organisation, url, types, format, authority } = call;
    let organisation = admin.organisation(&organisation)?;
    let url = WebhookUrl::parse(&url)
        .map_err(|rule| Refusal::new(format!("{url:?} cannot be an endpoint: {rule}")))?;
    let format = read_format(format.as_deref())?;
    let types = read_types(&types, format)?;
    if authority.as_ref().is_some_and(|pem| pem.len() > MAX_AUTHORITY_BYTES) {
        let rule = format!("a file of certificates has at most {MAX_AUTHORITY_BYTES} bytes");
        return Err(Refusal::new(rule));
    }
    if format != WebhookFormat::Standard {
        admin.require_no_node_before(FIRST_WITH_WEBHOOK_FORMATS).await?;
    }
    let secret = SigningSecret::generate()?;
    webhooks::check(&url, authority.as_deref()).map_err(|error| Refusal::new(error.to_string()))?;
    let new = NewWebhook { url, types, format, authority, secret };
    match admin.store.add_webhook(organisation.id, new, admin.clock.now()).await? {
        Added::Added(webhook) => Ok(shown_secret(admin, &webhook)),
        Added::NoOrganisation => Err(Admin::gone(&organisation)),
        Added::TooMany => Err(Refusal::new(format!(
            "an organisation has at most {MAX_WEBHOOKS_OF_ONE} endpoints, and all organisations \
             together have at most {MAX_WEBHOOKS}; remove one that is not needed: pillarbox \
             webhook remove ID"
        ))),
    }
}

pub(super) fn list(admin: &Admin, call: &WebhookList) -> Result<Webhooks> {
    let (only, all) = (call.organisation.as_deref(), admin.store.webhooks());
    let webhooks = admin.only(only, all, |webhook| webhook.organisation)?;
    Ok(Webhooks { webhooks: webhooks.iter().map(|webhook| shown(admin, webhook)).collect() })
}

pub(super) fn show(admin: &Admin, call: &WebhookShow) -> Result<WebhookShown> {
    let webhook = admin.webhook(call.id)?;
    let recent = admin.deliveries().map(|it| it.status(webhook.id).recent).unwrap_or_default();
    let attempts = recent.iter().rev().map(|one| WebhookAttempt::from(&**one)).collect();
    Ok(WebhookShown { webhook: shown(admin, &webhook), attempts })
}

pub(super) async fn remove(admin: &Admin, call: WebhookRemove) -> Result<Webhook> {
    let webhook = admin.webhook(call.id)?;
    match admin.store.remove_webhook(webhook.id).await? {
        Change::Made => Ok(shown(admin, &webhook)),
        Change::None => Err(no_webhook(call.id)),
    }
}

pub(super) async fn pause(admin: &Admin, call: WebhookPause) -> Result<Webhook> {
    let by = PausedBy::Operator;
    admin.set_state(call.id, WebhookState::Paused { by, since: admin.clock.now() }).await
}

pub(super) async fn resume(admin: &Admin, call: WebhookResume) -> Result<Webhook> {
    admin.set_state(call.id, WebhookState::Active).await
}

pub(super) async fn rotate(admin: &Admin, call: WebhookRotate) -> Result<WebhookSecret> {
    let (id, now) = (WebhookId(call.id), admin.clock.now());
    let earlier = if call.now { EarlierSecrets::End } else { EarlierSecrets::Sign };
    let endpoint = admin.webhook(call.id)?;
    if earlier == EarlierSecrets::Sign && endpoint.secrets(now).count() > 1 {
        // Nodes of before cannot read more than two.
        admin.require_no_node_before(FIRST_WITH_WEBHOOK_FORMATS).await?;
    }
    let webhook = admin.store.rotate_webhook(id, SigningSecret::generate()?, earlier, now).await?;
    Ok(shown_secret(admin, &webhook.ok_or_else(|| no_webhook(call.id))?))
}

pub(super) async fn test(admin: &Admin, call: WebhookTest) -> Result<WebhookTested> {
    let webhook = admin.webhook(call.id)?;
    let kind = admin.store.shown_kind(webhook.organisation);
    let answer = webhooks::test(&webhook, kind, &admin.clock, &admin.webhooks_proxy).await;
    let mut answer = answer.map_err(|error| Refusal::new(error.to_string()))?;
    answer.body.truncate(answer.body.floor_char_boundary(MAX_BODY_SHOWN));
    Ok(WebhookTested {
        delivered: answer.is_delivered,
        answer: answer.answer,
        took_millis: u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX),
        body: answer.body,
    })
}

pub(super) async fn deliveries(
    admin: &Admin,
    call: WebhookDeliveryList,
) -> Result<WebhookDeliveryPage> {
    let webhook = admin.webhook(call.id)?;
    let (mut deliveries, mut kept) = (Vec::new(), Vec::new());
    if call.which == WhichDeliveries::All {
        let recent = admin.deliveries().map(|it| it.status(webhook.id).recent).unwrap_or_default();
        let taken = recent.iter().filter(|one| one.result == AttemptResult::Delivered);
        deliveries.extend(taken.rev().map(|one| delivered(one)));
        let page = admin.store.waiting_deliveries(webhook.id, MAX_DELIVERIES).await?;
        kept.extend(
            page.deliveries.into_iter().map(|one| ("waiting", one.delivery, Some(one.due))),
        );
    }
    let failed = admin.store.failed_deliveries(webhook.id, MAX_DELIVERIES).await?;
    kept.extend(failed.into_iter().map(|delivery| ("failed", delivery, None)));
    for (state, delivery, due) in kept {
        let (organisation, now) = (webhook.organisation, admin.clock.window_time());
        let entry = admin.store.feed_entry(organisation, delivery.position, now).await?;
        deliveries.push(WebhookDelivery {
            state: state.to_owned(),
            event: entry.as_ref().map(|entry| entry.id().to_string()),
            event_type: entry.as_ref().map(|entry| entry.event_type().as_str().to_owned()),
            message: entry.map(|entry| entry.message.id.to_string()),
            attempts: delivery.attempts,
            attempted_at: delivery.last.map(|(at, _)| at.to_string()),
            answer: delivery.last.map(|(_, failure)| failure.to_string()),
            next_attempt_at: due.map(|due| due.to_string()),
        });
    }
    Ok(WebhookDeliveryPage { deliveries })
}

pub(super) async fn replay(admin: &Admin, call: WebhookReplay) -> Result<WebhookReplayed> {
    let webhook = admin.webhook(call.id)?;
    let attempted_to = admin.attempted_to(webhook.id);
    let change = match &call.events {
        ReplayedEvents::Since(time) => {
            let since = replay_start(time, admin.clock.now())?;
            let first = FeedPosition::first_of(since).number();
            let before = FeedPosition::from_number(first.saturating_sub(1));
            admin.store.move_webhook_back(webhook.id, before, attempted_to).await?
        }
        ReplayedEvents::One(event) => {
            let position = admin.event_position(&webhook, event).await?;
            let now = admin.clock.now();
            admin.store.redeliver(webhook.id, position, attempted_to, now).await?
        }
    };
    let change = change.ok_or_else(|| no_webhook(call.id))?;
    Ok(WebhookReplayed { id: call.id, replayed: change == Change::Made })
}

impl Admin {
    /// The place of an event that the endpoint's organisation has.
    async fn event_position(&self, webhook: &Endpoint, event: &str) -> Result<FeedPosition> {
        let id: FeedEventId =
            event.parse().map_err(|rule| Refusal::new(format!("{event:?} is {rule}")))?;
        let now = self.clock.window_time();
        let found = self.store.feed_entry(webhook.organisation, id.position(), now).await?;
        match found.filter(|entry| entry.id() == id) {
            Some(entry) if webhook.types.contains(entry.event_type()) => Ok(entry.position),
            Some(entry) => Err(Refusal::new(format!(
                "endpoint {} does not receive events of the type {}",
                webhook.id,
                entry.event_type().as_str()
            ))),
            None => Err(Refusal::new(format!(
                "the organisation of endpoint {} has no event {event}, or it is past its retention",
                webhook.id
            ))),
        }
    }

    async fn set_state(&self, id: u32, state: WebhookState) -> Result<Webhook> {
        let webhook = self.store.set_webhook_state(WebhookId(id), state).await?;
        Ok(shown(self, &webhook.ok_or_else(|| no_webhook(id))?))
    }

    fn webhook(&self, id: u32) -> Result<Endpoint> {
        self.store.webhook(WebhookId(id)).ok_or_else(|| no_webhook(id))
    }

    /// Position of the last event that an attempt was made for, as far as the stored cursor does not
    /// say it. If another node delivers, only that node knows, and every event counts as attempted:
    /// it is delivered twice at worst, and never left out.
    fn attempted_to(&self, id: WebhookId) -> FeedPosition {
        match self.deliveries() {
            Some(_) if !*self.store.has_duty(Duty::Webhooks).borrow() => {
                FeedPosition::from_number(u64::MAX)
            }
            Some(webhooks) => webhooks.status(id).attempted_to.unwrap_or(FeedPosition::START),
            None => FeedPosition::START,
        }
    }

    /// Last attempts to deliver events of a message, oldest first.
    pub(super) fn deliveries_of(&self, message: MessageId) -> Vec<MessageDelivery> {
        let message = message.to_string();
        let all = self.deliveries().map(webhooks::Webhooks::all_statuses).unwrap_or_default();
        let mut found: Vec<_> = all
            .iter()
            .flat_map(|(webhook, status)| status.recent.iter().map(move |one| (webhook, one)))
            .filter(|(_, one)| one.message == message)
            .collect();
        found.sort_by_key(|(_, one)| one.at);
        let shown = found.into_iter().map(|(webhook, one)| MessageDelivery {
            webhook: webhook.id.0,
            url: webhook.url.as_str().to_owned(),
            attempt: WebhookAttempt::from(&**one),
        });
        shown.collect()
    }

    /// State of its deliveries in the running service; `None` if none runs.
    fn deliveries(&self) -> Option<&webhooks::Webhooks> {
        self.live().and_then(|live| live.webhooks())
    }
}

fn no_webhook(id: u32) -> Refusal {
    Refusal::new(format!(
        "there is no endpoint {id}; to list the endpoints: pillarbox webhook list"
    ))
}

fn delivered(one: &Attempted) -> WebhookDelivery {
    WebhookDelivery {
        state: one.result.as_str().to_owned(),
        event: Some(one.event.clone()),
        event_type: Some(one.event_type.to_owned()),
        message: Some(one.message.clone()),
        attempts: one.attempt,
        attempted_at: Some(one.at.to_string()),
        answer: Some(one.answer.clone()),
        next_attempt_at: None,
    }
}

impl From<&Attempted> for WebhookAttempt {
    fn from(one: &Attempted) -> Self {
        Self {
            state: one.result.as_str().to_owned(),
            event: one.event.clone(),
            event_type: one.event_type.to_owned(),
            message: one.message.clone(),
            attempt: one.attempt,
            at: one.at.to_string(),
            took_millis: u64::try_from(one.took.as_millis()).unwrap_or(u64::MAX),
            answer: one.answer.clone(),
            body: one.body.to_string(),
            next_attempt_at: match one.result {
                AttemptResult::Waiting(due) => Some(due.to_string()),
                AttemptResult::Delivered | AttemptResult::Failed | AttemptResult::Gone => None,
            },
        }
    }
}

/// Reads from when on events are delivered again.
fn replay_start(text: &str, now: Timestamp) -> Result<Timestamp> {
    let start = moment(text, now)?;
    if start > now {
        return Err(Refusal::new(format!("{text} is in the future; give an earlier time")));
    }
    Ok(start)
}

fn read_format(name: Option<&str>) -> Result<WebhookFormat> {
    let Some(name) = name else { return Ok(WebhookFormat::default()) };
    let known = WebhookFormat::ALL.into_iter().find(|format| format.as_str() == name);
    known.ok_or_else(|| Refusal::new(format!("{name:?} is not an event format")))
}

/// Reads the names of types; all if there is none. In Resend's form, its names stand for all types that
/// become them.
fn read_types(names: &[String], format: WebhookFormat) -> Result<FeedTypes> {
    if names.is_empty() {
        return Ok(FeedTypes::ALL);
    }
    let mut types = Vec::new();
    for name in names {
        let is_named = |one: &FeedEventType| {
            one.as_str() == name || (format == WebhookFormat::Resend && event_name(*one) == *name)
        };
        let before = types.len();
        types.extend(FeedEventType::ALL.into_iter().filter(is_named));
        if types.len() == before
            && let Err(rule) = name.parse::<FeedEventType>()
        {
            return Err(Refusal::new(format!("{name:?} is not an event type: it {rule}")));
        }
    }
    Ok(types.into_iter().collect())
}

fn shown_secret(admin: &Admin, webhook: &Endpoint) -> WebhookSecret {
    WebhookSecret {
        id: webhook.id.0,
        secret: SecretInClear(webhook.secret.reveal()),
        organisation: admin.shown(webhook.organisation),
        url: webhook.url.as_str().to_owned(),
        signing: webhook.secrets(admin.clock.now()).count(),
    }
}

fn shown(admin: &Admin, webhook: &Endpoint) -> Webhook {
    let (state, paused_at) = match webhook.state {
        WebhookState::Active => ("active", None),
        WebhookState::Paused { by: PausedBy::Operator, since } => ("paused", Some(since)),
        WebhookState::Paused { by: PausedBy::Endpoint, since } => ("gone", Some(since)),
    };
    // The newest signs the longest.
    let rotating = webhook.replaced.first().map(|replaced| replaced.until);
    Webhook {
        id: webhook.id.0,
        organisation: admin.shown(webhook.organisation),
        url: webhook.url.as_str().to_owned(),
        types: webhook.types.iter().map(|one| one.as_str().to_owned()).collect(),
        format: webhook.format.as_str().to_owned(),
        state: state.to_owned(),
        paused_at: paused_at.map(|at| at.to_string()),
        created_at: webhook.created_at.to_string(),
        rotating_until: rotating
            .filter(|until| admin.clock.now() < *until)
            .map(|at| at.to_string()),
        deliveries: admin.deliveries().map(|it| it.status(webhook.id).into()),
    }
}

impl From<EndpointStatus> for WebhookDeliveries {
    fn from(status: EndpointStatus) -> Self {
        Self {
            failing: status.is_failing(),
            failures_in_a_row: status.failures_in_a_row,
            last_answer_at: status.last.as_ref().map(|last| last.at.to_string()),
            last_answer: status.last.map(|last| last.answer),
            in_flight: status.in_flight,
            waiting: status.waiting,
            behind_since: status.behind_since.map(|at| at.to_string()),
            delivered: status.delivered,
            failed: status.failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_on_the_wire_and_not_in_debug() {
        let added = WebhookSecret {
            id: 7,
            secret: SecretInClear("whsec_hidden".to_owned()),
            organisation: "acme".to_owned(),
            url: "https://app.example.com/".to_owned(),
            signing: 1,
        };
        assert!(!format!("{added:?}").contains("hidden"));
        assert!(serde_json::to_string(&added).unwrap().contains(r#""secret":"whsec_hidden""#));
    }

    #[test]
    fn a_replay_begins_in_the_past() {
        let now = Timestamp::parse_rfc3339("2026-11-21T12:00:00Z").unwrap();
        assert_eq!(replay_start("2h", now).unwrap().to_string(), "2026-11-21T10:00:00.000Z");
        for text in ["soon", "2026-11-22", "2026-11-21T12:00:00.001Z"] {
            assert!(replay_start(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn types_are_read_by_name_and_none_are_all() {
        let read = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            read_types(&names, WebhookFormat::Standard)
        };
        assert_eq!(read(&[]).unwrap(), FeedTypes::ALL);
        let types = read(&["email.bounce", "email.complaint"]).unwrap();
        assert_eq!(types, [FeedEventType::Bounce, FeedEventType::Complaint].into_iter().collect());
        assert!(read(&["bounce"]).unwrap_err().message.contains("email.bounce"));
    }

    #[test]
    fn resends_names_stand_for_all_types_that_become_them() {
        let read = |name: &str| read_types(&[name.to_owned()], WebhookFormat::Resend);
        assert_eq!(read("email.bounced").unwrap(), FeedTypes::from_iter([FeedEventType::Bounce]));
        assert_eq!(read("email.bounce").unwrap(), FeedTypes::from_iter([FeedEventType::Bounce]));
        let failed = FeedTypes::from_iter([FeedEventType::Failed, FeedEventType::Reject]);
        assert_eq!(read("email.failed").unwrap(), failed);
        assert!(read("email.opened").is_err());
        assert!(read_types(&["email.bounced".to_owned()], WebhookFormat::Standard).is_err());
    }
}
