//! What of the list of conditions is so now, as far as one look tells; `trends` looks back in time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::admin::status::StoreHealth;
use crate::config::TrackingOverride;
use crate::dispatch::circuit_breaker::{BreakerState, Cause};
use crate::dispatch::{DailyQuota, RecentCalls, recent_calls};
use crate::domain::id::OrganisationId;
use crate::domain::policy::RECORD_RETENTION;
use crate::domain::webhook::{PausedBy, Webhook, WebhookState};
use crate::error_chain::without_full_stop;
use crate::operator::conditions::{
    Condition, Kind, LATELY, NEAR_LIMIT, PURGE_SLACK, QUOTA_LOW, STORE_FAILED, UNREACHABLE, lately,
    several,
};
use crate::operator::process::Process;
use crate::operator::{Parts, StoredState};
use crate::queue::Fill;
use crate::quota::{AccountCheck, EarlierCredentials};
use crate::ses::SesClient;
use crate::store::{
    CLOCKS_DIFFER, DamagedRow, DatabaseStatus, DrainOrder, Health, NodeState, NodeStatus, SeenFrom,
    Standby,
};
use crate::tasks::{Faults, Task};
use crate::webhooks::EndpointStatus;

/// The most endpoints that are told of one by one.
const MAX_WEBHOOKS_TOLD: usize = 20;

/// What is wrong now with taking messages and sending them, the worst first.
pub(super) fn find(parts: &Parts) -> Vec<Condition> {
    let status = parts.dispatcher.status();
    let mut found = Vec::new();
    if parts.intake.is_closed() {
        found.push(Kind::Stopping.found());
    }
    if *parts.store.drains().borrow() == DrainOrder::Begin {
        let this = parts.store.nodes().into_iter().find(|node| node.seen_from == SeenFrom::Itself);
        let name = this.map_or_else(|| "NODE".to_owned(), |node| node.name);
        let message = Kind::Draining.definition().meaning.to_owned();
        found.push(Kind::Draining.names(message, "NODE", &name));
    }
    found
        .extend(store(parts.store.health(), parts.store.metrics().has_failed_within(STORE_FAILED)));
    found.extend(sending(&status.condition, parts.dispatcher.impaired_for()));
    found.extend(account(&parts.account.borrow()));
    let full_for = status.full_for.iter().map(|id| parts.organisation_name(*id));
    let full_for: Vec<_> = full_for.collect();
    found.extend(queue(status.pending.bytes, status.max_pending_bytes, &full_for));
    if let Some(jump) = parts.clock.jump() {
        found.push(Kind::ClockJumped.says(format!(
            "The clock {jump}. Since {} nothing is purged and no idempotency key expires",
            jump.since
        )));
    }
    for (organisation, message) in &status.paused_organisations {
        let organisation = parts.organisation_name(*organisation);
        let message = format!(
            "All calls for {organisation} fail ({message}), and others do not; its messages wait"
        );
        found.push(Kind::OrganisationPaused.names(message, "ORG", &organisation));
    }
    for (organisation, said) in &status.held_refusals {
        let organisation = parts.organisation_name(*organisation);
        let message = format!(
            "The provider refuses the messages of {organisation} alike (\"{}\"); such messages wait",
            without_full_stop(said)
        );
        found.push(Kind::RefusalsHeld.names(message, "ORG", &organisation));
    }
    for (organisation, domain, message) in &status.paused_domains {
        let organisation = parts.organisation_name(*organisation);
        let message = format!(
            "The provider does not take {domain} of {organisation} ({message}); its messages wait"
        );
        found.push(Kind::DomainPaused.names(message, "DOMAIN", domain));
    }
    found.extend(calls(&status.recent_calls, &status.unexpected_answers));
    if let Some(message) = parts.events.trouble() {
        let message = format!("Delivery events cannot be had: {message}");
        found.push(Kind::EventsUnavailable.says(message));
    }
    let certificate = parts.tls.iter().flat_map(|tls| tls.troubles(parts.clock.now()));
    found.extend(certificate.map(|trouble| Kind::Certificate(trouble.fault).says(trouble.message)));
    let silent = parts.store.silent_connections();
    if !silent.is_empty() {
        found.push(Kind::DatabaseSilent.says(format!(
            "The database gave no answer in time by a connection for {}; the connection was closed",
            silent.join(", ")
        )));
    }
    if status.unrecorded > 0 {
        let message = format!("{} outcomes of calls wait for the store", status.unrecorded);
        found.push(Kind::OutcomesUnrecorded.says(message));
    }
    found
}

