//! Acceptance end to end, and reading a message: the service and the bare server in turn.

use std::time::Duration;

use serde_json::{Value, json};

use crate::Scale;
use crate::commit;
use crate::fill::{self, Plan};
use crate::load::{self, Requests, Seen};
use crate::message::Key;
use crate::process::{Server, authorization, directory, prepared};
use crate::report::{Bound, Report, median};

/// Connections to the server.
const LEVELS: [usize; 4] = [1, 16, 64, 256];
/// Records among which reads choose.
const RECORDS: usize = 100_000;

/// Accepts at every level, beside the bare server.
pub(crate) fn accept(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let mut levels = Vec::new();
    for connections in LEVELS {
        let mut pairs = Vec::new();
        let mut commits = Vec::new();
        for _ in 0..scale.rounds {
            let directory = prepared()?;
            commits.push(commit::measure(directory.path(), scale.commit_time)?);
            let service = Server::service(directory.path(), &provider)?;
            let ours = warm_run(&service, &Requests::Messages(Key::Unique), connections, scale)?;
            service.kill();
            let bare = Server::bare()?;
            let theirs = warm_run(&bare, &Requests::Messages(Key::Unique), connections, scale)?;
            pairs.push((ours, theirs));
        }
        let commit_p50 = median(commits.iter().map(|commit| commit.p50_us).collect());
        let commit_p99 = median(commits.iter().map(|commit| commit.p99_us).collect());
        let level = compare(connections, &pairs, commit_p50, commit_p99);
        println!("  {level}");
        goals(connections, &level, report);
        levels.push(level);
    }
    report.figure("accept", levels);
    Ok(())
}

/// Reads messages, beside the bare server.
pub(crate) fn read(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let directory = directory()?;
    let ids = fill::fill(directory.path(), &Plan::recent(RECORDS.min(scale.records)))?;
    let file = directory.path().join("ids");
    std::fs::write(&file, ids.join("\n"))?;
    let requests = Requests::Reads(file);
    let mut pairs = Vec::new();
    for _ in 0..scale.rounds {
        let service = Server::service(directory.path(), &provider)?;
        let ours = warm_run(&service, &requests, 64, scale)?;
        service.kill();
        let bare = Server::bare()?;
        pairs.push((ours, warm_run(&bare, &requests, 64, scale)?));
    }
    let level = compare(64, &pairs, 0.0, 0.0);
    let ratio = level["ratio"].as_f64().unwrap_or_default();
    report.goal("GET /emails/{id} ÷ bare hyper, 64 connections", Bound::AtLeast(0.85), "", ratio);
    report.figure("read", level);
    Ok(())
}

/// Sends for a while that does not count, then for one that does.
#[expect(clippy::cast_precision_loss, reason = "no run has 2^53 requests")]
pub(crate) fn warm_run(
    server: &Server,
    requests: &Requests,
    connections: usize,
    scale: &Scale,
) -> anyhow::Result<Seen> {
    let authorization = authorization();
    load::run(server.address, &authorization, requests, connections, Duration::from_secs(1))?;
    let used_before = server.processor_time()?;
    let mut seen =
        load::run(server.address, &authorization, requests, connections, scale.load_time)?;
    let used = server.processor_time()?.saturating_sub(used_before);
    seen.processor_us = used.as_secs_f64() * 1e6 / seen.requests as f64;
    Ok(seen)
}

/// Medians of the rounds; the ratio is the median of the rounds' own ratios.
fn compare(connections: usize, pairs: &[(Seen, Seen)], commit_p50: f64, commit_p99: f64) -> Value {
    let of = |pick: &dyn Fn(&(Seen, Seen)) -> f64| median(pairs.iter().map(pick).collect());
    json!({
        "connections": connections,
        "rounds": pairs.len(),
        "service": {
            "per_second": of(&|(ours, _)| ours.rate()),
            "p50_us": of(&|(ours, _)| ours.p50_us),
            "p99_us": of(&|(ours, _)| ours.p99_us),
            "processor_us": of(&|(ours, _)| ours.processor_us),
        },
        "bare": {
            "per_second": of(&|(_, bare)| bare.rate()),
            "p50_us": of(&|(_, bare)| bare.p50_us),
            "p99_us": of(&|(_, bare)| bare.p99_us),
            "processor_us": of(&|(_, bare)| bare.processor_us),
        },
        "ratio": of(&|(ours, bare)| ours.rate() / bare.rate()),
        "commit": { "p50_us": commit_p50, "p99_us": commit_p99 },
    })
}

fn goals(connections: usize, level: &Value, report: &mut Report) {
    let number = |pointer: &str| level.pointer(pointer).and_then(Value::as_f64).unwrap_or_default();
    let ratio = number("/ratio");
    match connections {
        1 => {
            let bound = 2.0 * (number("/commit/p50_us") + number("/bare/p50_us"));
            let what = "p50 at 1 connection (2 x (a commit's median + bare hyper's p50))";
            report.goal(what, Bound::AtMost(bound), " µs", number("/service/p50_us"));
        }
        64 => {
            let what = "accepts/s ÷ bare hyper, 64 connections";
            report.goal(what, Bound::AtLeast(0.65), "", ratio);
            let bound = 2.0 * number("/bare/p99_us") + number("/commit/p99_us");
            let what = "p99 at 64 connections (2 x bare hyper's + a commit's)";
            report.goal(what, Bound::AtMost(bound), " µs", number("/service/p99_us"));
        }
        256 => {
            let what = "accepts/s ÷ bare hyper, 256 connections";
            report.goal(what, Bound::AtLeast(0.80), "", ratio);
        }
        _ => {}
    }
}
