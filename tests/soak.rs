//! A soak: the service at half of what it can do, with faults, for a given time; in the end memory,
//! files and descriptors must not have grown and the slowest answers not be slower.
//!
//! `SOAK_SECONDS` sets the time: ten seconds by default, an hour with the feature `long`.
//! `SOAK_RATE` sets a lower rate, in messages a second, for a machine that is shared. The clock is
//! quick, so that ninety days go by in a sixth of that: records are purged as fast as they come for
//! the greater part of the time, as in a service that has run for months.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

#[path = "kit/lib.rs"]
#[expect(dead_code, unused_imports, reason = "each test binary uses a part of the kit")]
mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::retry::Backoff;
use pillarbox_simulator::{EventOptions, Events, Fault, Faults, Options};
use pillarbox_store::{FILE_NAME, JOURNAL_NAME};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use kit::LocalService;

// As the service's own binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of connections that post.
const CLIENTS: u32 = 32;
/// Number of samples of a run.
const SAMPLES: u32 = 60;
/// Duration of the search for the greatest rate.
const TRIAL: Duration = Duration::from_secs(3);
/// Number of them before growth counts: the file holds ninety days by then.
const WARM_UP: usize = 20;
/// Interval at which the clock moves on.
const TICK: Duration = Duration::from_millis(50);

fn length() -> Duration {
    let told = std::env::var("SOAK_SECONDS").map(|text| text.parse().unwrap());
    let default = if cfg!(feature = "long") { 3_600 } else { 10 };
    Duration::from_secs(told.unwrap_or(default))
}

/// The rate to keep to, in messages a second: half of the greatest, or what `SOAK_RATE` says if
/// that is less.
fn rate(greatest: f64) -> f64 {
    let told = std::env::var("SOAK_RATE").map(|text| text.parse().unwrap());
    told.unwrap_or(f64::INFINITY).min(greatest / 2.0)
}

/// The service within this process, and what was posted to it.
struct Soaked {
    local: LocalService,
    refused: AtomicU64,
    accepted: AtomicU64,
    repeated: AtomicU64,
}

impl Soaked {
    async fn start() -> Self {
        let options = Options {
            latency: Duration::from_millis(5),
            faults: faults(),
            events: Events::On(EventOptions::after(Duration::from_millis(50))),
            max_captured_messages: 100,
            // What the simulator remembers must not pass for the service's memory.
            max_counted_tags: 100,
            ..Options::default()
        };
        let local = LocalService::start(options, |config, simulator| {
            config.sending.backoff =
                Backoff::try_new(Duration::from_millis(100), Duration::from_secs(1)).unwrap();
            // What is still pending in the end is no part of this.
            config.sending.drain = Duration::from_secs(1);
            config.ses.events.queue_url = Some(simulator.queue_url().parse().unwrap());
        });
        let [refused, accepted, repeated] = [(); 3].map(|()| AtomicU64::new(0));
        Self { local: local.await, refused, accepted, repeated }
    }