/// What is wrong besides, and never keeps the service from its work. It takes a look at the file
/// and at the process, which probes of readiness need not wait for.
pub(super) fn lesser(parts: &Parts, stored: &StoredState) -> Vec<Condition> {
    let mut found = Vec::new();
    let status = parts.dispatcher.status();
    found.extend(filling(status.pending.bytes, status.max_pending_bytes, status.greatest_share));
    let letters = stored.backlog.map_or(0, |backlog| backlog.dead_letters);
    if letters > 0 {
        let documents = several(letters, "document");
        let newest = stored.newest_letter.as_deref();
        let newest = newest.map_or_else(String::new, |newest| format!("; the newest is {newest}"));
        let message = format!(
            "{documents} of the provider could not be read in full, and {} kept{newest}",
            if letters == 1 { "is" } else { "are" }
        );
        found.push(Kind::EventsUnreadable.says(message));
    }
    found.extend(Task::ALL.iter().filter_map(|task| task_failed(*task)));
    let name = |id| parts.organisation_name(id);
    found.extend(webhooks(&parts.webhooks.all_statuses(), name));
    found.extend(tracking(parts.dispatcher.provider()));
    found.extend(damaged(&parts.store.damaged()));
    found.extend(status.quota.and_then(quota));
    let most = parts.max_connections;
    let open = parts.clients.connections.count() + parts.smtp.connections.count();
    found.extend(connections(open, most));
    found.extend(descriptors(Process::now()));
    found.extend(cluster(&parts.store.nodes(), parts.store.database().as_ref()));
    if let Ok(Some(lost)) = stored.lost {
        found.push(Kind::BodiesLost.says(format!(
            "The process ended before it sent {}, last at {}; that mail has failed",
            several(lost.messages, "message"),
            lost.last_at
        )));
    }
    if let Some(why) = (parts.bodies.unreadable)() {
        found.push(Kind::BodiesUnusable.says(format!(
            "Bodies of an earlier process cannot be used: {why}; their messages have failed"
        )));
    }
    let configured = parts.configured_pending_bytes.load(Ordering::Relaxed);
    found.extend(lowered(status.max_pending_bytes, configured));
    let limit = RECORD_RETENTION + PURGE_SLACK;
    if stored.oldest.is_some_and(|oldest| oldest.is_past(limit, parts.clock.now())) {
        found.push(Kind::PurgeBehind.found());
    }
    found
}

/// A background task, if it failed lately.
fn task_failed(task: Task) -> Option<Condition> {
    let Faults { count, last } = task.faults();
    let (_, fault) = last.filter(|(at, _)| at.elapsed() < LATELY)?;
    Some(Kind::TaskFailed.says(format!(
        "The background task {} failed {} since the start, and begins again ({fault})",
        task.name(),
        several(count, "time"),
    )))
}

/// Messages that do not turn tracking off for themselves.
fn tracking(ses: &SesClient) -> Option<Condition> {
    match ses.tracking_override() {
        TrackingOverride::Never => Some(Kind::TrackingNotOverridden.found()),
        TrackingOverride::Auto if ses.went_without_override() => {
            Some(Kind::TrackingNotOverridden.says(
                "The endpoint does not know ConfigurationOverrides, so messages go without it: SES \
                 rewrites links and adds a pixel if the account or the configuration set asks for it",
            ))
        }
        TrackingOverride::Always | TrackingOverride::Auto => None,
    }
}

/// Other nodes that are silent, and a database that is not as it was.
fn cluster(nodes: &[NodeStatus], database: Option<&DatabaseStatus>) -> Vec<Condition> {
    let silent = nodes.iter().filter_map(|node| match node.state {
        NodeState::Silent(since) if node.seen_from == SeenFrom::Another => {
            let (name, seconds) = (&node.name, since.as_secs());
            let message = format!("Node {name} has given no sign of life for {seconds} seconds");
            Some(Kind::NodeSilent.names(message, "NODE", name))
        }
        NodeState::Silent(_) | NodeState::Working | NodeState::Draining => None,
    });
    let mut found: Vec<_> = silent.collect();
    let Some(database) = database else { return found };
    match database.standby {
        Standby::Lost => found.push(Kind::StandbyLost.found()),
        Standby::Synchronous | Standby::None => {}
    }
    let apart = Duration::from_millis(database.clock_offset_millis.unsigned_abs());
    if apart > CLOCKS_DIFFER {
        let ahead = if database.clock_offset_millis < 0 { "ahead of" } else { "behind" };
        let message = format!(
            "This machine's clock is {:.1} seconds {ahead} the database's",
            apart.as_secs_f64()
        );
        found.push(Kind::ClocksDiffer.says(message));
    }
    found
}

