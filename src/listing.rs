//! Listing messages as they stand this moment: what is stored, with what memory knows laid over it.
//!
//! Knows neither who asks nor in which words the answer is given: `api::wire` has the parameters
//! and the token of the next page.

use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::MessageId;
use crate::domain::message::{Message, Status};
use crate::domain::outcome::MessageOutcome;
use crate::domain::search::MessageFilter;
use crate::queue::{Live, View};
use crate::store::{ListError, Lister, MessagePage, Store};

/// The most messages of one page.
pub const MAX_PAGE: usize = 1_000;

/// A page, newest first.
#[derive(Debug)]
pub struct Listing {
    /// The messages, each with its live state. A page may be short, or empty, and not the last.
    pub messages: Vec<(Message, Option<Live>)>,
    /// What the next page's messages are older than; nothing at the end.
    pub next: Option<MessageId>,
    /// How many rows were looked at.
    pub looked_at: usize,
}

/// Status and outcome that messages must have this moment.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    status: Option<Status>,
    outcome: Option<MessageOutcome>,
}

/// What `then` makes of a list of at most `limit` messages. The status and the outcome that
/// `filter` asks for are those of this moment, as `live` has it: that a call is under way is not
/// stored.
pub async fn list<T: Send + 'static>(
    store: &Store,
    lister: Lister,
    live: impl Fn(MessageId) -> Option<Live> + Send + 'static,
    mut filter: MessageFilter,
    limit: usize,
    window_now: WindowTime,
    then: impl FnOnce(Listing) -> T + Send + 'static,
) -> Result<T, ListError> {
    let wanted = Wanted { status: filter.status, outcome: filter.outcome };
    let limit = limit.clamp(1, MAX_PAGE);
    let mut read = limit;
    // Rows are told apart only after they are read: few of them may be wanted.
    if let Some(Status::Queued | Status::Sending) = wanted.status {
        filter.status = Some(Status::Queued);
        read = MAX_PAGE;
    }
    if let Some(MessageOutcome::Queued | MessageOutcome::Sending) = wanted.outcome {
        filter.outcome = Some(MessageOutcome::Queued);
        read = MAX_PAGE;
    }
    let lay_over = move |page| then(laid_over(page, live, wanted, limit));
    store.list_then(lister, filter, read, window_now, lay_over).await
}

impl Wanted {
    fn is_met_by(self, message: &Message, live: Option<&Live>) -> bool {
        let status = View::of(message, live).status;
        let outcome = MessageOutcome::of_message(message, status);
        self.status.is_none_or(|wanted| wanted == status)
            && self.outcome.is_none_or(|wanted| wanted == outcome)
    }
}

/// The page's messages that are as wanted this moment.
fn laid_over(
    page: MessagePage,
    live: impl Fn(MessageId) -> Option<Live>,
    wanted: Wanted,
    limit: usize,
) -> Listing {
    let mut listing = Listing { messages: Vec::new(), next: page.next, looked_at: page.looked_at };
    let mut rows = page.messages.into_iter().peekable();
    while let Some(message) = rows.next() {
        let (id, live) = (message.id, live(message.id));
        if wanted.is_met_by(&message, live.as_ref()) {
            listing.messages.push((message, live));
            if listing.messages.len() == limit && rows.peek().is_some() {
                listing.next = Some(id);
                break;
            }
        }
    }
    listing
}
