//! `/metrics`: what is counted everywhere, under names by Prometheus's conventions (base units,
//! `_total` on counters).

use std::fmt;
use std::fs;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::admin::wire::{AccountFault, Cause};
use crate::dispatch::SendingStatus;
use crate::dispatch::circuit_breaker::{self, BreakerState};
use crate::domain::policy::RECORD_RETENTION_DAYS;
use crate::domain::time::Timestamp;
use crate::http::tls::Tls;
use crate::operator::Parts;
use crate::operator::families::{self, Families, Label, MICROS};
use crate::operator::process::{Process, unix_seconds};
use crate::quota::{self, AccountCheck};
use crate::store::{EventBacklog, Health};

pub(super) mod organisations;

const CAUSES: [circuit_breaker::Cause; 4] = [
    circuit_breaker::Cause::Unreachable,
    circuit_breaker::Cause::QuotaExhausted,
    circuit_breaker::Cause::AccountPaused,
    circuit_breaker::Cause::SetupFault,
];

/// All metrics, in Prometheus's text format.
pub(super) fn render(parts: &Arc<Parts>) -> String {
    families::render(Metrics(Arc::clone(parts)))
}

#[derive(Debug)]
struct Metrics(Arc<Parts>);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        Now::of(&self.0).write(&self.0, &mut Families::new(encoder))
    }
}

/// What has to be asked for, as against what is counted.
struct Now {
    sending: SendingStatus,
    process: Process,
    /// The data file's size, in bytes.
    file_bytes: Option<u64>,
    backlog: Option<EventBacklog>,
    /// Messages that were lost and are still to be seen.
    lost_messages: Option<u64>,
    /// The oldest record's time, in seconds since the Unix epoch.
    oldest_seconds: Option<f64>,
}

impl Now {
    fn of(parts: &Parts) -> Self {
        // Where the file is being opened again, what is in it is left out for the moment.
        let oldest = parts.store.oldest(parts.clock.settled()).ok().flatten();
        let lost = parts.store.lost_messages(parts.clock.settled().now());
        Self {
            sending: parts.dispatcher.status(),
            process: Process::now(),
            file_bytes: fs::metadata(&parts.file).ok().map(|file| file.len()),
            backlog: parts.store.event_backlog().ok(),
            lost_messages: lost.ok().map(|lost| lost.map_or(0, |lost| lost.messages)),
            oldest_seconds: oldest.map(|oldest| unix_seconds(oldest.into())),
        }
    }

    fn write(&self, parts: &Parts, to: &mut Families<'_>) -> fmt::Result {
        self.process(parts, to)?;
        clients(parts, to)?;
        self.queue(to)?;
        self.provider(parts, to)?;
        self.store(parts, to)?;
        self.events(parts, to)?;
        organisations::write(parts, to)
    }

    fn process(&self, parts: &Parts, to: &mut Families<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
        to.gauges(
            "pillarbox_build_info",
            "Always 1; the label is the version that runs.",
            [(version, 1.0)],
        )?;
        let process = &self.process;
        to.gauge(
            "process_start_time_seconds",
            "Start of the process, in seconds since the Unix epoch.",
            unix_seconds(parts.started),
        )?;
        to.gauge(
            "process_resident_memory_bytes",
            "Resident memory.",
            process.resident_bytes.map(count),
        )?;
        to.gauge(
            "process_open_fds",
            "Open file descriptors.",
            process.open_descriptors.map(count),
        )?;
        to.gauge(
            "process_max_fds",
            "Most file descriptors that the process may open.",
            process.max_descriptors.map(count),
        )?;
        to.gauge(
            "pillarbox_stopping",
            "1 while the service stops and refuses new messages.",
            flag(parts.intake.is_closed()),
        )?;
        to.gauge(
            "pillarbox_clock_jumped",
            "1 while the service does not trust the wall clock and purges nothing.",
            flag(parts.clock.jump().is_some()),
        )?;
        to.gauge(
            "pillarbox_start_lost_messages",
            "Messages lost at a stop or a crash, until they are acknowledged.",
            self.lost_messages.map(count),
        )
    }

