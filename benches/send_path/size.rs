//! Quantities that grow with the mail: the start, the rate of acceptance, memory and the file
//! itself.

use futures_util::FutureExt as _;
use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use pillarbox_api::requests::SendDocument;
use pillarbox_domain::admission::{Facts, admit};
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::MessageIds;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message_terms::MessageDefaults;
use pillarbox_domain::request::SendRequest;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_queue::EncodedRequest;
use pillarbox_ses::send::{RequestOptions, encode};
use pillarbox_store::FILE_NAME;

use crate::accept::{warm_run, warm_service};
use crate::fill::{self, Plan};
use crate::load::{self, Requests};
use crate::message::Key;
use crate::process::{Server, authorization, organisation_name, prepared};
use crate::queue::pending;
use crate::report::{Bound, Report, median};
use crate::scale::Scale;

const CONNECTIONS: usize = 64;
/// Starts that are timed.
const STARTS: usize = 5;
/// Messages that wait before others are weighed: so many fill the file's cache, of 64 MiB.
const FIRST_PENDING: usize = 400_000;
/// Messages that are pending when the process is killed.
const PENDING: usize = 100_000;

/// An organisation that may send from everywhere to everyone.
struct Anybody;

impl Facts for Anybody {
    type Error = Infallible;

    fn is_verified(&self, _domain: &DomainName<'_>) -> bool {
        true
    }

    fn verified_domains(&self) -> Vec<DomainName<'static>> {
        Vec::new()
    }

    fn allows_sender(&self, _: &DomainName<'_>) -> bool {
        true
    }

    fn defaults(&self) -> MessageDefaults {
        MessageDefaults::default()
    }

    async fn is_suppressed(&self, _address: &SuppressedAddress) -> Result<bool, Infallible> {
        Ok(false)
    }
}

/// Start, rate and memory with a small store and a large one.
pub(crate) fn size(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let small = store(scale.records / 10, scale.records / 10)?;
    let large = store(scale.records, scale.records / 2)?;
    let mut starts = Vec::new();
    let mut resident = Vec::new();
    for (directory, records) in [(&small, scale.records / 10), (&large, scale.records)] {
        let (start, clean) = clean_start(directory.path(), &provider)?;
        resident.push(clean);
        let killed = start_after_kill(directory.path(), &provider, scale)?;
        starts.push(json!({
            "records": records,
            "clean_s": start,
            "killed_s": killed.0,
            "pending_at_the_kill": killed.1,
            "resident_after_start": clean,
        }));
    }
    memory_per_key(scale, &resident, report);
    start_goals(scale, &starts, report);
    report.figure("start", Value::from(starts));
    flatness(scale, large.path(), &provider, report)
}

fn store(messages: usize, keys: usize) -> anyhow::Result<tempfile::TempDir> {
    let directory = crate::process::directory()?;
    println!("  filling {messages} records, {keys} of them with a live key");
    let plan = Plan { keys, ..Plan::recent(messages) };
    fill::fill(directory.path(), &plan)?;
    Ok(directory)
}

/// Seconds until it listens, and resident bytes then.
#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 bytes")]
fn clean_start(directory: &Path, provider: &Server) -> anyhow::Result<(f64, f64)> {
    let mut times = Vec::new();
    let mut resident = Vec::new();
    for _ in 0..STARTS {
        let service = Server::service(directory, provider)?;
        times.push(service.started_in.as_secs_f64());
        resident.push(service.resident_bytes()? as f64);
        service.stop()?;
    }
    Ok((median(times), median(resident)))
}