/// Endpoints that do not take events, or want no more.
fn webhooks(
    endpoints: &[(Webhook, EndpointStatus)],
    name: impl Fn(OrganisationId) -> String,
) -> Vec<Condition> {
    let found = endpoints.iter().filter_map(|(webhook, status)| {
        let of = format!("Endpoint {} of {}", webhook.id, name(webhook.organisation));
        let (kind, message) = match webhook.state {
            WebhookState::Paused { by: PausedBy::Operator, .. } => return None,
            WebhookState::Paused { by: PausedBy::Endpoint, since } => {
                let message =
                    format!("{of} answered 410 at {since}: it is paused, and events wait");
                (Kind::WebhookGone, message)
            }
            WebhookState::Active if !status.is_failing() => return None,
            WebhookState::Active => {
                let answer = status.last.as_ref().map_or("no answer", |last| &last.answer);
                (Kind::WebhookFailing, format!("{of} does not take events ({answer})"))
            }
        };
        Some(kind.names(message, "ID", &webhook.id.to_string()))
    });
    found.take(MAX_WEBHOOKS_TOLD).collect()
}

/// The queue's memory, of which so many bytes are in use, and the organisations whose share of it
/// is used up.
fn queue(in_use: usize, max: usize, full_for: &[String]) -> Option<Condition> {
    match Fill::of(in_use, max) {
        Fill::Room | Fill::NearlyFull if !full_for.is_empty() => {
            Some(Kind::QueueShareFull.says(format!(
                "The queue is full for {}: new messages are refused with 503 QueueFull",
                full_for.join(", ")
            )))
        }
        Fill::Room => None,
        Fill::NearlyFull => Some(Kind::QueueNearlyFull.found()),
        Fill::Full => Some(Kind::QueueFull.found()),
    }
}

/// The budget, if the memory limit has lowered it.
fn lowered(max: usize, configured: usize) -> Option<Condition> {
    (max < configured).then(|| {
        Kind::QueueLowered.says(format!(
            "The memory limit of the service's cgroup leaves {} MiB for pending messages, and \
             sending.max_pending_bytes says {}",
            max >> 20,
            configured >> 20
        ))
    })
}

/// The queue's memory, if much of it, or of an organisation's share, is in use and nothing is full.
fn filling(in_use: usize, max: usize, greatest_share: f64) -> Option<Condition> {
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let used = (in_use as f64 / max as f64).max(greatest_share);
    let is_full = Fill::of(in_use, max) != Fill::Room || greatest_share >= 1.0;
    (used > NEAR_LIMIT && !is_full).then(|| {
        Kind::QueueFilling.says(format!(
            "The queue, or an organisation's share of it, has used {:.0} % of its memory",
            used * 100.0
        ))
    })
}

/// The account's quota, if little of it is left.
fn quota(DailyQuota { max, left }: DailyQuota) -> Option<Condition> {
    (left < max * QUOTA_LOW).then(|| {
        let left = left.max(0.0);
        Kind::QuotaLow
            .says(format!("{left:.0} recipients are left of the account's daily quota of {max:.0}"))
    })
}

/// Clients' connections of a sort, if most of them are taken.
fn connections(open: usize, max: usize) -> Option<Condition> {
    is_near(open as u64, max as u64).then(|| {
        Kind::ConnectionsNearLimit.says(format!("{open} of {max} client connections are open"))
    })
}

/// The process's file descriptors, if most of them are taken.
fn descriptors(process: Process) -> Option<Condition> {
    let (open, max) = process.open_descriptors.zip(process.max_descriptors)?;
    is_near(open, max)
        .then(|| Kind::FilesNearLimit.says(format!("{open} of {max} file descriptors are open")))
}

#[expect(clippy::cast_precision_loss, reason = "such numbers are small")]
fn is_near(open: u64, max: u64) -> bool {
    open as f64 > max as f64 * NEAR_LIMIT
}

/// Rows that cannot be read. Recipients' addresses are not for this page.
fn damaged(rows: &[DamagedRow]) -> Option<Condition> {
    let DamagedRow { table, id, reason, .. } = rows.first()?;
    Some(Kind::RowsDamaged.says(format!(
        "{} of the data file cannot be read, the first in table {table}: {id} ({reason})",
        several(rows.len() as u64, "row")
    )))
}

