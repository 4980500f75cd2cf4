//! Webhooks under load: endpoints that are bad at it delay no other, and a backlog costs no memory.

use std::time::{Duration, Instant};

use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::{MessageIds, OrganisationId};
use pillarbox_domain::message::Transition;
use pillarbox_domain::request::Draft;
use pillarbox_runtime::clock::Clock;
use pillarbox_store::Store;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::kit::{Received, Receiver, Reply, Site, accept};

/// Events that are delivered at one time.
const EVENTS: usize = if cfg!(feature = "long") { 20_000 } else { 1_024 };
/// Events that no endpoint takes.
const UNDELIVERED: usize = if cfg!(feature = "long") { 1_000_000 } else { 10_240 };
/// Growth of the process for them: the page cache for the deliveries, and the HTTP client.
const GROWTH: usize = 16 << 20;
/// Messages that are written at one time.
const AT_ONCE: usize = 256;
/// Time of an endpoint until its answer.
const ANSWER_TIME: Duration = Duration::from_millis(20);
/// The rate, in deliveries a second, and how many times as long others may take. A build without
/// optimisation that shares the machine with other tests is given more: an endpoint that waits for
/// another one still takes a hundred times as long.
const LEAST_RATE: f64 = if cfg!(feature = "long") { 1_000.0 } else { 25.0 };
const MOST_SLOWER: f64 = if cfg!(feature = "long") { 1.1 } else { 5.0 };
/// Number of measurements of each time: the best of them is not the machine's doing.
const TRIALS: usize = 3;

/// Endpoints that never answer, and events of the largest size for them.
const SILENT: usize = 15;
const LARGE_EVENTS: usize = 60;
/// Memory that the deliveries of one organisation may take.
const OF_ONE_ORGANISATION: usize = 32 << 20;

/// Writes events into the feed of `acme`, in a store that no service has open.
async fn add_events(site: &Site, count: usize) {
    add_events_to(site, count, &["bob@example.org".to_owned()]).await;
}

async fn add_events_to(site: &Site, count: usize, to: &[String]) {
    let store = site.open_store(Clock::system().now()).await;
    let ids = MessageIds::new();
    let at_once = AT_ONCE.min(count);
    for _ in 0..count.div_ceil(at_once) {
        let mut writing = JoinSet::new();
        for _ in 0..at_once {
            let (store, now) = (store.clone(), Clock::system().now());
            let (id, to) = (ids.next(now), to.to_vec());
            writing.spawn(async move {
                let draft = Draft {
                    from: Some("Ann <ann@example.com>"),
                    to: Some(to.iter().map(String::as_str).collect()),
                    subject: Some("Hello"),
                    text: Some("Body".into()),
                    ..Draft::default()
                };
                accept(&store, OrganisationId(1), draft, id, now).await;
                let sent = Transition::Sent { ses_message_id: format!("ses-{id}"), sent_at: now };
                store.record(id, 1, sent, now).await.unwrap();
            });
        }
        writing.join_all().await;
    }
    assert_ne!(end(&store), FeedPosition::START);
}

fn end(store: &Store) -> FeedPosition {
    store.feed_end(OrganisationId(1))
}

fn add(site: &Site, url: &str) -> String {
    let output = site.done(&["webhook", "add", "--org", "acme", url, "--json"]);
    let added: Value = serde_json::from_slice(&output.stdout).unwrap();
    added["id"].to_string()
}

/// Time of an endpoint that answers at once for the events that wait, from the first to the last of
/// them.
async fn drain(site: &Site, receiver: &Receiver, id: &str) -> Duration {
    let before = receiver.count();
    site.done(&["webhook", "replay", id, "--since", "1d"]);
    let received = receiver.wait_for(before + EVENTS).await;
    let (first, last) = (&received[before], &received[before + EVENTS - 1]);
    last.at.duration_since(first.at)
}

