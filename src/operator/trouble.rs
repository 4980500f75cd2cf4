//! What is wrong this moment, in words, and what to do about it.

use std::time::Duration;

use serde::Serialize;

use crate::admin::wire::Cause;
use crate::dispatch::health::Condition;
use crate::operator::Parts;
use crate::outbox::Fill;
use crate::store::Health;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Trouble {
    /// A name for programs.
    pub(super) code: &'static str,
    /// What is wrong.
    pub(super) message: String,
    /// What to do.
    pub(super) advice: String,
    /// Whether the service does its work all the same.
    #[serde(rename = "ready")]
    pub(super) readiness: Readiness,
}

/// Whether the service can do its work in spite of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "bool")]
pub(super) enum Readiness {
    /// It takes messages and sends them.
    Ready,
    /// It does not take them, or does not send any.
    NotReady,
}

impl From<Readiness> for bool {
    fn from(readiness: Readiness) -> Self {
        readiness == Readiness::Ready
    }
}

/// How long a store that takes writes again is still told of: on a disk with a little room left it
/// fails and recovers by turns, many times a second.
const LATELY: Duration = Duration::from_secs(30);

/// Everything that is wrong now, the worst first.
pub(super) fn find(parts: &Parts) -> Vec<Trouble> {
    let status = parts.dispatcher.status();
    let mut found = Vec::new();
    if parts.intake.is_closed() {
        found.push(not_ready(
            "stopping",
            "The service is stopping: new messages are refused",
            "Wait for its next start",
        ));
    }
    found.extend(store(parts.store.health(), parts.store.counts().has_failed_within(LATELY)));
    if let Condition::Impaired { cause, message } = &status.condition {
        let cause = Cause::from(*cause);
        let (what, advice) = cause.explained();
        found.push(not_ready(
            cause.code(),
            format!("Sending is paused: {what} ({message})"),
            advice,
        ));
    }
    found.extend(queue(status.pending.bytes, status.max_pending_bytes));
    if let Some(jump) = parts.clock.jump() {
        found.push(ready(
            "clock_jumped",
            format!(
                "The clock jumped: it says {}, and by the time that has passed it is {}; nothing \
                 is purged and no idempotency key expires",
                jump.wall, jump.expected
            ),
            "Set the clock right, or take its time as right with: pillarbox clock confirm",
        ));
    }
    for (organisation, domain, message) in &status.paused_domains {
        let organisation = parts.organisation_name(*organisation);
        found.push(ready(
            "domain_paused",
            format!("The provider does not take {domain} of {organisation} ({message}); its messages wait"),
            format!("Check it with: pillarbox domain check {domain}"),
        ));
    }
    if let Some(message) = parts.feedback.trouble() {
        found.push(ready(
            "events_unavailable",
            format!("Not all delivery events can be had: {message}"),
            "Check [ses.events], the credentials' permissions and the network: pillarbox doctor",
        ));
    }
    let certificate = parts.tls.iter().flat_map(|tls| tls.troubles(parts.clock.now()));
    found.extend(certificate.map(|trouble| ready(trouble.code, trouble.message, trouble.advice)));
    if status.unrecorded > 0 {
        found.push(ready(
            "outcomes_unrecorded",
            format!("{} outcomes of calls wait for the store", status.unrecorded),
            "They are stored as soon as it takes writes; do not end the process before",
        ));
    }
    found
}

fn store(health: Health, has_failed_lately: bool) -> Option<Trouble> {
    const CODE: &str = "store_refusing";
    match (health, has_failed_lately) {
        (Health::Refusing, _) => Some(not_ready(
            CODE,
            "The store refuses writes: requests are answered with 503 and nothing is sent",
            "Make room on the disk, or repair it; the store then goes on by itself",
        )),
        (Health::Writable, true) => Some(ready(
            CODE,
            "The store refuses writes now and then: some requests are answered with 503",
            "Make room on the disk, or repair it: small writes may pass where large ones do not",
        )),
        (Health::Writable, false) => None,
    }
}

fn queue(in_use: usize, max: usize) -> Option<Trouble> {
    const ADVICE: &str = "See to the provider, or raise sending.max_pending_bytes";
    match Fill::of(in_use, max) {
        Fill::Room => None,
        Fill::NearlyFull => Some(ready(
            "queue_nearly_full",
            "The queue is nearly full: large messages may be refused with 503 QueueFull",
            ADVICE,
        )),
        Fill::Full => Some(not_ready(
            "queue_full",
            "The queue is full: new messages are refused with 503 QueueFull",
            ADVICE,
        )),
    }
}

fn not_ready(code: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Trouble {
    let (message, advice) = (message.into(), advice.into());
    Trouble { code, message, advice, readiness: Readiness::NotReady }
}

fn ready(code: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Trouble {
    Trouble { readiness: Readiness::Ready, ..not_ready(code, message, advice) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_by_turns_is_told_of_in_between() {
        let told = |health, lately| store(health, lately).map(|trouble| trouble.readiness);
        assert_eq!(told(Health::Writable, false), None);
        assert_eq!(told(Health::Writable, true), Some(Readiness::Ready));
        assert_eq!(told(Health::Refusing, false), Some(Readiness::NotReady));
    }

    #[test]
    fn a_queue_that_is_nearly_full_is_told_and_leaves_the_service_ready() {
        const MAX: usize = 1 << 30;
        let told = |in_use| queue(in_use, MAX).map(|trouble| (trouble.code, trouble.readiness));
        assert_eq!(told(MAX / 2), None);
        assert_eq!(told(MAX - MAX / 25), Some(("queue_nearly_full", Readiness::Ready)));
        assert_eq!(told(MAX), Some(("queue_full", Readiness::NotReady)));
    }
}
