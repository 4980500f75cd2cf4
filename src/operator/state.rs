//! One look at the service, as the operators' page is told.

use std::time::Duration;

use serde::Serialize;

use crate::metrics::organisations::OrganisationCounts;
use crate::operator::Parts;
use crate::operator::conditions::trends::Trends;
use crate::operator::conditions::{self, Condition};
use crate::operator::metrics::{Named, accounts};
use crate::operator::process::unix_seconds;

/// One look.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct State {
    version: &'static str,
    /// When the service was started, in seconds since the Unix epoch.
    started: f64,
    conditions: Vec<Condition>,
    queue: QueueState,
    /// The pace in recipients a second, and where nothing is throttled; nothing where there is no
    /// limit.
    rate: Option<f64>,
    rate_limit: Option<f64>,
    quota: Option<Quota>,
    totals: [(&'static str, u64); 6],
    organisations: Vec<Organisation>,
    /// How many messages were caught; nothing where none are.
    caught: Option<u64>,
    pub(super) sample: Sample,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueState {
    messages: usize,
    in_flight: usize,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Serialize)]
struct Quota {
    max: f64,
    left: f64,
}

/// What became of an organisation's messages within the last day.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Organisation {
    name: String,
    accepted: u64,
    sent: u64,
    recipients: u64,
    failed: u64,
    hard_bounces: u64,
    complaints: u64,
}

/// What the plots show of one look.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sample {
    /// When, in milliseconds since the Unix epoch.
    at: u64,
    /// Messages a second.
    accepted: f64,
    sent: f64,
    /// Recipients a second.
    recipients: f64,
    queue: usize,
    /// Seconds that calls to the provider took on average; nothing where none ended.
    latency: Option<f64>,
}

/// The counts that are compared from look to look.
pub(super) struct Totals {
    accepted: u64,
    sent: u64,
    recipients: u64,
    calls: u64,
    call_micros: u64,
    pub(super) organisations: Vec<Named>,
}

impl Totals {
    pub(super) fn of(parts: &Parts) -> Self {
        let organisations = accounts(parts);
        let sum = |count: fn(&OrganisationCounts) -> u64| {
            organisations.iter().map(|one| count(&one.account)).sum()
        };
        Self {
            accepted: parts.clients.accepted.get(),
            sent: sum(|account| account.sent),
            recipients: sum(|account| account.sent_recipients),
            calls: parts.dispatcher.metrics().calls(),
            call_micros: parts.dispatcher.metrics().call_micros(),
            organisations,
        }
    }
}

impl State {
    pub(super) fn now(
        parts: &Parts,
        now: &Totals,
        before: &Totals,
        passed: Duration,
        trends: &Trends,
    ) -> Self {
        let status = parts.dispatcher.status();
        let per_second =
            |now: u64, before: u64| float(now.saturating_sub(before)) / passed.as_secs_f64();
        let calls = now.calls - before.calls;
        let micros = now.call_micros - before.call_micros;
        let sample = Sample {
            at: parts.clock.now().unix_millis(),
            accepted: per_second(now.accepted, before.accepted),
            sent: per_second(now.sent, before.sent),
            recipients: per_second(now.recipients, before.recipients),
            queue: status.pending.messages,
            latency: (calls > 0).then(|| float(micros) / float(calls) / 1e6),
        };
        let sum = |count: fn(&OrganisationCounts) -> u64| {
            now.organisations.iter().map(|one| count(&one.account)).sum()
        };
        let mut conditions = conditions::find(parts);
        conditions.extend(conditions::lesser(parts));
        conditions.extend(trends.conditions(parts, &now.organisations));
        Self {
            version: env!("CARGO_PKG_VERSION"),
            started: unix_seconds(parts.started),
            conditions,
            queue: QueueState {
                messages: status.pending.messages,
                in_flight: status.pending.in_flight,
                bytes: status.pending.bytes,
                max_bytes: status.max_pending_bytes,
            },
            rate: status.rate.limit(),
            rate_limit: status.rate_limit.limit(),
            quota: status.quota.map(|quota| Quota { max: quota.max, left: quota.left }),
            totals: [
                ("accepted", now.accepted),
                ("sent", now.sent),
                ("delivered", sum(|account| account.deliveries)),
                ("failed", sum(|account| account.failed)),
                ("bounced", sum(|account| account.bounces)),
                ("refused", parts.clients.all_refused()),
            ],
            organisations: now
                .organisations
                .iter()
                .map(|one| Organisation::of(&one.name, &trends.of_day(one)))
                .collect(),
            caught: parts.catcher.get().map(|catcher| catcher.total()),
            sample,
        }
    }
}

impl Organisation {
    fn of(name: &str, account: &OrganisationCounts) -> Self {
        Self {
            name: name.to_owned(),
            accepted: account.accepted,
            sent: account.sent,
            recipients: account.sent_recipients,
            failed: account.failed,
            hard_bounces: account.hard_bounces,
            complaints: account.complaints,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn float(value: u64) -> f64 {
    value as f64
}
