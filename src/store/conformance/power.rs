//! The store on a drive whose power goes, at any write, again and again, also while it opens.
//!
//! Each seed is one story: lives of a store, in batches that share a commit, with a loss of power
//! at the end of each. After each loss the store must hold what it had promised, and nothing that
//! it had refused. `POWER_SEEDS` says how many stories, `SEED` which one comes first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ledger::Ledger;
use story::Story;

use crate::store::redb::open::initialize;
use crate::store::redb::open::power::{Drive, Syncs};

mod ledger;
mod story;

const SEEDS: u64 = if cfg!(feature = "long") { 5_000 } else { 100 };

/// What was lived through.
#[derive(Debug, Default)]
struct Survived {
    losses: u64,
    losses_while_opening: u64,
    acknowledged: u64,
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Lives through the story of a seed; what was broken, where something was.
fn live(seed: u64, syncs: Syncs) -> Result<Survived, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    // A file that is not whole may make redb panic: then the store is lost as well.
    let lived = catch_unwind(AssertUnwindSafe(|| runtime.block_on(Story::new(seed, syncs).run())));
    runtime.shutdown_timeout(Duration::ZERO);
    lived.unwrap_or_else(|_| Err("panicked".to_owned()))
}

#[test]
fn nothing_acknowledged_is_lost_when_the_power_goes() {
    let (first, seeds) = (number("SEED", 1), number("POWER_SEEDS", SEEDS));
    let mut all = Survived::default();
    for seed in first..first + seeds {
        let survived = live(seed, Syncs::Honest);
        let survived = survived.unwrap_or_else(|broken| panic!("SEED={seed}: {broken}"));
        all.losses += survived.losses;
        all.losses_while_opening += survived.losses_while_opening;
        all.acknowledged += survived.acknowledged;
        if (seed + 1 - first).is_multiple_of(500) {
            println!("{} seeds so far: {all:?}", seed + 1 - first);
        }
    }
    println!("{seeds} seeds from {first}: {all:?}, none lost");
    assert!(all.losses > seeds && all.acknowledged > 10 * seeds, "too little happened: {all:?}");
    assert!(all.losses_while_opening > 0 || seeds < 20, "no loss hit a recovery");
}

#[test]
fn a_drive_that_lies_about_syncs_is_found_out() {
    let broken: Vec<String> = (1..=20).filter_map(|seed| live(seed, Syncs::Lying).err()).collect();
    println!("{broken:#?}");
    assert!(broken.len() > 10, "of 20 lying drives, only {} were found out", broken.len());
    let lost = broken.iter().filter(|what| what.contains("is lost"));
    assert!(lost.count() > 0, "no acknowledged message is missed: {broken:#?}");
}

/// `create_if_missing` gives the file its name only after a sync of all of it; until then a start
/// finds no file and begins anew.
#[test]
fn a_new_file_is_whole_once_it_is_synced_whenever_the_power_goes_before_or_after() {
    let mut steps = 0;
    loop {
        let drive = Drive::empty();
        drive.lose_power_after(steps);
        let made = catch_unwind(AssertUnwindSafe(|| {
            let database = redb::Database::builder().create_with_backend(drive.clone());
            let made = database.is_ok_and(|database| initialize(&database).is_ok());
            made && redb::StorageBackend::sync_data(&drive).is_ok()
        }));
        if made.expect("a loss of power is an error and no panic") {
            for seed in 0..50 {
                let after = drive.after_loss(&mut fastrand::Rng::with_seed(seed));
                Ledger::default().open_empty(&after).unwrap();
            }
            break;
        }
        steps += 1;
        assert!(steps < 1_000, "the file is never made");
    }
    assert!(steps > 5, "a file is made in {steps} steps");
}
