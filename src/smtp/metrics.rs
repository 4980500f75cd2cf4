//! Metrics of SMTP submission. Accepted messages are counted with those of the API.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use pillarbox_runtime::in_flight::InFlight;

/// The codes that a refusal can have.
const CODES: [&str; 27] = [
    "421 4.3.2",
    "421 4.4.2",
    "421 4.7.0",
    "451 4.3.0",
    "451 4.3.1",
    "451 4.3.2",
    "451 4.7.1",
    "452 4.5.3",
    "500 5.5.1",
    "501 5.1.3",
    "501 5.1.7",
    "501 5.5.4",
    "501 5.7.0",
    "502 5.5.1",
    "503 5.5.1",
    "504 5.5.4",
    "521 5.5.2",
    "530 5.7.0",
    "535 5.7.8",
    "538 5.7.11",
    "550 5.1.1",
    "550 5.6.0",
    "550 5.7.1",
    "552 5.3.4",
    "554 5.5.1",
    "555 5.5.4",
    OTHER,
];
/// Name for a code that is not listed; there is none.
const OTHER: &str = "other";

/// Metrics of SMTP submission since the start.
#[derive(Debug)]
pub struct SmtpMetrics {
    /// Connections that are open now.
    pub connections: InFlight,
    refused: Family<RefusalLabels, Counter>,
}

/// Labels of a refused command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    code: &'static str,
}

impl Default for SmtpMetrics {
    fn default() -> Self {
        let metrics = Self { connections: InFlight::default(), refused: Family::default() };
        // A series that is there from the start shows its first refusal as an increase.
        for code in CODES {
            drop(metrics.refused.get_or_create(&RefusalLabels { code }));
        }
        metrics
    }
}

impl SmtpMetrics {
    /// Adds these metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "pillarbox_smtp_refusals",
            "Refused SMTP commands and messages, by the codes in the reply",
            self.refused.clone(),
        );
    }

    /// Counts a reply with these codes.
    pub(super) fn refuse(&self, codes: &str) {
        let code = CODES.into_iter().find(|code| *code == codes).unwrap_or(OTHER);
        self.refused.get_or_create(&RefusalLabels { code }).inc();
    }
}
