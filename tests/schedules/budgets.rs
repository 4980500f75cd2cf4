//! Budgets and shares: what is granted fits, all of it comes back, and a release wakes those that
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::future::block_on;
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::thread::{self, JoinHandle};

use pillarbox_domain::id::OrganisationId;
use pillarbox_queue as queue;
use pillarbox_runtime::in_flight::InFlight;
use pillarbox_runtime::shared_limits::{Budget, Slots};

use crate::explore;

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn no_byte_is_granted_twice_and_all_come_back() {
    const MAX: usize = 100;
    explore(6_000, || {
        let budget = Budget::new(MAX);
        // Bytes that are granted for sure, and bytes that were granted at any time.
        let (held, granted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        join(['a', 'b', 'b', 'c'].map(|holder| {
            let (budget, held, granted) = (budget.clone(), Arc::clone(&held), Arc::clone(&granted));
            thread::spawn(move || {
                for _ in 0..3 {
                    let bytes = thread_rng().gen_range(1..=60);
                    let Ok(mut reservation) = budget.reserve(holder, bytes) else { continue };
                    held.fetch_add(bytes, Ordering::Relaxed);
                    if reservation.grow_to(bytes + 10).is_ok() {
                        held.fetch_add(10, Ordering::Relaxed);
                    }
                    let sum = held.load(Ordering::Relaxed);
                    assert!(sum <= MAX && budget.in_use() <= MAX, "{sum} bytes are held");
                    assert!(budget.greatest_share() <= 2.0);
                    if thread_rng().r#gen() {
                        let kept = reservation.keep();
                        reservation = budget.resume(holder, kept);
                    }
                    granted.fetch_add(reservation.bytes(), Ordering::Relaxed);
                    held.fetch_sub(reservation.bytes(), Ordering::Relaxed);
                }
            })
        }));
        assert_eq!(budget.in_use(), 0);
        assert_eq!(budget.released(), granted.load(Ordering::Relaxed) as u64);
        assert!(budget.full_for().is_empty());
        drop(budget.reserve('a', MAX).expect("nothing is held"));
    });
}

#[test]
fn a_release_wakes_all_that_wait_for_it() {
    explore(6_000, || {
        let budget = Budget::new(100);
        let first = budget.reserve('a', 100).unwrap();
        let mut threads = Vec::from(['a', 'b', 'c'].map(|holder| {
            let budget = budget.clone();
            thread::spawn(move || {
                let reservation = block_on(budget.reserve_later(holder, 60));
                assert!(reservation.bytes() == 60 && budget.in_use() <= 100);
            })
        }));
        threads.push(thread::spawn(move || drop(first)));
        join(threads);
        assert_eq!(budget.in_use(), 0);
    });
}

#[test]
fn a_greater_budget_wakes_those_that_wait() {
    explore(2_000, || {
        let budget = Budget::new(10);
        let waiting = budget.clone();
        let waiting = thread::spawn(move || drop(block_on(waiting.reserve_later('a', 60))));
        budget.set_max(100);
        join([waiting]);
        assert_eq!(budget.in_use(), 0);
    });
}

#[test]
fn messages_that_find_no_room_are_told_when_to_come_again() {
    explore(2_000, || {
        let budget = queue::Budget::new(2_000);
        join([1, 1, 2].map(|number| {
            let budget = budget.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    match budget.reserve(OrganisationId(number), 500) {
                        Ok(reservation) => assert_eq!(reservation.bytes(), 900),
                        Err(refused) => assert!(refused.retry_after.as_secs() >= 1),
                    }
                    assert!(budget.in_use() <= budget.max());
                }
            })
        }));
        assert_eq!((budget.in_use(), budget.full_for()), (0, vec![]));
    });
}

#[test]
fn a_holder_has_no_more_slots_than_its_own() {
    explore(4_000, || {
        let slots = Arc::new(Slots::new(2, 1));
        let taken = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let refused = Arc::new(AtomicUsize::new(0));
        join([0, 0, 0, 0, 1].map(|holder| {
            let (slots, taken) = (Arc::clone(&slots), Arc::clone(&taken));
            let refused = Arc::clone(&refused);
            thread::spawn(move || {
                let Ok(_slot) = block_on(slots.take(holder)) else {
                    assert_eq!(holder, 0, "the other holder's slots are free");
                    refused.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                let now = taken[holder].fetch_add(1, Ordering::Relaxed) + 1;
                assert!(now <= 2, "{now} slots are taken");
                thread::yield_now();
                taken[holder].fetch_sub(1, Ordering::Relaxed);
            })
        }));
        assert!(refused.load(Ordering::Relaxed) <= 1, "three of a holder may be there");
        block_on(slots.take(0)).unwrap();
    });
}

#[test]
fn whoever_waits_for_the_last_call_learns_of_its_end() {
    explore(2_000, || {
        let calls = Arc::new(InFlight::default());
        let guards = [calls.enter(), calls.enter(), calls.enter()];
        let ends = guards.map(|guard| thread::spawn(move || drop(guard)));
        block_on(calls.cleared());
        assert_eq!(calls.count(), 0);
        join(ends);
    });
}
