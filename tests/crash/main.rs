//! The real process, killed at any moment, again and again: nothing that was acknowledged is lost.
//!
//! `CRASH_ROUNDS` says how many times, `SEED` repeats the choices of a run (the machine's timing
//! aside). The long form: `cargo test --release --features long --test crash`.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

mod clients;
mod clock;
mod damage;
mod files;
mod journals;
#[path = "../kit/lib.rs"]
#[expect(dead_code, unused_imports, reason = "each test binary uses a part of the kit")]
mod kit;
mod ledger;
mod limits;
#[path = "../power/lossy_disk.rs"]
mod lossy_disk;
mod old;
mod site;
mod torture;
mod versions;
mod webhooks;

use kit::number;
use torture::{End, Keeper, Torture};

const ROUNDS: u64 = if cfg!(feature = "long") { 200 } else { 8 };

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_whenever_the_process_is_killed() {
    torture(Keeper::Nobody).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_body_is_lost_whenever_the_process_is_killed_under_a_service_manager() {
    torture(Keeper::Manager).await;
}

async fn torture(keeper: Keeper) {
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = number("CRASH_ROUNDS").unwrap_or(ROUNDS);
    println!("SEED={seed} CRASH_ROUNDS={rounds}");
    let mut torture = Torture::new(seed, keeper, End::Kill).await;
    for round in 0..rounds {
        torture.round(round).await;
        if (round + 1).is_multiple_of(10) {
            println!("{} rounds so far", round + 1);
        }
    }
    println!("{}", torture.finish().await);
}
