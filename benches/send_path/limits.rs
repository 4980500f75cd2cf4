//! The cost of limits of organisations at acceptance: the same load alternates between
//! organisations with limits and without.

use serde_json::json;
use tempfile::TempDir;

use pillarbox_domain::organisation::{Limits, Organisation};
use pillarbox_store::Store;

use crate::load::{self, Requests};
use crate::message::Key;
use crate::process::{Server, authorizations, directory, now, set_up_organisation};
use crate::report::{Bound, Report, median};
use crate::scale::Scale;

const ORGANISATIONS: usize = 1_000;
const CONNECTIONS: usize = 64;
/// Limits that no run reaches.
const LIMITS: Limits = Limits {
    per_minute: Some(1 << 40),
    per_hour: Some(1 << 40),
    per_day: Some(1 << 40),
    per_month: Some(1 << 40),
};

/// Accepts the messages of 1,000 organisations, which have limits or have none.
pub(crate) fn limits(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let mut rounds = Vec::new();
    for round in 0..scale.rounds {
        let measure = |limits| processor_us(&provider, limits, scale);
        // Neither is always the first.
        let (limited, unlimited) = if round % 2 == 0 {
            let limited = measure(LIMITS)?;
            (limited, measure(Limits::NONE)?)
        } else {
            let unlimited = measure(Limits::NONE)?;
            (measure(LIMITS)?, unlimited)
        };
        println!("  limited {limited:.2} µs, unlimited {unlimited:.2} µs");
        rounds.push((limited, unlimited));
    }
    let ratio = median(rounds.iter().map(|(limited, unlimited)| limited / unlimited).collect());
    let spread = spread(rounds.iter().map(|(_, unlimited)| *unlimited).collect());
    report.figure("limits", json!({ "rounds": rounds, "ratio": ratio, "spread": spread }));
    report.goal(
        "processor time of an accept, 1,000 organisations with limits ÷ without (2 %, or the rounds' spread)",
        Bound::AtMost(spread.max(1.02)),
        "",
        ratio,
    );
    Ok(())
}

/// The largest divided by the smallest.
fn spread(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.last().copied().unwrap_or(1.0) / values.first().copied().unwrap_or(1.0)
}

/// Processor time of one accepted message, in microseconds.
#[expect(clippy::cast_precision_loss, reason = "no run has 2^53 requests")]
fn processor_us(provider: &Server, limits: Limits, scale: &Scale) -> anyhow::Result<f64> {
    let directory = organisations(limits)?;
    let server = Server::service_that_keeps_memory(directory.path(), provider)?;
    let requests = Requests::Messages(Key::Unique);
    let authorization = authorizations(ORGANISATIONS);
    let run = |time| load::run(server.address, &authorization, &requests, CONNECTIONS, time);
    run(scale.load_time)?;
    let used_before = server.processor_time()?;
    let seen = run(scale.load_time)?;
    let used = server.processor_time()?.saturating_sub(used_before);
    server.kill();
    Ok(used.as_secs_f64() * 1e6 / seen.requests as f64)
}

/// A directory with an empty store that lets all organisations in.
fn organisations(limits: Limits) -> anyhow::Result<TempDir> {
    let directory = directory()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (store, _) = Store::open(directory.path(), now())?;
    runtime.block_on(async {
        for number in 0..ORGANISATIONS {
            let organisation = set_up_organisation(&store, number).await?;
            let change = move |organisation: &mut Organisation| organisation.limits = limits;
            store.change_organisation(organisation.id, change).await?;
        }
        anyhow::Ok(())
    })?;
    Ok(directory)
}
