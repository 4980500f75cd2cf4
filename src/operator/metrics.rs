//! `/metrics`: the metrics that each module registers, and what is read at the scrape.
//!
//! Names follow Prometheus's conventions (base units, `_total` on counters); the format is its text
//! format, 0.0.4.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::admin::bodies::Keeper;
use crate::dispatch::circuit_breaker::{BreakerState, Cause};
use crate::domain::event::EventType;
use crate::domain::id::OrganisationId;
use crate::domain::policy::RECORD_RETENTION_DAYS;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{PausedBy, Webhook, WebhookState};
use crate::http::connections::Closed;
use crate::http::tls::Tls;
use crate::operator::Parts;
use crate::operator::process::{Process, unix_seconds};
use crate::organisation_counts::OrganisationCounts;
use crate::quota::{AccountCheck, AccountFault};
use crate::store::{Health, NodeState, SeenFrom, Standby};
use crate::tasks::Task;
use crate::webhooks::EndpointStatus;

/// The format's media type.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How many organisations have counts of their own: those that were added first. The others are
/// counted together, so that the number of series stays bounded.
const MAX_ORGANISATIONS: usize = 200;
/// How many endpoints have series of their own: those that were added first. The others are in
/// `pillarbox webhook list` alone.
const MAX_WEBHOOKS: usize = 200;
/// The others' name. No organisation can have it.
const OTHERS: &str = "(others)";

/// Registry of all metrics of these parts.
pub(super) fn registry(parts: &Arc<Parts>) -> Registry {
    let mut registry = Registry::default();
    parts.clients.register(&mut registry);
    parts.smtp.register(&mut registry);
    parts.dispatcher.metrics().register(&mut registry);
    parts.store.metrics().register(&mut registry);
    parts.events.metrics().register(&mut registry);
    registry.register_collector(Box::new(Gauges(Arc::clone(parts))));
    registry.register_collector(Box::new(Organisations(Arc::clone(parts))));
    registry.register_collector(Box::new(Endpoints(Arc::clone(parts))));
    registry
}

/// All metrics, in Prometheus's text format.
pub(super) fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    encode_registry(&mut text, registry).expect("text takes everything");
    name_counters_as_their_samples(&text)
}

/// Names families of counters as their samples are named. The crate writes `OpenMetrics`, in which
/// `_total` is the sample's alone.
fn name_counters_as_their_samples(text: &str) -> String {
    let mut named = String::with_capacity(text.len());
    // A line with the name and the help text comes before the one with the name and the type.
    let mut help = "";
    for line in text.lines() {
        if let Some(name_and_help) = line.strip_prefix("# HELP ") {
            help = name_and_help.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|family| family.split_once(' '))
        {
            let total = if kind == "counter" { "_total" } else { "" };
            named.extend(["# HELP ", name, total, " ", help, "\n"]);
            named.extend(["# TYPE ", name, total, " ", kind, "\n"]);
        } else {
            named.extend([line, "\n"]);
        }
    }
    named
}

/// What is not counted, but read from the parts.
#[derive(Debug)]
struct Gauges(Arc<Parts>);

impl Collector for Gauges {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut to;
        process(&self.0, to)?;
        clients(&self.0, to)?;
        sending(&self.0, to)?;
        bodies(&self.0, to)?;
        store(&self.0, to)?;
        cluster(&self.0, to)?;
        task_faults(to)?;
        events(&self.0, to)
    }
}

fn process(parts: &Parts, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    labelled(
        to,
        "pillarbox_build_info",
        "Always 1; the label is the version that runs.",
        [([("version", env!("CARGO_PKG_VERSION"))], 1.0)],
    )?;
    let process = Process::now();
    // If the file is being opened again, what is in it is left out for the moment.
    let lost = parts.stored.load().lost.ok();
    let lost = lost.map(|lost| lost.map_or(0, |lost| lost.messages));
    let gauges = [
        (
            "process_start_time_seconds",
            "Start of the process, in seconds since the Unix epoch.",
            Some(unix_seconds(parts.started)),
        ),
        ("process_resident_memory_bytes", "Resident memory.", process.resident_bytes.map(count)),
        ("process_open_fds", "Open file descriptors.", process.open_descriptors.map(count)),
        (
            "process_max_fds",
            "Most file descriptors that the process may open.",
            process.max_descriptors.map(count),
        ),
        (
            "pillarbox_stopping",
            "1 while the service stops and refuses new messages.",
            Some(flag(parts.intake.is_closed())),
        ),
        (
            "pillarbox_clock_jumped",
            "1 while the service does not trust the wall clock and purges nothing.",
            Some(flag(parts.clock.jump().is_some())),
        ),
        (
            "pillarbox_start_lost_messages",
            "Messages lost at a stop or a crash, until they are acknowledged.",
            lost.map(count),
        ),
    ];
    plain(to, gauges)
}

