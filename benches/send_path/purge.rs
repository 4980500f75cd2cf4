//! Acceptance while old records are purged, beside acceptance with nothing to purge.

use std::time::Duration;

use serde_json::json;

use crate::accept::warm_run;
use crate::fill::{self, Plan};
use crate::load::Requests;
use crate::message::Key;
use crate::process::{Server, directory};
use crate::report::{Bound, Report, median, median_ratio};
use crate::scale::Scale;

const CONNECTIONS: usize = 64;
/// Rows that are past their retention.
const ROWS: usize = 1_000_000;
/// Their ages: all over the 90 days for which records are kept.
const OLDEST: Duration = Duration::from_hours(24 * 95);
const NEWEST: Duration = Duration::from_hours(24 * 94);

/// The 99th percentile with and without a purge under way.
pub(crate) fn purge(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let rows = ROWS.min(scale.records);
    let expired = directory()?;
    let age = Plan { keys: 0, oldest: OLDEST, newest: NEWEST, ..Plan::recent(rows) };
    fill::fill(expired.path(), &age)?;
    let fresh = directory()?;
    fill::fill(fresh.path(), &Plan { keys: 0, ..Plan::recent(rows) })?;
    let requests = Requests::Messages(Key::Unique);
    let mut with = Vec::new();
    let mut without = Vec::new();
    for _ in 0..scale.rounds {
        for (store, times) in [(&expired, &mut with), (&fresh, &mut without)] {
            let service = Server::service(store.path(), &provider)?;
            times.push(warm_run(&service, &requests, CONNECTIONS, scale)?.p99_us);
            service.kill();
        }
    }
    let ratio = median_ratio(&with, &without);
    report.figure(
        "purge",
        json!({
            "rows": rows,
            "p99_us_with": median(with),
            "p99_us_without": median(without),
            "ratio": ratio,
        }),
    );
    report.goal("p99 of accepts during a purge ÷ without", Bound::AtMost(1.5), "", ratio);
    Ok(())
}
