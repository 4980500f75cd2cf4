//! A view of what was caught, for whoever shows it while the simulator runs.

use std::sync::Arc;

use super::caught::CaughtMessage;
use super::state::State;

/// The messages that a simulator keeps: the last ones, in memory alone.
#[derive(Debug, Clone)]
pub struct Kept(Arc<State>);

impl Kept {
    pub(super) fn new(state: Arc<State>) -> Self {
        Self(state)
    }

    /// Messages accepted since the start, also those that are not kept any more.
    pub fn accepted_total(&self) -> u64 {
        self.0.caught().totals().accepted
    }

    /// The newest first, at most so many.
    pub fn newest(&self, limit: usize) -> Vec<Arc<CaughtMessage>> {
        self.0.caught().kept().iter().rev().take(limit).cloned().collect()
    }

    /// The message with this id of the simulator's, where it is still kept.
    pub fn message(&self, id: &str) -> Option<Arc<CaughtMessage>> {
        self.0.caught().kept().iter().rfind(|message| message.id == id).cloned()
    }
}
