//! Runs the parts of the service whose threads share memory in many orders: a scheduler chooses, at
//! each operation on a lock or an atomic, which thread runs next.
//!
//! `SCHEDULES` is the number of orders for each test, and `SEED` repeats a run. `faults.py` shows that
//! the tests find a barrier that is missing.

#![expect(clippy::unwrap_used, reason = "a test fails if something is not as it must be")]

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner};

mod arena;
mod budgets;
mod store;

/// Bytes of a thread's stack: a transaction of the data file needs more than the default.
const STACK_BYTES: usize = 1 << 20;
/// The long form has this many times as many schedules.
const LONG: usize = 50;
/// Changes of the running thread that a schedule makes at moments of its choice; otherwise the thread
/// with the highest of random priorities runs.
const PREEMPTIONS: usize = 3;

/// Runs `story` in `schedules` orders: in one half of them, each step is random, and in the other one
/// few threads are interrupted, which finds faults that need long runs of single threads.
fn explore(schedules: usize, story: fn()) {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let usual = if cfg!(feature = "long") { LONG * schedules } else { schedules };
    let schedules = number("SCHEDULES").map_or(usual, |many| usize::try_from(many).unwrap());
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    let story = move || {
        count.fetch_add(1, Ordering::Relaxed);
        story();
    };
    let _report = Report { tried, seed, began: Instant::now() };
    let half = schedules.div_ceil(2);
    let random = RandomScheduler::new_from_seed(seed, half);
    Runner::new(random, config()).run(story.clone());
    let few = PctScheduler::new_from_seed(seed, PREEMPTIONS, half);
    Runner::new(few, config()).run(story);
}

fn config() -> Config {
    let mut config = Config::new();
    (config.stack_size, config.failure_persistence) = (STACK_BYTES, FailurePersistence::None);
    // It treats all orderings of atomics alike, which docs/testing.md says.
    config.silence_warnings = true;
    config
}

/// Prints how far the schedules came.
struct Report {
    tried: Arc<AtomicUsize>,
    seed: u64,
    began: Instant,
}

impl Drop for Report {
    fn drop(&mut self) {
        let Self { tried, seed, began } = self;
        let (tried, took) = (tried.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
        let end = if std::thread::panicking() { "failed in schedule" } else { "schedules:" };
        eprintln!("{end} {tried}, in {took:.1} s, seed {seed}");
    }
}