    fn queue(&self, to: &mut Families<'_>) -> fmt::Result {
        let pending = &self.sending.pending;
        to.gauge(
            "pillarbox_queue_messages",
            "Pending messages: accepted and not final.",
            count(pending.messages as u64),
        )?;
        to.gauge(
            "pillarbox_queue_in_flight_messages",
            "Pending messages whose call to the provider is under way.",
            count(pending.in_flight as u64),
        )?;
        to.gauge(
            "pillarbox_queue_bytes",
            "Memory that pending messages use.",
            count(pending.bytes as u64),
        )?;
        to.gauge(
            "pillarbox_queue_max_bytes",
            "Most memory that pending messages may use: sending.max_pending_bytes.",
            count(self.sending.max_pending_bytes as u64),
        )?;
        to.gauge(
            "pillarbox_queue_share_ratio",
            "The part of its share of the queue's memory that the organisation with the most \
             pending bytes has in use; from 1 on, its new messages are refused.",
            self.sending.greatest_share,
        )
    }

    fn provider(&self, parts: &Parts, to: &mut Families<'_>) -> fmt::Result {
        let counts = parts.dispatcher.counts();
        let outcomes = counts.outcomes.get().map(|(name, n)| ([label("outcome", name)], n));
        to.counters("pillarbox_attempts_total", "Finished calls to the provider.", outcomes)?;
        to.histogram(
            "pillarbox_attempt_duration_seconds",
            "Duration of calls to the provider.",
            &counts.call_micros.read(),
            MICROS,
        )?;
        to.gauge(
            "pillarbox_send_rate_recipients_per_second",
            "Current pace; absent if there is no limit.",
            self.sending.rate.limit(),
        )?;
        to.gauge(
            "pillarbox_send_rate_limit_recipients_per_second",
            "Pace without throttling; absent if there is no limit.",
            self.sending.rate_limit.limit(),
        )?;
        let quota = self.sending.quota;
        to.gauge(
            "pillarbox_quota_recipients",
            "Quota of recipients in 24 hours; absent if it is not known.",
            quota.map(|quota| quota.max),
        )?;
        to.gauge(
            "pillarbox_quota_left_recipients",
            "Recipients that are left of the quota; absent if it is not known.",
            quota.map(|quota| quota.left),
        )?;
        let impaired = match &self.sending.condition {
            BreakerState::Closed => None,
            BreakerState::Open { cause, .. } => Some(*cause),
        };
        let causes = CAUSES.map(|cause| {
            ([label("cause", Cause::from(cause).code())], flag(impaired == Some(cause)))
        });
        to.gauges("pillarbox_provider_impaired", "1 for the cause of a pause of sending.", causes)?;
        let fault = match &*parts.account.borrow() {
            AccountCheck::Failed { fault, .. } => Some(*fault),
            AccountCheck::Unasked | AccountCheck::Passed => None,
        };
        let faults = quota::AccountFault::ALL.map(|one| {
            ([label("cause", AccountFault::from(one).code())], flag(fault == Some(one)))
        });
        to.gauges("pillarbox_account_fault", "1 for the fault of the AWS credentials.", faults)?;
        to.gauge(
            "pillarbox_provider_slow",
            "1 while more than one call in twenty of the last 5 minutes, and at least 3, took over \
             2.5 seconds.",
            flag(self.sending.recent_calls.are_slow()),
        )?;
        to.gauge(
            "pillarbox_paused_domains",
            "Sender domains that the provider refuses at the moment.",
            count(self.sending.paused_domains.len() as u64),
        )
    }

    fn store(&self, parts: &Parts, to: &mut Families<'_>) -> fmt::Result {
        let counts = parts.store.counts();
        to.gauge(
            "pillarbox_store_writable",
            "1 while the disk takes writes.",
            flag(parts.store.health() != Health::Refusing),
        )?;
        to.gauge(
            "pillarbox_store_file_in_place",
            "1 while the data file is at its path and nobody else has written to it.",
            flag(!matches!(parts.store.health(), Health::FileLost(_))),
        )?;
        to.histogram(
            "pillarbox_store_commit_duration_seconds",
            "Duration of commits, including the work of their operations.",
            &counts.commit_micros.read(),
            MICROS,
        )?;
        to.histogram(
            "pillarbox_store_commit_operations",
            "Operations in each commit.",
            &counts.batch_operations.read(),
            1.0,
        )?;
        to.counter(
            "pillarbox_store_failed_commits_total",
            "Failed commits.",
            counts.failed_commits.get(),
        )?;
        to.gauge(
            "pillarbox_store_unrecorded_outcomes",
            "Outcomes of calls that wait until the store takes writes.",
            count(self.sending.unrecorded as u64),
        )?;
        to.gauge(
            "pillarbox_store_file_bytes",
            "Size of the data file.",
            self.file_bytes.map(count),
        )?;
        to.gauge(
            "pillarbox_store_damaged_rows",
            "Rows of the data file that cannot be read and are left out.",
            count(parts.store.damaged().len() as u64),
        )?;
        to.gauge(
            "pillarbox_store_oldest_record_timestamp_seconds",
            &format!(
                "Time of the oldest record. Records are deleted after {RECORD_RETENTION_DAYS} days."
            ),
            self.oldest_seconds,
        )?;
        to.counter(
            "pillarbox_purged_messages_total",
            "Records deleted at the end of their retention.",
            counts.purged_messages.get(),
        )?;
        to.counter(
            "pillarbox_purged_idempotency_keys_total",
            "Idempotency keys deleted at the end of their window.",
            counts.purged_keys.get(),
        )
    }

