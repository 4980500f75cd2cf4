//! Stores that have been in use: messages with their whole life, written through the store.

use std::path::Path;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use pillarbox_domain::admission::admit;
use pillarbox_domain::event::{Event, EventDetail};
use pillarbox_domain::id::{MessageId, MessageIds};
use pillarbox_domain::message::Transition;
use pillarbox_domain::organisation::Organisation;
use pillarbox_domain::request::{Draft, SendRequest};
use pillarbox_domain::time::Timestamp;
use pillarbox_store::{NewMessage, Reference, Report, Store};

use crate::process::{now, organisation_name, set_up};

/// Number of messages on their way to the store at one time.
const AT_ONCE: usize = 2_048;
/// Number of the first ids that are returned, for a part that reads messages.
const IDS: usize = 100_000;

/// Content that the store is to have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) messages: usize,
    /// Number of them, the newest, that have an idempotency key.
    pub(crate) keys: usize,
    /// Number of them, the newest, that are pending. The others are sent.
    pub(crate) pending: usize,
    /// The delivery events of each message that is sent.
    pub(crate) events: usize,
    /// The age of the oldest.
    pub(crate) oldest: Duration,
    /// The age of the newest.
    pub(crate) newest: Duration,
}

impl Plan {
    /// Messages of the last hours, each with a key.
    pub(crate) fn recent(messages: usize) -> Self {
        Self {
            messages,
            keys: messages,
            pending: 0,
            events: 0,
            oldest: Duration::from_hours(20),
            newest: Duration::from_hours(1),
        }
    }
}

/// Makes a store that lets the load in, and fills it. Answers the ids of some of the messages.
pub(crate) fn fill(directory: &Path, plan: &Plan) -> anyhow::Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (store, _) = Store::open(directory, now())?;
    let ids = runtime.block_on(async {
        let organisation = set_up(&store).await?;
        fill_store(&store, &organisation, plan).await
    })?;
    Ok(ids)
}

/// Fills a store that is open.
pub(crate) async fn fill_store(
    store: &Store,
    organisation: &Organisation,
    plan: &Plan,
) -> anyhow::Result<Vec<String>> {
    let ids = MessageIds::new();
    let (first, last) = (now().minus(plan.oldest), now().minus(plan.newest));
    let span = last.unix_millis() - first.unix_millis();
    let mut known = Vec::new();
    let messages = (0..plan.messages).map(|number| {
        let position = span * number as u64 / plan.messages as u64;
        let created_at = first.plus(Duration::from_millis(position));
        let id = ids.next(created_at);
        if number < IDS {
            known.push(id.to_string());
        }
        let left = plan.messages - number;
        Message {
            number,
            id,
            created_at,
            has_key: left <= plan.keys,
            is_pending: left <= plan.pending,
        }
    });
    stream::iter(messages)
        .map(|message| live(store, organisation, message, plan.events))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(known)
}

struct Message {
    number: usize,
    id: MessageId,
    created_at: Timestamp,
    has_key: bool,
    is_pending: bool,
}

/// A message's life, from its acceptance to its events.
async fn live(
    store: &Store,
    organisation: &Organisation,
    message: Message,
    events: usize,
) -> anyhow::Result<()> {
    let Message { number, id, created_at, has_key, is_pending } = message;
    let key = has_key.then(|| idempotency_key(number));
    let request = SendRequest::parse(draft(key.as_deref()))
        .map_err(|error| anyhow::anyhow!("the message is refused: {error:?}"))?;
    let admitted = admit(request, &store.facts(organisation.id))
        .await
        .map_err(|error| anyhow::anyhow!("it is not admitted: {error:?}"))?;
    store
        .accept(NewMessage::new(id, organisation.id, &admitted, created_at, created_at, || ()))
        .await?;
    if is_pending {
        return Ok(());
    }
    let sent_at = sent_at(created_at);
    let ses_message_id = ses_message_id(number, sent_at);
    let sent = Transition::Sent { ses_message_id: ses_message_id.clone(), sent_at };
    store.record(id, 1, sent, sent_at).await?;
    for event in 0..events {
        store.apply(report(id, &ses_message_id, sent_at, event), sent_at).await?;
    }
    Ok(())
}

/// Key of a message of this number, if it has one.
pub(crate) fn idempotency_key(number: usize) -> String {
    format!("order-{number:020}")
}

/// Time at which SES accepted a message.
pub(crate) fn sent_at(created_at: Timestamp) -> Timestamp {
    created_at.plus(Duration::from_millis(80))
}

/// The message's fields that reach the store, as in [`message::json`].
pub(crate) fn draft(idempotency_key: Option<&str>) -> Draft<'_> {
    Draft {
        from: Some("Example Shop <orders@mail.example.com>"),
        to: Some(vec!["Ada Lovelace <ada.lovelace@example.org>"]),
        subject: Some("Your order 4711 is on its way"),
        text: Some("Thank you for your order.".into()),
        idempotency_key,
        ..Draft::default()
    }
}

/// SES's report of one of a message's events: a delay first, then the delivery.
pub(crate) fn report(
    id: MessageId,
    ses_message_id: &str,
    sent_at: Timestamp,
    event: usize,
) -> Report {
    let detail = if event.is_multiple_of(2) {
        EventDetail::DeliveryDelay {
            delay_type: "MailboxFull".to_owned(),
            diagnostic_code: Some("smtp; 452 4.2.2 mailbox is full".to_owned()),
        }
    } else {
        EventDetail::Delivery { smtp_response: Some("250 2.6.0 Message received".to_owned()) }
    };
    let occurred_at = sent_at.plus(Duration::from_secs(1 + event as u64));
    let recipients = vec!["ada.lovelace@example.org".to_owned()];
    Report {
        message: Reference::Tag(id),
        organisation: Some(organisation_name(0)),
        ses_message_id: ses_message_id.to_owned(),
        accepted_at: sent_at,
        event: Some(Event { occurred_at, recipients, detail }),
    }
}

/// An identifier of the form and length that SES gives.
pub(crate) fn ses_message_id(number: usize, sent_at: Timestamp) -> String {
    let millis = sent_at.unix_millis();
    format!("0100{millis:012x}-1b2c3d4e-5f60-4718-9a2b-{number:012x}-000000")
}
