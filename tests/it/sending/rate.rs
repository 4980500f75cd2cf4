//! Rate and concurrency: the provider's limit is used and kept, fairly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use pillarbox_dispatch::Settings;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::mailbox::{DomainName, Mailbox};
use pillarbox_domain::message::{Cancellation, Status};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_queue::Selection;

use crate::sending::harness::{Answer, DOMAINS, Limit, Mail, Sim, Simulated, settings};

const LATENCY: Duration = Duration::from_millis(60);
const STEP: Duration = Duration::from_millis(2);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

/// Result of sending a backlog.
struct Run {
    /// The part of the limit that was used after the first second, until the last call started.
    used: f64,
    /// The part of the calls that were throttled.
    throttled: f64,
}

async fn send_backlog(rate: f64, limit: Limit, mails: Vec<Mail>) -> Run {
    let sim = Sim::start(Simulated::new(LATENCY, limit), settings(), Rate::PerSecond(rate)).await;
    let start = Instant::now();
    sim.accept(0, mails).await;
    sim.run_until_empty(5 * MINUTE, STEP).await;
    let calls = sim.provider.calls();
    let first = start + Duration::from_secs(1);
    let last = calls.last().unwrap().at;
    let accepted: u32 = calls
        .iter()
        .filter(|call| call.answer.is_acceptance() && call.at >= first && call.at < last)
        .map(|call| call.recipients)
        .sum();
    let throttled =
        calls.iter().filter(|c| c.answer == Answer::Refuse(ProblemKind::Throttled)).count();
    let run = Run {
        used: f64::from(accepted) / (last - first).as_secs_f64() / rate,
        throttled: f64::from(u32::try_from(throttled).unwrap())
            / f64::from(u32::try_from(calls.len()).unwrap()),
    };
    println!("{:.4} of the limit used, {:.4} of the calls throttled", run.used, run.throttled);
    run
}

/// Messages of 1 to 50 recipients, in an order that is the same each time, of `total` or a few
/// more.
fn mixed(total: usize) -> Vec<Mail> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut sum = 0;
    std::iter::from_fn(|| {
        (sum < total).then(|| {
            let recipients = random.usize(1..=50);
            sum += recipients;
            Mail::to_many(recipients)
        })
    })
    .collect()
}

