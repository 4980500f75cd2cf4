//! Attacks: many connections that are each misused in one way, again and again.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::{Client, get, post_head};
use crate::kit::PATIENCE;
use crate::site::Target;

/// Pause of a slow client before its next byte.
pub(crate) const DRIP: Duration = Duration::from_millis(200);
/// Time for which a connection that was closed stays away.
const AWAY: Duration = Duration::from_millis(50);
/// Announced length of a body that never comes: the most that is taken.
const ANNOUNCED: usize = 10 * 1024 * 1024;
/// Number of answers that are requested and left unread.
const UNREAD: usize = 100;
/// Number of requests that go out at once.
const PIPELINED: usize = 50;

/// Kind of misuse of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing is ever sent.
    Silent,
    /// Nothing is sent after the first request.
    Idle,
    /// A head comes byte by byte.
    SlowHead,
    /// A body comes byte by byte.
    SlowBody,
    /// The largest body is announced, begun and left there.
    StalledBody,
    /// Answers are asked for and not read.
    Unread,
    /// The client ends its side within a request, or before it has read its answers.
    HalfClosed,
    /// Many requests at once, again and again.
    Pipelined,
    /// More connections than are served, made anew as soon as they are refused.
    Flood,
}

/// An attack that goes on until it is ended.
pub(crate) struct Attack(JoinSet<()>);

impl Attack {
    /// Begins, and waits until every connection has done its harm once.
    pub(crate) async fn begin(kind: Kind, connections: usize, target: &Target) -> Self {
        let target = target.clone();
        let life = move |_: usize, harmed: Arc<AtomicUsize>| {
            let target = target.clone();
            async move { harm(kind, &target, &harmed).await }
        };
        Self::of(connections, life).await
    }

    /// The same with connections of another life. It is given the connection's number, and what to
    /// add one to as soon as the harm is done.
    pub(crate) async fn of<L, F>(connections: usize, life: L) -> Self
    where
        L: Fn(usize, Arc<AtomicUsize>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        // Each connection is a file of this process. By default it may have 1,024.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let harmed = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..connections {
            let (life, harmed) = (life.clone(), Arc::clone(&harmed));
            tasks.spawn(async move {
                loop {
                    // Refused, timed out and cut off are all the same to an attacker.
                    let _ = life(number, Arc::clone(&harmed)).await;
                    sleep(AWAY).await;
                }
            });
        }
        let end = Instant::now() + PATIENCE;
        while harmed.load(Ordering::Relaxed) < connections {
            let harmed = harmed.load(Ordering::Relaxed);
            assert!(Instant::now() < end, "{harmed} of {connections} connections do harm");
            sleep(Duration::from_millis(20)).await;
        }
        Self(tasks)
    }

    pub(crate) async fn end(mut self) {
        self.0.shutdown().await;
    }
}

/// One connection's life; counts once it does its harm.
async fn harm(kind: Kind, target: &Target, harmed: &AtomicUsize) -> io::Result<()> {
    let done = || harmed.fetch_add(1, Ordering::Relaxed);
    let mut client = match kind {
        Kind::Unread => Client::with_little_room(target).await?,
        _ => Client::connect(target).await?,
    };
    match kind {
        Kind::Silent | Kind::Flood => {
            done();
        }
        Kind::Idle => {
            client.ask(get(target, "/emails?limit=1")).await?;
            done();
        }
        Kind::SlowHead => {
            client.send("POST /emails HTTP/1.1\r\nHost: x\r\nX-A: ").await?;
            done();
            return drip(&mut client).await;
        }
        Kind::SlowBody => {
            client.send(begun(target)).await?;
            done();
            return drip(&mut client).await;
        }
        Kind::StalledBody => {
            client.send(begun(target)).await?;
            done();
        }
        Kind::Unread => {
            client.send(get(target, "/openapi.json").repeat(UNREAD)).await?;
            done();
            // Not even that it is closed is noticed.
            return pending().await;
        }
        Kind::HalfClosed => {
            let requests = [get(target, "/emails"), begun(target)].concat();
            client.send(requests).await?;
            client.stream.shutdown().await?;
            done();
        }
        Kind::Pipelined => loop {
            client.send(get(target, "/emails/none").repeat(PIPELINED)).await?;
            for _ in 0..PIPELINED {
                let answer = client.answer().await?;
                assert_eq!(answer.status, 404, "{}", answer.body);
            }
            done();
            sleep(AWAY).await;
        },
    }
    // Until the other side closes.
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).await.map(drop)
}

/// A request whose body has begun.
fn begun(target: &Target) -> String {
    format!("{}Content-Length: {ANNOUNCED}\r\n\r\n{{\"text\":\"", post_head(target))
}

async fn drip(client: &mut Client) -> io::Result<()> {
    loop {
        sleep(DRIP).await;
        client.send("a").await?;
    }
}
