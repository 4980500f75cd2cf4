use std::time::Duration;

use proptest::prelude::*;
use tokio::time::timeout;

use super::*;

#[test]
fn one_holder_alone_gets_half_and_leaves_the_rest_to_others() {
    let budget = Budget::new(100);
    let mut held = Vec::new();
    let refused = loop {
        match budget.reserve('a', 1) {
            Ok(reservation) => held.push(reservation),
            Err(refused) => break refused,
        }
    };
    assert_eq!((held.len(), refused), (50, Exhausted::Share));
    assert_eq!((budget.full_for(), budget.greatest_share()), (vec!['a'], 1.0));
    // A newcomer's are granted as long as they fit.
    assert_eq!(budget.reserve('b', 51).unwrap_err(), Exhausted::Whole);
    let all = budget.reserve('b', 50).unwrap();
    assert_eq!(budget.in_use(), 100);
    drop((held, all));
    assert_eq!((budget.in_use(), budget.released()), (0, 100));
    assert_eq!((budget.full_for(), budget.greatest_share()), (vec![], 0.0));
    assert!(budget.0.ledger().held.is_empty());
}

#[test]
fn n_greedy_holders_leave_one_share_free() {
    for holders in 1..=9 {
        let budget = Budget::new(1_000);
        let mut held = Vec::new();
        let mut granted = true;
        while granted {
            granted = false;
            for holder in 0..holders {
                if let Ok(reservation) = budget.reserve(holder, 1) {
                    held.push(reservation);
                    granted = true;
                }
            }
        }
        let free = budget.max() - budget.in_use();
        assert!(free.abs_diff(1_000 / (holders + 1)) <= holders, "{holders}: {free}");
    }
}

#[test]
fn a_reservation_grows_by_the_same_rule_or_stays() {
    let budget = Budget::new(100);
    let mut reservation = budget.reserve('a', 10).unwrap();
    reservation.grow_to(49).unwrap();
    reservation.grow_to(20).unwrap();
    assert_eq!((reservation.bytes(), budget.in_use()), (49, 49));
    reservation.grow_to(60).unwrap();
    assert_eq!(reservation.grow_to(61), Err(Exhausted::Share));
    assert_eq!(reservation.grow_to(101), Err(Exhausted::Whole));
    assert_eq!((reservation.bytes(), budget.in_use()), (60, 60));
    drop(reservation);
    assert_eq!(budget.in_use(), 0);
}

#[test]
fn a_budget_that_is_lowered_grants_nothing_until_enough_is_released() {
    let budget = Budget::new(100);
    let first = budget.reserve('a', 40).unwrap();
    budget.set_max(30);
    assert_eq!(budget.reserve('b', 1).unwrap_err(), Exhausted::Whole);
    drop(first);
    assert!(budget.reserve('b', 30).is_ok());
    // No sum of sizes overflows.
    assert_eq!(budget.reserve('b', usize::MAX).unwrap_err(), Exhausted::Whole);
}

#[test]
fn what_is_missing_is_what_has_to_be_released() {
    let budget = Budget::new(100);
    assert_eq!(budget.missing('a', 100), 0);
    let mut own: Vec<_> = (0..70).filter_map(|_| budget.reserve('a', 1).ok()).collect();
    let _other = budget.reserve('b', 40).unwrap();
    // 50 and 40 are in use.
    let missing = budget.missing('a', 1);
    own.truncate(own.len() - missing);
    assert!(budget.reserve('a', 1).is_ok(), "{missing}");
    assert_eq!(Budget::<char>::new(10).missing('a', 30), 20);
}

#[test]
fn bytes_that_are_kept_stay_in_use_until_they_are_resumed() {
    let budget = Budget::new(100);
    let reservation = budget.reserve('a', 30).unwrap();
    assert_eq!(reservation.holder(), 'a');
    assert_eq!(reservation.keep(), 30);
    assert_eq!(budget.clone().in_use(), 30, "a clone is the same budget");
    let resumed = budget.resume('a', 30);
    assert_eq!((resumed.holder(), resumed.bytes()), ('a', 30));
    drop(resumed);
    assert_eq!((budget.in_use(), budget.released()), (0, 30));
}

#[test]
fn bytes_in_use_already_are_reserved_though_they_are_too_many() {
    let budget = Budget::new(100);
    let first = budget.reserve('a', 60).unwrap();
    let more = budget.reserve_always('a', 70);
    assert_eq!((more.holder(), more.bytes(), budget.in_use()), ('a', 70, 130));
    assert_eq!((budget.greatest_share(), budget.full_for()), (2.0, vec!['a']));
    drop(more);
    assert_eq!((budget.greatest_share(), budget.max()), (1.2, 100));
    drop(first);
    let half = budget.reserve('a', 20).unwrap();
    assert_eq!((budget.greatest_share(), budget.full_for()), (0.4, vec![]));
    drop(half);
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_it_as_soon_as_it_is_released() {
    const SOON: Duration = Duration::from_millis(100);
    let budget = Budget::new(100);
    let first = budget.reserve('a', 60).unwrap();
    let own = budget.reserve_later('a', 1);
    tokio::pin!(own);
    assert!(timeout(SOON, &mut own).await.is_err());
    // Others do not wait behind it.
    let _other = timeout(SOON, budget.reserve_later('b', 40)).await.expect("at once");
    drop(first);
    timeout(SOON, own).await.expect("it was released");
    let waiting = budget.reserve_later('c', 150);
    tokio::pin!(waiting);
    assert!(timeout(SOON, &mut waiting).await.is_err());
    budget.set_max(1_000);
    timeout(SOON, waiting).await.expect("there is more");
}

proptest! {
    #[test]
    fn the_rule_holds_in_any_order(
        max in 0_usize..1_000,
        steps in prop::collection::vec((0_u8..4, 0_usize..300, any::<prop::sample::Index>()), 0..200),
    ) {
        let budget = Budget::new(max);
        let mut held: Vec<(u8, Reservation<u8>)> = Vec::new();
        for (holder, bytes, index) in steps {
            let in_use: usize = held.iter().map(|(_, one)| one.bytes()).sum();
            prop_assert_eq!(budget.in_use(), in_use);
            prop_assert!(in_use <= max);
            let own: usize =
                held.iter().filter(|(of, _)| *of == holder).map(|(_, one)| one.bytes()).sum();
            let free = max - in_use;
            match budget.reserve(holder, bytes) {
                Ok(reservation) => {
                    prop_assert!(bytes <= free && (own < free || own == 0));
                    held.push((holder, reservation));
                }
                Err(Exhausted::Whole) => prop_assert!(bytes > free),
                Err(Exhausted::Share) => prop_assert!(bytes <= free && own >= free),
            }
            if !held.is_empty() && bytes % 3 == 0 {
                held.swap_remove(index.index(held.len()));
            }
        }
        drop(held);
        prop_assert_eq!(budget.in_use(), 0);
        prop_assert!(budget.0.ledger().held.is_empty());
    }
}
