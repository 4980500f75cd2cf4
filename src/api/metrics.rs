//! Metrics of the client listener.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::error::CODES;
use pillarbox_runtime::in_flight::InFlight;

/// Metrics of the client listener since the start.
#[derive(Debug)]
pub struct ClientMetrics {
    /// Messages accepted since the start.
    pub accepted: Counter,
    /// Requests answered with an earlier message's id.
    pub replayed: Counter,
    /// Requests with an `Idempotency-Key` header, which is not implemented.
    pub ignored_keys: Counter,
    /// Connections that are open now.
    pub connections: InFlight,
    refused: Family<RefusalLabels, Counter>,
}

/// Labels of a refused request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    code: &'static str,
}

impl Default for ClientMetrics {
    fn default() -> Self {
        let metrics = Self {
            accepted: Counter::default(),
            replayed: Counter::default(),
            ignored_keys: Counter::default(),
            connections: InFlight::default(),
            refused: Family::default(),
        };
        // A series that is there from the start shows its first refusal as an increase.
        for code in CODES {
            drop(metrics.refused.get_or_create(&RefusalLabels { code }));
        }
        metrics
    }
}

impl ClientMetrics {
    /// Adds these metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "pillarbox_accepted_messages",
            "Accepted messages",
            self.accepted.clone(),
        );
        registry.register(
            "pillarbox_replays",
            "Replays: requests answered with the id of an earlier message",
            self.replayed.clone(),
        );
        registry.register(
            "pillarbox_ignored_idempotency_headers",
            "Requests to the main API with an Idempotency-Key header, which it ignores",
            self.ignored_keys.clone(),
        );
        registry.register(
            "pillarbox_refusals",
            "Refused requests, and refused messages of partial batches, by the code in the answer",
            self.refused.clone(),
        );
    }

    /// Counts a request that was refused with this code.
    pub fn refuse(&self, code: &'static str) {
        self.refused.get_or_create(&RefusalLabels { code }).inc();
    }

    /// Requests refused with this code.
    pub fn refused(&self, code: &'static str) -> u64 {
        self.refused.get(&RefusalLabels { code }).map_or(0, |counter| counter.get())
    }

    /// Requests refused, over all codes.
    pub fn all_refused(&self) -> u64 {
        CODES.iter().map(|code| self.refused(code)).sum()
    }
}
