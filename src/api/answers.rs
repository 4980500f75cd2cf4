//! The JSON that the API answers with: ids, records, events, the feed, the usage. Knows no HTTP.

use std::collections::BTreeMap;
use std::io::{self, Write};

use bytes::Bytes;
use serde::Serialize;

use crate::error::ApiError;
use pillarbox_domain::event::Event;
use pillarbox_domain::feed::FeedEntry;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::Message;
use pillarbox_domain::organisation::{Limits, OrganisationKind};
use pillarbox_domain::timeline::Entry;
use pillarbox_domain::usage::{Period, Usage};
use pillarbox_http::rejection::ErrorAnswer;
use pillarbox_intake::{BatchRefusal, RequestRefusal};
use pillarbox_queue::Live;
use pillarbox_records::listing::Listing;
use pillarbox_records::views::{EventView, FeedEventView, MessageView, TimelineEntryView};
use pillarbox_store::Accepted;

impl From<BatchRefusal> for ApiError {
    fn from(refusal: BatchRefusal) -> Self {
        match refusal {
            BatchRefusal::Of { index, refusal } => in_batch(index, refusal),
            BatchRefusal::Whole(refusal) => refusal.into(),
        }
    }
}

/// The refusal of one message of a batch. It names the message and the field, as `emails[3].to[0]`.
fn in_batch(index: usize, refusal: RequestRefusal) -> ApiError {
    ApiError::from(refusal).within(&format!("emails[{index}]"))
}

/// A page of records: `{"emails":[…],"next":…}`, in the order given.
pub fn emails(kind: OrganisationKind, listing: Listing) -> Bytes {
    #[derive(Serialize)]
    struct Emails {
        emails: Vec<MessageView>,
        next: Option<String>,
    }
    let records = listing.messages.into_iter();
    page_to_json(&Emails {
        emails: records
            .map(|(message, live)| MessageView::new(kind, message, live.as_ref()))
            .collect(),
        next: listing.next.map(|id| id.to_string()),
    })
}

/// `{"id":"…"}`: the answer to a send request.
pub fn accepted(id: MessageId) -> Bytes {
    // An id has nothing that would have to be escaped.
    [r#"{"id":""#, &id.to_string(), "\"}\n"].concat().into()
}

/// The answers to the messages of a batch, in their order.
pub fn batch_answers(
    told: Vec<Result<Accepted, RequestRefusal>>,
) -> impl Iterator<Item = Result<Accepted, ApiError>> {
    told.into_iter().enumerate().map(|(index, one)| one.map_err(|refusal| in_batch(index, refusal)))
}

/// `{"emails":[{"id":"…"},{"id":"…","replayed":true},{"error":{…}}]}`: the answer to a batch, in its
/// order.
pub fn accepted_batch(all: &[Result<Accepted, ApiError>]) -> Bytes {
    #[derive(Serialize)]
    struct Batch<'a> {
        emails: Vec<One<'a>>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum One<'a> {
        Accepted {
            id: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            replayed: Option<bool>,
        },
        Refused(ErrorAnswer<'a>),
    }
    fn one(answer: &Result<Accepted, ApiError>) -> One<'_> {
        match answer {
            Ok(accepted) => One::Accepted {
                id: accepted.id().to_string(),
                replayed: matches!(accepted, Accepted::Replayed(_)).then_some(true),
            },
            Err(error) => One::Refused(error.answer()),
        }
    }
    to_json(&Batch { emails: all.iter().map(one).collect() })
}

/// Encodes a message's record.
pub fn message(kind: OrganisationKind, message: Message, live: Option<&Live>) -> Bytes {
    to_json(&MessageView::new(kind, message, live))
}

/// A message's events: `{"events":[…]}`, in the order given.
pub fn events(events: &[Event]) -> Bytes {
    #[derive(Serialize)]
    struct Events {
        events: Vec<EventView>,
    }
    page_to_json(&Events { events: events.iter().map(EventView::from).collect() })
}

/// A message's timeline: `{"timeline":[…]}`, in the order given.
pub fn timeline(entries: Vec<Entry>) -> Bytes {
    #[derive(Serialize)]
    struct Timeline {
        timeline: Vec<TimelineEntryView>,
    }
    let timeline = entries.into_iter().map(TimelineEntryView::from).collect();
    page_to_json(&Timeline { timeline })
}

/// An organisation's limits and what it has used of them, by period.
pub fn usage(limits: &Limits, usage: &Usage) -> Bytes {
    #[derive(Serialize)]
    struct PeriodView {
        limit: Option<u64>,
        used: u64,
        #[serde(rename = "endsAt")]
        ends_at: String,
    }
    let period = |period: Period| {
        let count = usage.of(period);
        let ends_at = period.end(count.start).to_string();
        (period.as_str(), PeriodView { limit: limits.of(period), used: count.used, ends_at })
    };
    page_to_json(&Period::ALL.map(period).into_iter().collect::<BTreeMap<_, _>>())
}

/// A page of the feed: `{"events":[…],"next":"…"}`, in the order given.
pub fn feed(kind: OrganisationKind, entries: &[FeedEntry], next: String) -> Bytes {
    #[derive(Serialize)]
    struct Feed {
        events: Vec<FeedEventView>,
        next: String,
    }
    let events = entries.iter().map(|entry| FeedEventView::new(kind, entry)).collect();
    page_to_json(&Feed { events, next })
}

/// A JSON document and a line break, so that a terminal's prompt stands below it. White space
/// around a document means nothing (RFC 8259, section 2).
pub fn to_json(value: &impl Serialize) -> Bytes {
    let mut document = serde_json::to_vec(value).expect("strings, numbers and lists serialize");
    document.push(b'\n');
    document.into()
}

/// The same for what may be long, in memory of exactly its length. A buffer that grows ends with up
/// to twice the bytes that the budget of unread responses counts.
pub fn page_to_json(value: &impl Serialize) -> Bytes {
    /// Counts what is written to it.
    struct Length(usize);

    impl Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut length = Length(0);
    serde_json::to_writer(&mut length, value).expect("strings, numbers and lists serialize");
    let mut document = Vec::with_capacity(length.0 + 1);
    serde_json::to_writer(&mut document, value).expect("they did the first time");
    document.push(b'\n');
    document.into()
}

#[cfg(test)]
mod tests;
