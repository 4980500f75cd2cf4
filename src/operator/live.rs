//! The page's live view: each snapshot as an event of a stream.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use pillarbox_admin::bodies::Bodies;
use pillarbox_admin::conditions::{BOUNCES, COMPLAINTS, Condition};
use pillarbox_admin::node::Node;
use pillarbox_admin::snapshot::Snapshot;
use pillarbox_http::body::ResponseBody;
use pillarbox_store::organisation_counts::OrganisationCounts;

/// Number of samples that are kept: five minutes.
const KEPT: usize = 300;

/// Update that open pages receive.
#[derive(Debug, Default)]
pub(super) struct LiveUpdate {
    history: VecDeque<Value>,
    /// The last snapshot, as an event.
    event: Bytes,
}

impl LiveUpdate {
    /// Takes a snapshot, the one before it, and the time between them.
    pub(super) fn take(
        &mut self,
        now: &Snapshot,
        before: &Snapshot,
        passed: Duration,
        conditions: &[Condition],
        caught: Option<u64>,
    ) {
        let sample = sample(now, before, passed);
        self.event = event("state", &state(now, conditions, caught, &sample));
        if self.history.len() == KEPT {
            self.history.pop_front();
        }
        self.history.push_back(sample);
    }
}

/// Part of a snapshot that the plots show.
fn sample(now: &Snapshot, before: &Snapshot, passed: Duration) -> Value {
    let per_second = |growth: u64| float(growth) / passed.as_secs_f64();
    let growth = |count: fn(&OrganisationCounts) -> u64| {
        per_second(now.sum(count).saturating_sub(before.sum(count)))
    };
    let grown = now.totals.since(&before.totals);
    let latency = (grown.calls > 0).then(|| float(grown.call_micros) / float(grown.calls) / 1e6);
    json!({
        // In milliseconds since the Unix epoch.
        "at": now.at.unix_millis(),
        "accepted": per_second(grown.accepted),
        "sent": growth(|counts| counts.sent),
        "recipients": growth(|counts| counts.sent_recipients),
        "queue": now.sending.pending.messages,
        // In seconds; nothing if no call ended.
        "latency": latency,
    })
}

/// Part of a snapshot that the page shows.
fn state(now: &Snapshot, conditions: &[Condition], caught: Option<u64>, sample: &Value) -> Value {
    let (sending, totals) = (&now.sending, &now.totals);
    let organisations = now.recent.day.iter().map(|one| {
        let day = &one.counts;
        json!({
            "name": one.name,
            "accepted": day.accepted,
            "sent": day.sent,
            "recipients": day.sent_recipients,
            "failed": day.failed,
            "hardBounces": day.hard_bounces,
            "complaints": day.complaints,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "started": now.started,
        "conditions": conditions,
        "limits": { "bounces": BOUNCES, "complaints": COMPLAINTS },
        "queue": {
            "messages": sending.pending.messages,
            "inFlight": sending.pending.in_flight,
            "bytes": sending.pending.bytes,
            "maxBytes": sending.max_pending_bytes,
        },
        "bodies": now.bodies.as_ref().map(Bodies::summary),
        "rate": sending.rate.limit(),
        "rateLimit": sending.rate_limit.limit(),
        "quota": sending.quota.map(|quota| json!({ "max": quota.max, "left": quota.left })),
        "totals": [
            ("accepted", totals.accepted),
            ("sent", now.sum(|counts| counts.sent)),
            ("delivered", now.sum(|counts| counts.deliveries)),
            ("failed", now.sum(|counts| counts.failed)),
            ("bounced", now.sum(|counts| counts.bounces)),
            ("refused", totals.refused),
        ],
        // Pages that show records read them again after a change. A call that the provider refused
        // changes a record, too.
        "changes": now.sum(OrganisationCounts::changes) + totals.calls,
        "organisations": organisations.collect::<Vec<_>>(),
        "nodes": now.nodes.iter().cloned().map(Node::from).collect::<Vec<_>>(),
        "caught": caught,
        "sample": sample,
    })
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

/// The history, and from then on each update, until the service stops observing.
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
