//! The JSON that Resend's clients read: ids, records, refusals.

use bytes::Bytes;
use serde::Serialize;

use pillarbox_api::answers::{page_to_json, to_json};
use pillarbox_api::error::ApiError;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::Message;
use pillarbox_records::views::resend::EmailView;
use pillarbox_store::{Accepted, BatchMode};

/// The answer to a batch: the ids of those that are accepted, in their order, and of a permissive one
/// the reasons why others are not.
pub(super) fn accepted_batch(mode: BatchMode, answers: &[Result<Accepted, ApiError>]) -> Bytes {
    #[derive(Serialize)]
    struct Batch {
        data: Vec<Id>,
        #[serde(skip_serializing_if = "Option::is_none")]
        errors: Option<Vec<Refused>>,
    }
    #[derive(Serialize)]
    struct Id {
        id: String,
    }
    #[derive(Serialize)]
    struct Refused {
        index: usize,
        message: String,
    }
    let ids = answers.iter().filter_map(|answer| answer.as_ref().ok());
    let refused = answers.iter().enumerate().filter_map(|(index, answer)| {
        let error = answer.as_ref().err()?;
        Some(Refused { index, message: error.answer().message.into_owned() })
    });
    to_json(&Batch {
        data: ids.map(|accepted| Id { id: accepted.id().to_string() }).collect(),
        errors: (mode == BatchMode::Partial).then(|| refused.collect()),
    })
}

/// Encodes a message's record.
pub(super) fn record(message: Message) -> Bytes {
    to_json(&EmailView::new(message))
}

/// A page of records.
pub(super) fn list(data: Vec<EmailView>, has_more: bool) -> Bytes {
    #[derive(Serialize)]
    struct List {
        object: &'static str,
        has_more: bool,
        data: Vec<EmailView>,
    }
    page_to_json(&List { object: "list", has_more, data })
}

/// The answer to a cancellation.
pub(super) fn cancelled(id: MessageId) -> Bytes {
    #[derive(Serialize)]
    struct Cancelled {
        object: &'static str,
        id: String,
    }
    to_json(&Cancelled { object: "email", id: id.to_string() })
}
