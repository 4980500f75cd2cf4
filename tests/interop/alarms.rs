//! The alert rules against the real service: every alarm is made to fire by its own fault.
//!
//! Each fault of `alarms/faults.rs` has a service of its own, and one Prometheus scrapes them all,
//! on the configuration and the rules that we ship. No series is made up. Only time differs from
//! operation: the rules' windows are shortened, all by the same factor.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use faults::FAULTS;
use prometheus::{Firing, Prometheus};
use site::Monitored;

pub(crate) mod faults;
mod injections;
pub(crate) mod prometheus;
pub(crate) mod site;

const POLL: Duration = Duration::from_millis(200);
/// Alarms that a busy machine causes by itself, with any fault: answers, commits and calls are slow
/// then, and time goes fast for the rules.
const SLOW: [&str; 3] = ["PillarboxDown", "PillarboxCommitsSlow", "PillarboxProviderSlow"];
/// Delay of a wake-up on a machine that has no time to spare.
const BUSY: Duration = Duration::from_millis(500);
/// Time limit of all alarms together. The slowest needs an hour, which is two minutes here.
const LONGEST: Duration = Duration::from_mins(8);

#[tokio::test(flavor = "multi_thread")]
async fn every_alarm_fires_on_its_fault_and_no_other_does() {
    let mut sites = Vec::new();
    for fault in &FAULTS {
        sites.push(Monitored::new((fault.setup)()).await);
    }
    let named =
        FAULTS.iter().zip(&sites).map(|(fault, site)| (fault.name, &*site.operator.address));
    let prometheus = Prometheus::start(named);
    prometheus.until_scraped(FAULTS.len()).await;

    let mut faults = JoinSet::new();
    for (fault, mut site) in FAULTS.iter().zip(sites) {
        faults.spawn(async move { (fault.inject)(&mut site).await });
    }
    let expected: BTreeSet<Firing> = FAULTS
        .iter()
        .flat_map(|fault| fault.alarms.iter().map(|alarm| (fault.name.into(), (*alarm).into())))
        .collect();
    let (start, mut fired, mut late) = (Instant::now(), BTreeSet::new(), Duration::ZERO);
    while !fired.is_superset(&expected) && start.elapsed() < LONGEST {
        for alarm in prometheus.firing().await {
            if fired.insert(alarm.clone()) {
                println!("after {:>3} s: {}: {}", start.elapsed().as_secs(), alarm.0, alarm.1);
            }
        }
        if let Some(ended) = faults.try_join_next() {
            panic!("a fault is over before its time: {ended:?}");
        }
        let asleep = Instant::now();
        sleep(POLL).await;
        late = late.max(asleep.elapsed().saturating_sub(POLL));
    }
    println!("the machine kept us waiting for up to {} ms", late.as_millis());
    let missing: Vec<_> = expected.difference(&fired).collect();
    assert!(missing.is_empty(), "{missing:?} do not fire");
    let besides = fired.difference(&expected);
    let besides: Vec<_> =
        besides.filter(|(_, alarm)| late < BUSY || !SLOW.contains(&&**alarm)).collect();
    assert!(besides.is_empty(), "{besides:?} fire without their fault");
}

#[test]
fn every_alarm_has_a_fault() {
    let rules = include_str!("../../monitoring/alerts.yml");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: BTreeSet<_> = alerts.collect();
    let made = FAULTS.iter().flat_map(|fault| fault.alarms);
    let made: BTreeSet<_> = made.map(|alarm| alarm.split(' ').next().unwrap()).collect();
    assert_eq!(alerts, made);
}