/// What is wrong with the calls of the last minutes.
fn calls(recent: &RecentCalls, unexpected: &[String]) -> Vec<Condition> {
    let mut found = Vec::new();
    if recent.are_slow() {
        found.push(Kind::ProviderSlow.says(format!(
            "{} of {} calls to the provider took over {} seconds{}",
            recent.slow,
            recent.calls,
            recent_calls::SLOW.as_secs_f64(),
            lately()
        )));
    }
    let unknown = [(recent.unanswered, "no answer"), (recent.unclear, "a server's error")];
    let unknown = unknown.into_iter().filter(|(calls, _)| *calls > 0);
    let unknown: Vec<_> =
        unknown.map(|(calls, what)| format!("{} got {what}", several(calls, "call"))).collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        let message = format!(
            "{unknown}{}: it is not known whether the provider accepted these messages",
            lately()
        );
        found.push(Kind::OutcomesUnknown.says(message));
    }
    if !unexpected.is_empty() {
        let names = unexpected.join(", ");
        let message = format!(
            "The provider answered calls with errors that do not blame the message{}: {names}",
            lately()
        );
        found.push(Kind::UnexpectedAnswers.says(message));
    }
    found
}

/// What keeps every message from being sent, by the calls.
fn sending(condition: &BreakerState, impaired_for: Option<Duration>) -> Option<Condition> {
    let BreakerState::Open { cause, message } = condition else { return None };
    let (what, _) = cause.explained();
    let is_new = impaired_for.is_none_or(|time| time < UNREACHABLE);
    let kind = match cause {
        Cause::Unreachable if is_new => Kind::Unanswered,
        cause => Kind::SendingPaused(*cause),
    };
    Some(kind.says(format!("Sending is paused: {what} ({message})")))
}

fn store(health: Health, has_failed_lately: bool) -> Option<Condition> {
    match (health, has_failed_lately) {
        (Health::Refusing, _) => Some(Kind::StoreRefusing.found()),
        (Health::Writable, true) => Some(Kind::StoreFailing.found()),
        (Health::Writable, false) => None,
        (Health::FileLost(_), _) => {
            let (what, advice) = StoreHealth::from(health).file_loss()?;
            let message = format!("New messages are refused with 503, because {what}");
            let advice = advice.to_owned();
            Some(Condition { advice, ..Kind::DataFileLost.says(message) })
        }
    }
}