    /// Posts one message; how long the answer took.
    async fn post(&self, number: u64) -> Duration {
        // One in a hundred comes back, and in a hundred complained of.
        let to = match number % 100 {
            17 => format!("bounce+{number}@simulator.amazonses.com"),
            53 => format!("complaint+{number}@simulator.amazonses.com"),
            _ => format!("user{number}@example.net"),
        };
        let body = json!({
            "from": "Ann <ann@example.com>",
            "to": [to],
            "subject": format!("Number {number}"),
            "text": "How are you? ".repeat(150),
            "idempotencyKey": format!("soak-{number}"),
        });
        let began = Instant::now();
        // A connection may be closed as idle at the moment when it is used again: the request is
        // repeated with its key, as the README says.
        let status = loop {
            match self.try_post(body.to_string()).await {
                Ok(status) => break status,
                Err(_) => self.repeated.fetch_add(1, Ordering::Relaxed),
            };
        };
        let counter = match status.as_u16() {
            200 => &self.accepted,
            // The queue is full while the provider is down for long.
            503 => &self.refused,
            other => panic!("{other}"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        began.elapsed()
    }

    async fn try_post(&self, body: String) -> Result<reqwest::StatusCode, reqwest::Error> {
        let request =
            self.local.client.post(format!("http://{}/emails", self.local.service.address()));
        let request = request.header("content-type", "application/json").body(body);
        let response = request.bearer_auth(self.local.key.reveal()).send().await?;
        let status = response.status();
        response.bytes().await?;
        Ok(status)
    }

    fn sample(&self, took: &mut mpsc::UnboundedReceiver<Duration>) -> Sample {
        let mut answers: Vec<Duration> = std::iter::from_fn(|| took.try_recv().ok()).collect();
        answers.sort_unstable();
        let p99 = answers.get(answers.len() * 99 / 100).copied().unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        let data = self.local.directory.path().join("data");
        let [file, journal] = [FILE_NAME, JOURNAL_NAME].map(|name| {
            let kilobytes = std::fs::metadata(data.join(name)).unwrap().len() >> 10;
            f64::from(u32::try_from(kilobytes).unwrap()) / 1024.0
        });
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
        Sample {
            values: [
                kilobytes / 1024.0,
                file,
                journal,
                f64::from(u32::try_from(descriptors).unwrap()),
                p99.as_secs_f64() * 1e3,
            ],
            answers: answers.len(),
        }
    }
}

fn faults() -> Faults {
    Faults::none()
        .with_probability(Fault::ResetAfter, 0.01)
        .and_then(|faults| faults.with_probability(Fault::ResetBefore, 0.01))
        .and_then(|faults| faults.with_probability(Fault::Unavailable, 0.01))
        .and_then(|faults| faults.with_probability(Fault::Rejected, 0.01))
        .unwrap()
}

/// Memory, data file and journal in MiB, descriptors, and the 99th percentile of answers in
/// milliseconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    values: [f64; 5],
    answers: usize,
}

/// Rise of a straight line through the values from the first to the last, as a part of their mean.
fn growth(values: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    for (x, y) in (0_u32..).map(f64::from).zip(values) {
        for (sum, more) in sums.iter_mut().zip([x, *y, x * y, x * x]) {
            *sum += more;
        }
    }
    let count = f64::from(u32::try_from(values.len()).unwrap());
    let [x, y, xy, xx] = sums;
    let slope = (count * xy - x * y) / (count * xx - x * x);
    slope * (count - 1.0) / (y / count)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The most messages a second, all clients posting as fast as they are answered.
async fn greatest_rate(soaked: &Arc<Soaked>, numbers: &Arc<AtomicU64>) -> f64 {
    let (began, before) = (Instant::now(), soaked.accepted.load(Ordering::Relaxed));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (soaked, numbers) = (Arc::clone(soaked), Arc::clone(numbers));
        clients.spawn(async move {
            while began.elapsed() < TRIAL {
                soaked.post(numbers.fetch_add(1, Ordering::Relaxed)).await;
            }
        });
    }
    clients.join_all().await;
    let accepted = soaked.accepted.load(Ordering::Relaxed) - before;
    f64::from(u32::try_from(accepted).unwrap()) / began.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_half_its_rate_nothing_grows() {
    let length = length();
    let soaked = Arc::new(Soaked::start().await);
    let numbers = Arc::new(AtomicU64::new(0));
    let rate = rate(greatest_rate(&soaked, &numbers).await);
    let pause = Duration::from_secs_f64(f64::from(CLIENTS) / rate);
    let (told, mut took) = mpsc::unbounded_channel();
    let mut load = JoinSet::new();
    for client in 0..CLIENTS {
        let (soaked, numbers, told) = (Arc::clone(&soaked), Arc::clone(&numbers), told.clone());
        load.spawn(async move {
            tokio::time::sleep(pause * client / CLIENTS).await;
            let mut ticks = tokio::time::interval(pause);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let _ = told.send(soaked.post(numbers.fetch_add(1, Ordering::Relaxed)).await);
            }
        });
    }
    let passing = Arc::clone(&soaked);
    load.spawn(async move {
        let step = RECORD_RETENTION.mul_f64(6.0 * TICK.as_secs_f64() / length.as_secs_f64());
        let mut ticks = tokio::time::interval(TICK);
        loop {
            ticks.tick().await;
            passing.local.clock.advance(step);
            // The service's own purge rests for minutes of the system's time.
            passing
                .local
                .service
                .store()
                .purge(passing.local.clock.window_time(), 5_000)
                .await
                .unwrap();
        }
    });
    let mut samples = Vec::new();
    for number in 0..SAMPLES {
        // Now and then the provider is away for a while.
        let away = number % 15 == 7;
        soaked.local.simulator.set_faults(if away {
            Faults::always(Fault::Down)
        } else {
            faults()
        });
        tokio::time::sleep(length / SAMPLES).await;
        let sample = soaked.sample(&mut took);
        println!(
            "{number:>2}: {:7.1} MiB resident, {:7.1} MiB file, {:5.1} MiB journal, {:3} descriptors, p99 {:6.1} ms, {} answers",
            sample.values[0],
            sample.values[1],
            sample.values[2],
            sample.values[3],
            sample.values[4],
            sample.answers
        );
        samples.push(sample);
    }
    load.shutdown().await;
    let steady = &samples[WARM_UP..];
    let series = |index: usize| steady.iter().map(|s| s.values[index]).collect::<Vec<_>>();
    let [memory, file, journal, descriptors] = [0, 1, 2, 3].map(|index| growth(&series(index)));
    let p99 = series(4);
    let (early, late) = p99.split_at(p99.len() / 2);
    let slower = median(late) / median(early);
    let (accepted, refused) = (&soaked.accepted, &soaked.refused);
    println!(
        "{rate:.0}/s for {length:?}: {} accepted, {} refused, {} repeated; growth: memory {memory:+.3}, file \
         {file:+.3}, journal {journal:+.3}, descriptors {descriptors:+.3}; p99 of the second half ÷ first {slower:.2}",
        accepted.load(Ordering::Relaxed),
        refused.load(Ordering::Relaxed),
        soaked.repeated.load(Ordering::Relaxed)
    );
    // A short run is too short for more than a check of leaks that are as large as the load.
    let bound = if length >= Duration::from_mins(10) { 0.1 } else { 1.0 };
    assert!(memory < bound && file < bound && journal < bound && descriptors < bound);
    if length >= Duration::from_mins(10) {
        assert!(slower < 1.5);
    }
    let Ok(soaked) = Arc::try_unwrap(soaked) else { panic!("the load has ended") };
    soaked.local.service.stop().await;
}
