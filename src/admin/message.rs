//! Messages as operators read them.

use crate::admin::wire::{MAX_PAGE, MessageList, MessageRecord, MessageSummary, Refusal, Response};
use crate::admin::{Admin, Place};
use crate::domain::id::MessageId;
use crate::domain::message::{Message, Status};
use crate::outbox::{Live, View};
use crate::store::MessageFilter;

/// About how many bytes a page of messages may have: a page ends early where they are long.
const PAGE_BYTES: usize = 4 << 20;
/// What a row adds to its texts.
const ROW_BYTES: usize = 512;
/// Every status, for the rule that a wrong one breaks.
const STATUSES: [Status; 5] =
    [Status::Queued, Status::Sending, Status::Sent, Status::Failed, Status::Suppressed];

/// Which messages to list.
pub(super) struct Query {
    pub(super) organisation: Option<String>,
    pub(super) status: Option<String>,
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
                "there is no message {id}; records are kept for 90 days from acceptance"
            ))
        })?;
        let events = self.store.events(id)?;
        let organisation = self.shown(message.organisation);
        let record = MessageRecord::new(message, live.as_ref(), &events, organisation);
        Ok(Response::Message(Box::new(record)))
    }

    pub(super) async fn list_messages(&self, query: &Query) -> Result<Response, Refusal> {
        let organisation = query.organisation.as_deref();
        let wanted = query.status.as_deref().map(status).transpose()?;
        let filter = MessageFilter {
            before: query.before.as_deref().map(message_id).transpose()?,
            organisation: organisation
                .map(|name| self.organisation_or_removed(name))
                .transpose()?,
            // That a call is under way is not stored.
            status: wanted.map(|status| match status {
                Status::Sending => Status::Queued,
                stored => stored,
            }),
        };
        let limit = query.limit.clamp(1, MAX_PAGE);
        let read = match wanted {
            // Rows are told apart only after they are read: few of them may be wanted.
            Some(Status::Queued | Status::Sending) => MAX_PAGE,
            Some(Status::Sent | Status::Failed | Status::Suppressed) | None => limit,
        };
        let rows = self.store.list(filter, read, self.clock.settled()).await?;
        let mut next = rows.last().filter(|_| rows.len() == read).map(|last| last.id);
        let mut messages = Vec::new();
        let mut bytes = 0;
        for message in rows {
            let (id, live) = (message.id, self.live(message.id));
            if wanted.is_some_and(|wanted| wanted != View::of(&message, live.as_ref()).status) {
                continue;
            }
            bytes += size(&message);
            let organisation = self.shown(message.organisation);
            messages.push(MessageSummary::new(message, live.as_ref(), organisation));
            if bytes >= PAGE_BYTES || messages.len() == limit {
                next = Some(id);
                break;
            }
        }
        let next = next.map(|id| id.to_string());
        Ok(Response::Messages(MessageList { messages, next }))
    }

    fn live(&self, id: MessageId) -> Option<Live> {
        match &self.place {
            Place::Service { live, .. } => live.message(id),
            Place::File => None,
        }
    }
}

fn size(message: &Message) -> usize {
    let recipients: usize = message.recipients.iter().map(String::len).sum();
    let failure = message.failure().map_or(0, |failure| failure.message.len());
    ROW_BYTES + message.subject.len() + recipients + failure
}

fn message_id(text: &str) -> Result<MessageId, Refusal> {
    text.parse().map_err(|_| {
        Refusal::new(format!(
            "{text:?} is not a message id; ids look like 019a5b7c-0000-7000-8000-000000000000"
        ))
    })
}

fn status(text: &str) -> Result<Status, Refusal> {
    STATUSES.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
        let all = STATUSES.map(Status::as_str).join(", ");
        Refusal::new(format!("{text:?} is not a status; those there are: {all}"))
    })
}