fn account(check: &AccountCheck) -> Option<Condition> {
    match check {
        AccountCheck::Passed => None,
        AccountCheck::Unasked => Some(Kind::Starting.found()),
        AccountCheck::Failed { fault, message, before } => {
            let kind = match before {
                EarlierCredentials::None if fault.stops_sending() => Kind::NoCredentialsYet(*fault),
                EarlierCredentials::None | EarlierCredentials::Good => Kind::Account(*fault),
            };
            let (what, _) = fault.explained();
            Some(kind.says(format!("{what} ({message})")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::live::Severity;
    use crate::domain::time::Timestamp;
    use crate::operator::conditions::Readiness::{NotReady, Ready};
    use crate::quota::AccountFault;
    use crate::store::NodeLoad;

    fn codes(found: impl IntoIterator<Item = Condition>) -> Vec<&'static str> {
        found.into_iter().map(|condition| condition.code).collect()
    }

    #[test]
    fn a_provider_that_does_not_answer_is_critical_after_a_minute() {
        let told = |cause, seconds| {
            let condition = BreakerState::Open { cause, message: "no".to_owned() };
            let found = sending(&condition, Some(Duration::from_secs(seconds))).unwrap();
            assert_eq!(found.readiness, Ready);
            (found.code, found.severity)
        };
        assert_eq!(told(Cause::Unreachable, 59), ("unreachable", Severity::Warning));
        assert_eq!(told(Cause::Unreachable, 60), ("unreachable", Severity::Critical));
        assert_eq!(told(Cause::AccountPaused, 0), ("account_paused", Severity::Critical));
        assert_eq!(sending(&BreakerState::Closed, None), None);
    }

    #[test]
    fn only_a_process_that_never_had_credentials_is_not_ready_without_them() {
        let told = |fault, before| {
            let check = AccountCheck::Failed { fault, message: "no".to_owned(), before };
            let found = account(&check).unwrap();
            (found.severity, found.readiness)
        };
        for fault in [AccountFault::CredentialsMissing, AccountFault::CredentialsRefused] {
            let never = told(fault, EarlierCredentials::None);
            assert_eq!(never, (Severity::Critical, NotReady), "{fault:?}");
            let lost = told(fault, EarlierCredentials::Good);
            assert_eq!(lost, (Severity::Critical, Ready), "{fault:?}");
        }
        let denied = told(AccountFault::AccessDenied, EarlierCredentials::None);
        assert_eq!(denied, (Severity::Warning, Ready));
    }

    #[test]
    fn slow_and_unanswered_calls_are_told_of() {
        let codes = |slow, unanswered| {
            let recent = RecentCalls { calls: 100, slow, unanswered, unclear: 0 };
            codes(calls(&recent, &[]))
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
        assert_eq!(told(Health::Writable, true), Some(Ready));
        assert_eq!(told(Health::Refusing, false), Some(NotReady));
    }

    #[test]
    fn silent_nodes_a_lost_standby_and_clocks_that_differ_are_told_of() {
        let node = |state, seen_from| NodeStatus {
            name: "mail-b".to_owned(),
            version: String::new(),
            schema: 2,
            started_at: Timestamp::from_unix_millis(0),
            state,
            seen_from,
            least_dead_after: Duration::ZERO,
            share: 0.5,
            duties: Vec::new(),
            load: NodeLoad::default(),
        };
        let silent = NodeState::Silent(Duration::from_secs(21));
        let told = |nodes: &[NodeStatus]| codes(cluster(nodes, None));
        assert!(told(&[node(NodeState::Draining, SeenFrom::Another)]).is_empty());
        assert!(told(&[node(silent, SeenFrom::Itself)]).is_empty());
        assert_eq!(told(&[node(silent, SeenFrom::Another)]), ["node_silent"]);
        let database = |standby, clock_offset_millis| DatabaseStatus {
            server_version: String::new(),
            server_version_number: 150_000,
            schema: Some(2),
            standby,
            waits_for_disk: true,
            max_connections: 97,
            transactions_behind: 0,
            clock_offset_millis,
        };
        let told = |standby, offset| codes(cluster(&[], Some(&database(standby, offset))));
        assert!(told(Standby::Synchronous, 5_000).is_empty());
        assert!(told(Standby::None, -5_000).is_empty());
        assert_eq!(told(Standby::Lost, 0), ["standby_lost"]);
        assert_eq!(told(Standby::None, 5_001), ["clocks_differ"]);
        assert_eq!(told(Standby::None, -5_001), ["clocks_differ"]);
    }

    #[test]
    fn what_runs_out_is_told_before_it_is_gone() {
        assert_eq!(quota(DailyQuota { max: 100.0, left: 10.0 }), None);
        assert_eq!(codes(quota(DailyQuota { max: 100.0, left: 9.0 })), ["quota_low"]);
        assert_eq!(connections(8, 10), None);
        assert_eq!(codes(connections(9, 10)), ["connections_near_limit"]);
        let process = |open| Process {
            open_descriptors: Some(open),
            max_descriptors: Some(100),
            ..Process::default()
        };
        assert_eq!(descriptors(process(80)), None);
        assert_eq!(codes(descriptors(process(81))), ["files_near_limit"]);
    }

    #[test]
    fn a_queue_that_is_full_is_told_and_leaves_the_service_ready() {
        const MAX: usize = 1 << 30;
        let told = |in_use| {
            let found = queue(in_use, MAX, &[]).or(filling(in_use, MAX, 0.0));
            found.map(|found| (found.code, found.readiness))
        };
        assert_eq!(told(MAX / 5 * 4), None);
        assert_eq!(told(MAX - MAX / 6), Some(("queue_filling", Ready)));
        assert_eq!(told(MAX - MAX / 25), Some(("queue_nearly_full", Ready)));
        assert_eq!(told(MAX), Some(("queue_full", Ready)));
        assert_eq!(codes(filling(0, MAX, 0.81)), ["queue_filling"]);
        assert_eq!(filling(MAX / 2, MAX, 1.0), None);
        let of_one = queue(MAX / 2, MAX, &["acme".to_owned()]).unwrap();
        assert_eq!((of_one.code, of_one.readiness), ("queue_share_full", Ready));
        assert!(of_one.message.contains("full for acme:"), "{}", of_one.message);
    }
}