fn clients(parts: &Parts, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let tls = parts.tls.as_deref();
    let seconds = |at: Timestamp| unix_seconds(at.into());
    let gauges = [
        (
            "pillarbox_connections",
            "Open client connections of HTTP.",
            Some(count(parts.clients.connections.count() as u64)),
        ),
        (
            "pillarbox_smtp_connections",
            "Open connections of SMTP submission.",
            Some(count(parts.smtp.connections.count() as u64)),
        ),
        (
            "pillarbox_max_connections",
            "Most client connections, of HTTP and SMTP together: max_connections.",
            Some(count(parts.max_connections as u64)),
        ),
        (
            "pillarbox_keyless_connections",
            "Open client connections without a valid key; at most half of max_connections.",
            Some(count(parts.connections.keyless() as u64)),
        ),
        (
            "pillarbox_certificate_expiry_timestamp_seconds",
            "End of the client listener's certificate; absent without TLS.",
            tls.and_then(Tls::expires_at).map(seconds),
        ),
        (
            "pillarbox_certificate_renewal_timestamp_seconds",
            "Latest time to renew the certificate; absent without TLS.",
            tls.and_then(Tls::renew_by).map(seconds),
        ),
        (
            "pillarbox_certificate_refused",
            "1 while the new certificate cannot be used and the old one stays in use.",
            tls.map(|tls| flag(tls.is_refused())),
        ),
    ];
    plain(to, gauges)?;
    let help = "Client connections without a valid key that were closed for want of room, by reason: \
                idle and incomplete ones made room for new ones, refused ones were new";
    let name = "pillarbox_closed_keyless_connections";
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for reason in Closed::ALL {
        let labels = [("reason", reason.as_str())];
        let closed = ConstCounter::new(parts.connections.closed(reason));
        closed.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn sending(parts: &Parts, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let status = parts.dispatcher.status();
    let (pending, quota) = (&status.pending, status.quota);
    let gauges = [
        (
            "pillarbox_queue_messages",
            "Pending messages: accepted and not final.",
            Some(count(pending.messages as u64)),
        ),
        (
            "pillarbox_queue_in_flight_messages",
            "Pending messages whose call to the provider is under way.",
            Some(count(pending.in_flight as u64)),
        ),
        (
            "pillarbox_queue_bytes",
            "Memory that pending messages use.",
            Some(count(pending.bytes as u64)),
        ),
        (
            "pillarbox_queue_max_bytes",
            "Most memory that pending messages may use: sending.max_pending_bytes.",
            Some(count(status.max_pending_bytes as u64)),
        ),
        (
            "pillarbox_queue_share_ratio",
            "The part of its share of the queue's memory that the organisation with the most \
             pending bytes has in use; from 1 on, its new messages are refused.",
            Some(status.greatest_share),
        ),
        (
            "pillarbox_send_rate_recipients_per_second",
            "Current pace; absent if there is no limit.",
            status.rate.limit(),
        ),
        (
            "pillarbox_send_rate_limit_recipients_per_second",
            "Pace without throttling; absent if there is no limit.",
            status.rate_limit.limit(),
        ),
        (
            "pillarbox_quota_recipients",
            "Quota of recipients in 24 hours; absent if it is not known.",
            quota.map(|quota| quota.max),
        ),
        (
            "pillarbox_quota_left_recipients",
            "Recipients that are left of the quota; absent if it is not known.",
            quota.map(|quota| quota.left),
        ),
        (
            "pillarbox_provider_slow",
            "1 while more than one call in twenty of the last 5 minutes, and at least 3, took over \
             2.5 seconds.",
            Some(flag(status.recent_calls.are_slow())),
        ),
        (
            "pillarbox_paused_organisations",
            "Organisations whose calls to the provider fail while others do not.",
            Some(count(status.paused_organisations.len() as u64)),
        ),
        (
            "pillarbox_held_refusals",
            "Refusals by the provider that messages of an organisation get alike, so that they wait.",
            Some(count(status.held_refusals.len() as u64)),
        ),
        (
            "pillarbox_paused_domains",
            "Sender domains that the provider refuses at the moment.",
            Some(count(status.paused_domains.len() as u64)),
        ),
        (
            "pillarbox_store_unrecorded_outcomes",
            "Outcomes of calls that wait until the store takes writes.",
            Some(count(status.unrecorded as u64)),
        ),
    ];
    plain(to, gauges)?;
    let impaired = match &status.condition {
        BreakerState::Closed => None,
        BreakerState::Open { cause, .. } => Some(*cause),
    };
    let causes = Cause::ALL.map(|cause| ([("cause", cause.code())], flag(impaired == Some(cause))));
    labelled(to, "pillarbox_provider_impaired", "1 for the cause of a pause of sending.", causes)?;
    let fault = match &*parts.account.borrow() {
        AccountCheck::Failed { fault, .. } => Some(*fault),
        AccountCheck::Unasked | AccountCheck::Passed => None,
    };
    let faults = AccountFault::ALL.map(|one| ([("cause", one.code())], flag(fault == Some(one))));
    labelled(to, "pillarbox_account_fault", "1 for the fault of the AWS credentials.", faults)
}

fn bodies(parts: &Parts, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let bodies = parts.bodies.show();
    let gauges = [
        (
            "pillarbox_bodies",
            "Bodies of pending messages in memory.",
            Some(count(bodies.count as u64)),
        ),
        (
            "pillarbox_bodies_bytes",
            "Bytes of the bodies, with what is kept of their messages.",
            Some(count(bodies.bytes)),
        ),
        (
            "pillarbox_bodies_memory_bytes",
            "Memory that the bodies take up.",
            Some(count(bodies.memory_bytes)),
        ),
        (
            "pillarbox_bodies_kept",
            "1 while the service manager keeps the bodies, so that they survive a restart and a crash.",
            Some(flag(bodies.keeper == Keeper::ServiceManager)),
        ),
        (
            "pillarbox_bodies_unusable",
            "1 while there are bodies of an earlier process that cannot be used.",
            Some(flag(bodies.unreadable.is_some())),
        ),
        (
            "pillarbox_start_survived_messages",
            "Messages that went on at the last start, because their bodies had survived.",
            Some(count(bodies.survived_messages as u64)),
        ),
    ];
    plain(to, gauges)
}

fn store(parts: &Parts, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let health = parts.store.health();
    let oldest = parts.stored.load().oldest;
    let retention = format!(
        "Time of the oldest record. Records are deleted after {RECORD_RETENTION_DAYS} days."
    );
    let gauges = [
        (
            "pillarbox_store_writable",
            "1 while the disk takes writes.",
            Some(flag(health != Health::Refusing)),
        ),
        (
            "pillarbox_store_file_in_place",
            "1 while the data file is at its path and nobody else has written to it.",
            Some(flag(!matches!(health, Health::FileLost(_)))),
        ),
        (
            "pillarbox_store_file_bytes",
            "Size of the data file.",
            fs::metadata(&parts.file).ok().map(|file| count(file.len())),
        ),
        (
            "pillarbox_store_journal_bytes",
            "Bytes in the journal that are not in the data file yet.",
            Some(count(parts.store.journal_bytes())),
        ),
        (
            "pillarbox_store_damaged_rows",
            "Rows of the data file that cannot be read and are left out.",
            Some(count(parts.store.damaged().len() as u64)),
        ),
        (
            "pillarbox_store_oldest_record_timestamp_seconds",
            &*retention,
            oldest.map(|oldest| unix_seconds(oldest.into())),
        ),
    ];
    plain(to, gauges)
}

fn task_faults(to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Faults of background tasks: panics, and ends before the stop";
    let name = "pillarbox_task_faults";
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for task in Task::ALL {
        let labels = [("task", task.name())];
        ConstCounter::new(task.faults().count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The nodes and the database. A data file has one node.
fn cluster(parts: &Parts, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let nodes = parts.store.nodes();
    let mut states = [("working", 0), ("draining", 0), ("silent", 0)];
    for node in &nodes {
        let state = match node.state {
            NodeState::Working => 0,
            NodeState::Draining => 1,
            NodeState::Silent(_) => 2,
        };
        states[state].1 += 1;
    }
    if !parts.store.is_shared() {
        states[0].1 = 1;
    }
    let states = states.map(|(state, nodes)| ([("state", state)], count(nodes)));
    labelled(to, "pillarbox_nodes", "Nodes on the same store, by their state.", states)?;
    let database = parts.store.database();
    let database = database.as_ref();
    let this = nodes.iter().find(|node| node.seen_from == SeenFrom::Itself);
    let gauges = [
        (
            "pillarbox_node_share",
            "This node's part of the pace of all nodes, from 0 to 1.",
            this.map(|node| node.share),
        ),
        (
            "pillarbox_postgres_waits_for_standby",
            "1 while a commit waits for a synchronous standby.",
            database.map(|database| flag(database.standby == Standby::Synchronous)),
        ),
        (
            "pillarbox_postgres_standby_lost",
            "1 while no commit waits for a standby, though one did since this process was started.",
            database.map(|database| flag(database.standby == Standby::Lost)),
        ),
        (
            "pillarbox_postgres_clock_offset_seconds",
            "How far the database's clock is ahead of this machine's.",
            database.map(|database| millis_as_seconds(database.clock_offset_millis)),
        ),
        (
            "pillarbox_postgres_transactions_behind",
            "Transactions since the oldest that a snapshot or a replication slot still needs.",
            database.map(|database| count(database.transactions_behind.unsigned_abs())),
        ),
    ];
    plain(to, gauges)
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn millis_as_seconds(millis: i64) -> f64 {
    millis as f64 / 1e3
}

fn events(parts: &Parts, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let backlog = parts.stored.load().backlog;
    let gauges = [
        (
            "pillarbox_events_available",
            "1 while the service can receive events from the queue.",
            Some(flag(parts.events.trouble().is_none())),
        ),
        (
            "pillarbox_unmatched_events",
            "Stored events about messages that have no record; each is kept for a day.",
            backlog.map(|backlog| count(backlog.unmatched)),
        ),
        (
            "pillarbox_dead_letters",
            "Stored event documents that could not be read.",
            backlog.map(|backlog| count(backlog.dead_letters)),
        ),
    ];
    plain(to, gauges)
}

/// Writes gauges without labels: name, help and value. One without a value is named all the same.
fn plain<const N: usize>(
    to: &mut DescriptorEncoder<'_>,
    gauges: [(&str, &str, Option<f64>); N],
) -> fmt::Result {
    for (name, help, value) in gauges {
        let family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.map_or(Ok(()), |value| ConstGauge::new(value).encode(family))?;
    }
    Ok(())
}

/// Writes a gauge by labels.
fn labelled<L: EncodeLabelSet>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn count(value: u64) -> f64 {
    value as f64
}

/// What is counted of each organisation, within a bound on the number of series.
#[derive(Debug)]
struct Organisations(Arc<Parts>);

type Count = fn(&OrganisationCounts) -> u64;

impl Collector for Organisations {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let accounts = accounts(&self.0);
        let counters: [(&str, &str, Count); 7] = [
            ("accepted_messages", "Messages that pillarbox accepted.", |one| one.accepted),
            ("sent_messages", "Messages that the provider accepted.", |one| one.sent),
            ("sent_recipients", "Recipients of the messages that the provider accepted.", |one| {
                one.sent_recipients
            }),
            (
                "failed_messages",
                "Failed messages, without those that an operator cancelled.",
                |one| one.failed,
            ),
            ("cancelled_messages", "Messages that an operator cancelled.", |one| one.cancelled),
            (
                "suppressed_messages",
                "Messages not sent because a recipient became suppressed.",
                |one| one.suppressed,
            ),
            ("hard_bounced_recipients", "Recipients with a permanent bounce.", |one| {
                one.hard_bounces
            }),
        ];
        for (name, help, value) in counters {
            let name = format!("pillarbox_organisation_{name}");
            let mut family = to.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for one in &accounts {
                let labels = [("organisation", &*one.name)];
                ConstCounter::new(value(&one.account)).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Delivery events, repeats not counted.";
        let mut family =
            to.encode_descriptor("pillarbox_organisation_events", help, None, MetricType::Counter)?;
        for one in &accounts {
            for event_type in EventType::ALL {
                let labels = [("organisation", &*one.name), ("type", event_type.as_str())];
                let events = one.account.events(event_type);
                ConstCounter::new(events).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// What is known of each endpoint of webhooks, within a bound on the number of series.
#[derive(Debug)]
struct Endpoints(Arc<Parts>);

type Gauge = fn(&Webhook, &EndpointStatus, Timestamp) -> f64;

impl Collector for Endpoints {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let parts = &self.0;
        let mut endpoints = parts.webhooks.all_statuses();
        endpoints.truncate(MAX_WEBHOOKS);
        let now = parts.clock.now();
        let labels = |webhook: &Webhook| {
            let organisation = parts.organisation_name(webhook.organisation);
            [("organisation", organisation), ("webhook", webhook.id.to_string())]
        };
        let gauges: [(&str, &str, Gauge); 5] = [
            (
                "pillarbox_webhook_failing",
                "1 while the last attempts to deliver to the endpoint failed.",
                |webhook, status, _| {
                    let is_active = webhook.state == WebhookState::Active;
                    flag(is_active && status.is_failing())
                },
            ),
            (
                "pillarbox_webhook_gone",
                "1 while the endpoint is paused because it answered 410.",
                |webhook, _, _| {
                    let by_itself = matches!(
                        webhook.state,
                        WebhookState::Paused { by: PausedBy::Endpoint, .. }
                    );
                    flag(by_itself)
                },
            ),
            (
                "pillarbox_webhook_in_flight",
                "Attempts to deliver to the endpoint that are under way.",
                |_, status, _| count(status.in_flight as u64),
            ),
            (
                "pillarbox_webhook_waiting_deliveries",
                "Deliveries to the endpoint that failed and wait for their next attempt.",
                |_, status, _| count(status.waiting),
            ),
            (
                "pillarbox_webhook_behind_seconds",
                "Age of the oldest event that no attempt was made for.",
                |_, status, now| {
                    let since = status.behind_since.unwrap_or(now).unix_millis();
                    Duration::from_millis(now.unix_millis().saturating_sub(since)).as_secs_f64()
                },
            ),
        ];
        for (name, help, value) in gauges {
            let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (webhook, status) in &endpoints {
                let value = value(webhook, status, now);
                ConstGauge::new(value).encode(family.encode_family(&labels(webhook))?)?;
            }
        }
        let help = "Attempts to deliver to the endpoint, by their outcome. Of those that failed, \
                    the last of a delivery counts as failed and the others as retried.";
        let mut family =
            to.encode_descriptor("pillarbox_webhook_attempts", help, None, MetricType::Counter)?;
        for (webhook, status) in &endpoints {
            let outcomes = [
                ("delivered", status.delivered),
                ("retried", status.retried),
                ("failed", status.failed),
            ];
            for (outcome, attempts) in outcomes {
                let [organisation, number] = labels(webhook);
                let labels = [organisation, number, ("outcome", outcome.to_owned())];
                ConstCounter::new(attempts).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// An organisation's account, or that of the others together, which have no number.
pub(super) struct Named {
    pub(super) id: Option<OrganisationId>,
    pub(super) name: String,
    pub(super) account: OrganisationCounts,
}

/// The organisations' accounts by name, with those beyond the limit as one. An organisation that
/// nothing was counted of has one too, so that its first message shows as an increase.
pub(super) fn accounts(parts: &Parts) -> Vec<Named> {
    let organisations = parts.store.organisations().into_iter();
    let mut accounts: BTreeMap<_, _> = organisations
        .map(|organisation| (organisation.id, OrganisationCounts::default()))
        .collect();
    accounts.extend(parts.store.metrics().organisations.get());
    let mut named = Vec::new();
    let mut others: Option<OrganisationCounts> = None;
    for (id, account) in accounts {
        if named.len() < MAX_ORGANISATIONS {
            named.push(Named { id: Some(id), name: parts.organisation_name(id), account });
        } else {
            others = Some(others.unwrap_or_default().plus(&account));
        }
    }
    let others = others.map(|account| Named { id: None, name: OTHERS.to_owned(), account });
    named.extend(others);
    named
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn counters_are_named_as_their_samples_and_gauges_stay_as_they_are() {
        let mut registry = Registry::default();
        registry.register("posts", "Letters posted", Counter::<u64>::default());
        registry.register("box", "Letters in the box", Gauge::<i64>::default());
        assert_eq!(
            encode(&registry),
            "# HELP posts_total Letters posted.\n# TYPE posts_total counter\nposts_total 0\n\
             # HELP box Letters in the box.\n# TYPE box gauge\nbox 0\n"
        );
    }
}
