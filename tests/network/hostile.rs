//! Ten organisations: nine send their mail, and the tenth is hostile in every way at once. The nine
//! wait about as long as without it, and none of their requests is refused.
//!
//! The service and a provider run within this process, over real sockets and on simulated time:
//! tokio's clock stands still but for [`Time::step`], and after each step everything that happens
//! by itself has a moment of real time to happen. The long form runs for ten simulated minutes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pillarbox_config::Config;
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{DomainState, KeyRights};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;
use pillarbox_service::Service;
use pillarbox_ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};
use pillarbox_store::NewApiKey;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::client::{Client, get, post_head};
use crate::site::Target;

use crate::kit::start_service;
const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);
/// Time for which everything is quiet in real time before the next step.
const QUIET: Duration = Duration::from_micros(300);
/// Time for which the next step waits in real time for a neighbour's answer. An answer that takes
/// longer waits for simulated time.
const UNANSWERED: Duration = Duration::from_millis(300);

const NEIGHBOURS: usize = 9;
/// Every so often, each neighbour sends so many messages at once: 10.8 a second in all.
const PERIOD: Duration = Duration::from_secs(20);
const AT_ONCE: usize = 24;
const PERIODS: u32 = if cfg!(feature = "long") { 30 } else { 1 };
/// The rate that the account has, and how long the provider takes.
const RATE: u32 = 14;
const LATENCY: Duration = Duration::from_millis(30);
const HOSTILE: &str = "hostile";

/// Small limits for reading, writing and pending messages, so that an attack soon fills them.
fn config(directory: &std::path::Path, provider: SocketAddr) -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    let mut config = Config {
        listen: any,
        operator_listen: any,
        data_dir: directory.join("data"),
        admin_socket: directory.join("admin.sock"),
        max_request_bytes: 1 << 20,
        max_reading_bytes: 8 << 20,
        max_writing_bytes: 16 << 20,
        ..Config::default()
    };
    config.sending.max_pending_bytes = 4 << 20;
    config.ses.endpoint = Some(format!("http://{provider}").parse().unwrap());
    config
}

/// A provider that answers all at once except the hostile organisation: of its calls, one is never
/// answered, one is refused in words that repeat what the client wrote, and one is taken.
#[derive(Default)]
struct Provider {
    /// Time at which each message's first call came.
    calls: Mutex<HashMap<String, Instant>>,
    hostile: AtomicUsize,
    progress: Arc<AtomicUsize>,
}

