//! Listing messages as they stand this moment: what is stored, with what memory knows laid over it.
//!
//! Knows neither who asks nor in which words the answer is given: `api::wire` has the parameters
//! and the token of the next page.

use std::collections::BTreeMap;

use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::{Message, Status};
use pillarbox_domain::outcome::MessageOutcome;
use pillarbox_domain::search::MessageFilter;
use pillarbox_queue::{Live, View};
use pillarbox_store::{ListError, Lister, MessagePage, Store};

/// The most messages of one page.
pub const MAX_PAGE: usize = 1_000;
/// The most messages that are counted at one time: as many rows as the store reads for a page.
const MAX_COUNTED: usize = 10_000;

/// A page, newest first.
#[derive(Debug)]
pub struct Listing {
    /// The messages, each with its live state. A page may be short, or empty, and not the last.
    pub messages: Vec<(Message, Option<Live>)>,
    /// Id that the next page's messages are older than; `None` at the end.
    pub next: Option<MessageId>,
    /// Number of rows that were read.
    pub looked_at: usize,
}

/// Messages by organisation and outcome.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of messages by organisation and outcome.
    pub messages: BTreeMap<(OrganisationId, MessageOutcome), u64>,
    /// Id that the messages that are not counted yet are older than; `None` at the end.
    pub next: Option<MessageId>,
    /// Number of rows that were read.
    pub looked_at: usize,
}

/// Status and outcome that messages must have this moment.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    status: Option<Status>,
    outcome: Option<MessageOutcome>,
}

/// Passes at most `limit` messages to `then` and returns its result. The status and the outcome
/// that `filter` asks for are those of this moment, as `live` has it: that a call is under way is
/// not stored.
pub async fn list<T: Send + 'static>(
    store: &Store,
    lister: Lister,
    live: impl Fn(MessageId) -> Option<Live> + Send + 'static,
    mut filter: MessageFilter,
    limit: usize,
    window_now: WindowTime,
    then: impl FnOnce(Listing) -> T + Send + 'static,
) -> Result<T, ListError> {
    let limit = limit.clamp(1, MAX_PAGE);
    let (wanted, is_laid_over) = Wanted::of(&mut filter);
    // Rows are filtered only after they are read: few of them may be wanted.
    let read = if is_laid_over { MAX_PAGE } else { limit };
    let lay_over = move |page| then(laid_over(page, live, wanted, limit));
    store.list_then(lister, filter, read, window_now, lay_over).await
}

/// Counts the newest messages, as many as one read returns.
pub async fn count(
    store: &Store,
    lister: Lister,
    live: impl Fn(MessageId) -> Option<Live> + Send + 'static,
    mut filter: MessageFilter,
    window_now: WindowTime,
) -> Result<Counts, ListError> {
    let (wanted, _) = Wanted::of(&mut filter);
    let count = move |page: MessagePage| {
        let mut counts = Counts { next: page.next, looked_at: page.looked_at, ..Counts::default() };
        for message in page.messages {
            let live = live(message.id);
            if wanted.is_met_by(&message, live.as_ref()) {
                let status = View::of(&message, live.as_ref()).status;
                let outcome = MessageOutcome::of_message(&message, status);
                *counts.messages.entry((message.organisation, outcome)).or_default() += 1;
            }
        }
        counts
    };
    store.list_then(lister, filter, MAX_COUNTED, window_now, count).await
}

impl Wanted {
    /// Takes them from a filter, and leaves there what is stored of them; true if memory decides.
    fn of(filter: &mut MessageFilter) -> (Self, bool) {
        let wanted = Self { status: filter.status, outcome: filter.outcome };
        let by_status = matches!(wanted.status, Some(Status::Queued | Status::Sending));
        if by_status {
            filter.status = Some(Status::Queued);
        }
        let outcome = wanted.outcome;
        let by_outcome = matches!(outcome, Some(MessageOutcome::Queued | MessageOutcome::Sending));
        if by_outcome {
            filter.outcome = Some(MessageOutcome::Queued);
        }
        (wanted, by_status || by_outcome)
    }

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
