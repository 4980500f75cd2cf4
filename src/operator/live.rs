//! How it goes, once a second: looked at once for however many watch, and told to the operators'
//! page as events.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::node::Node;
use crate::http::body::ResponseBody;
use crate::operator::conditions::{BOUNCES, COMPLAINTS, Condition, Limit};
use crate::operator::diagnosis;
use crate::operator::history::RecentHistory;
use crate::operator::metrics::{Named, accounts};
use crate::operator::process::unix_seconds;
use crate::operator::trends::Trends;
use crate::operator::{Parts, StoredState};
use crate::organisation_counts::OrganisationCounts;
use crate::queue::Pending;
use crate::store::NodeLoad;

/// How often it is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// How many looks are kept: five minutes.
const KEPT: usize = 300;
/// Looks without a message after which other nodes may have this one's part of the pace.
const IDLE_LOOKS: usize = 10;

/// What those who watch are told.
#[derive(Debug, Default)]
pub(super) struct LiveUpdate {
    history: VecDeque<Sample>,
    /// The last look, as an event.
    event: Bytes,
}

/// Looks for as long as it is polled.
pub(super) async fn look(
    parts: Arc<Parts>,
    told: watch::Sender<LiveUpdate>,
    recent: Arc<RecentHistory>,
) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = (Instant::now(), Totals::of(&parts));
    let mut trends = Trends::new(before.0);
    let mut demand = Demand { idle_looks: IDLE_LOOKS };
    let mut stored = StoredState::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = parts.conditions.wanted() => {
                let found = conditions(&parts, &stored, &accounts(&parts), &trends);
                parts.tell_conditions(&found);
                continue;
            }
        }
        let now = (Instant::now(), Totals::of(&parts));
        trends.look(now.0, &parts, &now.1.organisations);
        recent.look(parts.clock.now(), &now.1.organisations);
        stored = parts.ask_store().await;
        let accepted = now.1.accepted > before.1.accepted;
        let demand = demand.look(&parts.dispatcher.status().pending, accepted);
        let passed = now.0 - before.0;
        let state = State::now(&parts, &stored, &now.1, &before.1, passed, &trends, demand);
        let event = event("state", &state);
        parts.tell_conditions(&state.conditions);
        told.send_modify(|told| {
            if told.history.len() == KEPT {
                told.history.pop_front();
            }
            told.history.push_back(state.sample);
            told.event = event;
        });
        before = now;
    }
}

/// Everything that is wrong now.
fn conditions(
    parts: &Parts,
    stored: &StoredState,
    organisations: &[Named],
    trends: &Trends,
) -> Vec<Condition> {
    let mut found = diagnosis::find(parts);
    found.extend(diagnosis::lesser(parts, stored));
    found.extend(trends.conditions(parts, organisations));
    found
}

/// Need of this node for the pace that all nodes share.
struct Demand {
    /// Looks since the last message.
    idle_looks: usize,
}

impl Demand {
    /// Looks at what is pending now, and at whether messages were accepted since the last look.
    /// Returns the number of organisations that wait for the pace; at least 1 if a message has come
    /// within [`IDLE_LOOKS`].
    fn look(&mut self, pending: &Pending, accepted: bool) -> u32 {
        let is_busy = accepted || pending.messages > 0;
        self.idle_looks = if is_busy { 0 } else { self.idle_looks.saturating_add(1) };
        let waiting = u32::try_from(pending.due_organisations).unwrap_or(u32::MAX);
        waiting.max(u32::from(self.idle_looks < IDLE_LOOKS))
    }
}

/// One look.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    version: &'static str,
    /// When the service was started, in seconds since the Unix epoch.
    started: f64,
    conditions: Vec<Condition>,
    limits: Limits,
    queue: QueueState,
    /// The bodies of what is pending, in a line.
    bodies: String,
    /// The pace in recipients a second, and where nothing is throttled; nothing where there is no
    /// limit.
    rate: Option<f64>,
    rate_limit: Option<f64>,
    quota: Option<Quota>,
    totals: [(&'static str, u64); 6],
    /// Changes of records and finished calls so far: whoever shows records reads them again after
    /// one. A call that the provider refused changes a record, too.
    changes: u64,
    organisations: Vec<Organisation>,
    /// All nodes on the database; none if the store is a file.
    nodes: Vec<Node>,
    /// How many messages were caught; nothing where none are.
    caught: Option<u64>,
    sample: Sample,
}

/// What an organisation's bounces and complaints are held against, by the conditions' codes.
#[derive(Serialize)]
struct Limits {
    bounces: Limit,
    complaints: Limit,
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
struct Sample {
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
struct Totals {
    accepted: u64,
    sent: u64,
    recipients: u64,
    calls: u64,
    call_micros: u64,
    organisations: Vec<Named>,
}

impl Totals {
    fn of(parts: &Parts) -> Self {
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
    fn now(
        parts: &Parts,
        stored: &StoredState,
        now: &Totals,
        before: &Totals,
        passed: Duration,
        trends: &Trends,
        demand: u32,
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
        let conditions = conditions(parts, stored, &now.organisations, trends);
        // Before the nodes are looked at: this one's line is of the same moment.
        parts.store.say_load(NodeLoad {
            pending: status.pending.messages as u64,
            conditions: conditions.iter().map(|one| one.code.to_owned()).collect(),
            demand,
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            started: unix_seconds(parts.started),
            conditions,
            limits: Limits { bounces: BOUNCES, complaints: COMPLAINTS },
            queue: QueueState {
                messages: status.pending.messages,
                in_flight: status.pending.in_flight,
                bytes: status.pending.bytes,
                max_bytes: status.max_pending_bytes,
            },
            bodies: parts.bodies.show().summary(),
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
            changes: sum(OrganisationCounts::changes) + now.calls,
            organisations: now
                .organisations
                .iter()
                .map(|one| Organisation::of(&one.name, &trends.of_day(one)))
                .collect(),
            nodes: parts.store.nodes().into_iter().map(Node::from).collect(),
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

/// An event of a stream (HTML Living Standard, "Server-sent events").
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).expect("texts and numbers serialize");
    // JSON has no line break outside of texts, and there it is escaped.
    format!("event: {name}\ndata: {data}\n\n").into()
}

type Next = Pin<Box<dyn Future<Output = Option<(watch::Receiver<LiveUpdate>, Bytes)>> + Send>>;

/// The history, and from then on each look, until the service stops looking.
pub(super) fn events(mut told: watch::Receiver<LiveUpdate>) -> ResponseBody {
    let history = event("history", &told.borrow_and_update().history);
    let mut waiting: Next = Box::pin(async move { Some((told, history)) });
    ResponseBody::parts(move |context| {
        waiting.as_mut().poll(context).map(|come| {
            let (told, event) = come?;
            waiting = Box::pin(next(told));
            Some(event)
        })
    })
}

async fn next(
    mut told: watch::Receiver<LiveUpdate>,
) -> Option<(watch::Receiver<LiveUpdate>, Bytes)> {
    told.changed().await.ok()?;
    let event = told.borrow_and_update().event.clone();
    Some((told, event))
}
