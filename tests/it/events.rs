//! Delivery events, from the documents of the provider to the records, through the queue.

mod backlog;
mod contract;
pub(crate) mod document;
mod guide;
mod killed;
mod poll;
mod proof;
mod queue;
mod sink;
