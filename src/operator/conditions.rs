//! What is wrong this moment, in words, and what to do about it.

use std::time::Duration;

use serde::Serialize;

use crate::admin::status::{AccountFault, Cause, StoreHealth};
use crate::dispatch::RecentCalls;
use crate::dispatch::circuit_breaker::BreakerState;
use crate::domain::policy::{RECORD_RETENTION, RECORD_RETENTION_DAYS};
use crate::operator::Parts;
use crate::operator::process::Process;
use crate::quota::AccountCheck;
use crate::store::{DamagedRow, Health};

mod capacity;
pub(super) mod trends;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Condition {
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

/// How much longer than its retention a record may be there before the purge is behind.
const PURGE_SLACK: Duration = Duration::from_hours(24);

/// What is wrong now with taking messages and sending them, the worst first.
pub(super) fn find(parts: &Parts) -> Vec<Condition> {
    let status = parts.dispatcher.status();
    let mut found = Vec::new();
    if parts.intake.is_closed() {
        found.push(not_ready(
            "stopping",
            "The service is stopping: new messages are refused",
            "Wait for its next start",
        ));
    }
    found.extend(store(parts.store.health(), parts.store.metrics().has_failed_within(LATELY)));
    if let BreakerState::Open { cause, message } = &status.condition {
        let cause = Cause::from(*cause);
        let (what, advice) = cause.explained();
        found.push(not_ready(
            cause.code(),
            format!("Sending is paused: {what} ({message})"),
            advice,
        ));
    }
    found.extend(account(&parts.account.borrow()));
    let full_for = status.full_for.iter().map(|id| parts.organisation_name(*id));
    let full_for: Vec<_> = full_for.collect();
    found.extend(capacity::queue(status.pending.bytes, status.max_pending_bytes, &full_for));
    if let Some(jump) = parts.clock.jump() {
        found.push(ready(
            "clock_jumped",
            format!(
                "The clock {jump}. Since {} nothing is purged and no idempotency key expires",
                jump.since
            ),
            "Set the clock right. If it is right, confirm it: pillarbox clock confirm",
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
    found.extend(calls(&status.recent_calls));
    if let Some(message) = parts.events.trouble() {
        found.push(ready(
            "events_unavailable",
            format!("Delivery events cannot be had: {message}"),
            "Check [ses.events], the credentials' permissions and the network: pillarbox doctor",
        ));
    }
    let certificate = parts.tls.iter().flat_map(|tls| tls.troubles(parts.clock.now()));
    found.extend(
        certificate.map(|condition| ready(condition.code, condition.message, condition.advice)),
    );
    if status.unrecorded > 0 {
        found.push(ready(
            "outcomes_unrecorded",
            format!("{} outcomes of calls wait for the store", status.unrecorded),
            "They are stored as soon as it takes writes; do not end the process before",
        ));
    }
    found
}

/// What is wrong besides, and never keeps the service from its work. It takes a look at the file
/// and at the process, which probes of readiness need not wait for.
pub(super) fn lesser(parts: &Parts) -> Vec<Condition> {
    let mut found = Vec::new();
    let letters = parts.store.event_backlog().map_or(0, |backlog| backlog.dead_letters);
    if letters > 0 {
        found.push(ready(
            "events_unreadable",
            format!("{} of the provider could not be read, and kept", several(letters, "document")),
            "See what else writes to the topic or the queue: pillarbox dead-letter list; then clear them: pillarbox dead-letter clear",
        ));
    }
    found.extend(damaged(&parts.store.damaged()));
    found.extend(parts.dispatcher.status().quota.and_then(capacity::quota));
    found.extend(capacity::connections(parts.clients.connections.count(), parts.max_connections));
    found.extend(capacity::descriptors(Process::now()));
    if let Ok(Some(lost)) = parts.store.lost_messages(parts.clock.settled().now()) {
        found.push(ready(
            "bodies_lost",
            format!(
                "The process ended before it sent {}, last at {}; that mail has failed",
                several(lost.messages, "message"),
                lost.last_at
            ),
            "List it: pillarbox message list --status failed. Its senders have to post it again with new keys. Then run: pillarbox status --acknowledge",
        ));
    }
    let oldest = parts.store.oldest(parts.clock.settled()).ok().flatten();
    if oldest
        .is_some_and(|oldest| oldest.is_past(RECORD_RETENTION + PURGE_SLACK, parts.clock.now()))
    {
        found.push(ready(
            "purge_behind",
            format!("Records are kept for longer than {RECORD_RETENTION_DAYS} days"),
            "See the log for why the purge waits: a clock in doubt, or a full disk",
        ));
    }
    found
}

/// Rows that cannot be read. Recipients' addresses are not for this page.
fn damaged(rows: &[DamagedRow]) -> Option<Condition> {
    let DamagedRow { table, id, reason, .. } = rows.first()?;
    Some(ready(
        "rows_damaged",
        format!(
            "{} of the data file cannot be read, the first in table {table}: {id} ({reason})",
            several(rows.len() as u64, "row")
        ),
        "See them with: pillarbox status. Check the disk, then restore a backup, or add again what is missing",
    ))
}

/// What is wrong with the calls of the last minutes. The alarm of a slow provider goes by the same
/// measure: it is a metric.
fn calls(recent: &RecentCalls) -> Vec<Condition> {
    const LATELY: &str = "in the last 5 minutes";
    let mut found = Vec::new();
    if recent.are_slow() {
        found.push(ready(
            "provider_slow",
            format!(
                "{} of {} calls to the provider took over 2.5 seconds {LATELY}",
                recent.slow, recent.calls
            ),
            "Check the network, and the AWS Health Dashboard",
        ));
    }
    if recent.unanswered > 0 {
        found.push(ready(
            "outcomes_unknown",
            format!(
                "No answer of the provider came to {} {LATELY}",
                several(recent.unanswered, "call")
            ),
            "Check the network to SES: such messages may be sent twice, or not, as sending.on_unknown says",
        ));
    }
    found
}

fn store(health: Health, has_failed_lately: bool) -> Option<Condition> {
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
        (Health::FileLost(_), _) => {
            let (what, advice) = StoreHealth::from(health).file_loss()?;
            let message = format!("New messages are refused with 503, because {what}");
            Some(not_ready("data_file_lost", message, advice))
        }
    }
}

fn account(check: &AccountCheck) -> Option<Condition> {
    match check {
        AccountCheck::Passed => None,
        AccountCheck::Unasked => Some(not_ready(
            "starting",
            "AWS has not answered yet whether the credentials are good",
            "Wait a few seconds",
        )),
        AccountCheck::Failed { fault, message } => {
            let readiness =
                if fault.stops_sending() { Readiness::NotReady } else { Readiness::Ready };
            let fault = AccountFault::from(*fault);
            let (what, advice) = fault.explained();
            let condition = not_ready(fault.code(), format!("{what} ({message})"), advice);
            Some(Condition { readiness, ..condition })
        }
    }
}

/// So many things, in words.
fn several(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

fn not_ready(
    code: &'static str,
    message: impl Into<String>,
    advice: impl Into<String>,
) -> Condition {
    let (message, advice) = (message.into(), advice.into());
    Condition { code, message, advice, readiness: Readiness::NotReady }
}

fn ready(code: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Condition {
    Condition { readiness: Readiness::Ready, ..not_ready(code, message, advice) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_and_unanswered_calls_are_told_of() {
        let codes = |slow, unanswered| {
            let recent = RecentCalls { calls: 100, slow, unanswered };
            calls(&recent).into_iter().map(|condition| condition.code).collect::<Vec<_>>()
        };
        assert!(codes(5, 0).is_empty());
        assert_eq!(codes(6, 0), ["provider_slow"]);
        assert_eq!(codes(1, 1), ["outcomes_unknown"]);
        assert_eq!(codes(6, 6), ["provider_slow", "outcomes_unknown"]);
    }

    #[test]
    fn a_store_that_fails_by_turns_is_told_of_in_between() {
        let told = |health, lately| store(health, lately).map(|condition| condition.readiness);
        assert_eq!(told(Health::Writable, false), None);
        assert_eq!(told(Health::Writable, true), Some(Readiness::Ready));
        assert_eq!(told(Health::Refusing, false), Some(Readiness::NotReady));
    }
}
