//! Messages as operators read and cancel them.

use std::sync::Arc;

use crate::admin::wire::{
    MAX_MESSAGES, MAX_PAGE, MessageList, MessageRecord, MessageSummary, MessagesCancelled,
    QueuedMessages, Refusal, Response,
};
use crate::admin::{Admin, Place, domain_name};
use crate::dispatch::Cancelled;
use crate::domain::id::{KeyId, MessageId};
use crate::domain::message::{Cancellation, Status};
use crate::domain::policy::RECORD_RETENTION_DAYS;
use crate::domain::suppression::SuppressedAddress;
use crate::listing;
use crate::queue::{Live, Selection};
use crate::store::{MessageFilter, StoreError};

/// Which messages to list.
pub(super) struct Query {
    pub(super) organisation: Option<String>,
    pub(super) status: Option<String>,
    pub(super) recipient: Option<String>,
    pub(super) before: Option<String>,
    pub(super) limit: usize,
}

impl Admin {
    pub(super) fn show_message(&self, text: &str) -> Result<Response, Refusal> {
        let id = message_id(text)?;
        // Before the row: a message that is settled in between is shown as settled.
        let live = self.live(id);
        let message = self.store.message(id, self.clock.settled())?.ok_or_else(|| {
            Refusal::new(format!(
                "there is no message {id}; records are kept for {RECORD_RETENTION_DAYS} days \
                 from acceptance"
            ))
        })?;
        let events = self.store.events(id)?;
        let organisation = self.shown(message.organisation);
        let record = MessageRecord::new(message, live.as_ref(), &events, organisation);
        Ok(Response::Message(Box::new(record)))
    }

    pub(super) async fn list_messages(&self, query: &Query) -> Result<Response, Refusal> {
        let organisation = query.organisation.as_deref();
        let filter = MessageFilter {
            before: query.before.as_deref().map(message_id).transpose()?,
            organisation: organisation
                .map(|name| self.organisation_or_removed(name))
                .transpose()?,
            status: query.status.as_deref().map(status).transpose()?,
            recipient: query.recipient.as_deref().map(recipient).transpose()?,
            ..MessageFilter::default()
        };
        let (limit, now) = (query.limit.min(MAX_PAGE), self.clock.settled());
        let live = match &self.place {
            Place::Service { live, .. } => Some(Arc::clone(live)),
            Place::File => None,
        };
        let live = move |id| live.as_ref().and_then(|live| live.message(id));
        let listing = listing::list(&self.store, live, filter, limit, now, |all| all).await?;
        let messages = listing.messages.into_iter().map(|(message, live)| {
            let organisation = self.shown(message.organisation);
            MessageSummary::new(message, live.as_ref(), organisation)
        });
        let next = listing.next.map(|id| id.to_string());
        Ok(Response::Messages(MessageList { messages: messages.collect(), next }))
    }

    /// Cancels queued messages at the operator's request.
    pub(super) async fn cancel_messages(
        &self,
        messages: &QueuedMessages,
    ) -> Result<Response, Refusal> {
        if let Place::File = self.place {
            return Err(Refusal::new(
                "no service runs, so nothing is queued and there is nothing to cancel: what was \
                 queued failed with body_lost_on_restart when the service ended",
            ));
        }
        let selection = match messages {
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
                sender_domain: match domain {
                    Some(text) => Some(domain_name(text)?.into_owned()),
                    None => None,
                },
            },
        };
        let cancelled = self.cancel(selection, Cancellation::ByOperator).await?;
        let Cancelled { cancelled, calls_under_way, not_pending } = cancelled;
        Ok(Response::MessagesCancelled(MessagesCancelled {
            cancelled,
            calls_under_way,
            not_pending,
        }))
    }

    /// Cancels pending messages; none are where no service runs.
    pub(super) async fn cancel(
        &self,
        selection: Selection,
        why: Cancellation,
    ) -> Result<Cancelled, StoreError> {
        match &self.place {
            Place::Service { live, .. } => live.cancel(selection, why).await,
            Place::File => Ok(Cancelled::default()),
        }
    }

    fn live(&self, id: MessageId) -> Option<Live> {
        match &self.place {
            Place::Service { live, .. } => live.message(id),
            Place::File => None,
        }
    }
}

fn recipient(text: &str) -> Result<SuppressedAddress, Refusal> {
    SuppressedAddress::of_recipient(text).ok_or_else(|| {
        Refusal::new(format!("{text:?} is not an address; write it as in ada@example.net"))
    })
}

fn message_id(text: &str) -> Result<MessageId, Refusal> {
    text.parse().map_err(|_| {
        Refusal::new(format!(
            "{text:?} is not a message id; ids look like 019a5b7c-0000-7000-8000-000000000000"
        ))
    })
}

fn status(text: &str) -> Result<Status, Refusal> {
    Status::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
        let all = Status::ALL.map(Status::as_str).join(", ");
        Refusal::new(format!("{text:?} is not a status; those there are: {all}"))
    })
}
