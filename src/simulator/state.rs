//! What all calls share: one simulator's account.
//!
//! Each lock is held for one short step and never across an `.await`; signatures and JSON are
//! worked on outside of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use super::Options;
use super::caught::{Caught, CaughtMessage};
use super::faults::{FaultSequence, nth_random};
use super::identities::Identities;
use super::limits::{SendingLimits, TokenBucket};
use super::signature::Verifier;
use crate::domain::time::Timestamp;

/// Messages that a subscriber may fall behind.
const BROADCAST_CAPACITY: usize = 4_096;
/// No lock's holder calls anything that may panic.
const UNPOISONED: &str = "no holder of this lock panics";

#[derive(Debug)]
pub(super) struct State {
    pub(super) verifier: Verifier,
    pub(super) region: String,
    faults: Mutex<FaultSequence>,
    limits: Mutex<SendingLimits>,
    other_calls: Option<Mutex<TokenBucket>>,
    identities: RwLock<Identities>,
    configuration_sets: RwLock<BTreeSet<String>>,
    caught: Mutex<Caught>,
    accepted: broadcast::Sender<Arc<CaughtMessage>>,
    latency_micros: AtomicU64,
    calls: AtomicU64,
    id_seed: u64,
    ids: AtomicU64,
}

impl State {
    pub(super) fn new(options: Options, now: Instant) -> Self {
        let Options { region, credentials, signature_max_age, .. } = options;
        let identities =
            Identities::new(&options.verified, options.verified_by, options.sender_check);
        let other_calls = options.other_call_rate.map(|rate| TokenBucket::new(rate, now));
        let state = Self {
            verifier: Verifier::new(credentials, region.clone(), signature_max_age),
            region,
            faults: Mutex::new(FaultSequence::new(options.faults, options.seed)),
            limits: Mutex::new(SendingLimits::new(options.send_rate, options.daily_quota, now)),
            other_calls: other_calls.map(Mutex::new),
            identities: RwLock::new(identities),
            configuration_sets: RwLock::new(options.configuration_sets.into_iter().collect()),
            caught: Mutex::new(Caught::new(options.kept_messages)),
            accepted: broadcast::Sender::new(BROADCAST_CAPACITY),
            latency_micros: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            // Not the caller's seed: two simulators must not give out the same ids. Without
            // randomness from the system, the counter alone still keeps them apart in one run.
            id_seed: getrandom::u64().unwrap_or_default(),
            ids: AtomicU64::new(0),
        };
        state.set_latency(options.latency);
        state
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, FaultSequence> {
        self.faults.lock().expect(UNPOISONED)
    }

    pub(super) fn limits(&self) -> MutexGuard<'_, SendingLimits> {
        self.limits.lock().expect(UNPOISONED)
    }

    /// Whether a call other than `SendEmail` is within its rate.
    pub(super) fn admit_other_call(&self, now: Instant) -> bool {
        let bucket = self.other_calls.as_ref();
        bucket.is_none_or(|bucket| bucket.lock().expect(UNPOISONED).take(1.0, now))
    }

    pub(super) fn identities(&self) -> RwLockWriteGuard<'_, Identities> {
        self.identities.write().expect(UNPOISONED)
    }

    pub(super) fn read_identities(&self) -> RwLockReadGuard<'_, Identities> {
        self.identities.read().expect(UNPOISONED)
    }

    pub(super) fn configuration_sets(&self) -> RwLockWriteGuard<'_, BTreeSet<String>> {
        self.configuration_sets.write().expect(UNPOISONED)
    }

    pub(super) fn has_configuration_set(&self, name: &str) -> bool {
        self.configuration_sets.read().expect(UNPOISONED).contains(name)
    }

    pub(super) fn caught(&self) -> MutexGuard<'_, Caught> {
        self.caught.lock().expect(UNPOISONED)
    }

    /// Counts and keeps an accepted message, and tells the subscribers.
    pub(super) fn accept(&self, message: CaughtMessage) {
        let message = Arc::new(message);
        self.caught().add(Arc::clone(&message));
        // An error says that nobody subscribes.
        let _ = self.accepted.send(message);
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<CaughtMessage>> {
        self.accepted.subscribe()
    }

    pub(super) fn set_latency(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency_micros.store(micros, Ordering::Relaxed);
    }

    pub(super) fn latency(&self) -> Duration {
        Duration::from_micros(self.latency_micros.load(Ordering::Relaxed))
    }

    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn calls_total(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// A message id in the look of SES's: `0100` and the time, a UUID, six zeros.
    pub(super) fn next_message_id(&self, now: Timestamp) -> String {
        format!("0100{:012x}-{}-000000", now.unix_millis(), self.next_uuid())
    }

    /// An id in the form of a random UUID.
    pub(super) fn next_uuid(&self) -> String {
        let n = self.ids.fetch_add(2, Ordering::Relaxed);
        let (high, low) = (nth_random(self.id_seed, n), nth_random(self.id_seed, n + 1));
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50),
            low & 0xffff_ffff_ffff
        )
    }
}
