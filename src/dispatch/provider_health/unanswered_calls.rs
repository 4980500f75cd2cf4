//! Calls without an answer in a row: how many hold up their organisation, and how many stop all
//! sending.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use pillarbox_domain::id::OrganisationId;

/// Calls without an answer in a row, with none that succeeded in between, that mean: the provider
/// does not answer. One lost answer among many good ones must not stop sending.
const DOWN_AFTER: u32 = 5;
/// Time without another failed call after which earlier ones say nothing of the provider any more.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// Calls without an answer since the last call that succeeded. Probes of an organisation that is
/// held up by itself say nothing of the others, and are not among them.
#[derive(Debug, Default)]
pub(super) struct UnansweredCalls {
    /// Number of calls by organisation: a few, because all sending stops at [`DOWN_AFTER`] calls of
    /// others.
    calls: BTreeMap<OrganisationId, u32>,
    /// Message of the last failure.
    message: String,
    /// End of the last of them, or of a probe that failed meanwhile.
    last: Option<Instant>,
    /// Number of them that the provider's answer to a question without a message has explained:
    /// their messages are the cause.
    explained: u32,
    /// Since when the others are so many that the provider may be down.
    doubted_since: Option<Instant>,
}

impl UnansweredCalls {
    pub(super) fn add(&mut self, organisation: OrganisationId, message: &str, now: Instant) {
        if self.last.is_none_or(|last| is_forgotten(last, now)) {
            *self = Self::default();
        }
        *self.calls.entry(organisation).or_default() += 1;
        message.clone_into(&mut self.message);
        self.last = Some(now);
        if self.all() - self.explained >= DOWN_AFTER {
            self.doubted_since.get_or_insert(now);
        }
    }

    /// Returns true if they stop all sending: enough are not of the organisation with the most.
    pub(super) fn stop_all(&self) -> bool {
        let most = self.calls.values().max().copied().unwrap_or_default();
        self.all() - most >= DOWN_AFTER
    }

    /// Returns true if an organisation's calls are enough to hold up its messages.
    pub(super) fn stop(&self, organisation: OrganisationId) -> bool {
        self.calls.get(&organisation).is_some_and(|&calls| calls >= DOWN_AFTER)
    }

    /// Takes note that the provider has answered a question that was asked at `asked`.
    pub(super) fn explain(&mut self, asked: Instant) {
        if self.doubted_since.is_some_and(|since| asked > since) {
            self.doubted_since = None;
            self.explained = self.all();
        }
    }

    /// Takes note that the provider still does not answer.
    pub(super) fn confirm(&mut self, now: Instant) {
        if self.are_in_doubt() {
            self.last = Some(now);
        }
    }

    /// Returns true if they are so many that the provider may be down.
    pub(super) fn are_in_doubt(&self) -> bool {
        self.doubted_since.is_some()
    }

    /// Since when the provider may be down, and the message of the last failure; `None` if nothing
    /// says so, or not any more.
    pub(super) fn doubt(&self, now: Instant) -> Option<(Instant, &str)> {
        let last = self.last.filter(|&last| !is_forgotten(last, now));
        last.and(self.doubted_since).map(|since| (since, &*self.message))
    }

    fn all(&self) -> u32 {
        self.calls.values().sum()
    }
}

/// Returns true if a failure is so long ago that it says nothing any more.
pub(super) fn is_forgotten(failed_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(failed_at) >= FORGOTTEN_AFTER
}