/// The best of several times.
async fn best(site: &Site, receiver: &Receiver, id: &str) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..TRIALS {
        best = best.min(drain(site, receiver, id).await);
    }
    best
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_are_slow_dead_or_hostile_delay_no_other() {
    let site = Site::new().await;
    let good = Receiver::start(Reply::Status(200)).await;
    let id = add(&site, &good.url);
    add_events(&site, EVENTS).await;
    let server = site.start_with(&[("RUST_LOG", "warn,pillarbox_service=info")]);
    good.wait_for(EVENTS).await;
    let time = best(&site, &good, &id).await;
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let rate = EVENTS as f64 / time.as_secs_f64();

    // Not at once: the test measures a wait, and not that two share a processor.
    good.set(Reply::Slow(ANSWER_TIME, 200));
    let alone = best(&site, &good, &id).await;
    let target = format!("{}/elsewhere", server.base);
    let bad = [
        Receiver::start(Reply::Slow(Duration::from_secs(2), 200)).await,
        Receiver::start(Reply::Silence).await,
        Receiver::start(Reply::With(307, "location", target)).await,
        Receiver::start(Reply::Status(410)).await,
        Receiver::start(Reply::Endless).await,
    ];
    for url in bad.iter().map(|one| one.url.as_str()).chain(["http://127.0.0.1:1/"]) {
        let id = add(&site, url);
        site.done(&["webhook", "replay", &id, "--since", "1d"]);
    }
    // An endless answer counts as soon as it begins: that endpoint gets its events.
    bad[4].wait_for(1_000).await;
    let beside = best(&site, &good, &id).await;
    println!(
        "{rate:.0} deliveries a second; {EVENTS} in {alone:?} at {ANSWER_TIME:?} an answer, in \
         {beside:?} beside six others"
    );
    assert!(rate >= LEAST_RATE, "{rate:.0} deliveries a second");
    let slower = beside.as_secs_f64() / alone.as_secs_f64();
    assert!(slower <= MOST_SLOWER, "{alone:?} became {beside:?}");
    assert!(bad[3].count() <= 16, "nothing is sent to an endpoint that is gone");
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_that_nobody_takes_costs_no_memory() {
    let site = Site::new().await;
    add_events(&site, UNDELIVERED).await;
    let receiver = Receiver::start(Reply::Status(503)).await;
    let id = add(&site, &receiver.url);
    // The same file, of which the endpoint has received everything.
    let without = resident(&site, async || {}).await;
    site.done(&["webhook", "replay", &id, "--since", "1d"]);
    let with = resident(&site, async || drop(receiver.wait_for(30).await)).await;
    println!("{UNDELIVERED} undelivered events: {without} bytes became {with}");
    assert!(with < without + GROWTH, "{without} became {with}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_endpoints_hold_their_organisations_part_of_the_memory_and_delay_no_other() {
    const ADDRESS: &str = " <bob@example.org>";
    let site = Site::new().await;
    let recipient = format!("{}{ADDRESS}", "\u{1f4ee}".repeat(1_000 - ADDRESS.len()));
    add_events_to(&site, LARGE_EVENTS, &vec![recipient; 50]).await;
    let good = Receiver::start(Reply::Status(200)).await;
    let silent = Receiver::start(Reply::Silence).await;
    let good_id = add(&site, &good.url);
    let silent_ids: Vec<_> = (0..SILENT).map(|_| add(&site, &silent.url)).collect();
    site.done(&["webhook", "replay", &good_id, "--since", "1d"]);
    let without = resident(&site, async || drop(good.wait_for(LARGE_EVENTS).await)).await;
    for id in silent_ids.iter().chain([&good_id]) {
        site.done(&["webhook", "replay", id, "--since", "1d"]);
    }
    let with = resident(&site, async || {
        silent.wait_for(SILENT).await;
        good.wait_for(2 * LARGE_EVENTS).await;
    });
    let with = with.await;
    let received = good.received();
    let bytes = received[0].body.len();
    let took = |events: &[Received]| events[LARGE_EVENTS - 1].at.duration_since(events[0].at);
    let (alone, beside) = (took(&received), took(&received[LARGE_EVENTS..]));
    println!("events of {bytes} bytes: {without} bytes became {with}, {alone:?} became {beside:?}");
    assert!(with < without + OF_ONE_ORGANISATION + GROWTH, "{without} became {with}");
}

/// The most memory that a new process has resident within some seconds after it has done something.
async fn resident(site: &Site, done: impl AsyncFnOnce()) -> usize {
    let server = site.start_with(&[("RUST_LOG", "warn,pillarbox_service=info")]);
    done().await;
    let end = Instant::now() + Duration::from_secs(3);
    let mut most = 0;
    while Instant::now() < end {
        most = most.max(server.process.resident_bytes());
        sleep(Duration::from_millis(50)).await;
    }
    server.terminate().await;
    most
}
