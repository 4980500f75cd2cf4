//! Listing messages as they stand this moment: what is stored, with what memory knows laid over it.
//!
//! Knows neither who asks nor in which words the answer is given.

use crate::domain::id::MessageId;
use crate::domain::message::{Message, Status};
use crate::domain::time::Timestamp;
use crate::outbox::{Live, View};
use crate::store::{MessageFilter, Store, StoreError};

/// The most messages of one page.
pub const MAX_PAGE: usize = 1_000;

/// A page, newest first.
#[derive(Debug)]
pub struct Listing {
    /// The messages, each with its live state. A page may be short, or empty, and not the last.
    pub messages: Vec<(Message, Option<Live>)>,
    /// What the next page's messages are older than; nothing at the end.
    pub next: Option<MessageId>,
}

/// Lists at most `limit` messages. The status that `filter` asks for is the one of this moment, as
/// `live` has it: that a call is under way is not stored.
pub async fn list(
    store: &Store,
    live: impl Fn(MessageId) -> Option<Live>,
    mut filter: MessageFilter,
    limit: usize,
    window_now: Timestamp,
) -> Result<Listing, StoreError> {
    let wanted = filter.status;
    let limit = limit.clamp(1, MAX_PAGE);
    let read = match wanted {
        // Rows are told apart only after they are read: few of them may be wanted.
        Some(Status::Queued | Status::Sending) => {
            filter.status = Some(Status::Queued);
            MAX_PAGE
        }
        Some(Status::Sent | Status::Failed | Status::Suppressed) | None => limit,
    };
    let page = store.list(filter, read, window_now).await?;
    let mut listing = Listing { messages: Vec::new(), next: page.next };
    let mut rows = page.messages.into_iter().peekable();
    while let Some(message) = rows.next() {
        let (id, live) = (message.id, live(message.id));
        if wanted.is_none_or(|wanted| wanted == View::of(&message, live.as_ref()).status) {
            listing.messages.push((message, live));
            if listing.messages.len() == limit && rows.peek().is_some() {
                listing.next = Some(id);
                break;
            }
        }
    }
    Ok(listing)
}
