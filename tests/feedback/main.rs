//! Delivery events, from the documents of the provider to the records, through the queue.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

mod backlog;
mod contract;
mod document;
mod guide;
mod killed;
mod poll;
mod proof;
mod queue;
mod site;
