//! Delivery events: takes in the provider's reports about messages, and puts them on the records.
//!
//! A document is acknowledged only once everything that follows from it is durable. Knows nothing
//! of how documents travel; the caller says when they were taken in.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{debug, warn};

use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_domain::time::Timestamp;
use pillarbox_queue::MessageQueue;
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::event::{Document, EventKind, MessageTag, ProviderEvent, parse};
use pillarbox_store::{Applied, DeadLetter, Reference, Report, Store, StoreError};

use metrics::{DocumentType, EventMetrics};

pub mod metrics;
pub mod poll;

/// Reason why the document of an event that was taken in is kept.
const UNREAD_RECIPIENT: &str = "an entry for a recipient does not have exactly one address, so nothing \
                                was suppressed for it; suppress its addresses by hand";

/// Reason why the document of an event that was not taken in is kept.
const OF_A_TEST_ORGANISATION: &str = "it names a test organisation, whose mail never goes to SES; find out what else sends with \
     that name";

/// Author of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Provider,
    /// The simulator of test organisations.
    Simulator,
}

/// Takes in the provider's documents.
#[derive(Debug)]
pub struct EventProcessor {
    store: Store,
    queue: Arc<MessageQueue>,
    clock: Clock,
    metrics: EventMetrics,
    trouble: Mutex<Option<String>>,
    last_event_at: Mutex<Option<Timestamp>>,
}

/// Content of a batch of documents, before any of it is stored.
#[derive(Default)]
struct Sorted {
    reports: Vec<Report>,
    letters: Vec<DeadLetter>,
    /// Types of the documents.
    types: Vec<DocumentType>,
    /// Documents whose tag is none of ours.
    unmatched: u64,
}

impl EventProcessor {
    /// Processor of the events of `store`'s messages, of which `queue` may hold some.
    pub fn new(store: Store, queue: Arc<MessageQueue>, clock: Clock) -> Self {
        Self {
            store,
            queue,
            clock,
            metrics: EventMetrics::default(),
            trouble: Mutex::default(),
            last_event_at: Mutex::default(),
        }
    }

    /// Takes in documents, together. When this returns without an error, all that follows from them
    /// is durable, and they may be deleted at their source. Each may come again.
    pub async fn ingest(&self, documents: &[&str]) -> Result<(), StoreError> {
        self.take_in(documents, Source::Provider).await
    }

    /// The same of documents that the simulator of test organisations made. They count as nothing
    /// that the provider has reported.
    pub async fn ingest_simulated(&self, documents: &[&str]) -> Result<(), StoreError> {
        self.take_in(documents, Source::Simulator).await
    }

    async fn take_in(&self, documents: &[&str], source: Source) -> Result<(), StoreError> {
        let now = self.clock.now();
        let stored_at = self.clock.record_time();
        let mut sorted = Sorted::default();
        for document in documents {
            sorted.add(document, stored_at, |event| self.is_set_aside(event, source));
        }
        let Sorted { reports, letters, types, mut unmatched } = sorted;
        let mut foreign = 0;
        let reported = async {
            if reports.is_empty() {
                return Ok(Vec::new());
            }
            self.store.apply_all(reports, stored_at).await
        };
        let kept = async {
            if letters.is_empty() {
                return Ok(());
            }
            self.store.keep_dead_letters(letters).await
        };
        let (applied, kept) = tokio::join!(reported, kept);
        // A proof counts at once, even if the rest has to come again.
        for applied in applied? {
            match applied {
                Applied::Done => {}
                Applied::Sent(id) => self.queue.proved_sent(id),
                Applied::UnknownMessage | Applied::Unmatched | Applied::DamagedRecord => {
                    unmatched += 1;
                }
                Applied::OtherOrganisation => {
                    warn!(
                        "an event was dropped, because it does not name the organisation that its \
                         message belongs to"
                    );
                    foreign += 1;
                }
            }
        }
        kept?;
        if source == Source::Simulator {
            return Ok(());
        }
        if types.iter().any(|kind| *kind != DocumentType::Unreadable) {
            *self.last_event_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        }
        self.metrics.received(&types);
        self.metrics.unmatched.inc_by(unmatched);
        self.metrics.foreign.inc_by(foreign);
        Ok(())
    }

