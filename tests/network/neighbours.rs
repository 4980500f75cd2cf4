//! An organisation that takes all it can get of one limit after the other: the requests of another
//! one are answered with success all the while, and about as soon as without it.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::client::{Answer, Client, get, message, post, post_head};
use crate::kit::PATIENCE;
use crate::patrons::{Figures, Patrons, Served};
use crate::site::{Running, Target};

const MIB: usize = 1 << 20;

/// Time that the slowest hundredth of a neighbour's requests may take longer: no time-out of the
/// service's, and no other organisation's queue.
const LONGER: Duration = Duration::from_millis(500);

/// A POST of this body.
fn post_body(target: &Target, body: &str) -> String {
    format!("{}Content-Length: {}\r\n\r\n{body}", post_head(target), body.len())
}

/// A message with a text of so many bytes.
fn large(bytes: usize) -> String {
    message("Large").replace("How are you?", &"x".repeat(bytes))
}

fn code(answer: &Answer) -> String {
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    body["error"]["code"].as_str().unwrap_or_default().to_owned()
}

/// Measures three times, because other work of the machine passes, and an attack's effect stays.
async fn measured(served: &mut Served) -> Figures {
    let mut rounds = Vec::new();
    for _ in 0..3 {
        rounds.push(served.measure(crate::length()).await);
    }
    Figures::median(rounds)
}

