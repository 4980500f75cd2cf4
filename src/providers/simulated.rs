//! The provider of test organisations: a simulator inside the process, which answers each call and
//! reports what would have happened to its message.
//!
//! Its events go the way of SES's: as documents, through the same reader, into the same store. They
//! wait in memory until they are due. Opens no connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::error;

use crate::captured::CapturedByOrganisation;
use pillarbox_config::Capture;
use pillarbox_domain::attempt::{Outcome, Problem, ProblemKind, ProviderAnswer, RequestBody};
use pillarbox_domain::envelope::Envelope;
use pillarbox_events::EventProcessor;
use pillarbox_ses::send::outcome_of_answer;
use pillarbox_simulator::{InProcessAnswer, InProcessSes, LaterEvent};
use pillarbox_store::StoreError;

/// Time that a call takes, in milliseconds: about as long as one to SES in the same region.
const LATENCY_MILLIS: std::ops::RangeInclusive<u64> = 40..=120;
/// Time from the acceptance of a message to its delivery or bounce, to be watched by a person.
const EVENT_DELAY: Duration = Duration::from_secs(1);
/// Bytes of events that wait, in KiB. If there is no room, the next call's answer waits.
const EVENTS_KIB: u32 = 32 * 1024;
/// Events that are taken in together.
const MAX_BATCH: usize = 100;
/// Pause before events that the store refused are offered to it again.
const INGEST_AGAIN: Duration = Duration::from_millis(100);

/// Simulator of SES for the messages of test organisations.
#[derive(Debug)]
pub struct SimulatedProvider {
    ses: InProcessSes,
    /// Captured messages; `None` if none are to be kept.
    captured: Option<Arc<CapturedByOrganisation>>,
    waiting: Mutex<Waiting>,
    /// Notified when an event waits that may be the first.
    changed: Notify,
    /// Room of the events, in KiB.
    room: Arc<Semaphore>,
}

/// Events that are not due yet, or that the store has not taken.
#[derive(Debug, Default)]
struct Waiting {
    by_time: BTreeMap<Place, WaitingEvent>,
    numbered: u64,
}

/// Place of an event among those that wait: its time, and a number that no other has.
type Place = (Instant, u64);

#[derive(Debug)]
struct WaitingEvent {
    document: Arc<str>,
    _room: OwnedSemaphorePermit,
}

impl SimulatedProvider {
    /// A simulator that keeps the messages for operators, or does not.
    pub fn new(capture: Capture) -> Self {
        Self {
            ses: InProcessSes::new(EVENT_DELAY),
            captured: match capture {
                Capture::Yes => Some(Arc::default()),
                Capture::No => None,
            },
            waiting: Mutex::default(),
            changed: Notify::new(),
            room: Arc::new(Semaphore::new(EVENTS_KIB as usize)),
        }
    }

    /// The captured messages, if they are kept.
    pub fn captured(&self) -> Option<&Arc<CapturedByOrganisation>> {
        self.captured.as_ref()
    }

    /// Answers a call as SES would.
    pub(super) async fn send(&self, envelope: &Envelope<'_>, request: RequestBody) -> Outcome {
        sleep(Duration::from_millis(fastrand::u64(LATENCY_MILLIS))).await;
        let (outcome, events) = match self.judge(envelope, &request) {
            Ok(judged) => judged,
            Err(problem) => return Outcome::NotSent(problem),
        };
        self.report_later(events).await;
        outcome
    }

    /// Judges a request and captures its message. Waits for nothing in between, so that few large
    /// messages are unpacked at one time.
    fn judge(
        &self,
        envelope: &Envelope<'_>,
        request: &RequestBody,
    ) -> Result<(Outcome, Vec<LaterEvent>), Problem> {
        let body = request.whole().ok_or_else(|| Problem {
            kind: ProblemKind::Unavailable,
            provider_code: None,
            message: "the message cannot be read".to_owned(),
            retry_after: None,
            answer: ProviderAnswer::Missing,
        })?;
        let InProcessAnswer { response, accepted } = self.ses.send_email(&body);
        let outcome = outcome_of_answer(envelope, response);
        let events = accepted.map(|(message, events)| {
            if let Some(captured) = &self.captured {
                captured.add(message);
            }
            events
        });
        Ok((outcome, events.unwrap_or_default()))
    }

    /// Has events taken in once they are due.
    async fn report_later(&self, events: Vec<LaterEvent>) {
        let size = |event: &LaterEvent| {
            u32::try_from(event.document.len().div_ceil(1024)).unwrap_or(u32::MAX)
        };
        let accepted = Instant::now();
        for event in events {
            let kib = size(&event).min(EVENTS_KIB);
            let room = Arc::clone(&self.room).acquire_many_owned(kib).await;
            let room = room.expect("the semaphore is never closed");
            let mut waiting = self.waiting();
            waiting.numbered += 1;
            let place = (accepted + event.after, waiting.numbered);
            let event = WaitingEvent { document: event.document, _room: room };
            waiting.by_time.insert(place, event);
        }
        self.changed.notify_one();
    }

    /// Has the events taken in as they become due, for as long as it is polled.
    pub async fn run(self: Arc<Self>, events: Arc<EventProcessor>) {
        loop {
            let now = Instant::now();
            let batch = self.due(now);
            if !batch.is_empty() {
                self.take_in(&events, batch).await;
                continue;
            }
            let next = self.waiting().by_time.first_key_value().map(|((at, _), _)| *at);
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Has all events taken in now, though they are not due: the process ends.
    pub async fn report_all(&self, events: &EventProcessor) {
        loop {
            let batch = self.first_of(|_| true);
            if batch.is_empty() {
                return;
            }
            self.take_in(events, batch).await;
        }
    }

    fn due(&self, now: Instant) -> Vec<(Place, Arc<str>)> {
        self.first_of(|(at, _)| *at <= now)
    }

    fn first_of(&self, is_wanted: impl Fn(&Place) -> bool) -> Vec<(Place, Arc<str>)> {
        let waiting = self.waiting();
        let wanted = waiting.by_time.iter().take_while(|(place, _)| is_wanted(place));
        let batch = wanted.map(|(place, event)| (*place, Arc::clone(&event.document)));
        batch.take(MAX_BATCH).collect()
    }

    /// Has events taken in, however long the store needs for it. They wait until it has them: should
    /// this be dropped before, they come again and change nothing.
    async fn take_in(&self, events: &EventProcessor, batch: Vec<(Place, Arc<str>)>) {
        let documents: Vec<&str> = batch.iter().map(|(_, document)| &**document).collect();
        loop {
            match events.ingest_simulated(&documents).await {
                Ok(()) => break,
                Err(StoreError::Damaged) => {
                    error!("simulated events are dropped, because they concern a damaged row");
                    break;
                }
                Err(StoreError::Unavailable | StoreError::OutcomeOpen | StoreError::FileLost) => {
                    sleep(INGEST_AGAIN).await;
                }
            }
        }
        let mut waiting = self.waiting();
        for (place, _) in &batch {
            waiting.by_time.remove(place);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