    /// Returns true if an event names a test organisation and is not its simulator's.
    fn is_set_aside(&self, event: &ProviderEvent, source: Source) -> bool {
        if source == Source::Simulator {
            return false;
        }
        let name = event.organisation.as_deref().and_then(|text| text.parse().ok());
        let named = name.and_then(|name| self.store.organisation(&name));
        named.is_some_and(|named| named.kind == OrganisationKind::Test)
    }

    /// Metrics of the documents that were taken in.
    pub fn metrics(&self) -> &EventMetrics {
        &self.metrics
    }

    /// Time at which the last readable document was taken in, if one was since the start.
    pub fn last_event_at(&self) -> Option<Timestamp> {
        *self.last_event_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Problem that keeps documents from being fetched now, with what to do; `None` if there is
    /// none.
    pub fn trouble(&self) -> Option<String> {
        self.trouble_mut().clone()
    }

    /// Notes what is wrong until it is over.
    fn set_trouble(&self, text: String) {
        *self.trouble_mut() = Some(text);
    }

    fn clear_trouble(&self) {
        *self.trouble_mut() = None;
    }

    fn trouble_mut(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sorted {
    fn add(
        &mut self,
        document: &str,
        now: Timestamp,
        is_set_aside: impl Fn(&ProviderEvent) -> bool,
    ) {
        match parse(document) {
            Ok(Document::Event(event)) if is_set_aside(&event) => {
                warn!(
                    ses_message_id = event.ses_message_id,
                    "an event from SES names a test organisation, whose mail never goes to SES: it \
                     was set aside as a dead letter"
                );
                self.types.push(DocumentType::of(&event.kind));
                self.letters.push(DeadLetter::new(now, OF_A_TEST_ORGANISATION, document));
            }
            Ok(Document::Event(event)) => {
                self.types.push(DocumentType::of(&event.kind));
                if has_unread_recipient(&event.kind) {
                    warn!(
                        ses_message_id = event.ses_message_id,
                        "a recipient of a bounce or complaint cannot be read, and is not \
                         suppressed: the document is kept as a dead letter"
                    );
                    self.letters.push(DeadLetter::new(now, UNREAD_RECIPIENT, document));
                }
                match report(event) {
                    Some(report) => self.reports.push(report),
                    None => self.unmatched += 1,
                }
            }
            Ok(Document::Other(name)) => {
                debug!(name, "a document of a type that pillarbox does not use was dropped");
                self.types.push(DocumentType::Other);
            }
            Err(error) => {
                warn!(%error, "a delivery event cannot be read: it is set aside as a dead letter");
                self.letters.push(DeadLetter::new(now, error.to_string(), document));
                self.types.push(DocumentType::Unreadable);
            }
        }
    }
}

/// Returns true if an event suppresses its recipients, and one of them cannot be read.
fn has_unread_recipient(kind: &EventKind) -> bool {
    let EventKind::Recipients(event) = kind else { return false };
    let mut recipients = event.recipients.iter();
    event.suppresses().is_some()
        && recipients.any(|text| SuppressedAddress::of_recipient(text).is_none())
}

/// The event as the store takes it; `None` if its tag is none of ours.
fn report(event: ProviderEvent) -> Option<Report> {
    let ProviderEvent { message, organisation, ses_message_id, accepted_at, kind } = event;
    let message = match message {
        MessageTag::Id(id) => Reference::Tag(id),
        MessageTag::Absent => Reference::ProviderId,
        MessageTag::Foreign => return None,
    };
    let event = match kind {
        EventKind::Send => None,
        EventKind::Recipients(event) => Some(event),
    };
    Some(Report { message, organisation, ses_message_id, accepted_at, event })
}
