//! Speed of the send path, also as the store grows: measured on the service as it ships, beside a
//! bare server in the same run, and compared with the goals.
//!
//! `cargo bench` runs everything, `cargo bench -- --short` a small form of it, and
//! `cargo bench --bench send_path -- accept memory` some parts alone. Results go to `target/bench`.
//! Runs that are compared alternate: first the one, then the other, in every round, so that a
//! machine that is busy for a while is busy for both.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

use bare::Behind;
use journal::Journal;
use relay::Relay;
use report::Report;
use scale::Scale;

mod accept;
mod bare;
mod cluster;
mod commit;
mod fill;
mod journal;
mod limits;
mod load;
#[path = "../message.rs"]
mod message;
mod plot;
mod process;
mod purge;
mod queue;
mod relay;
mod report;
mod scale;
mod search;
mod sending;
mod size;
mod submission;
mod writer;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the send path.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag on the command line")]
#[derive(Debug, Parser)]
struct Options {
    /// Small stores and one short round: shows that everything works, and little more.
    #[arg(long)]
    short: bool,
    /// Draw the curves as SVG.
    #[arg(long)]
    plots: bool,
    /// Fail where a goal is missed.
    #[arg(long)]
    strict: bool,
    /// Rounds of each comparison.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Records in the largest store.
    #[arg(long, value_name = "N")]
    records: Option<usize>,
    /// A Postfix to measure beside our SMTP, such as `benches/postfix.sh` starts.
    #[arg(long, value_name = "ADDRESS")]
    postfix: Option<SocketAddr>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
    /// What to measure; everything where nothing is named.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The accept path at 1, 16, 64 and 256 connections.
    Accept,
    /// Acceptance with limits of 1,000 organisations, and without.
    Limits,
    /// Acceptance over SMTP, beside HTTP.
    Smtp,
    /// `GET /emails/{id}`.
    Read,
    /// From acceptance to `sent`.
    Sending,
    /// The store's writer alone.
    Writer,
    /// Acceptance by nodes on `PostgreSQL`.
    Cluster,
    /// Delivery events.
    Events,
    /// Memory: idle, and for each pending message.
    Memory,
    /// Bytes on disk for each message.
    Disk,
    /// Acceptance during a purge.
    Purge,
    /// Start, acceptance and memory with many records.
    Size,
    /// Searches in many records, and acceptance beside one.
    Search,
}

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        // The measured programs are this one, so that all are built in the same way.
        (Some("bare"), Some(address)) => {
            bare::serve(address.parse()?, &Behind::Nothing)?;
            Ok(ExitCode::SUCCESS)
        }
        (Some("durable"), Some(address)) => {
            let path = args.next().context("a journal's path")?;
            bare::serve(address.parse()?, &Behind::Journal(Journal::start(Path::new(&path))?))?;
            Ok(ExitCode::SUCCESS)
        }
        (Some("relay"), Some(address)) => {
            let provider = args.next().context("a provider's address")?.parse()?;
            bare::serve(address.parse()?, &Behind::Relay(Relay::new(provider)?))?;
            Ok(ExitCode::SUCCESS)
        }
        (Some("serve" | "simulator"), _) => Ok(pillarbox_cli::run()),
        _ => run(&Options::parse()),
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    load::check()?;
    let scale = scale(options);
    let output = process::output_directory()?;
    let mut report = Report::new(options.short);
    for part in Part::value_variants() {
        if !options.parts.is_empty() && !options.parts.contains(part) {
            continue;
        }
        println!("{part:?}");
        match part {
            Part::Accept => accept::accept(&scale, &mut report)?,
            Part::Limits => limits::limits(&scale, &mut report)?,
            Part::Smtp => submission::submission(&scale, options.postfix, &mut report)?,
            Part::Read => accept::read(&scale, &mut report)?,
            Part::Sending => sending::sending(&scale, &mut report)?,
            Part::Writer => writer::writer(&scale, &mut report)?,
            Part::Cluster => cluster::cluster(&scale, &mut report)?,
            Part::Events => writer::events(&scale, &mut report)?,
            Part::Memory => size::memory(&scale, &mut report)?,
            Part::Disk => size::disk(&scale, &mut report)?,
            Part::Purge => purge::purge(&scale, &mut report)?,
            Part::Size => size::size(&scale, &mut report)?,
            Part::Search => search::search(&scale, &mut report)?,
        }
    }
    if let Ok(parts) = std::fs::read(output.join("parts.json")) {
        report.figure("parts", serde_json::from_slice::<serde_json::Value>(&parts)?);
    }
    let path = report.write(&output)?;
    if options.plots {
        plot::draw(&report, &output)?;
    }
    println!("\n{}\nAll figures: {}", report.table(), path.display());
    Ok(if options.strict && !report.is_met() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn scale(options: &Options) -> Scale {
    let mut scale = if options.short {
        Scale {
            rounds: 1,
            load_time: Duration::from_secs(1),
            commit_time: Duration::from_millis(300),
            records: 50_000,
            pending: 100_000,
        }
    } else {
        Scale {
            rounds: 5,
            load_time: Duration::from_secs(4),
            commit_time: Duration::from_secs(1),
            records: 10_000_000,
            pending: 1_000_000,
        }
    };
    scale.rounds = options.rounds.unwrap_or(scale.rounds).max(1);
    scale.records = options.records.unwrap_or(scale.records).max(1_000);
    scale
}