/// Seconds until it listens after a kill with messages pending, and how many those were.
fn start_after_kill(
    directory: &Path,
    provider: &Server,
    scale: &Scale,
) -> anyhow::Result<(f64, usize)> {
    let mut times = Vec::new();
    let mut most = 0;
    for _ in 0..scale.rounds.min(3) {
        let service = Server::service(directory, provider)?;
        let mut waiting = 0;
        while waiting < PENDING.min(scale.records / 10) {
            let requests = Requests::Messages(Key::Unique);
            load::run(service.address, &authorization(), &requests, 256, Duration::from_secs(1))?;
            waiting = pending(directory)?;
        }
        most = most.max(waiting);
        service.kill();
        let again = Server::service(directory, provider)?;
        times.push(again.started_in.as_secs_f64());
        again.stop()?;
    }
    Ok((median(times), most))
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn memory_per_key(scale: &Scale, resident: &[f64], report: &mut Report) {
    // Both starts fill the cache in the same way, so the difference is that of the keys.
    let keys = (scale.records / 2 - scale.records / 10) as f64;
    let each = (resident[1] - resident[0]) / keys;
    report.figure("memory_per_key", each);
    report.goal("memory per live idempotency key", Bound::AtMost(40.0), " B", each);
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn start_goals(scale: &Scale, starts: &[Value], report: &mut Report) {
    let seconds = |name: &str| starts[1][name].as_f64().unwrap_or(f64::INFINITY);
    let records = scale.records;
    let bound = 1.0 + (records / 2) as f64 / 1e6;
    let what = format!("start with {records} records, clean (1 s + 1 µs a live key)");
    report.goal(&what, Bound::AtMost(bound), " s", seconds("clean_s"));
    let pending = &starts[1]["pending_at_the_kill"];
    let what = format!("start with {records} records after kill -9, {pending} pending");
    report.goal(&what, Bound::AtMost(3.0), " s", seconds("killed_s"));
}

/// Accepts with a large store beside accepts with an empty one.
fn flatness(
    scale: &Scale,
    large: &Path,
    provider: &Server,
    report: &mut Report,
) -> anyhow::Result<()> {
    let requests = Requests::Messages(Key::Unique);
    let measure = |directory: &Path| {
        let service = warm_service(directory, provider, CONNECTIONS, scale)?;
        let seen = warm_run(&service, &requests, CONNECTIONS, scale);
        service.kill();
        seen
    };
    let mut rates = Vec::new();
    let (mut ratios, mut p99_ratios) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let full = measure(large)?;
        let empty = measure(prepared()?.path())?;
        rates.push((empty.rate(), full.rate()));
        ratios.push(full.rate() / empty.rate());
        p99_ratios.push(full.p99_us / empty.p99_us);
    }
    let (ratio, p99_ratio) = (median(ratios), median(p99_ratios));
    report.figure(
        "flatness",
        json!({
            "records": [0, scale.records],
            "per_second": [
                median(rates.iter().map(|rates| rates.0).collect()),
                median(rates.iter().map(|rates| rates.1).collect()),
            ],
            "ratio": ratio,
            "p99_ratio": p99_ratio,
        }),
    );
    let (records, keys) = (scale.records, scale.records / 2);
    let what = format!("accepts/s with {records} records and {keys} live keys ÷ empty");
    report.goal(&what, Bound::AtLeast(0.92), "", ratio);
    report.goal("p99 of the same", Bound::AtMost(2.0), "", p99_ratio);
    Ok(())
}

/// Resident memory: idle, and of each message that waits, beyond its encoded request and envelope.
#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 bytes")]
pub(crate) fn memory(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let directory = prepared()?;
    let service = Server::service(directory.path(), &provider)?;
    std::thread::sleep(Duration::from_secs(1));
    let idle = service.resident_bytes()? as f64;
    let idle_mib = idle / f64::from(1 << 20);
    report.figure("idle_mib", idle_mib);
    report.goal("idle resident memory, empty file", Bound::AtMost(16.0), " MiB", idle_mib);

    let requests = Requests::Messages(Key::None);
    let mut points = Vec::new();
    // From the first point on the cache is full, which is no message's, and connections have buffers.
    for wanted in [FIRST_PENDING, FIRST_PENDING + scale.pending] {
        let mut messages = 0;
        while messages < wanted {
            let second = Duration::from_secs(1);
            load::run(service.address, &authorization(), &requests, CONNECTIONS, second)?;
            messages = pending(directory.path())?;
        }
        points.push((messages as f64, service.resident_bytes()? as f64));
    }
    let encoded = encoded_len()? as f64;
    let (first, last) = (points[0], points[1]);
    let beyond = (last.1 - first.1) / (last.0 - first.0) - encoded;
    report.figure("memory_per_pending", beyond);
    report.figure("memory_per_pending_with_all_caches", (last.1 - idle) / last.0 - encoded);
    let what = format!("memory per pending message beyond its body, {} of them", scale.pending);
    report.goal(&what, Bound::AtMost(250.0), " B", beyond);
    Ok(())
}

/// The length of the message's request to the provider, and of its envelope.
fn encoded_len() -> anyhow::Result<usize> {
    let body = crate::message::json(Key::None).replace(
        crate::message::UNIQUE_NUMBER,
        // As long as the load's own numbers.
        "19aa5f0c3a1-000-00-0000000001",
    );
    let document = SendDocument::parse(body.as_bytes())
        .map_err(|error| anyhow::anyhow!("the message is no JSON: {error}"))?;
    let request = SendRequest::parse(document.draft()?)
        .map_err(|error| anyhow::anyhow!("the message is refused: {error:?}"))?;
    let admitted = admit(request, &Anybody)
        .now_or_never()
        .expect("these facts are known at once")
        .map_err(|error| anyhow::anyhow!("it is not admitted: {error:?}"))?;
    let id = MessageIds::new().next(crate::process::now());
    let options = RequestOptions::default();
    let request = encode(&admitted, id, &organisation_name(0).parse()?, &options, 0);
    Ok(EncodedRequest::new(request, &Envelope::from(&admitted)).len_bytes())
}

/// The file's growth per message of its whole life: accepted, sent, two events.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53 bytes")]
pub(crate) fn disk(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let directory = crate::process::directory()?;
    let messages = (scale.records / 10).min(1_000_000);
    let plan = Plan { events: 2, ..Plan::recent(messages) };
    fill::fill(directory.path(), &plan)?;
    let blocks = fs::metadata(directory.path().join(FILE_NAME))?.blocks();
    // stat(2): blocks of 512 bytes, on every file system.
    let each = (blocks * 512) as f64 / messages as f64;
    report.figure("disk_per_message", each);
    report.goal("bytes on disk per message of its whole life", Bound::AtMost(1_060.0), " B", each);
    Ok(())
}
