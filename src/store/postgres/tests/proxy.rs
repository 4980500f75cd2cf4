//! Proxy between a node and its server that cuts connections at the worst moments, or stops. It
//! also keeps single connections open without passing anything on, as a firewall on the way may do.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

/// Text of the simple query that commits, as it goes over the wire.
const COMMIT: &[u8] = b"COMMIT\0";
/// Beginning of a statement of several parts, behind its name.
const TEXT: &[u8] = b"\0\nWITH ";
/// Beginning of the part by which a statement that is a transaction of its own counts itself.
const COUNTED: &[u8] = b"counted AS (";

/// Moment at which a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The server gets the commit. Nobody gets its answer.
    AfterTheCommit,
    /// The server does not get the commit.
    BeforeTheCommit,
}

/// Treatment of the connection of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Cut,
    /// It stays open, and passes nothing on.
    Silent,
}

/// Connection that the proxy relays.
struct Relayed {
    /// Bytes that the node has sent by it.
    sent: Mutex<Vec<u8>>,
    is_silent: watch::Sender<bool>,
}

impl Relayed {
    async fn passes(&self) {
        let _ = self.is_silent.subscribe().wait_for(|is_silent| !is_silent).await;
    }
}

/// Proxy that cuts connections.
pub(super) struct Proxy {
    pub(super) port: u16,
    /// Number of commits that pass before the next one that is cut; `usize::MAX` to cut none.
    until_cut: Arc<AtomicUsize>,
    moment: Arc<Mutex<(Cut, Fate)>>,
    stands_still: Arc<watch::Sender<bool>>,
    /// Delay of each answer, in milliseconds.
    latency_millis: Arc<AtomicU64>,
    relayed: Arc<Mutex<Vec<Arc<Relayed>>>>,
    /// True if connections are silent from their beginning.
    is_deaf: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy to the server at this port.
    pub(super) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let until_cut = Arc::new(AtomicUsize::new(usize::MAX));
        let moment = Arc::new(Mutex::new((Cut::BeforeTheCommit, Fate::Cut)));
        let relayed = Arc::<Mutex<Vec<Arc<Relayed>>>>::default();
        let is_deaf = Arc::new(AtomicBool::new(false));
        let (all, deaf) = (Arc::clone(&relayed), Arc::clone(&is_deaf));
        let stands_still = Arc::new(watch::Sender::new(false));
        let (counter, when) = (Arc::clone(&until_cut), Arc::clone(&moment));
        let still = Arc::clone(&stands_still);
        let latency_millis = Arc::new(AtomicU64::new(0));
        let latency = Arc::clone(&latency_millis);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let (counter, when) = (Arc::clone(&counter), Arc::clone(&when));
                let still = Still { is_so: still.subscribe(), latency: Arc::clone(&latency) };
                let is_silent = watch::Sender::new(deaf.load(Ordering::SeqCst));
                let one = Arc::new(Relayed { sent: Mutex::default(), is_silent });
                all.lock().unwrap().push(Arc::clone(&one));
                tokio::spawn(relay(client, server, counter, when, still, one));
            }
        });
        Self { port, until_cut, moment, stands_still, latency_millis, relayed, is_deaf }
    }

    /// Keeps its connections and takes new ones, and passes nothing on, like a paused machine.
    pub(super) fn stand_still(&self) {
        self.stands_still.send_replace(true);
    }

    /// Passes each answer on after this delay.
    pub(super) fn slow_down(&self, latency: Duration) {
        let millis = u64::try_from(latency.as_millis()).unwrap();
        self.latency_millis.store(millis, Ordering::SeqCst);
    }

    pub(super) fn go_on(&self) {
        self.stands_still.send_replace(false);
    }

    /// Cuts the connection of a commit, after this many others.
    pub(super) fn cut(&self, moment: Cut, after: usize) {
        *self.moment.lock().unwrap() = (moment, Fate::Cut);
        self.until_cut.store(after, Ordering::SeqCst);
    }

    /// Makes the connection of the next commit silent. It stays open.
    pub(super) fn silence_commit(&self, moment: Cut) {
        *self.moment.lock().unwrap() = (moment, Fate::Silent);
        self.until_cut.store(0, Ordering::SeqCst);
    }

    /// Makes the open connections silent by which the node has sent a text; returns their number.
    pub(super) fn silence(&self, text: &str) -> usize {
        let relayed = self.relayed.lock().unwrap();
        let has_sent = |one: &&Arc<Relayed>| {
            one.is_silent.receiver_count() > 0
                && occurrences(&one.sent.lock().unwrap(), text.as_bytes()) > 0
        };
        let found = relayed.iter().filter(has_sent);
        found.map(|one| one.is_silent.send_replace(true)).filter(|was_silent| !was_silent).count()
    }

    /// Makes connections silent from their beginning, or ends that.
    pub(super) fn silence_new(&self, is_so: bool) {
        self.is_deaf.store(is_so, Ordering::SeqCst);
    }

    /// Makes silent connections pass data on again.
    pub(super) fn release(&self) {
        self.silence_new(false);
        for one in self.relayed.lock().unwrap().iter() {
            one.is_silent.send_replace(false);
        }
    }

    /// Returns true once the connection was cut.
    pub(super) fn has_cut(&self) -> bool {
        self.until_cut.load(Ordering::SeqCst) == usize::MAX
    }
}