impl Provider {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let provider = Arc::clone(&self);
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let provider = Arc::clone(&provider);
                    async move { Ok::<_, Infallible>(provider.answer(request).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                // A caller that stops waiting closes its connection.
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if !request.uri().path().ends_with("outbound-emails") {
            let quota = json!({"MaxSendRate": RATE, "Max24HourSend": -1, "SentLast24Hours": 0});
            let account = json!({"SendQuota": quota, "SendingEnabled": true});
            return Response::new(Full::from(account.to_string()));
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let call: Value = serde_json::from_slice(&body).unwrap();
        let tag = |name: &str| {
            let tags = call["EmailTags"].as_array().unwrap();
            let tag = tags.iter().find(|tag| tag["Name"] == name).unwrap();
            tag["Value"].as_str().unwrap().to_owned()
        };
        if tag(ORGANISATION_TAG) == HOSTILE {
            match self.hostile.fetch_add(1, Ordering::Relaxed) % 3 {
                0 => std::future::pending().await,
                1 => {
                    let text = format!(
                        "Email address is not verified. The following identities failed the \
                         check in region EU-WEST-1: {}",
                        call["FromEmailAddress"].as_str().unwrap()
                    );
                    let refusal = Response::builder()
                        .status(400)
                        .header("x-amzn-errortype", "MessageRejected")
                        .body(Full::from(json!({"message": text}).to_string()));
                    return refusal.unwrap();
                }
                _ => {}
            }
        } else {
            self.progress.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            self.calls.lock().unwrap().entry(tag(MESSAGE_ID_TAG)).or_insert(now);
        }
        sleep(LATENCY).await;
        let id = json!({"MessageId": tag(MESSAGE_ID_TAG)});
        Response::new(Full::from(id.to_string()))
    }
}

/// Control of the simulated time.
struct Time {
    clock: Clock,
    /// Progress of the neighbours and their calls, in no unit.
    progress: Arc<AtomicUsize>,
    /// Requests of neighbours that are not answered yet.
    asking: Arc<AtomicUsize>,
    /// While this lives, tokio does not move the clock by itself.
    _hold: mpsc::Sender<()>,
}

impl Time {
    fn hold(clock: Clock, progress: Arc<AtomicUsize>) -> Self {
        let (hold, released) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || released.recv());
        Self { clock, progress, asking: Arc::default(), _hold: hold }
    }

    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step().await;
        }
    }

    async fn step(&self) {
        tokio::time::advance(STEP).await;
        self.clock.advance(STEP);
        let mut quiet = 0;
        let mut last = std::time::Instant::now();
        while quiet < 2 {
            let before = self.progress.load(Ordering::Relaxed);
            tokio::task::spawn_blocking(|| std::thread::sleep(QUIET)).await.unwrap();
            let is_asked = self.asking.load(Ordering::Relaxed) > 0;
            if self.progress.load(Ordering::Relaxed) != before {
                (quiet, last) = (0, std::time::Instant::now());
            } else if !is_asked || last.elapsed() > UNANSWERED {
                quiet += 1;
            }
        }
    }
}

/// Observations of the neighbours.
#[derive(Debug, Default)]
struct Seen {
    /// Times at which each accepted message was posted.
    posted: Vec<(String, Instant)>,
    /// Durations of the answers.
    answers: Vec<Duration>,
    refused: usize,
}

/// Results of a run.
#[derive(Debug)]
struct Figures {
    messages: usize,
    refused: usize,
    /// From the request to the call to the provider.
    wait: Percentiles,
    /// From the request to its answer.
    answer: Percentiles,
}

#[derive(Debug)]
#[expect(dead_code, reason = "the medians are printed")]
struct Percentiles {
    p50: Duration,
    p99: Duration,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        Self { p50: at(50), p99: at(99) }
    }
}

/// Choice whether the tenth organisation is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenth {
    Absent,
    Hostile,
}

