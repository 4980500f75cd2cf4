//! The store without HTTP: the writer under acceptances, and under delivery events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use pillarbox_domain::admission::admit;
use pillarbox_domain::id::{MessageId, MessageIds};
use pillarbox_domain::message::Transition;
use pillarbox_domain::organisation::Organisation;
use pillarbox_domain::request::SendRequest;
use pillarbox_store::{NewMessage, Store};

use crate::fill::{draft, idempotency_key, report, ses_message_id};
use crate::process::{directory, now, set_up};
use crate::report::{Report, median};
use crate::scale::Scale;

/// Callers that wait for the store at one time.
const LEVELS: [usize; 3] = [1, 64, 256];
/// Callers that bring events: SQS gives ten messages at a time.
const EVENT_CALLERS: usize = 8;
const EVENTS_AT_ONCE: usize = 10;
/// Messages that the events are of.
const MESSAGES: usize = 20_000;

/// Measures the writer alone.
pub(crate) fn writer(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for callers in LEVELS {
        let mut rates = Vec::new();
        let mut p50 = Vec::new();
        let mut p99 = Vec::new();
        for _ in 0..scale.rounds {
            let (rate, times) = runtime.block_on(accepts(callers, scale.load_time))?;
            rates.push(rate);
            p50.push(micros(&times, 0.5));
            p99.push(micros(&times, 0.99));
        }
        rows.push(json!({
            "callers": callers,
            "per_second": median(rates),
            "p50_us": median(p50),
            "p99_us": median(p99),
        }));
    }
    report.figure("writer", Value::from(rows));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "times are far below 2^53 microseconds")]
pub(crate) fn micros(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64
}

async fn opened() -> anyhow::Result<(tempfile::TempDir, Store, Organisation)> {
    let directory = directory()?;
    let (store, _) = Store::open(directory.path(), now())?;
    let organisation = set_up(&store).await?;
    Ok((directory, store, organisation))
}

async fn accepts(callers: usize, time: Duration) -> anyhow::Result<(f64, Histogram<u64>)> {
    let (_directory, store, organisation) = opened().await?;
    accept_by(&[store], &organisation, callers, time).await
}

/// Has so many callers accept alternately by these stores; returns messages a second, and the
/// microseconds that each took.
#[expect(clippy::cast_precision_loss, reason = "no run has 2^53 messages")]
pub(crate) async fn accept_by(
    stores: &[Store],
    organisation: &Organisation,
    callers: usize,
    time: Duration,
) -> anyhow::Result<(f64, Histogram<u64>)> {
    /// No key is used twice, not even by two loads on one store.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let ids = Arc::new(MessageIds::new());
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (store, organisation) = (stores[caller % stores.len()].clone(), organisation.clone());
        let ids = Arc::clone(&ids);
        tasks.spawn(async move {
            let mut times = Histogram::<u64>::new(3)?;
            while begun.elapsed() < time {
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let start = Instant::now();
                accept(&store, &organisation, &ids, &idempotency_key(number)).await?;
                times.record(u64::try_from(start.elapsed().as_micros())?)?;
            }
            anyhow::Ok(times)
        });
    }
    let mut all = Histogram::<u64>::new(3)?;
    while let Some(times) = tasks.join_next().await {
        all.add(times??)?;
    }
    Ok((all.len() as f64 / begun.elapsed().as_secs_f64(), all))
}

async fn accept(
    store: &Store,
    organisation: &Organisation,
    ids: &MessageIds,
    key: &str,
) -> anyhow::Result<MessageId> {
    let request = SendRequest::parse(draft(Some(key)))
        .map_err(|error| anyhow::anyhow!("the message is refused: {error:?}"))?;
    let admitted = admit(request, &store.facts(organisation.id))
        .await
        .map_err(|error| anyhow::anyhow!("it is not admitted: {error:?}"))?;
    let now = now();
    let id = ids.next(now);
    store.accept(NewMessage::new(id, organisation.id, &admitted, now, now, || ())).await?;
    Ok(id)
}

/// Delivery events, two of each message, as they come from a queue.
#[expect(clippy::cast_precision_loss, reason = "no run has 2^53 events")]
pub(crate) fn events(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rates = Vec::new();
    for _ in 0..scale.rounds {
        let (count, elapsed) = runtime.block_on(apply(MESSAGES.min(scale.records)))?;
        rates.push(count as f64 / elapsed.as_secs_f64());
    }
    report.figure("events_per_second", median(rates));
    Ok(())
}

async fn apply(messages: usize) -> anyhow::Result<(usize, Duration)> {
    let (_directory, store, organisation) = opened().await?;
    let ids = MessageIds::new();
    let mut sent = Vec::new();
    for batch in 0..messages / 500 {
        let made = (0..500).map(|n| {
            let number = batch * 500 + n;
            let (store, organisation, ids) = (&store, &organisation, &ids);
            async move {
                let id = accept(store, organisation, ids, &idempotency_key(number)).await?;
                let sent_at = now();
                let ses_message_id = ses_message_id(number, sent_at);
                let transition =
                    Transition::Sent { ses_message_id: ses_message_id.clone(), sent_at };
                store.record(id, 1, transition, now()).await?;
                anyhow::Ok((id, ses_message_id))
            }
        });
        sent.extend(futures_util::future::try_join_all(made).await?);
    }
    let mut reports = Vec::new();
    for (id, ses_message_id) in &sent {
        reports.extend((0..2).map(|event| report(*id, ses_message_id, now(), event)));
    }
    let count = reports.len();
    let batches: Vec<_> = reports.chunks(EVENTS_AT_ONCE).map(<[_]>::to_vec).collect();
    let batches = Arc::new(std::sync::Mutex::new(batches));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..EVENT_CALLERS {
        let (store, batches) = (store.clone(), Arc::clone(&batches));
        tasks.spawn(async move {
            loop {
                let batch = batches.lock().map_err(|_| anyhow::anyhow!("a task panicked"))?.pop();
                let Some(batch) = batch else { return anyhow::Ok(()) };
                store.apply_all(batch, now()).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((count, begun.elapsed()))
}