/// Cause that keeps bytes from being passed on.
struct Still {
    is_so: watch::Receiver<bool>,
    latency: Arc<AtomicU64>,
}

async fn relay(
    client: TcpStream,
    server: TcpStream,
    until_cut: Arc<AtomicUsize>,
    moment: Arc<Mutex<(Cut, Fate)>>,
    still: Still,
    this: Arc<Relayed>,
) {
    // The connection stays open as long as its other end listens.
    let _open = this.is_silent.subscribe();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut stands_still, latency) = (still.is_so, still.latency);
    let mut is_still = stands_still.clone();
    let answered = Arc::clone(&this);
    let answers = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            sleep(Duration::from_millis(latency.load(Ordering::SeqCst))).await;
            let _ = is_still.wait_for(|is_still| !is_still).await;
            answered.passes().await;
            if to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; 1 << 20];
    let mut transactions = Vec::new();
    while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
        let _ = stands_still.wait_for(|is_still| !is_still).await;
        this.passes().await;
        let sent = &buffer[..count];
        this.sent.lock().unwrap().extend(sent);
        let commits = match prepared(sent) {
            Some(name) => {
                transactions.push([b"\0", name, b"\0"].concat());
                0
            }
            None => {
                occurrences(sent, COMMIT)
                    + transactions.iter().map(|made| occurrences(sent, made)).sum::<usize>()
            }
        };
        let mut is_cut = false;
        for _ in 0..commits {
            let left =
                until_cut.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
                    usize::MAX => None,
                    0 => Some(usize::MAX),
                    left => Some(left - 1),
                });
            is_cut |= left == Ok(0);
        }
        if is_cut {
            let (moment, fate) = *moment.lock().unwrap();
            match fate {
                Fate::Cut => answers.abort(),
                Fate::Silent => drop(this.is_silent.send_replace(true)),
            }
            if moment == Cut::AfterTheCommit {
                let _ = to_server.write_all(sent).await;
                // Time for the server to take it; its answer is not passed on.
                sleep(Duration::from_millis(50)).await;
            }
            match fate {
                Fate::Cut => return,
                Fate::Silent => this.passes().await,
            }
            if moment == Cut::AfterTheCommit {
                continue;
            }
        }
        if to_server.write_all(sent).await.is_err() {
            break;
        }
    }
    answers.abort();
}

/// Name of the statement that is prepared here, if it is a transaction of its own.
fn prepared(sent: &[u8]) -> Option<&[u8]> {
    let counted = sent.windows(COUNTED.len()).position(|window| window == COUNTED)?;
    let end = sent[..counted].windows(TEXT.len()).rposition(|window| window == TEXT)?;
    let begin = sent[..end].iter().rposition(|byte| *byte == b's')?;
    Some(&sent[begin..end])
}

fn occurrences(sent: &[u8], searched: &[u8]) -> usize {
    sent.windows(searched.len()).filter(|window| *window == searched).count()
}