async fn run(tenth: Tenth) -> Figures {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Memory, if there is such a directory: this is not about the disk.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let provider = Arc::new(Provider::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = config(directory.path(), listener.local_addr().unwrap());
    let providing = tokio::spawn(Arc::clone(&provider).serve(listener));
    let clock = Clock::manual(NOON);
    let time = Time::hold(clock.clone(), Arc::clone(&provider.progress));
    let service = start_service(&config, clock).await.unwrap();
    let mut neighbours = Vec::new();
    for number in 0..NEIGHBOURS {
        let name = format!("neighbour{number}");
        neighbours.push((organisation(&service, &name).await, name));
    }
    let hostile = organisation(&service, HOSTILE).await;
    let mut attack = JoinSet::new();
    if tenth == Tenth::Hostile {
        begin(&mut attack, &hostile);
        // What is compared is the attack that goes on.
        time.pass(15 * SECOND).await;
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut sending = JoinSet::new();
    for (target, name) in neighbours {
        for number in 0..AT_ONCE {
            let (target, name, seen) = (target.clone(), name.clone(), Arc::clone(&seen));
            let (progress, asking) = (Arc::clone(&time.progress), Arc::clone(&time.asking));
            asking.fetch_add(1, Ordering::Relaxed);
            sending.spawn(async move {
                let mut client = Client::connect(&target).await.unwrap();
                let mut due = Instant::now();
                for period in 0..PERIODS {
                    if period > 0 {
                        asking.fetch_add(1, Ordering::Relaxed);
                    }
                    visit(&mut client, &target, &name, &seen).await;
                    if number == 0 {
                        list(&mut client, &target, &seen).await;
                    }
                    progress.fetch_add(1, Ordering::Relaxed);
                    asking.fetch_sub(1, Ordering::Relaxed);
                    due += PERIOD;
                    tokio::time::sleep_until(due).await;
                }
            });
        }
    }
    while !sending.is_empty() {
        time.step().await;
        while let Some(sent) = sending.try_join_next() {
            sent.unwrap();
        }
    }
    // The last ones are sent.
    time.pass(PERIOD).await;
    let taken = provider.hostile.load(Ordering::Relaxed);
    println!("{tenth:?}: {taken} calls for the tenth");
    attack.shutdown().await;
    providing.abort();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let calls = provider.calls.lock().unwrap();
    let waits = seen.posted.iter().map(|(id, posted)| {
        calls.get(id).map_or(Duration::MAX, |call| call.duration_since(*posted))
    });
    Figures {
        messages: seen.posted.len(),
        refused: seen.refused,
        wait: Percentiles::of(waits.collect()),
        answer: Percentiles::of(seen.answers),
    }
}

/// Makes an organisation with a domain of its own and a key.
async fn organisation(service: &Service, name: &str) -> Target {
    let store = service.store();
    let organisation = store.add_organisation(name.parse().unwrap()).await.unwrap().unwrap();
    let domain = format!("{name}.example");
    let domain = DomainName::parse(&domain).unwrap();
    store.put_domain(organisation.id, domain, DomainState::Assumed, NOON).await.unwrap();
    let key = ApiKey::generate().unwrap();
    let new = NewApiKey {
        label: String::new(),
        expires_at: None,
        hash: key.hash(),
        rights: KeyRights::all(),
    };
    store.add_api_key(organisation.id, new, NOON).await.unwrap();
    Target { address: service.address(), key: key.reveal().to_owned() }
}

fn message(from: &str, to: &[String], text: &str) -> String {
    json!({"from": from, "to": to, "subject": "Hello", "text": text}).to_string()
}

fn post(target: &Target, body: &str) -> String {
    format!("{}Content-Length: {}\r\n\r\n{body}", post_head(target), body.len())
}

/// A neighbour sends one message.
async fn visit(client: &mut Client, target: &Target, name: &str, seen: &Mutex<Seen>) {
    let from = format!("ann@{name}.example");
    let body = message(&from, &["bob@example.org".to_owned()], &"How are you? ".repeat(80));
    let posted = Instant::now();
    let answer = client.ask(post(target, &body)).await.unwrap();
    let mut seen = seen.lock().unwrap();
    seen.answers.push(posted.elapsed());
    if answer.status == 200 {
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        seen.posted.push((answer["id"].as_str().unwrap().to_owned(), posted));
    } else {
        println!("refused: {}", answer.body);
        seen.refused += 1;
    }
}

/// A neighbour lists what it has sent.
async fn list(client: &mut Client, target: &Target, seen: &Mutex<Seen>) {
    let asked = Instant::now();
    let answer = client.ask(get(target, "/emails?limit=20")).await.unwrap();
    let mut seen = seen.lock().unwrap();
    seen.answers.push(asked.elapsed());
    seen.refused += usize::from(answer.status != 200);
}

/// Begins everything that a hostile organisation can do.
fn begin(attack: &mut JoinSet<()>, target: &Target) {
    for _ in 0..4 {
        attack.spawn(flood(target.clone()));
    }
    attack.spawn(repeat_phrases(target.clone()));
    for _ in 0..60 {
        attack.spawn(drip(target.clone()));
        attack.spawn(leave_unread(target.clone()));
    }
    for _ in 0..8 {
        attack.spawn(list_again(target.clone()));
    }
    for _ in 0..2 {
        attack.spawn(send_documents(target.clone()));
    }
}

/// Sends large messages to many as fast as they are taken: many calls for them go unanswered, and
/// they fill the queue.
async fn flood(target: Target) {
    let name = "n".repeat(300);
    let to: Vec<_> = (0..50).map(|n| format!("{name} <r{n}@example.org>")).collect();
    for number in 0.. {
        let to = if number % 4 == 0 { &to[..] } else { &to[..1] };
        let body = message("ann@hostile.example", to, &"x".repeat(20_000));
        ask(&target, &post(&target, &body)).await;
        sleep(4 * STEP).await;
    }
}

/// Sends from names that read like what the provider says to all.
async fn repeat_phrases(target: Target) {
    const PHRASES: [&str; 4] = [
        "Daily message quota exceeded",
        "Sending paused for this account",
        "Maximum sending rate exceeded",
        "The security token included in the request is expired",
    ];
    for phrase in PHRASES.iter().cycle() {
        let from = format!("\"{phrase}\" <ann@hostile.example>");
        let body = message(&from, &["bob@example.org".to_owned()], "x");
        ask(&target, &post(&target, &body)).await;
        sleep(2 * SECOND).await;
    }
}

/// Begins a large body and goes on with a byte every four seconds.
async fn drip(target: Target) {
    let head = format!("{}Content-Length: {}\r\n\r\n", post_head(&target), 1 << 20);
    let begun = format!("{{\"text\":\"{}", "x".repeat(500_000));
    loop {
        if let Ok(mut client) = Client::connect(&target).await
            && client.send(&head).await.is_ok()
            && client.send(&begun).await.is_ok()
        {
            while client.send("x").await.is_ok() {
                sleep(4 * SECOND).await;
            }
        }
        sleep(SECOND / 2).await;
    }
}

/// Asks for long pages and does not read them.
async fn leave_unread(target: Target) {
    loop {
        if let Ok(mut client) = Client::with_little_room(&target).await
            && client.send(get(&target, "/emails?limit=100")).await.is_ok()
        {
            sleep(60 * SECOND).await;
        }
        sleep(SECOND / 2).await;
    }
}

async fn list_again(target: Target) {
    loop {
        ask(&target, &get(&target, "/emails?limit=100&recipient=nobody@example.org")).await;
        sleep(4 * STEP).await;
    }
}

/// Sends bodies that are costly to read.
async fn send_documents(target: Target) {
    let units = ["\"\":0,", "[[[[]]]],", "\\n", "{\"a\":0},"];
    let bodies: Vec<_> = units
        .iter()
        .zip(["{\"0\":0,", "{\"to\":[", "{\"subject\":\"", "{\"to\":["])
        .map(|(unit, before)| format!("{before}{}", unit.repeat(1_000_000 / unit.len())))
        .collect();
    for body in bodies.iter().cycle() {
        ask(&target, &post(&target, body)).await;
        sleep(2 * SECOND).await;
    }
}

/// Asks on a connection of its own. An attacker ignores the result.
async fn ask(target: &Target, request: &str) {
    if let Ok(mut client) = Client::connect(target).await {
        let _ = client.ask(request).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nine_neighbours_of_a_hostile_organisation_wait_and_are_refused_as_without_it() {
    let calm = run(Tenth::Absent).await;
    let attacked = run(Tenth::Hostile).await;
    println!("without: {calm:?}\nwith: {attacked:?}");
    assert_eq!(calm.messages, NEIGHBOURS * AT_ONCE * PERIODS as usize);
    assert_eq!((calm.refused, attacked.refused), (0, 0));
    for (without, with) in [(&calm.wait, &attacked.wait), (&calm.answer, &attacked.answer)] {
        // Differences of a few steps do not count.
        assert!(with.p99 <= (without.p99 * 3 / 2).max(10 * STEP), "{attacked:?} after {calm:?}");
    }
}
