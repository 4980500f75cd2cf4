//! The load: wrk, which sends the requests of `load.lua`.
//!
//! wrk takes little of the processor, so that what is measured is the server; and its scripts can
//! give each message an idempotency key of its own, which the other kept generators cannot. It
//! sends the next request of a connection once the last one is answered.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::message::{self, Key};

/// Threads of the generator; one connection has no use for two.
const THREADS: usize = 2;

static RUNS: AtomicU32 = AtomicU32::new(0);

/// Requests of a load.
#[derive(Debug, Clone)]
pub(crate) enum Requests {
    /// New messages.
    Messages(Key),
    /// Reads of the messages whose ids are in a file.
    Reads(PathBuf),
}

/// Result of wrk.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Seen {
    /// Requests that were answered.
    pub(crate) requests: u64,
    duration_us: u64,
    /// Times from a request's first byte to its answer's last, in microseconds.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    refused: u64,
    broken: u64,
    /// Processor time of the server for each request, in microseconds.
    #[serde(skip)]
    pub(crate) processor_us: f64,
}

impl Seen {
    /// Requests answered in a second.
    #[expect(clippy::cast_precision_loss, reason = "no run has 2^53 requests")]
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / Duration::from_micros(self.duration_us).as_secs_f64()
    }
}

/// Fails if wrk is not there.
pub(crate) fn check() -> anyhow::Result<()> {
    Command::new("wrk").arg("-v").output().map(drop).context(
        "the load comes from wrk, which is not installed (Debian and Ubuntu: apt-get install wrk)",
    )
}

/// Sends to `server` over `connections` for `time`, with one line of `authorization` after the
/// other. An answer other than 2xx fails the run.
pub(crate) fn run(
    server: SocketAddr,
    authorization: &str,
    requests: &Requests,
    connections: usize,
    time: Duration,
) -> anyhow::Result<Seen> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("load.lua");
    let body = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("wrk");
    command
        .arg(format!("-t{}", THREADS.min(connections)))
        .arg(format!("-c{connections}"))
        .arg(format!("-d{}s", time.as_secs().max(1)))
        .args(["--timeout", "30s", "-s"])
        .arg(script)
        .arg(format!("http://{server}/"))
        .env("AUTHORIZATION", authorization);
    match requests {
        Requests::Messages(key) => {
            std::fs::write(body.path(), message::json(*key))?;
            command.env("BODY", body.path()).env("RUN_ID", run_id()?);
        }
        Requests::Reads(ids) => {
            command.env("IDS", ids);
        }
    }
    let output = command.output().context("wrk cannot be run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find(|line| line.starts_with('{'))
        .with_context(|| format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
    let seen: Seen = serde_json::from_str(line)?;
    if seen.refused > 0 || seen.broken > 0 || seen.requests == 0 {
        bail!("not every request was answered with 2xx: {line}");
    }
    Ok(seen)
}

fn run_id() -> anyhow::Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(format!("{:x}-{:03}", now.as_millis(), RUNS.fetch_add(1, Ordering::Relaxed)))
}