    fn events(&self, parts: &Parts, to: &mut Families<'_>) -> fmt::Result {
        let counts = parts.events.counts();
        let types = [
            ("send", counts.sends),
            ("delivery", counts.deliveries),
            ("bounce", counts.bounces),
            ("complaint", counts.complaints),
            ("reject", counts.rejects),
            ("delivery_delay", counts.delivery_delays),
            ("other", counts.others),
            ("unreadable", counts.unreadable),
        ];
        to.counters(
            "pillarbox_event_documents_total",
            "Event documents received, repeats included.",
            types.map(|(name, n)| ([label("type", name)], n)),
        )?;
        to.counter(
            "pillarbox_unmatched_event_documents_total",
            "Event documents about messages that were not known.",
            counts.unmatched,
        )?;
        to.counter(
            "pillarbox_foreign_event_documents_total",
            "Event documents that named another organisation than the message's.",
            counts.foreign,
        )?;
        to.gauge(
            "pillarbox_events_available",
            "1 while the service can receive events from the queue.",
            flag(parts.events.trouble().is_none()),
        )?;
        to.gauge(
            "pillarbox_unmatched_events",
            "Stored events about messages that have no record; each is kept for a day.",
            self.backlog.map(|backlog| count(backlog.unmatched)),
        )?;
        to.gauge(
            "pillarbox_dead_letters",
            "Stored event documents that could not be read.",
            self.backlog.map(|backlog| count(backlog.dead_letters)),
        )
    }
}

fn clients(parts: &Parts, to: &mut Families<'_>) -> fmt::Result {
    let counts = &parts.clients;
    to.counter("pillarbox_accepted_messages_total", "Accepted messages.", counts.accepted.get())?;
    to.counter(
        "pillarbox_replays_total",
        "Replays: requests answered with the id of an earlier message.",
        counts.replayed.get(),
    )?;
    to.counter(
        "pillarbox_ignored_idempotency_headers_total",
        "Requests with an Idempotency-Key header, which is not implemented.",
        counts.ignored_keys.get(),
    )?;
    let refused = counts.refused.get().map(|(code, n)| ([label("code", code)], n));
    to.counters(
        "pillarbox_refusals_total",
        "Refused requests, by the code in the answer.",
        refused,
    )?;
    to.gauge(
        "pillarbox_connections",
        "Open client connections.",
        count(counts.connections.count() as u64),
    )?;
    to.gauge(
        "pillarbox_max_connections",
        "Most client connections: max_connections.",
        count(parts.max_connections as u64),
    )?;
    let tls = parts.tls.as_deref();
    let seconds = |at: Timestamp| unix_seconds(at.into());
    to.gauge(
        "pillarbox_certificate_expiry_timestamp_seconds",
        "End of the client listener's certificate; absent without TLS.",
        tls.and_then(Tls::expires_at).map(seconds),
    )?;
    to.gauge(
        "pillarbox_certificate_renewal_timestamp_seconds",
        "Latest time to renew the certificate; absent without TLS.",
        tls.and_then(Tls::renew_by).map(seconds),
    )?;
    to.gauge(
        "pillarbox_certificate_refused",
        "1 while the new certificate cannot be used and the old one stays in use.",
        tls.map(|tls| flag(tls.is_refused())),
    )
}

fn label(name: &'static str, value: &str) -> Label {
    (name, value.to_owned())
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn count(value: u64) -> f64 {
    value as f64
}
