//! Cost of a request before anything is stored: reading it as JSON, checking it, admitting it and
//! encoding the request to the provider. Time by criterion, allocations by counting them.
//!
//! Writes `target/bench/parts.json`, which the other bench takes into its report.

use std::convert::Infallible;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use criterion::Criterion;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use pillarbox_api::requests::SendDocument;
use pillarbox_domain::admission::{Admitted, Facts, admit};
use pillarbox_domain::id::{MessageId, MessageIds};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message_terms::MessageDefaults;
use pillarbox_domain::organisation::OrganisationName;
use pillarbox_domain::request::SendRequest;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_domain::time::Timestamp;
use pillarbox_ses::send::{RequestOptions, encode};

mod message;

/// Measures parsing, checking and encoding.
#[derive(Debug, Parser)]
struct Options {
    /// Take less time, for a figure that is good enough to see that it works.
    #[arg(long)]
    short: bool,
    /// As the other bench: nothing is drawn here.
    #[arg(long)]
    plots: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// An organisation with one verified domain, and without suppressions.
struct Nobody;

impl Facts for Nobody {
    type Error = Infallible;

    fn is_verified(&self, domain: &DomainName<'_>) -> bool {
        domain.as_str() == message::DOMAIN
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

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let body = message::json(message::Key::Unique);
    let id = MessageIds::new().next(Timestamp::from_unix_millis(1_800_000_000_000));
    let name: OrganisationName = "acme".parse()?;
    let document = parsed(body.as_bytes())?;
    let admitted = admitted(&document)?;

    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    let output = directory.join("criterion");
    fs::create_dir_all(&output)?;
    let mut criterion = Criterion::default()
        .without_plots()
        .output_directory(&output)
        .warm_up_time(Duration::from_millis(if options.short { 200 } else { 1_000 }))
        .measurement_time(Duration::from_millis(if options.short { 500 } else { 5_000 }));
    let mut figures = Vec::new();
    let mut measure = |part: &str, work: &dyn Fn()| -> anyhow::Result<()> {
        criterion.bench_function(part, |bencher| bencher.iter(work));
        let allocations = allocation_counter::measure(work);
        let nanoseconds = median(&output, part)?;
        println!("{part}: {nanoseconds:.0} ns, {} allocations", allocations.count_total);
        figures.push(json!({
            "part": part,
            "ns": nanoseconds,
            "allocations": allocations.count_total,
            "allocated_bytes": allocations.bytes_total,
        }));
        Ok(())
    };
    measure("parse", &|| {
        black_box(SendDocument::parse(black_box(body.as_bytes())).is_ok());
    })?;
    measure("validate", &|| {
        black_box(self::admitted(black_box(&document)).is_ok());
    })?;
    let options = RequestOptions::default();
    measure("encode", &|| {
        black_box(encode(black_box(&admitted), id, &name, &options, 0));
    })?;
    measure("all", &|| {
        black_box(whole(black_box(body.as_bytes()), id, &name).is_ok());
    })?;
    fs::write(directory.join("parts.json"), serde_json::to_vec_pretty(&figures)?)?;
    Ok(())
}

fn parsed(body: &[u8]) -> anyhow::Result<SendDocument<'_>> {
    SendDocument::parse(body).map_err(|error| anyhow::anyhow!("the message is no JSON: {error}"))
}

fn admitted<'a>(document: &'a SendDocument<'a>) -> anyhow::Result<Admitted<'a>> {
    let request = SendRequest::parse(document.draft()?)
        .map_err(|error| anyhow::anyhow!("the message is refused: {error:?}"))?;
    let admitted = admit(request, &Nobody).now_or_never().expect("these facts are known at once");
    admitted.map_err(|error| anyhow::anyhow!("it is not admitted: {error:?}"))
}

fn whole(body: &[u8], id: MessageId, name: &OrganisationName) -> anyhow::Result<usize> {
    let document = parsed(body)?;
    Ok(encode(&admitted(&document)?, id, name, &RequestOptions::default(), 0).len())
}

/// The median that criterion has written down, in nanoseconds.
fn median(output: &Path, part: &str) -> anyhow::Result<f64> {
    let path = output.join(part).join("new/estimates.json");
    let text = fs::read(&path).with_context(|| format!("criterion left no {}", path.display()))?;
    let estimates: Value = serde_json::from_slice(&text)?;
    estimates["median"]["point_estimate"].as_f64().context("criterion's estimates have a median")
}
