//! Acceptance end to end, and reading a message: the service and the bare server alternate.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::commit;
use crate::fill::{self, Plan};
use crate::load::{self, Requests, Seen};
use crate::message::Key;
use crate::process::{Server, authorization, directory, prepared};
use crate::queue::cancel_all;
use crate::report::{Bound, Report, median};
use crate::scale::Scale;

/// Connections to the server.
const LEVELS: [usize; 4] = [1, 16, 64, 256];
/// Records among which reads choose.
const RECORDS: usize = 100_000;

/// Accepts at every level, beside the bare server and the durable ceiling.
pub(crate) fn accept(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let requests = Requests::Messages(Key::Unique);
    let mut levels = Vec::new();
    for connections in LEVELS {
        let mut rounds = Vec::new();
        let mut commits = Vec::new();
        for _ in 0..scale.rounds {
            let directory = prepared()?;
            commits.push(commit::measure(directory.path(), scale.commit_time)?);
            let measure = |server: Server| {
                let seen = warm_run(&server, &requests, connections, scale);
                server.kill();
                seen
            };
            rounds.push(Round {
                service: measure(warm_service(directory.path(), &provider, connections, scale)?)?,
                durable: Some(measure(Server::durable(directory.path())?)?),
                bare: measure(Server::bare()?)?,
            });
        }
        let mut level = compare(connections, &rounds);
        level["commit"] = json!({
            "p50_us": median(commits.iter().map(|commit| commit.p50_us).collect()),
            "p99_us": median(commits.iter().map(|commit| commit.p99_us).collect()),
        });
        println!("  {level}");
        goals(connections, &level, report);
        levels.push(level);
    }
    report.figure("accept", levels);
    Ok(())
}

/// The service, with memory for the messages to come: sending is parked while acceptance is
/// measured, and the first touch of a page takes up to a third of a message's time.
pub(crate) fn warm_service(
    directory: &Path,
    provider: &Server,
    connections: usize,
    scale: &Scale,
) -> anyhow::Result<Server> {
    let server = Server::service_that_keeps_memory(directory, provider)?;
    warm_up(&server, directory, connections, scale)?;
    Ok(server)
}

/// Has the service use the memory that it will need.
pub(crate) fn warm_up(
    server: &Server,
    directory: &Path,
    connections: usize,
    scale: &Scale,
) -> anyhow::Result<()> {
    let requests = Requests::Messages(Key::Unique);
    load::run(server.address, &authorization(), &requests, connections, scale.load_time)?;
    cancel_all(directory)
}

/// Reads messages, beside the bare server.
pub(crate) fn read(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let directory = directory()?;
    let ids = fill::fill(directory.path(), &Plan::recent(RECORDS.min(scale.records)))?;
    let file = directory.path().join("ids");
    std::fs::write(&file, ids.join("\n"))?;
    let requests = Requests::Reads(file);
    let mut rounds = Vec::new();
    for _ in 0..scale.rounds {
        let server = Server::service(directory.path(), &provider)?;
        let service = warm_run(&server, &requests, 64, scale)?;
        server.kill();
        let bare = warm_run(&Server::bare()?, &requests, 64, scale)?;
        rounds.push(Round { service, durable: None, bare });
    }
    let level = compare(64, &rounds);
    let ratio = level["of_bare"].as_f64().unwrap_or_default();
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

/// Results of each server in one round.
#[derive(Debug, Clone, Copy)]
struct Round {
    service: Seen,
    durable: Option<Seen>,
    bare: Seen,
}

/// Medians of the rounds; a ratio is the median of the rounds' own ratios.
fn compare(connections: usize, rounds: &[Round]) -> Value {
    let of = |pick: &dyn Fn(&Round) -> Option<f64>| {
        let picked: Vec<f64> = rounds.iter().filter_map(pick).collect();
        (!picked.is_empty()).then(|| median(picked))
    };
    let server = |pick: &dyn Fn(&Round) -> Option<Seen>| {
        json!({
            "per_second": of(&|round| Some(pick(round)?.rate())),
            "p50_us": of(&|round| Some(pick(round)?.p50_us)),
            "p99_us": of(&|round| Some(pick(round)?.p99_us)),
            "processor_us": of(&|round| Some(pick(round)?.processor_us)),
        })
    };
    json!({
        "connections": connections,
        "rounds": rounds.len(),
        "service": server(&|round| Some(round.service)),
        "durable": server(&|round| round.durable),
        "bare": server(&|round| Some(round.bare)),
        "of_durable": of(&|round| Some(round.service.rate() / round.durable?.rate())),
        "of_bare": of(&|round| Some(round.service.rate() / round.bare.rate())),
    })
}

fn goals(connections: usize, level: &Value, report: &mut Report) {
    let number = |pointer: &str| level.pointer(pointer).and_then(Value::as_f64).unwrap_or_default();
    let least = match connections {
        1 => 0.85,
        64 => 0.80,
        256 => 0.75,
        _ => return,
    };
    let what = format!("accepts/s ÷ durable ceiling, {connections} connections");
    report.goal(&what, Bound::AtLeast(least), "", number("/of_durable"));
    if connections == 64 {
        let bound = 2.0 * number("/durable/p99_us") + 10_000.0;
        let what = "p99 at 64 connections (2 x the durable ceiling's + 10 ms)";
        report.goal(what, Bound::AtMost(bound), " µs", number("/service/p99_us"));
    }
}
