//! How a queue behaves, and what it counts.
//!
//! Only values: what they do is written in the queue itself.

use std::time::Duration;

use serde::Serialize;

use super::super::chance::Chance;

/// Messages kept unless told otherwise; SQS itself has no limit, a test's memory does.
const CAPACITY: usize = 200_000;
/// SQS's default.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(30);

/// In which order messages are handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// As they came.
    #[default]
    AsSent,
    /// In an order that the seed decides.
    Shuffled,
}

/// How the queue behaves.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// The queue's name.
    pub name: String,
    /// How long a received message stays hidden where the call does not say.
    pub visibility_timeout: Duration,
    /// In which order messages are handed out.
    pub order: DeliveryOrder,
    /// The chance that a message is handed out a second time whether or not it was deleted.
    pub repeats: Chance,
    /// The chance that one entry of a batch of deletions fails on the server's side.
    pub failed_deletes: Chance,
    /// How many messages are kept; further ones are dropped and counted.
    pub capacity: usize,
}

impl Default for QueueOptions {
    /// In order, and each message once.
    fn default() -> Self {
        Self {
            name: "pillarbox-events".to_owned(),
            visibility_timeout: VISIBILITY_TIMEOUT,
            order: DeliveryOrder::default(),
            repeats: Chance::NEVER,
            failed_deletes: Chance::NEVER,
            capacity: CAPACITY,
        }
    }
}

/// How much is in the queue now, and what came of messages since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueCounts {
    /// Messages that the next receive may hand out.
    pub queued: usize,
    /// Messages that are not to be handed out yet.
    pub delayed: usize,
    /// Messages handed out and hidden for now.
    pub in_flight: usize,
    /// Messages handed out since the start, repetitions included.
    pub received: u64,
    /// Of these, second copies made on purpose.
    pub repeated: u64,
    /// Messages deleted since the start.
    pub deleted: u64,
    /// Messages that found the queue full.
    pub dropped: u64,
}
