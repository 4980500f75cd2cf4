//! The power fails under the shipped binary: its data directory is on a disk that then loses, reorders
//! and tears what was not synced (`tests/lossy_disk`). Needs root and FUSE.
//!
//! `CUTS` says how many times, `SEED` repeats the choices of a run (the machine's timing aside).

#![expect(clippy::unwrap_used, reason = "a test fails if something is not as it must be")]

#[path = "../crash/clients.rs"]
mod clients;
#[path = "../kit/lib.rs"]
#[expect(dead_code, unused_imports, reason = "each test binary uses a part of the kit")]
mod kit;
#[path = "../crash/ledger.rs"]
mod ledger;
mod lossy_disk;
#[path = "../crash/old.rs"]
mod old;
#[path = "../crash/site.rs"]
mod site;
#[path = "../crash/torture.rs"]
mod torture;

use kit::number;
use torture::{End, Keeper, Torture};

const CUTS: u64 = if cfg!(feature = "long") { 2_000 } else { 60 };
/// A disk that ignores syncs must have lost something after so many runs of so many rounds.
const RUNS_ON_A_BAD_DISK: u32 = 8;
const ROUNDS_ON_A_BAD_DISK: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_whenever_the_power_fails() {
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let cuts = number("CUTS").unwrap_or(CUTS);
    println!("SEED={seed} CUTS={cuts}");
    let mut torture = Torture::new(seed, Keeper::Nobody, End::PowerCut { ignored: "" }).await;
    let mut rounds = 0;
    while torture.cuts() < cuts {
        torture.round(rounds).await;
        rounds += 1;
        if rounds.is_multiple_of(10) {
            println!("{rounds} rounds and {} cuts so far", torture.cuts());
        }
    }
    println!("{rounds} rounds: {}", torture.finish().await);
}

/// The disk acknowledges these syncs and does nothing: it is as if pillarbox did not make them.
/// Gives what is wrong then.
async fn found(ignored: &'static str) -> String {
    let mut random = fastrand::Rng::with_seed(number("SEED").unwrap_or_else(|| fastrand::u64(..)));
    for _ in 0..RUNS_ON_A_BAD_DISK {
        let seed = random.u64(..);
        println!("SEED={seed} ignores {ignored}");
        let run = tokio::spawn(async move {
            let mut torture = Torture::new(seed, Keeper::Nobody, End::PowerCut { ignored }).await;
            for round in 0..ROUNDS_ON_A_BAD_DISK {
                torture.round(round).await;
            }
        });
        if let Err(failed) = run.await {
            let panic = failed.into_panic();
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
            let said = said.expect("a panic has a message");
            // A disk that cannot be mounted is no finding.
            assert!(!said.contains("lossy"), "{said}");
            return said;
        }
    }
    panic!("{RUNS_ON_A_BAD_DISK} runs on a disk that ignores {ignored} found nothing");
}

/// The head stays durable, so that a start takes the journal.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_the_journal_that_are_not_synced_are_found() {
    let said = found("pillarbox.journal@4096").await;
    println!("found: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_not_synced_is_found() {
    let said = found("directory").await;
    println!("found: {said}");
}