fn singles(count: usize) -> Vec<Mail> {
    vec![Mail::to_many(1); count]
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_used_and_hardly_ever_exceeded() {
    let run = send_backlog(500.0, Limit::bucket(500.0), mixed(30_000)).await;
    assert!(run.used >= 0.97, "{}", run.used);
    assert!(run.throttled < 0.005, "{}", run.throttled);
}

/// Real SES lets short bursts pass; if a provider counts every second strictly, one message's
/// recipients are the most that a second may hold too many.
#[tokio::test(start_paused = true)]
async fn a_limit_on_every_second_is_kept_to_the_recipient() {
    for rate in [1.0, 14.0, 100.0, 500.0] {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let count = (rate * 10.0) as usize;
        let run = send_backlog(rate, Limit::window(rate), singles(count)).await;
        assert!(run.used >= 0.97, "{} of {rate}", run.used);
        assert!(run.throttled <= 0.0, "{} at {rate}", run.throttled);
    }
}

#[tokio::test(start_paused = true)]
async fn a_strict_limit_and_large_messages_settle_below_the_limit() {
    let run = send_backlog(500.0, Limit::window(500.0), mixed(15_000)).await;
    assert!(run.used >= 0.8, "{}", run.used);
    assert!(run.throttled < 0.02, "{}", run.throttled);
}

#[tokio::test(start_paused = true)]
async fn fifty_recipients_go_out_at_one_a_second() {
    let provider = Simulated::new(LATENCY, Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(1.0)).await;
    sim.accept(0, vec![Mail::to_many(50)]).await;
    sim.run_until_empty(Duration::from_secs(1), STEP).await;
    let start = Instant::now();
    let next = sim.accept_singles(0, 1).await[0];
    sim.run_until_empty(MINUTE, STEP).await;
    let waited = sim.provider.calls_of(next)[0].at - start;
    assert!((45.0..52.0).contains(&waited.as_secs_f64()), "the debt took {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn one_organisations_backlog_does_not_hold_up_anothers_message() {
    const BACKLOG: usize = if cfg!(feature = "long") { 50_000 } else { 5_000 };
    let settings = Settings { max_in_flight: 16, ..settings() };
    let provider = Simulated::new(LATENCY, Limit::None);
    let sim = Sim::start(provider, settings, Rate::PerSecond(200.0)).await;
    sim.accept_singles(0, BACKLOG).await;
    sim.run(Duration::from_secs(3), STEP).await;
    let before = sim.provider.call_count();
    let urgent = sim.accept_singles(1, 1).await[0];
    sim.run(Duration::from_secs(1), STEP).await;
    let calls = sim.provider.calls();
    let place = calls.iter().position(|call| call.message == urgent).unwrap();
    println!("{} calls of a backlog of {BACKLOG} went before another's message", place - before);
    assert!(place - before <= 16 + 2, "{} calls of a went first", place - before);
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_retries_earns_no_turns_for_the_time_it_waited() {
    let provider = Simulated::new(LATENCY, Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(100.0)).await;
    // All of b's domain is refused at first, so its messages wait for minutes while a sends.
    sim.provider.script(|call| match call.organisation.as_str() {
        "b" => Answer::Refuse(ProblemKind::DomainFault),
        _ => Answer::Accept,
    });
    sim.accept_singles(1, 600).await;
    sim.run(Duration::from_secs(5), 5 * STEP).await;
    sim.accept(0, vec![Mail::to_many(10); 2_000]).await;
    sim.run(MINUTE, 5 * STEP).await;
    sim.provider.always(Answer::Accept);
    // From the moment that b's messages go out again, the two share the rate.
    let tried = sim.provider.call_count_of("b");
    sim.run_until(2 * MINUTE, 5 * STEP, || sim.provider.call_count_of("b") > tried + 5).await;
    let from = sim.provider.call_count();
    sim.run(Duration::from_secs(5), 5 * STEP).await;
    let calls = &sim.provider.calls()[from..];
    let all: u32 = calls.iter().map(|call| call.recipients).sum();
    let of_a: u32 = calls.iter().filter(|c| c.organisation == "a").map(|c| c.recipients).sum();
    assert!(all > 400 && (all * 4..=all * 6).contains(&(of_a * 10)), "{of_a} of {all} were a's");
}

#[tokio::test(start_paused = true)]
async fn the_rate_is_reached_at_any_latency_within_the_organisations_share_of_calls() {
    let settings = Settings { max_in_flight: 64, ..settings() };
    let provider = Simulated::new(Duration::from_millis(20), Limit::None);
    let sim = Sim::start(provider, settings, Rate::PerSecond(100.0)).await;
    sim.accept_singles(0, 6_000).await;
    sim.run(Duration::from_secs(5), STEP).await;
    sim.provider.most_under_way();
    sim.run(Duration::from_secs(2), STEP).await;
    let needed_at_20_ms = sim.provider.most_under_way();
    assert!((1..=8).contains(&needed_at_20_ms), "{needed_at_20_ms}");
    sim.provider.set_latency(Duration::from_millis(300));
    sim.run(SECOND, STEP).await;
    let before = sim.provider.call_count();
    sim.run(Duration::from_secs(4), STEP).await;
    assert!(sim.provider.call_count() - before >= 380, "the rate is reached at any latency");
    sim.provider.set_latency(Duration::from_secs(5));
    sim.run(Duration::from_secs(30), 10 * STEP).await;
    assert_eq!(sim.provider.most_under_way(), 32, "one organisation's share of 64");
    // Another one's call starts all the same, and at once.
    let urgent = sim.accept_singles(1, 1).await[0];
    sim.run(Duration::from_millis(50), STEP).await;
    assert_eq!(sim.provider.calls_of(urgent).len(), 1);
    assert_eq!(sim.provider.under_way(), 33);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_suddenly_hangs_ties_up_no_more_than_the_organisations_share() {
    let provider = Simulated::new(Duration::from_millis(20), Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(100.0)).await;
    sim.accept_singles(0, 2_000).await;
    sim.run(Duration::from_secs(5), STEP).await;
    sim.provider.always(Answer::Hang);
    sim.run(Duration::from_secs(5), STEP).await;
    assert_eq!(sim.provider.under_way(), 128);
    sim.provider.always(Answer::Accept);
    let urgent = sim.accept_singles(1, 20).await;
    sim.run(SECOND, STEP).await;
    assert!(urgent.iter().all(|id| sim.status(*id) == Status::Sent));
}

#[tokio::test(start_paused = true)]
async fn throttling_slows_the_whole_sender_and_it_climbs_back() {
    let provider = Simulated::new(LATENCY, Limit::bucket(50.0));
    let sim = Sim::start(provider, settings(), Rate::PerSecond(200.0)).await;
    sim.accept_singles(0, 3_000).await;
    sim.run(Duration::from_secs(40), STEP).await;
    let calls = sim.provider.calls();
    let late = calls.len() / 2;
    let throttled = calls[late..]
        .iter()
        .filter(|call| call.answer == Answer::Refuse(ProblemKind::Throttled))
        .count();
    let sent: usize = calls[late..].len() - throttled;
    assert!(throttled * 4 < sent, "{throttled} throttled and {sent} sent");
    let all_sent = calls.iter().filter(|call| call.answer.is_acceptance()).count();
    assert!(all_sent > 40 * 50 * 8 / 10, "{all_sent} sent in 40 s at 50 a second");
}

#[tokio::test(start_paused = true)]
async fn a_changed_rate_and_changed_settings_hold_at_once() {
    let provider = Simulated::new(LATENCY, Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(0.01)).await;
    sim.accept_singles(0, 200).await;
    sim.run(Duration::from_millis(20), STEP).await;
    assert_eq!(sim.provider.call_count(), 1);
    sim.dispatcher.set_rate(Rate::PerSecond(1_000.0));
    sim.run(Duration::from_millis(120), STEP).await;
    assert!(sim.provider.call_count() >= 50, "{}", sim.provider.call_count());
    sim.run_until_empty(MINUTE, STEP).await;
    sim.dispatcher.set_settings(Settings { max_in_flight: 1, ..settings() });
    sim.provider.most_under_way();
    sim.accept_singles(0, 20).await;
    sim.run_until_empty(MINUTE, STEP).await;
    assert_eq!(sim.provider.most_under_way(), 1);
}

/// Reason that ends a backlog without a call.
#[derive(Debug, Clone, Copy)]
enum End {
    Suppression,
    RemovedDomain,
    RemovedOrganisation,
    Expiry,
}

async fn end_all_of_a(sim: &Sim, end: End) {
    let organisation = sim.organisations[0].id;
    match end {
        End::Suppression => {
            let address = Mailbox::parse("r0@example.org").unwrap();
            let suppression = Suppression {
                address: SuppressedAddress::from(address.address()),
                reason: SuppressionReason::Manual,
                since: sim.clock.now(),
                cause: None,
            };
            sim.store.suppress(Some(organisation), suppression).await.unwrap();
        }
        End::RemovedDomain => {
            let domain = DomainName::parse(DOMAINS[0]).unwrap();
            sim.store.remove_domain(organisation, domain).await.unwrap();
        }
        End::RemovedOrganisation => {
            sim.store.remove_organisation(organisation).await.unwrap();
        }
        End::Expiry => {
            sim.dispatcher.set_settings(Settings { retry_for: SECOND, ..settings() });
        }
    }
}

/// Such an end costs no call and nothing of the rate, but it takes the organisation's position as a
/// call does.
#[tokio::test(start_paused = true)]
async fn messages_that_end_without_a_call_hold_up_nobody_else() {
    const BACKLOG: usize = if cfg!(feature = "long") { 3_000 } else { 1_000 };
    for end in [End::Suppression, End::RemovedDomain, End::RemovedOrganisation, End::Expiry] {
        let provider = Simulated::new(LATENCY, Limit::None);
        let sim = Sim::start(provider, settings(), Rate::PerSecond(0.01)).await;
        sim.accept_singles(1, 1).await;
        sim.run(SECOND, 5 * STEP).await;
        let backlog = sim.accept_singles(0, BACKLOG).await;
        sim.run(2 * SECOND, SECOND).await;
        let urgent = sim.accept_singles(1, 1).await[0];
        end_all_of_a(&sim, end).await;
        let waiting = Arc::new(AtomicUsize::new(0));
        let (queue, seen) = (Arc::clone(&sim.queue), Arc::clone(&waiting));
        sim.provider.script(move |_| {
            seen.store(queue.pending().messages, Ordering::Relaxed);
            Answer::Accept
        });
        sim.dispatcher.set_rate(Rate::PerSecond(1_000.0));
        sim.run_until_empty(MINUTE, STEP).await;
        assert_eq!(sim.provider.calls_of(urgent).len(), 1);
        let waiting = waiting.load(Ordering::Relaxed);
        assert!(waiting > BACKLOG * 9 / 10, "{end:?}: {waiting} of {BACKLOG} were left");
        assert!(backlog.iter().all(|id| sim.status(*id) != Status::Sent));
    }
}

/// A cancellation has no position in the order: it takes its messages out in steps, and others go
/// between them.
#[tokio::test(start_paused = true)]
async fn a_large_cancellation_holds_up_nobody_else() {
    const BACKLOG: usize = 5_000;
    let provider = Simulated::new(LATENCY, Limit::None);
    let sim = Sim::start(provider, settings(), Rate::PerSecond(0.01)).await;
    sim.accept_singles(1, 1).await;
    sim.run(SECOND, 5 * STEP).await;
    sim.accept_singles(0, BACKLOG).await;
    let urgent = sim.accept_singles(1, 1).await[0];
    let waiting = Arc::new(AtomicUsize::new(0));
    let (queue, seen) = (Arc::clone(&sim.queue), Arc::clone(&waiting));
    sim.provider.script(move |call| {
        if call.message == urgent {
            seen.store(queue.pending().messages, Ordering::Relaxed);
        }
        Answer::Accept
    });
    let (dispatcher, all) = (Arc::clone(&sim.dispatcher), Selection::of(sim.organisations[0].id));
    let cancelling =
        tokio::spawn(async move { dispatcher.cancel(&all, Cancellation::ByOperator).await });
    sim.dispatcher.set_rate(Rate::Unlimited);
    sim.run_until_empty(MINUTE, STEP).await;
    let cancelled = cancelling.await.unwrap().unwrap().cancelled;
    assert!(cancelled > BACKLOG / 2, "{cancelled}");
    let waiting = waiting.load(Ordering::Relaxed);
    assert!(waiting > BACKLOG / 2, "{waiting} of {BACKLOG} were left");
}
