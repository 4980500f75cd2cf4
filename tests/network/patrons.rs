//! Clients that behave: every request of theirs is answered with success, and how soon.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Client, get, post};
use crate::kit::History;
use crate::site::{Running, Target};

/// Number of well-behaved clients.
pub(crate) const PATRONS: usize = 6;
/// Pause of each between two requests.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// Set of well-behaved clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patrons {
    /// Half keep their connection, half make a new one for each message.
    All,
    /// All keep their connection.
    Staying,
}

/// Clients that are being served.
pub(crate) struct Served {
    target: Target,
    history: Option<History>,
    /// A connection each, for those that keep one.
    clients: Vec<Option<Client>>,
}

impl Patrons {
    pub(crate) async fn arrive(self, site: &Running) -> Served {
        let target = site.target();
        let mut clients = Vec::new();
        for number in 0..PATRONS {
            let keeps = self == Self::Staying || number.is_multiple_of(2);
            let client = if keeps { Some(Client::connect(&target).await.unwrap()) } else { None };
            clients.push(client);
        }
        let mut served = Served { target, history: site.history.clone(), clients };
        // The first requests pay for what is made at first use.
        served.measure(Duration::from_millis(50)).await;
        served
    }
}

impl Served {
    /// One of those that keep their connection, on its own from now on.
    pub(crate) fn leave(self) -> Client {
        self.clients.into_iter().flatten().next().expect("some keep their connection")
    }

    /// Sends messages and reads them back for a while.
    pub(crate) async fn measure(&mut self, length: Duration) -> Figures {
        let end = Instant::now() + length;
        let mut tasks = JoinSet::new();
        for client in self.clients.drain(..) {
            let (target, history) = (self.target.clone(), self.history.clone());
            tasks.spawn(async move {
                let mut client = client;
                let mut taken = Vec::new();
                loop {
                    taken.extend(visit(&mut client, &target, history.as_ref()).await);
                    if Instant::now() >= end {
                        return (client, taken);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        let mut all = Vec::new();
        for (client, taken) in tasks.join_all().await {
            self.clients.push(client);
            all.extend(taken);
        }
        Figures::of(all)
    }
}

/// A subject that no other message has.
pub(crate) fn subject() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("Hello {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Sends a message and reads it; how long each took, connecting included.
async fn visit(
    client: &mut Option<Client>,
    target: &Target,
    history: Option<&History>,
) -> [Duration; 2] {
    let (start, subject) = (Instant::now(), subject());
    let began = history.map_or(0, History::now);
    let mut new = match client {
        Some(_) => None,
        None => Some(Client::connect(target).await.unwrap()),
    };
    let connection = client.as_mut().or(new.as_mut()).expect("one of the two is there");
    let accepted = connection.ask(post(target, &subject)).await.unwrap();
    assert_eq!(accepted.status, 200, "{}", accepted.body);
    let posted = start.elapsed();
    let answer: serde_json::Value = serde_json::from_str(&accepted.body).unwrap();
    let id = answer["id"].as_str().unwrap();
    if let Some(history) = history {
        history.write_post(began, &subject, Some((accepted.status, Some(id))));
    }
    let path = format!("/emails/{id}");
    let began = history.map_or(0, History::now);
    let start = Instant::now();
    let record = connection.ask(get(target, &path)).await.unwrap();
    assert_eq!(record.status, 200, "{}", record.body);
    let read = start.elapsed();
    if let Some(history) = history {
        history.write_read(began, &serde_json::from_str(&record.body).unwrap());
    }
    [posted, read]
}

/// Durations of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    requests: usize,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    slowest: Duration,
}

impl Figures {
    pub(crate) fn of(mut taken: Vec<Duration>) -> Self {
        taken.sort_unstable();
        let at = |percent: usize| taken[(taken.len() * percent / 100).min(taken.len() - 1)];
        Self { requests: taken.len(), p50: at(50), p99: at(99), slowest: at(100) }
    }

    /// Those with the median 99th percentile.
    pub(crate) fn median(mut figures: Vec<Self>) -> Self {
        figures.sort_unstable_by_key(|figures| figures.p99);
        figures[figures.len() / 2]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, p50, p99, slowest } = self;
        write!(f, "{requests} requests, p50 {p50:.1?}, p99 {p99:.1?}, slowest {slowest:.1?}")
    }
}
