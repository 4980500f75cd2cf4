//! Searches of operators in a large store: how fast they are, and what acceptance pays for one that
//! goes on without end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use pillarbox_admin::client::Client;
use pillarbox_admin::{Call, MessageList, Status};
use pillarbox_domain::id::MessageId;

use crate::fill::{self, Plan, ses_message_id};
use crate::message::{self, Key, UNIQUE_NUMBER};
use crate::process::{Server, authorization, directory, socket};
use crate::queue::ask;
use crate::report::{Bound, Report, median, median_ratio};
use crate::scale::Scale;

/// Time between two messages: 200 a second, as a busy application sends them.
const PACE: Duration = Duration::from_millis(5);
/// Loads of this many times the usual duration: at this pace, few messages come in a second.
const LONGER: u32 = 3;
/// Number of messages with an idempotency key, the newest.
const KEYS: usize = 1_000;
/// Words that no message has, so that a search looks through everything.
const NOWHERE: &str = "nowhere-to-be-found";

/// Rows a second of a search, answers to searches for one message, and acceptance beside a search.
pub(crate) fn search(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let store = directory()?;
    println!("  filling {} records", scale.records);
    let plan = Plan { keys: KEYS, ..Plan::recent(scale.records) };
    let ids = fill::fill(store.path(), &plan)?;
    let service = Server::service(store.path(), &provider)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let mut slowest_ms = 0.0_f64;
    let sent_at = fill::sent_at(ids[0].parse::<MessageId>()?.instant());
    let key = fill::idempotency_key(scale.records - 1);
    for text in [ids[0].clone(), ids[ids.len() / 2].clone(), ses_message_id(0, sent_at), key] {
        let (found, took_ms) =
            timed(store.path(), &MessageList { search: Some(text), ..MessageList::default() })?;
        slowest_ms = slowest_ms.max(took_ms);
        anyhow::ensure!(found.exact && found.messages.len() == 1, "the message is found");
    }
    let (_, took_ms) = timed(store.path(), &Status {})?;
    slowest_ms = slowest_ms.max(took_ms);

    let accept = |time| runtime.block_on(p99(&service, time));
    accept(scale.load_time)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let (mut rows, mut rows_beside) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        alone.push(accept(scale.load_time * LONGER)?);
        let (seen, searched) = while_searching(store.path(), || accept(scale.load_time * LONGER))?;
        beside.push(seen);
        rows_beside.push(searched);
        let ((), searched) = while_searching(store.path(), || {
            sleep(scale.load_time);
            Ok(())
        })?;
        rows.push(searched);
    }
    let ratio = median_ratio(&beside, &alone);
    let rows = median(rows);
    report.figure(
        "search",
        json!({
            "records": scale.records,
            "slowest_answer_ms": slowest_ms,
            "rows_per_second": rows,
            "rows_per_second_beside_acceptance": median(rows_beside),
            "p99_us_alone": median(alone),
            "p99_us_beside": median(beside),
            "ratio": ratio,
        }),
    );
    report.goal("rows of a search", Bound::AtLeast(250_000.0), "/s", rows);
    report.goal("p99 of accepts beside a search ÷ without", Bound::AtMost(1.2), "", ratio);
    report.goal(
        "a message by id, SES's id or key, and the status",
        Bound::AtMost(300.0),
        "ms",
        slowest_ms,
    );
    Ok(())
}

/// A running service's answer, and the time that it took, in milliseconds.
fn timed<C: Call>(directory: &Path, call: &C) -> anyhow::Result<(C::Answer, f64)> {
    let begun = Instant::now();
    let answer = ask(directory, call)?;
    Ok((answer, begun.elapsed().as_secs_f64() * 1e3))
}

/// Works while a search goes on without end. Returns the rows a second that it looked at, too.
#[expect(clippy::cast_precision_loss, reason = "no search has 2^53 rows")]
fn while_searching<T>(
    directory: &Path,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, f64)> {
    let goes_on = AtomicBool::new(true);
    scope(|threads| {
        let begun = Instant::now();
        let search = threads.spawn(|| search_on(directory, &goes_on));
        let done = work();
        goes_on.store(false, Ordering::Relaxed);
        let looked_at = search.join().expect("the search does not panic")?;
        Ok((done?, looked_at as f64 / begun.elapsed().as_secs_f64()))
    })
}

/// Searches from the newest message to the oldest, and again, until it is told to end. Returns the
/// number of rows that it looked at.
fn search_on(directory: &Path, goes_on: &AtomicBool) -> anyhow::Result<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(&socket(directory)).await?;
        let (mut before, mut looked_at) = (None, 0);
        while goes_on.load(Ordering::Relaxed) {
            let search = Some(NOWHERE.to_owned());
            let page =
                client.call(&MessageList { search, before, ..MessageList::default() }).await?;
            looked_at += page.looked_at.context("a count of rows")?;
            before = page.next;
        }
        Ok(looked_at)
    })
}

/// 99th percentile of acceptance at [`PACE`], in microseconds.
async fn p99(service: &Server, time: Duration) -> anyhow::Result<f64> {
    // Whoever was first has installed the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    let url = format!("http://{}/emails", service.address);
    let (body, authorization) = (message::json(Key::None), authorization());
    let mut times = Histogram::<u64>::new(3)?;
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begun = Instant::now();
    while begun.elapsed() < time {
        pace.tick().await;
        let number = times.len().to_string();
        let request = client
            .post(&url)
            .header("authorization", &authorization)
            .header("content-type", "application/json")
            .body(body.replace(UNIQUE_NUMBER, &number));
        let sent = Instant::now();
        let answer = request.send().await?.error_for_status()?;
        answer.bytes().await?;
        times.record(u64::try_from(sent.elapsed().as_micros())?)?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a time is far below 2^53 microseconds")]
    Ok(times.value_at_quantile(0.99) as f64)
}