/// Checks that the neighbours were served about as well as without the attack.
fn assert_served(calm: Figures, attacked: Figures) {
    println!("without {calm}; attacked {attacked}");
    assert!(attacked.p99 <= 2 * calm.p99 + LONGER, "without {calm}; attacked {attacked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stuck_messages_leave_room_for_others() {
    let more = "max_request_bytes = 65536\nmax_reading_bytes = 16777216\n\
                [sending]\nmax_pending_bytes = 4194304\n";
    let site = Running::start(more, None).await;
    let hostile = site.add_organisation("hostile");
    site.simulator().set_faults(Faults::always(Fault::Down));
    let mut client = Client::connect(&hostile).await.unwrap();
    let mut refused = Vec::new();
    let mut accepted = None;
    for number in 0..300 {
        let body = large(20_000);
        let keyed = body.replace("\"text\"", &format!("\"idempotencyKey\":\"k{number}\",\"text\""));
        let answer = client.ask(post_body(&hostile, &keyed)).await.unwrap();
        match answer.status {
            200 => accepted = Some((keyed, answer.body)),
            _ => refused.push(answer),
        }
    }
    assert!(!refused.is_empty(), "all were accepted");
    for answer in &refused {
        assert_eq!((answer.status, code(answer).as_str()), (503, "QueueFull"));
        assert!(answer.body.contains("your organisation's share"), "{}", answer.body);
        let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
    }
    // A client that repeats an accepted request gets the same answer, also now.
    let (body, answer) = accepted.expect("some were accepted");
    let replay = client.ask(post_body(&hostile, &body)).await.unwrap();
    assert_eq!((replay.status, replay.body), (200, answer));
    let target = site.target();
    let mut neighbour = Client::connect(&target).await.unwrap();
    for _ in 0..40 {
        let answer = neighbour.ask(post(&target, "Hello")).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    // The largest, too.
    let answer = neighbour.ask(post_body(&target, &large(60_000))).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Bodies that are begun, and then come byte by byte, slower than any client sends.
async fn drip_bodies(target: Target, connections: usize, begun: usize) -> JoinSet<()> {
    let held = Arc::new(AtomicUsize::new(0));
    let mut attack = JoinSet::new();
    let body = Arc::new(format!("{{\"text\":\"{}", "x".repeat(begun)));
    for _ in 0..connections {
        let (target, body, held) = (target.clone(), Arc::clone(&body), Arc::clone(&held));
        attack.spawn(async move {
            let head = format!("{}Content-Length: {}\r\n\r\n", post_head(&target), 10 * MIB);
            let mut first = true;
            loop {
                if let Ok(mut client) = Client::connect(&target).await {
                    let begun = client.send(head.as_bytes()).await.is_ok()
                        && client.send(body.as_bytes()).await.is_ok();
                    held.fetch_add(usize::from(std::mem::take(&mut first)), Ordering::Relaxed);
                    if begun {
                        // The rest of a body, or the answer to it.
                        while client.send("x").await.is_ok() {
                            sleep(Duration::from_secs(4)).await;
                        }
                    }
                }
                sleep(Duration::from_millis(50)).await;
            }
        });
    }
    let end = Instant::now() + PATIENCE;
    while held.load(Ordering::Relaxed) < connections {
        assert!(Instant::now() < end, "the attack does not begin");
        sleep(Duration::from_millis(20)).await;
    }
    attack
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_drip_leave_room_for_others() {
    let site = Running::start("max_reading_bytes = 67108864\n", None).await;
    let hostile = site.add_organisation("hostile");
    let mut served = Patrons::All.arrive(&site).await;
    let calm = measured(&mut served).await;
    // The large ones first; smaller ones take what is left between them.
    let mut attack = JoinSet::new();
    for begun in [1_700_000, 60_000, 7_000] {
        attack.spawn(drip_bodies(hostile.clone(), 80, begun).await.join_all());
    }
    let attacked = measured(&mut served).await;
    // Of the largest size, too.
    let target = site.target();
    let mut client = Client::connect(&target).await.unwrap();
    let answer = client.ask(post_body(&target, &large(9 * MIB))).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    attack.shutdown().await;
    assert_served(calm, attacked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_slower_than_4_kib_a_second_is_given_up() {
    let site = Running::start("", None).await;
    let target = site.target();
    let mut client = Client::connect(&target).await.unwrap();
    let start = Instant::now();
    client.send(format!("{}Content-Length: {MIB}\r\n\r\n{{", post_head(&target))).await.unwrap();
    let answer = loop {
        tokio::select! {
            answer = client.answer() => break answer.unwrap(),
            () = sleep(Duration::from_millis(500)) => {}
        }
        // 2 KiB/s. Data after the answer does not matter.
        let _ = client.send("x".repeat(1024)).await;
    };
    assert_eq!((answer.status, code(&answer).as_str()), (408, "RequestTimeout"));
    let taken = start.elapsed();
    assert!(taken >= Duration::from_secs(9) && taken < Duration::from_secs(20), "{taken:?}");
}

/// Sends messages with 50 recipients, each with a name of so many characters.
async fn fill(target: &Target, messages: usize, name: usize) {
    let mut client = Client::connect(target).await.unwrap();
    let name = "n".repeat(name);
    let to: Vec<_> = (0..50).map(|n| format!("{name} <r{n}@example.org>")).collect();
    let body = json!({"from": "ann@example.com", "to": to, "subject": "Hi", "text": "Hello"});
    let request = post_body(target, &body.to_string());
    for _ in 0..messages {
        let answer = client.ask(&request).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

const PAGE: &str = "/emails?limit=100";

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_are_not_read_take_no_more_than_a_share() {
    const BUDGET: usize = 64 * MIB;
    let site = Running::start(&format!("max_writing_bytes = {BUDGET}\n"), None).await;
    let hostile = site.add_organisation("hostile");
    fill(&hostile, 120, 900).await;
    let reader = site.add_organisation("reader");
    fill(&reader, 20, 900).await;
    let mut served = Patrons::All.arrive(&site).await;
    let calm = measured(&mut served).await;
    let before = site.process.resident_bytes();
    site.process.reset_peak();
    let mut unread = Vec::new();
    for _ in 0..250 {
        let mut client = Client::with_little_room(&hostile).await.unwrap();
        client.send(get(&hostile, PAGE)).await.unwrap();
        unread.push(client);
    }
    let attacked = measured(&mut served).await;
    // Another one's page has room.
    let mut client = Client::connect(&reader).await.unwrap();
    let page = client.ask(get(&reader, PAGE)).await.unwrap();
    assert_eq!(page.status, 200);
    assert!(page.body.len() > MIB / 2, "{}", page.body.len());
    let more = site.process.peak_bytes().saturating_sub(before);
    println!("{} MiB more", more / MIB);
    // The budget counts bodies; what is read and written to make one comes beside them.
    assert!(more < BUDGET + 24 * MIB, "{} MiB more", more / MIB);
    assert_served(calm, attacked);
    // All have their answer before anybody reads: what is read makes room for those that wait.
    for client in &unread {
        timeout(PATIENCE, client.stream.peek(&mut [0])).await.unwrap().unwrap();
    }
    // All at one time, because the service closes a connection whose response is not read.
    let readings: Vec<_> = unread
        .into_iter()
        .map(|mut client| tokio::spawn(async move { client.answer().await }))
        .collect();
    // A refused client receives the reason; a client that reads gets it.
    let mut refused = 0;
    for reading in readings {
        let answer = reading.await.unwrap();
        // On a slow machine the first responses lie unread for too long before the last one is there.
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof) {
            continue;
        }
        let answer = answer.unwrap();
        if answer.status == 503 {
            refused += 1;
            assert_eq!(code(&answer), "QueueFull");
            // Its share of the memory, or its listings that may wait.
            assert!(answer.body.contains("your organisation"), "{}", answer.body);
            assert!(answer.header("retry-after").is_some());
        } else {
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert!(answer.body.len() > 3 * MIB, "{}", answer.body.len());
        }
    }
    assert!(refused > 200, "{refused}");
    // What was read is free again.
    let mut client = Client::connect(&hostile).await.unwrap();
    let answer = client.ask(get(&hostile, PAGE)).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Duration of each listing, while so many clients list again and again.
async fn list(target: &Target, clients: usize, length: Duration) -> Vec<Duration> {
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let target = target.clone();
        tasks.spawn(async move {
            let mut client = Client::connect(&target).await.unwrap();
            let (end, mut taken) = (Instant::now() + length, Vec::new());
            while Instant::now() < end {
                let start = Instant::now();
                let page = client.ask(get(&target, PAGE)).await.unwrap();
                assert_eq!(page.status, 200, "{}", page.body);
                taken.push(start.elapsed());
            }
            taken
        });
    }
    tasks.join_all().await.concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_organisations_listings_do_not_wait_for_anothers() {
    let site = Running::start("", None).await;
    let (hostile, target) = (site.add_organisation("hostile"), site.target());
    fill(&hostile, 100, 50).await;
    fill(&target, 100, 50).await;
    let length = Duration::from_secs(4);
    let (attack, neighbour) = tokio::join!(list(&hostile, 24, length), list(&target, 1, length));
    let (attack, neighbour) = (Figures::of(attack), Figures::of(neighbour));
    println!("24 clients: {attack}; one: {neighbour}");
    // Of 24, two are read at one time; this one has almost none before it.
    assert!(neighbour.p50 * 4 < attack.p50, "{neighbour}; {attack}");
}

/// A search through everything that finds nothing.
const SEARCH: &str = "/emails?status=suppressed&limit=100";

#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_finds_nothing_takes_no_more_memory_than_a_page() {
    let site = Running::start("", None).await;
    let target = site.target();
    fill(&target, 450, 900).await;
    let mut client = Client::connect(&target).await.unwrap();
    // What the first search takes for good is no part of this.
    assert_eq!(client.ask(get(&target, "/emails?limit=20")).await.unwrap().status, 200);
    let before = site.process.resident_bytes();
    site.process.reset_peak();
    let page = client.ask(get(&target, SEARCH)).await.unwrap();
    assert_eq!(page.status, 200, "{}", page.body);
    let more = site.process.peak_bytes().saturating_sub(before);
    println!("{} MiB more", more / MIB);
    // Its rows are 20 MiB.
    assert!(more < 10 * MIB, "{} MiB more", more / MIB);
}
