//! Metrics of the provider's event documents.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use pillarbox_domain::event::EventType;
use pillarbox_ses::event::EventKind;

/// Metrics of the documents that were taken in since the start, repeats included.
#[derive(Debug)]
pub struct EventMetrics {
    documents: Family<DocumentLabels, Counter>,
    /// Documents about messages that are not known, or not yet.
    pub unmatched: Counter,
    /// Documents that name another organisation than the message's own.
    pub foreign: Counter,
}

/// Labels of a document.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DocumentLabels {
    r#type: DocumentType,
}

/// Type of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentType {
    /// The provider accepted a message.
    Send,
    /// Something happened to a message's recipients.
    Event(EventType),
    /// Of a type that is dropped.
    Other,
    /// Document that cannot be read.
    Unreadable,
}

impl Default for EventMetrics {
    fn default() -> Self {
        let documents = Family::default();
        let others = [DocumentType::Send, DocumentType::Other, DocumentType::Unreadable];
        // A series that is there from the start shows its first document as an increase.
        for r#type in EventType::ALL.into_iter().map(DocumentType::Event).chain(others) {
            drop(documents.get_or_create(&DocumentLabels { r#type }));
        }
        Self { documents, unmatched: Counter::default(), foreign: Counter::default() }
    }
}

impl EventMetrics {
    /// Adds these metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "pillarbox_event_documents",
            "Event documents received, repeats included",
            self.documents.clone(),
        );
        registry.register(
            "pillarbox_unmatched_event_documents",
            "Event documents about unknown messages",
            self.unmatched.clone(),
        );
        registry.register(
            "pillarbox_foreign_event_documents",
            "Event documents that did not name the organisation that their message belongs to",
            self.foreign.clone(),
        );
    }

    /// Documents of a type.
    pub fn documents(&self, r#type: DocumentType) -> u64 {
        self.documents.get(&DocumentLabels { r#type }).map_or(0, |counter| counter.get())
    }

    /// Counts documents by their type.
    pub(super) fn received(&self, types: &[DocumentType]) {
        for r#type in types.iter().copied() {
            self.documents.get_or_create(&DocumentLabels { r#type }).inc();
        }
    }
}

impl DocumentType {
    pub(super) const fn of(kind: &EventKind) -> Self {
        match kind {
            EventKind::Send => Self::Send,
            EventKind::Recipients(event) => Self::Event(event.event_type()),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Event(event_type) => event_type.as_str(),
            Self::Other => "other",
            Self::Unreadable => "unreadable",
        }
    }
}

impl EncodeLabelValue for DocumentType {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.as_str().encode(encoder)
    }
}
