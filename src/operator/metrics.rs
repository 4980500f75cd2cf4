//! `/metrics`: the metrics that each module registers, and a list of those that are read from the
//! snapshot.
//!
//! Names follow Prometheus's conventions (base units, `_total` on counters); the format is its text
//! format, 0.0.4.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use Source::{Counters, Gauge, Gauges};

use crate::Parts;
use pillarbox_admin::bodies::Keeper;
use pillarbox_admin::process::unix_seconds;
use pillarbox_admin::snapshot::{NamedCounts, Snapshot, StoreHealth};
use pillarbox_alerts::AlertsStatus;
use pillarbox_dispatch::circuit_breaker::{BreakerState, Cause};
use pillarbox_dispatch::quota::{AccountCheck, AccountFault};
use pillarbox_domain::event::EventType;
use pillarbox_domain::limits::RECORD_RETENTION_DAYS;
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::webhook::{PausedBy, Webhook, WebhookState};
use pillarbox_http::connections::Closed;
use pillarbox_store::organisation_counts::OrganisationCounts;
use pillarbox_store::{NodeState, SeenFrom, Standby};
use pillarbox_webhooks::EndpointStatus;

/// The format's media type.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Limit of endpoints that have series of their own: those that were added first. The others are in
/// `pillarbox webhook list` alone.
const MAX_WEBHOOKS: usize = 200;

/// Registry of the metrics that the modules of these parts count.
pub(super) fn registry(parts: &Parts) -> Registry {
    let mut registry = Registry::default();
    parts.clients.register(&mut registry);
    parts.smtp.register(&mut registry);
    parts.dispatcher.metrics().register(&mut registry);
    parts.store.metrics().register(&mut registry);
    parts.events.metrics().register(&mut registry);
    registry
}

