//! Listing messages as they stand this moment: what is stored, with what memory knows laid over it.
//!
//! Knows neither who asks nor in which words the answer is given: `api::wire` has the parameters
//! and the token of the next page.

use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::MessageId;
use crate::domain::message::{Message, Status};
use crate::queue::{Live, View};
use crate::store::{ListError, MessageFilter, MessagePage, Store};

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

/// What `then` makes of a list of at most `limit` messages. The status that `filter` asks for is
/// the one of this moment, as `live` has it: that a call is under way is not stored.
pub async fn list<T: Send + 'static>(
    store: &Store,
    live: impl Fn(MessageId) -> Option<Live> + Send + 'static,
    mut filter: MessageFilter,
    limit: usize,
    window_now: WindowTime,
    then: impl FnOnce(Listing) -> T + Send + 'static,
) -> Result<T, ListError> {
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
    let lay_over = move |page| then(laid_over(page, live, wanted, limit));
    store.list_then(filter, read, window_now, lay_over).await
}

/// The page's messages that have the wanted status this moment.
fn laid_over(
    page: MessagePage,
    live: impl Fn(MessageId) -> Option<Live>,
    wanted: Option<Status>,
    limit: usize,
) -> Listing {
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
    listing
}
