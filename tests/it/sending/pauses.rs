//! Quota, account, set-up and domain: what pauses everything, what pauses one domain alone.

use std::time::Duration;

use pillarbox_config::OnUnknown;
use pillarbox_dispatch::circuit_breaker::{BreakerState, Cause};
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_dispatch::{DailyQuota, Settings};
use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{FailureCode, Status};
use pillarbox_domain::organisation::{DomainCheck, DomainState, Finding};
use pillarbox_queue::Live;
use pillarbox_store::Change;

use crate::sending::harness::{Answer, DOMAINS, Limit, Mail, Sim, Simulated, settings};

const LATENCY: Duration = Duration::from_millis(60);
const STEP: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

async fn sim(settings: Settings) -> Sim {
    Sim::start(Simulated::new(LATENCY, Limit::None), settings, Rate::PerSecond(200.0)).await
}

fn obstacle(sim: &Sim, id: pillarbox_domain::id::MessageId) -> Option<FailureCode> {
    match sim.queue.live(id) {
        Some(Live::Waiting { obstacle }) => obstacle.map(|failure| failure.code),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_all_pauses_everything_until_a_probe_gets_through() {
    for (kind, cause, code) in [
        (ProblemKind::QuotaExhausted, Cause::QuotaExhausted, FailureCode::ProviderQuotaExhausted),
        (ProblemKind::AccountPaused, Cause::AccountPaused, FailureCode::SendingPaused),
        (ProblemKind::SetupFault, Cause::SetupFault, FailureCode::SendingPaused),
    ] {
        let sim = sim(settings()).await;
        sim.provider.always(Answer::Refuse(kind));
        let ids = sim.accept_singles(0, 500).await;
        sim.run(Duration::from_mins(30), SECOND).await;
        let tried = sim.provider.call_count();
        assert!(tried < 60, "{tried} calls in half an hour of {kind:?}");
        assert_eq!(sim.queue.pending().messages, 500);
        let BreakerState::Open { cause: seen, message } = sim.dispatcher.status().condition else {
            panic!("not impaired by {kind:?}")
        };
        assert_eq!((seen, message), (cause, format!("{kind:?}")));
        assert_eq!(obstacle(&sim, *ids.last().unwrap()), Some(code));
        let first = sim.provider.calls()[0].message;
        assert_eq!(sim.failure(first), Some(code), "an attempt's failure is on its record");

        sim.provider.always(Answer::Accept);
        sim.run_until_empty(Duration::from_mins(10), STEP * 5).await;
        assert_eq!(sim.dispatcher.status().condition, BreakerState::Closed);
        for id in ids {
            assert_eq!((sim.status(id), sim.provider.accepted(id)), (Status::Sent, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_time_is_over_during_a_pause_fails() {
    let sim = sim(Settings { retry_for: Duration::from_mins(3), ..settings() }).await;
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    let ids = sim.accept_singles(0, 50).await;
    sim.run_until_empty(Duration::from_mins(4), SECOND).await;
    for id in ids {
        assert_eq!(sim.failure(id), Some(FailureCode::RetriesExhausted));
    }
    assert_eq!(sim.queue.pending().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn successes_of_calls_from_before_the_pause_do_not_end_it() {
    let sim = sim(Settings { max_in_flight: 1_000, ..settings() }).await;
    sim.provider.set_latency(SECOND);
    let slow = sim.accept_singles(0, 15).await;
    sim.run(SECOND / 2, STEP).await;
    sim.provider.set_latency(LATENCY);
    sim.provider.always(Answer::Refuse(ProblemKind::AccountPaused));
    sim.accept_singles(0, 500).await;
    sim.run(SECOND / 4, STEP).await;
    let before = sim.provider.call_count();
    assert!(matches!(sim.dispatcher.status().condition, BreakerState::Open { .. }));
    assert!(slow.iter().all(|id| sim.status(*id) == Status::Queued));
    sim.run(SECOND / 2, STEP).await;
    assert!(slow.iter().all(|id| sim.status(*id) == Status::Sent));
    assert!(matches!(sim.dispatcher.status().condition, BreakerState::Open { .. }));
    assert_eq!(sim.provider.call_count(), before);
}

#[tokio::test(start_paused = true)]
async fn the_quota_by_the_accounts_own_count_pauses_before_the_provider_refuses() {
    let sim = sim(settings()).await;
    sim.dispatcher.set_quota(Some(DailyQuota { max: 200.0, left: 0.0 }));
    let id = sim.accept_singles(0, 1).await[0];
    sim.run(SECOND / 2, STEP).await;
    assert_eq!(sim.provider.call_count(), 0);
    assert_eq!(obstacle(&sim, id), Some(FailureCode::ProviderQuotaExhausted));
    let BreakerState::Open { cause, message } = sim.dispatcher.status().condition else {
        panic!("not impaired")
    };
    assert_eq!(cause, Cause::QuotaExhausted);
    assert!(message.contains("200"), "{message}");
    sim.run_until_empty(2 * SECOND, STEP).await;
    assert_eq!(sim.dispatcher.status().condition, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_counts_against_the_quota_and_sending_stops_at_its_end() {
    let sim = sim(settings()).await;
    sim.dispatcher.set_quota(Some(DailyQuota { max: 200.0, left: 10.0 }));
    sim.accept_singles(0, 50).await;
    sim.run(SECOND / 2, STEP).await;
    assert_eq!(sim.provider.call_count(), 10);
    assert!(matches!(sim.dispatcher.status().condition, BreakerState::Open { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_faulty_domain_waits_alone_and_costs_the_others_no_rate() {
    let sim = sim(settings()).await;
    sim.provider.script(|call| {
        if call.from.contains("other.example") {
            Answer::Refuse(ProblemKind::DomainFault)
        } else {
            Answer::Accept
        }
    });
    let held = sim.accept(0, vec![Mail::from_domain("other.example"); 2_000]).await;
    let free = sim.accept_singles(0, 1_000).await;
    let also_free = sim.accept_singles(1, 1_000).await;
    let took = sim
        .run_until(Duration::from_mins(2), STEP, || sim.queue.pending().messages <= held.len())
        .await;
    // 2,000 at 200 a second, and the few calls that the faulty domain was tried with.
    assert!(took < 12 * SECOND, "{took:?}");
    for id in free.iter().chain(&also_free) {
        assert_eq!(sim.status(*id), Status::Sent);
    }
    let status = sim.dispatcher.status();
    assert_eq!(status.condition, BreakerState::Closed);
    let organisation = sim.organisations[0].id;
    let expected = (organisation, "other.example".to_owned(), "DomainFault".to_owned());
    sim.run_until(SECOND, STEP, || !sim.dispatcher.status().paused_domains.is_empty()).await;
    assert_eq!(sim.dispatcher.status().paused_domains, [expected]);

    sim.provider.always(Answer::Accept);
    sim.run_until_empty(Duration::from_mins(10), STEP * 5).await;
    assert!(held.iter().all(|id| sim.status(*id) == Status::Sent));
}

#[tokio::test(start_paused = true)]
async fn a_domain_that_stays_faulty_is_tried_rarely_and_its_messages_fail_in_time() {
    let sim = sim(Settings { retry_for: Duration::from_mins(40), ..settings() }).await;
    sim.provider.always(Answer::Refuse(ProblemKind::DomainFault));
    let ids = sim.accept(0, vec![Mail::from_domain("other.example"); 300]).await;
    sim.run(Duration::from_mins(39), SECOND).await;
    let tried = sim.provider.call_count();
    println!("{tried} calls for a domain that was faulty for 39 minutes");
    assert!(tried < 600, "{tried}");
    sim.run_until_empty(Duration::from_mins(2), SECOND).await;
    assert!(ids.iter().all(|id| sim.failure(*id) == Some(FailureCode::RetriesExhausted)));
}

/// True for each call that was for a message from the faulty domain, in order.
fn of_the_faulty_domain(sim: &Sim) -> Vec<bool> {
    sim.provider.calls().iter().map(|call| call.from.contains("other.example")).collect()
}

#[tokio::test(start_paused = true)]
async fn at_each_end_of_its_pause_one_message_tries_the_domain_and_the_others_wait() {
    let sim = sim(settings()).await;
    sim.provider.script(|call| {
        if call.from.contains("other.example") {
            Answer::Refuse(ProblemKind::DomainFault)
        } else {
            Answer::Accept
        }
    });
    let held = sim.accept(0, vec![Mail::from_domain("other.example"); 3_000]).await;
    sim.run(SECOND / 2, STEP).await;
    let before = sim.provider.call_count();
    sim.run(10 * SECOND, STEP).await;
    let tries = of_the_faulty_domain(&sim).len() - before;
    assert!((2..=4).contains(&tries), "{tries} tries in ten seconds of backoff from a second on");
    let tried: std::collections::BTreeSet<_> =
        sim.provider.calls()[before..].iter().map(|call| call.message).collect();
    assert_eq!(tried.into_iter().collect::<Vec<_>>(), [held[0]], "the first accepted tries");
    assert_eq!(sim.message(held[0]).attempts as usize, sim.provider.calls_of(held[0]).len());
}

#[tokio::test(start_paused = true)]
async fn what_a_pause_held_up_goes_out_in_order_and_not_ahead_of_others() {
    let sim = sim(settings()).await;
    sim.provider.always(Answer::Refuse(ProblemKind::DomainFault));
    let held = sim.accept(0, vec![Mail::from_domain("other.example"); 1_000]).await;
    sim.run(SECOND / 2, STEP).await;
    let first_calls = sim.provider.call_count();
    sim.provider.always(Answer::Accept);
    // The same organisation's others, and another organisation's, all accepted after the held.
    let others = sim.accept_singles(0, 400).await;
    sim.accept_singles(1, 2_000).await;
    sim.run(9 * SECOND, STEP).await;
    let calls = &sim.provider.calls()[first_calls..];
    let place = |id: &pillarbox_domain::id::MessageId| {
        calls.iter().position(|call| call.message == *id).unwrap_or(usize::MAX)
    };
    let probe = place(&held[0]);
    assert_ne!(probe, usize::MAX, "the domain was tried");
    // Its backlog goes on after its own organisation's other mail.
    let last_other = others.iter().map(place).max().unwrap();
    let next_held = held[1..].iter().map(place).min().unwrap();
    assert!(last_other < next_held, "{last_other} and {next_held}");
    let order: Vec<_> = calls
        .iter()
        .filter(|call| call.from.contains("other.example"))
        .map(|call| call.message)
        .collect();
    assert!(order.len() > 100, "{}", order.len());
    assert!(order.is_sorted(), "in the order of acceptance");
    // And the two organisations share the rate all the while.
    let of_b = calls.iter().filter(|call| call.organisation == "b").count();
    assert!((45..=55).contains(&(of_b * 100 / calls.len())), "{of_b} of {}", calls.len());
}

/// The store's answer to a check of a domain by SES.
async fn check(sim: &Sim, state: DomainState, finding: Finding) {
    let (organisation, name) = (sim.organisations[0].id, DomainName::parse(DOMAINS[1]).unwrap());
    let check = DomainCheck { at: sim.clock.now(), finding };
    let changed = sim.store.change_domain(organisation, name, state, state, check).await;
    assert_eq!(changed.unwrap(), Change::Made);
}

async fn put(sim: &Sim, state: DomainState) {
    let (organisation, name) = (sim.organisations[0].id, DomainName::parse(DOMAINS[1]).unwrap());
    sim.store.put_domain(organisation, name, state, sim.clock.now()).await.unwrap();
}

/// A simulation with messages that wait for a domain that was refused just now, for the n-th time.
async fn long_paused() -> (Sim, Vec<MessageId>) {
    let sim = sim(settings()).await;
    sim.provider.always(Answer::Refuse(ProblemKind::DomainFault));
    let held = sim.accept(0, vec![Mail::from_domain(DOMAINS[1]); 50]).await;
    sim.run(Duration::from_mins(20), SECOND).await;
    let tried = sim.provider.call_count();
    sim.run_until(Duration::from_mins(6), SECOND, || sim.provider.call_count() > tried).await;
    sim.run(SECOND, STEP).await;
    (sim, held)
}

#[tokio::test(start_paused = true)]
async fn a_check_that_finds_the_domain_verified_ends_its_pause_at_once() {
    let (sim, held) = long_paused().await;
    let tried = sim.provider.call_count();
    check(&sim, DomainState::Assumed, Finding::Pending).await;
    sim.run(10 * SECOND, STEP).await;
    assert_eq!(sim.provider.call_count(), tried, "SES still looks for its records");
    sim.provider.always(Answer::Accept);
    check(&sim, DomainState::Assumed, Finding::Verified).await;
    sim.run(SECOND, STEP).await;
    assert!(held.iter().all(|id| sim.status(*id) == Status::Sent));
    assert!(sim.dispatcher.status().paused_domains.is_empty());
}

#[tokio::test(start_paused = true)]
async fn after_a_check_one_message_tries_the_domain_and_the_pauses_begin_anew() {
    let (sim, _) = long_paused().await;
    let tried = sim.provider.call_count();
    check(&sim, DomainState::Assumed, Finding::Verified).await;
    sim.run(SECOND / 2, STEP).await;
    assert_eq!(sim.provider.call_count(), tried + 1, "one tries, at once");
    sim.run(10 * SECOND, STEP).await;
    let more = sim.provider.call_count() - tried - 1;
    assert!((2..=4).contains(&more), "{more} tries in ten seconds of backoff from a second on");
    assert_eq!(sim.dispatcher.status().paused_domains.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_domain_that_is_verified_again_sends_at_once() {
    let sim = sim(settings()).await;
    sim.provider.always(Answer::Refuse(ProblemKind::Throttled));
    let held = sim.accept(0, vec![Mail::from_domain(DOMAINS[1]); 20]).await;
    sim.run(SECOND / 10, STEP).await;
    put(&sim, DomainState::Pending).await;
    sim.run(SECOND, STEP).await;
    sim.provider.always(Answer::Accept);
    let tried = sim.provider.call_count();
    sim.run(Duration::from_mins(30), SECOND).await;
    assert_eq!(sim.provider.call_count(), tried, "none is called for meanwhile");
    assert_eq!(sim.dispatcher.status().paused_domains.len(), 1);
    put(&sim, DomainState::Verified).await;
    sim.run(SECOND, STEP).await;
    assert!(held.iter().all(|id| sim.status(*id) == Status::Sent));
    assert!(sim.dispatcher.status().paused_domains.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_domain_that_was_removed_and_added_again_is_as_new() {
    let (sim, held) = long_paused().await;
    let (organisation, name) = (sim.organisations[0].id, DomainName::parse(DOMAINS[1]).unwrap());
    sim.store.remove_domain(organisation, name.clone()).await.unwrap();
    assert!(sim.dispatcher.status().paused_domains.is_empty(), "it is nobody's");
    sim.run(SECOND, STEP).await;
    let ended = |id: &MessageId| sim.failure(*id) == Some(FailureCode::DomainUnverified);
    assert!(held.iter().all(ended), "what waited for it ends at once");

    // A call that was under way meanwhile reports the removed domain.
    put(&sim, DomainState::Assumed).await;
    sim.provider.set_latency(2 * SECOND);
    sim.accept(0, vec![Mail::from_domain(DOMAINS[1])]).await;
    sim.run(SECOND, STEP).await;
    sim.store.remove_domain(organisation, name).await.unwrap();
    sim.run(2 * SECOND, STEP).await;
    assert!(sim.dispatcher.status().paused_domains.is_empty());
    sim.provider.set_latency(LATENCY);
    sim.provider.always(Answer::Accept);
    put(&sim, DomainState::Assumed).await;
    assert!(sim.dispatcher.status().paused_domains.is_empty());
    let new = sim.accept(0, vec![Mail::from_domain(DOMAINS[1]); 5]).await;
    sim.run(SECOND, STEP).await;
    assert!(new.iter().all(|id| sim.status(*id) == Status::Sent));
}

#[tokio::test(start_paused = true)]
async fn the_accounts_own_count_takes_nothing_back_that_it_was_not_charged() {
    const QUOTA: DailyQuota = DailyQuota { max: 200.0, left: 100.0 };
    let left = |sim: &Sim| sim.dispatcher.status().quota.unwrap().left;
    for (answer, after) in [
        (Answer::Refuse(ProblemKind::Rejected), 100.0),
        (Answer::Accept, 90.0),
        (Answer::Lose, 90.0),
        (Answer::Refuse(ProblemKind::Crashed), 90.0),
    ] {
        // None is tried again meanwhile.
        let sim = sim(Settings { on_unknown: OnUnknown::Fail, ..settings() }).await;
        sim.dispatcher.set_quota(Some(QUOTA));
        sim.provider.set_latency(SECOND);
        sim.provider.always(answer);
        sim.accept_singles(0, 10).await;
        sim.run(SECOND / 2, STEP).await;
        assert!((left(&sim) - 90.0).abs() < 0.5, "its calls are under way");
        // The account is asked meanwhile, and does not count them yet.
        sim.dispatcher.set_quota(Some(QUOTA));
        assert!((left(&sim) - 90.0).abs() < 0.5, "{answer:?}");
        sim.run(SECOND, STEP).await;
        assert!((left(&sim) - after).abs() < 0.5, "{answer:?}: {}", left(&sim));
    }
}