/// All metrics, in Prometheus's text format.
pub(super) fn encode(counted: &Registry, snapshot: Snapshot) -> String {
    let mut read = Registry::default();
    read.register_collector(Box::new(Read(snapshot)));
    let mut text = String::new();
    for registry in [counted, &read] {
        encode_registry(&mut text, registry).expect("text takes everything");
    }
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

/// Source of a metric's samples.
enum Source {
    /// Gauge of one sample, or of none if its value is not known.
    Gauge(fn(&Snapshot) -> Option<f64>),
    /// Gauge by labels.
    Gauges(fn(&Snapshot) -> Vec<(Labels, f64)>),
    /// Counter by labels.
    Counters(fn(&Snapshot) -> Vec<(Labels, u64)>),
}

type Text = &'static str;
type Labels = Vec<(Text, String)>;

/// The metrics that are read from the snapshot: name, help, and how they are read.
#[rustfmt::skip] // A table.
static METRICS: [(Text, Text, Source); 75] = [
    ("pillarbox_build_info", "Always 1; the label has the version of the running service.",
        Gauges(|_| vec![(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)])),
    ("process_start_time_seconds", "Start of the process, in seconds since the Unix epoch.",
        Gauge(|s| Some(s.started))),
    ("process_resident_memory_bytes", "Resident memory.",
        Gauge(|s| s.process.resident_bytes.and_then(count))),
    ("process_open_fds", "Open file descriptors.",
        Gauge(|s| s.process.open_descriptors.and_then(count))),
    ("process_max_fds", "Maximum number of file descriptors that the process may open.",
        Gauge(|s| s.process.max_descriptors.and_then(count))),
    ("pillarbox_stopping", "1 while the service is stopping and refuses new messages.",
        Gauge(|s| flag(s.is_stopping))),
    ("pillarbox_clock_jumped", "1 while the service does not trust the wall clock and purges nothing.",
        Gauge(|s| flag(s.clock_jump.is_some()))),
    // If the file is being opened again, what is in it is left out for the moment.
    ("pillarbox_start_lost_messages", "Messages lost at a stop or a crash, until they are acknowledged.",
        Gauge(|s| s.stored.lost.ok().and_then(|lost| count(lost.map_or(0, |lost| lost.messages))))),
    ("pillarbox_connections", "Open client connections over HTTP.",
        Gauge(|s| size(s.connections.http))),
    ("pillarbox_smtp_connections", "Open connections of SMTP submission.",
        Gauge(|s| size(s.connections.smtp))),
    ("pillarbox_max_connections", "Maximum number of client connections, HTTP and SMTP together: max_connections.",
        Gauge(|s| size(s.connections.max))),
    ("pillarbox_keyless_connections", "Open client connections without a valid key; at most half of max_connections.",
        Gauge(|s| size(s.connections.keyless))),
    ("pillarbox_certificate_expiry_timestamp_seconds", "Expiry time of the client listener's certificate; absent without TLS.",
        Gauge(|s| s.certificate.as_ref()?.expires_at.map(|at| unix_seconds(at.into())))),
    ("pillarbox_certificate_renewal_timestamp_seconds", "Latest time to renew the certificate; absent without TLS.",
        Gauge(|s| s.certificate.as_ref()?.renew_by.map(|at| unix_seconds(at.into())))),
    ("pillarbox_certificate_refused", "1 while the new certificate cannot be used and the old one stays in use.",
        Gauge(|s| flag(s.certificate.as_ref()?.is_refused))),
    ("pillarbox_closed_keyless_connections",
        "Client connections without a valid key that were closed for lack of room, by reason: idle \
         and incomplete ones were closed to make room for a new one; refused ones were new \
         connections for which there was no room.",
        Counters(|s| by("reason", Closed::ALL.map(Closed::as_str).into_iter().zip(s.connections.closed)))),
    ("pillarbox_queue_messages", "Pending messages: accepted and not final.",
        Gauge(|s| size(s.sending.pending.messages))),
    ("pillarbox_queue_paused_messages", "Pending messages that wait because an operator has paused their organisation.",
        Gauge(|s| size(s.sending.pending.paused))),
    ("pillarbox_queue_in_flight_messages", "Pending messages whose call to the provider is under way.",
        Gauge(|s| size(s.sending.pending.in_flight))),
    ("pillarbox_queue_bytes", "Memory that pending messages use.",
        Gauge(|s| size(s.sending.pending.bytes))),
    ("pillarbox_queue_max_bytes", "Maximum memory that pending messages may use: sending.max_pending_bytes.",
        Gauge(|s| size(s.sending.max_pending_bytes))),
    ("pillarbox_queue_share_ratio",
        "Fraction of the queue share that is used, for the organisation with the most pending bytes; \
         at 1 or more, its new messages are refused.",
        Gauge(|s| Some(s.sending.greatest_share))),
    ("pillarbox_send_rate_recipients_per_second", "Current limit of the sending rate; absent if there is no limit.",
        Gauge(|s| s.sending.rate.limit())),
    ("pillarbox_send_rate_limit_recipients_per_second", "Limit of the sending rate without throttling; absent if there is no limit.",
        Gauge(|s| s.sending.rate_limit.limit())),
    ("pillarbox_quota_recipients", "Quota of recipients in 24 hours; absent if it is not known.",
        Gauge(|s| Some(s.sending.quota?.max))),
    ("pillarbox_quota_left_recipients", "Recipients that are left in the quota; absent if it is not known.",
        Gauge(|s| Some(s.sending.quota?.left))),
    ("pillarbox_provider_slow",
        "1 while, of the calls of the last 5 minutes, more than one in twenty and at least 3 took over 2.5 seconds.",
        Gauge(|s| flag(s.sending.recent_calls.are_slow()))),
    ("pillarbox_paused_organisations", "Organisations whose calls to the provider fail while calls for others do not.",
        Gauge(|s| size(s.sending.paused_organisations.len()))),
    ("pillarbox_organisations_paused_by_operators", "Organisations that operators have paused.",
        Gauge(|s| size(s.paused_by_operators.len()))),
    ("pillarbox_paused_first_end_seconds",
        "Of the messages that wait because an operator paused their organisation: seconds until the \
         first one fails; absent if none waits.",
        Gauge(|s| {
            let ends = s.paused_by_operators.iter().filter_map(|one| one.messages.first_end);
            let left = ends.min()?.unix_millis().saturating_sub(s.at.unix_millis());
            Some(Duration::from_millis(left).as_secs_f64())
        })),
    ("pillarbox_held_refusals", "Error texts with which the provider keeps refusing messages of \
                                      an organisation; those messages wait.",
        Gauge(|s| size(s.sending.held_refusals.len()))),
    ("pillarbox_paused_domains", "Sender domains that the provider refuses at the moment.",
        Gauge(|s| size(s.sending.paused_domains.len()))),
    ("pillarbox_store_unrecorded_outcomes", "Outcomes of calls that wait until the store \
                                                  accepts writes.",
        Gauge(|s| size(s.sending.unrecorded))),
    ("pillarbox_provider_impaired", "1 if sending is paused for this cause.",
        Gauges(|s| by("cause", Cause::ALL.map(|one| (one.code(), on(
            matches!(s.sending.condition, BreakerState::Open { cause, .. } if cause == one))))))),
    ("pillarbox_account_fault", "1 if the AWS credentials have this fault.",
        Gauges(|s| by("cause", AccountFault::ALL.map(|one| (one.code(), on(
            matches!(s.account, AccountCheck::Failed { fault, .. } if fault == one))))))),
    ("pillarbox_bodies", "Bodies of pending messages in memory.",
        Gauge(|s| size(s.bodies.as_ref()?.count))),
    ("pillarbox_bodies_bytes", "Bytes of the bodies and of the data that is stored with them.",
        Gauge(|s| count(s.bodies.as_ref()?.bytes))),
    ("pillarbox_bodies_memory_bytes", "Memory that the bodies take up.",
        Gauge(|s| count(s.bodies.as_ref()?.memory_bytes))),
    ("pillarbox_bodies_kept",
        "1 while the service manager keeps the bodies, so that they survive a restart and a crash.",
        Gauge(|s| flag(s.bodies.as_ref()?.keeper == Keeper::ServiceManager))),
    ("pillarbox_bodies_unusable", "1 while there are bodies of an earlier process that cannot be used.",
        Gauge(|s| flag(s.bodies.as_ref()?.unreadable.is_some()))),
    ("pillarbox_start_survived_messages",
        "Messages that were pending again at the last start, because their bodies had survived.",
        Gauge(|s| size(s.bodies.as_ref()?.survived_messages))),
    ("pillarbox_store_writable", "1 while the store accepts writes.",
        Gauge(|s| flag(s.store != StoreHealth::Refusing))),
    ("pillarbox_store_file_in_place",
        "1 while the data file is at its path and nobody else has written to it.",
        Gauge(|s| flag(s.store.file_loss().is_none()))),
    ("pillarbox_store_file_bytes", "Size of the data file.",
        Gauge(|s| s.file_bytes.and_then(count))),
    ("pillarbox_store_journal_bytes", "Bytes in the journal that are not in the data file yet.",
        Gauge(|s| count(s.journal_bytes))),
    ("pillarbox_store_damaged_rows", "Rows of the store that cannot be read.",
        Gauge(|s| size(s.damaged.len()))),
    ("pillarbox_store_oldest_record_timestamp_seconds",
        "Time of the oldest record. Records are deleted after 90 days.",
        Gauge(|s| s.stored.oldest.map(|at| unix_seconds(at.into())))),
    ("pillarbox_task_faults", "Faults of background tasks: they panicked, or ended before the service stopped.",
        Counters(|s| s.task_faults.iter().map(|one| (vec![("task", one.task.to_owned())], one.count)).collect())),
    ("pillarbox_nodes", "Nodes on the same store, by their state.", Gauges(nodes)),
    ("pillarbox_node_share", "This node's part of the sending rate of all nodes, from 0 to 1.",
        Gauge(|s| s.nodes.iter().find(|node| node.seen_from == SeenFrom::Itself).map(|node| node.share))),
    ("pillarbox_postgres_waits_for_standby", "1 if each commit waits for a synchronous standby.",
        Gauge(|s| flag(s.database.as_ref()?.standby == Standby::Synchronous))),
    ("pillarbox_postgres_standby_lost",
        "1 while no commit waits for a standby, although earlier commits of this process did.",
        Gauge(|s| flag(s.database.as_ref()?.standby == Standby::Lost))),
    ("pillarbox_postgres_clock_offset_seconds", "How far the database's clock is ahead of this machine's.",
        Gauge(|s| Some(millis_as_seconds(s.database.as_ref()?.clock_offset_millis)))),
    ("pillarbox_postgres_transactions_behind",
        "Transactions since the oldest one that a snapshot or a replication slot still needs.",
        Gauge(|s| count(s.database.as_ref()?.transactions_behind.unsigned_abs()))),
    ("pillarbox_events_available", "1 while the service can receive events from the SQS queue.",
        Gauge(|s| flag(s.events_trouble.is_none()))),
    ("pillarbox_unmatched_events",
        "Stored events about messages that have no record; each is kept for a day.",
        Gauge(|s| count(s.stored.backlog?.unmatched))),
    ("pillarbox_dead_letters", "Stored event documents that were set aside.",
        Gauge(|s| count(s.stored.backlog?.dead_letters))),
    ("pillarbox_organisation_limit_ratio",
        "Fraction of an organisation's limit that is used. Labels: `organisation`, `period`.", Gauges(limit_ratios)),
    ("pillarbox_organisation_accepted_messages", "Messages that pillarbox accepted.",
        Counters(|s| organisations(s, |one| one.accepted))),
    ("pillarbox_organisation_sent_messages", "Messages that the provider accepted.",
        Counters(|s| organisations(s, |one| one.sent))),
    ("pillarbox_organisation_sent_recipients", "Recipients of the messages that the provider accepted.",
        Counters(|s| organisations(s, |one| one.sent_recipients))),
    ("pillarbox_organisation_failed_messages", "Failed messages, without those that were cancelled.",
        Counters(|s| organisations(s, |one| one.failed))),
    ("pillarbox_organisation_cancelled_messages", "Messages that an operator or the application cancelled.",
        Counters(|s| organisations(s, |one| one.cancelled))),
    ("pillarbox_organisation_suppressed_messages", "Messages not sent because a recipient became suppressed.",
        Counters(|s| organisations(s, |one| one.suppressed))),
    ("pillarbox_organisation_hard_bounced_recipients", "Recipients with a permanent bounce.",
        Counters(|s| organisations(s, |one| one.hard_bounces))),
    ("pillarbox_organisation_events", "Delivery events, repeats not counted.",
        Counters(|s| s.organisations().into_iter().flat_map(|one| EventType::ALL.map(|event_type| {
            let mut labels = labels_of(&one);
            labels.push(("type", event_type.as_str().to_owned()));
            (labels, one.counts.events(event_type))
        })).collect())),
    ("pillarbox_webhook_failing", "1 while the last attempts to deliver to the endpoint failed.",
        Gauges(|s| endpoints(s, |hook, status| on(hook.state == WebhookState::Active && status.is_failing())))),
    ("pillarbox_webhook_gone", "1 while the endpoint is paused because it answered 410.",
        Gauges(|s| endpoints(s, |hook, _| on(matches!(hook.state, WebhookState::Paused { by: PausedBy::Endpoint, .. }))))),
    ("pillarbox_webhook_in_flight", "Attempts to deliver to the endpoint that are under way.",
        Gauges(|s| endpoints(s, |_, status| float(status.in_flight as u64)))),
    ("pillarbox_webhook_waiting_deliveries",
        "Deliveries to the endpoint that failed and wait for their next attempt.",
        Gauges(|s| endpoints(s, |_, status| float(status.waiting)))),
    ("pillarbox_webhook_behind_seconds", "Age of the oldest event without an attempt.",
        Gauges(|s| endpoints(s, |_, status| {
            let since = status.behind_since.unwrap_or(s.at).unix_millis();
            Duration::from_millis(s.at.unix_millis().saturating_sub(since)).as_secs_f64()
        }))),
    ("pillarbox_webhook_attempts",
        "Attempts to deliver to the endpoint, by their outcome. A failed attempt counts as retried if \
         another follows, and as failed if it was the last.", Counters(webhook_attempts)),
    ("pillarbox_alerts_failing",
        "1 while the last attempts to post alerts failed.",
        Gauge(|s| flag(s.alerts.as_ref().is_some_and(AlertsStatus::is_failing)))),
    ("pillarbox_alerts_waiting", "Alerts that the receiver has not accepted yet.",
        Gauge(|s| size(s.alerts.as_ref().map_or(0, |alerts| alerts.waiting)))),
    ("pillarbox_alert_attempts",
        "Attempts to post alerts, by their outcome. A failed attempt counts as retried if another \
         follows, and as failed if it was the last.", Counters(alert_attempts)),
];
const _: () = assert!(RECORD_RETENTION_DAYS == 90, "the help of a metric says it");

fn limit_ratios(s: &Snapshot) -> Vec<(Labels, f64)> {
    let labelled = s.limit_ratios().into_iter().map(|(id, period, ratio)| {
        let labels = vec![("organisation", s.name(id)), ("period", period.as_str().to_owned())];
        (labels, ratio)
    });
    labelled.collect()
}

/// Nodes by their state. A data file has one node.
fn nodes(s: &Snapshot) -> Vec<(Labels, f64)> {
    let mut states = [("working", 0), ("draining", 0), ("silent", 0)];
    for node in &s.nodes {
        let state = match node.state {
            NodeState::Working => 0,
            NodeState::Draining => 1,
            NodeState::Silent(_) => 2,
        };
        states[state].1 += 1;
    }
    if !s.is_shared {
        states[0].1 = 1;
    }
    by("state", states.map(|(state, nodes)| (state, float(nodes))))
}

fn organisations(s: &Snapshot, count: impl Fn(&OrganisationCounts) -> u64) -> Vec<(Labels, u64)> {
    let organisations = s.organisations().into_iter();
    organisations.map(|one| (labels_of(&one), count(&one.counts))).collect()
}

/// Labels of an organisation. Alerts leave out those of a test organisation, which has one more.
fn labels_of(one: &NamedCounts) -> Labels {
    let mut labels = vec![("organisation", one.name.clone())];
    if one.kind == OrganisationKind::Test {
        labels.push(("test", "true".to_owned()));
    }
    labels
}

fn endpoints<V>(s: &Snapshot, value: impl Fn(&Webhook, &EndpointStatus) -> V) -> Vec<(Labels, V)> {
    let samples = s.endpoints.iter().take(MAX_WEBHOOKS).map(|(webhook, status)| {
        let (organisation, id) = (s.name(webhook.organisation), webhook.id.to_string());
        (vec![("organisation", organisation), ("webhook", id)], value(webhook, status))
    });
    samples.collect()
}

fn webhook_attempts(s: &Snapshot) -> Vec<(Labels, u64)> {
    let attempts = endpoints(s, |_, status| {
        let EndpointStatus { delivered, retried, failed, .. } = *status;
        by_outcome(delivered, retried, failed)
    });
    let samples = attempts.into_iter().flat_map(|(endpoint, attempts)| {
        attempts.into_iter().map(move |(outcome, count)| ([&*endpoint, &outcome].concat(), count))
    });
    samples.collect()
}

fn alert_attempts(s: &Snapshot) -> Vec<(Labels, u64)> {
    let AlertsStatus { delivered, retried, failed, .. } = s.alerts.clone().unwrap_or_default();
    by_outcome(delivered, retried, failed)
}

/// Attempts of deliveries by their outcome.
fn by_outcome(delivered: u64, retried: u64, failed: u64) -> Vec<(Labels, u64)> {
    by("outcome", [("delivered", delivered), ("retried", retried), ("failed", failed)])
}

/// Values by one label.
fn by<V>(label: Text, values: impl IntoIterator<Item = (Text, V)>) -> Vec<(Labels, V)> {
    values.into_iter().map(|(name, value)| (vec![(label, name.to_owned())], value)).collect()
}

fn on(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn millis_as_seconds(millis: i64) -> f64 {
    millis as f64 / 1e3
}

#[expect(clippy::unnecessary_wraps, reason = "as the list wants it")]
fn flag(is_set: bool) -> Option<f64> {
    Some(on(is_set))
}

#[expect(clippy::unnecessary_wraps, reason = "as the list wants it")]
fn count(value: u64) -> Option<f64> {
    Some(float(value))
}

fn size(value: usize) -> Option<f64> {
    count(value as u64)
}

/// Metrics that are read from a snapshot.
#[derive(Debug)]
struct Read(Snapshot);

impl Collector for Read {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, source) in &METRICS {
            let kind = match source {
                Gauge(_) | Gauges(_) => MetricType::Gauge,
                Counters(_) => MetricType::Counter,
            };
            // A metric without a sample is named all the same.
            let mut family = to.encode_descriptor(name, help, None, kind)?;
            match source {
                Gauge(value) => {
                    value(&self.0).map_or(Ok(()), |value| ConstGauge::new(value).encode(family))?;
                }
                Gauges(values) => {
                    for (labels, value) in values(&self.0) {
                        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
                    }
                }
                Counters(values) => {
                    for (labels, value) in values(&self.0) {
                        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn help_is_a_sentence() {
        let others = METRICS.iter().filter(|(_, help, _)| !help.ends_with('.'));
        assert_eq!(others.map(|(name, ..)| *name).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn counters_are_named_as_their_samples_and_gauges_stay_as_they_are() {
        let mut registry = Registry::default();
        registry.register("posts", "Letters posted", Counter::<u64>::default());
        registry.register("box", "Letters in the box", Gauge::<i64>::default());
        let text = encode(&registry, Snapshot::default());
        let start = "# HELP posts_total Letters posted.\n# TYPE posts_total counter\nposts_total 0\n\
             # HELP box Letters in the box.\n# TYPE box gauge\nbox 0\n";
        assert!(text.starts_with(start), "{text}");
    }
}
