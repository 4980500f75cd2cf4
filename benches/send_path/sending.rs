//! From acceptance to `sent` on the record, through the stand-in for SES.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::accept::warm_run;
use crate::load::{self, Requests};
use crate::message::Key;
use crate::process::{ORGANISATIONS, Server, authorizations, prepared};
use crate::queue::pending;
use crate::relay::PENDING_PATH;
use crate::report::{Bound, Report, median};
use crate::scale::Scale;

/// Latencies of the stand-in for a call, in milliseconds.
const LATENCIES: [u64; 3] = [0, 20, 60];
/// From how many organisations the messages come: one alone has half of the calls in flight.
const SENDERS: [usize; 2] = [1, ORGANISATIONS];
const CONNECTIONS: usize = 64;
/// Time limit for all messages to be sent.
const LIMIT: Duration = Duration::from_mins(5);
/// Interval at which the service is asked whether all are.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Sends at every latency.
pub(crate) fn sending(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (latency, senders) in LATENCIES.into_iter().flat_map(|ms| SENDERS.map(|n| (ms, n))) {
        let mut rates = Vec::new();
        let mut ratios = Vec::new();
        let mut shares = Vec::new();
        for _ in 0..scale.rounds {
            let (rate, share) = round(Duration::from_millis(latency), senders, scale)?;
            rates.push(rate);
            shares.push(share);
            let bare = Server::bare()?;
            let requests = Requests::Messages(Key::Unique);
            ratios.push(rate / warm_run(&bare, &requests, CONNECTIONS, scale)?.rate());
        }
        let ratio = median(ratios);
        if latency == 0 && senders == 1 {
            let what = "accept → sent recorded, provider at 0 ms ÷ bare hyper, 64 connections";
            report.goal(what, Bound::AtLeast(0.25), "", ratio);
        }
        let row = json!({
            "latency_ms": latency,
            "organisations": senders,
            "sent_per_second": median(rates),
            "ratio": ratio,
            "provider_share_of_processor": median(shares),
        });
        println!("  {row}");
        rows.push(row);
    }
    report.figure("sending", Value::from(rows));
    beside_the_ceiling(scale, report)
}

/// Sends through a provider that costs next to nothing, beside the sending ceiling.
fn beside_the_ceiling(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let (mut sent, mut passed_on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let provider = Server::bare()?;
        let directory = prepared()?;
        let service = Server::service(directory.path(), &provider)?;
        let rate = completed(&service, ORGANISATIONS, scale, || pending(directory.path()))?;
        service.kill();
        let relay = Server::relay(&provider)?;
        let ceiling = completed(&relay, ORGANISATIONS, scale, || pending_of_relay(&relay))?;
        sent.push(rate);
        passed_on.push(ceiling);
        ratios.push(rate / ceiling);
    }
    let ratio = median(ratios);
    let what = "accepted and sent ÷ sending ceiling, 64 connections";
    report.goal(what, Bound::AtLeast(0.70), "", ratio);
    let row = json!({
        "sent_per_second": median(sent),
        "ceiling_per_second": median(passed_on),
        "ratio": ratio,
    });
    println!("  {row}");
    report.figure("sending_ceiling", row);
    Ok(())
}

fn pending_of_relay(relay: &Server) -> anyhow::Result<usize> {
    let url = format!("http://{}{PENDING_PATH}", relay.address);
    let output = Command::new("curl").args(["--silent", "--fail", &url]).output()?;
    Ok(String::from_utf8(output.stdout)?.parse()?)
}

/// Messages sent in a second, from the first request to the last outcome on record, and the
/// stand-in's part of all processor time meanwhile.
#[expect(clippy::cast_precision_loss, reason = "no run has 2^53 messages")]
fn round(latency: Duration, senders: usize, scale: &Scale) -> anyhow::Result<(f64, f64)> {
    let provider = Server::simulator(latency)?;
    let directory = prepared()?;
    let service = Server::service(directory.path(), &provider)?;
    let used_before = provider.processor_time()?;
    let begun = Instant::now();
    let rate = completed(&service, senders, scale, || pending(directory.path()))?;
    let elapsed = begun.elapsed().as_secs_f64();
    let cores = std::thread::available_parallelism()?.get() as f64;
    let used = (provider.processor_time()?.saturating_sub(used_before)).as_secs_f64();
    Ok((rate, used / elapsed / cores))
}

/// Messages a second, from the first request until none is pending.
#[expect(clippy::cast_precision_loss, reason = "no run has 2^53 messages")]
fn completed(
    server: &Server,
    senders: usize,
    scale: &Scale,
    pending: impl Fn() -> anyhow::Result<usize>,
) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let requests = Requests::Messages(Key::Unique);
    let time = scale.load_time.min(Duration::from_secs(2));
    let seen = load::run(server.address, &authorizations(senders), &requests, CONNECTIONS, time)?;
    while pending()? > 0 {
        anyhow::ensure!(begun.elapsed() < LIMIT, "not all messages are sent");
        sleep(ASK_EVERY);
    }
    Ok(seen.requests as f64 / begun.elapsed().as_secs_f64())
}
