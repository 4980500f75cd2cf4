//! Attacks by HTTP/2, which TLS offers: attackers are cut off or held within bounds, and clients of
//! both versions are served all the while.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use pillarbox_http::drain::Drain;
use pillarbox_http::limits::{BodyPace, Limits};
use pillarbox_http::request_id::RequestId;
use pillarbox_http::serve_tls;
use pillarbox_http::tls::Tls;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, MAX_PAYLOAD, NEWEST,
    PING, RST_STREAM, Received, SETTINGS, WINDOW_UPDATE, field, frame, hello, kept_field, request,
};
use crate::kit::PATIENCE;
use crate::secure::{Certificate, HTTP_2};
use crate::site::{Running, Target};

/// Number of connections that attack at one time.
const CONNECTIONS: usize = if cfg!(feature = "long") { 64 } else { 8 };
/// Bytes that the process may take for all of them, beyond what it took before: each connection may
/// hold a part of a mebibyte, and unbounded growth would be tens of them a second.
const ROOM: usize = if cfg!(feature = "long") { 192 << 20 } else { 64 << 20 };
/// Time for which a connection that was closed stays away.
const AWAY: Duration = Duration::from_millis(20);
/// Room for a response, unless the attack is to leave none.
const WINDOW: u32 = 65_535;

/// Kind of misuse of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// Requests that are reset as soon as they are sent (CVE-2023-44487).
    Resets,
    /// Requests that the service has to reset, for mistakes of the client's (CVE-2025-8671).
    Mistakes,
    /// A request's head that never ends (CVE-2024-27316).
    EndlessHead,
    /// Heads that are short as they are sent, and 60 MiB once they are read.
    Bombs,
    /// Pings whose answers are read.
    Pings,
    /// Pings whose answers are not read.
    UnreadPings,
    /// Settings whose acknowledgements are not read.
    UnreadSettings,
    /// Bodies in pieces without any content.
    EmptyPieces,
    /// Requests without room for their responses.
    NoRoom,
    /// One request without room for its response, and others that are well-behaved.
    OneUnread,
}

impl Flood {
    const ALL: [Self; 10] = [
        Self::Resets,
        Self::Mistakes,
        Self::EndlessHead,
        Self::Bombs,
        Self::Pings,
        Self::UnreadPings,
        Self::UnreadSettings,
        Self::EmptyPieces,
        Self::NoRoom,
        Self::OneUnread,
    ];

    /// True if the service has to end such a connection, with a reason.
    fn is_cut_off(self) -> bool {
        !matches!(self, Self::Pings | Self::UnreadPings | Self::UnreadSettings | Self::OneUnread)
    }

    /// Number of pieces that go out at once.
    fn burst(self) -> usize {
        if self == Self::OneUnread { 1 } else { 100 }
    }

    fn reads(self) -> bool {
        !matches!(self, Self::UnreadPings | Self::UnreadSettings)
    }

    /// Beginning of a connection.
    fn first(self, target: &Target) -> Vec<u8> {
        let mut first =
            hello(if matches!(self, Self::NoRoom | Self::OneUnread) { 0 } else { WINDOW });
        match self {
            Self::EndlessHead => {
                first.extend(frame(HEADERS, END_STREAM, 1, &request(target, "GET", "/emails")));
            }
            Self::Bombs => {
                let block =
                    [request(target, "GET", "/emails"), kept_field("x", &"x".repeat(3_900))];
                first.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block.concat()));
            }
            Self::EmptyPieces => {
                first.extend(frame(HEADERS, END_HEADERS, 1, &request(target, "POST", "/emails")));
            }
            Self::OneUnread => {
                let fields = request(target, "GET", "/openapi.json");
                first.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields));
            }
            _ => {}
        }
        first
    }

    /// The `number`th piece of what then goes on for ever.
    fn piece(self, target: &Target, number: usize) -> Vec<u8> {
        let stream = u32::try_from(3 + 2 * number).unwrap();
        let head =
            |path| frame(HEADERS, END_HEADERS | END_STREAM, stream, &request(target, "GET", path));
        match self {
            Self::Resets => {
                [head("/emails?limit=100"), frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())]
                    .concat()
            }
            // A window cannot grow beyond 2^31 - 1 (RFC 9113, section 6.9.1).
            Self::Mistakes => [
                head("/emails?limit=100"),
                frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes()),
            ]
            .concat(),
            Self::EndlessHead => frame(CONTINUATION, 0, 1, &field("x", &"x".repeat(1_000))),
            Self::Bombs => {
                let block = [request(target, "GET", "/emails"), vec![NEWEST; MAX_PAYLOAD - 400]];
                frame(HEADERS, END_HEADERS | END_STREAM, stream, &block.concat())
            }
            Self::Pings | Self::UnreadPings => frame(PING, 0, 0, &[7; 8]),
            Self::UnreadSettings => frame(SETTINGS, 0, 0, &[]),
            Self::EmptyPieces => frame(DATA, 0, 1, &[]),
            Self::NoRoom => head("/openapi.json"),
            Self::OneUnread => {
                [head("/none"), frame(WINDOW_UPDATE, 0, stream, &WINDOW.to_be_bytes())].concat()
            }
        }
    }
}

/// Results of an attack's connections.
#[derive(Debug, Default)]
struct Fate {
    /// Number of pieces that were sent, at least.
    sent: AtomicUsize,
    /// Data that came on the connections that the service has closed.
    closed: Mutex<Vec<Received>>,
}

/// One connection's life: floods until the service closes it, or for ever.
async fn flood(
    kind: Flood,
    certificate: &Certificate,
    target: &Target,
    fate: &Fate,
) -> io::Result<()> {
    let stream = certificate.connect(target, HTTP_2).await?;
    let (reading, mut writing) = tokio::io::split(stream);
    let read = async {
        if !kind.reads() {
            // Held open and not read.
            std::future::pending::<()>().await;
        }
        Received::until_closed(reading).await
    };
    let write = async {
        writing.write_all(&kind.first(target)).await?;
        for burst in 0.. {
            let numbers = burst * kind.burst()..(burst + 1) * kind.burst();
            let pieces: Vec<u8> = numbers.flat_map(|number| kind.piece(target, number)).collect();
            writing.write_all(&pieces).await?;
            writing.flush().await?;
            fate.sent.fetch_add(kind.burst(), Ordering::Relaxed);
            // The service's last word is not to be lost in a reset for what it has not read.
            sleep(Duration::from_millis(2)).await;
        }
        io::Result::Ok(())
    };
    let (mut read, mut write) = (pin!(read), pin!(write));
    let received = tokio::select! {
        received = &mut read => received,
        // Earlier data is still to be read.
        _ = &mut write => if kind.reads() {
            timeout(PATIENCE, &mut read).await.unwrap_or_default()
        } else {
            Received::default()
        },
    };
    fate.closed.lock().unwrap().push(received);
    Ok(())
}

/// An attack that goes on until it is ended.
struct Attack {
    fate: Arc<Fate>,
    tasks: JoinSet<()>,
}

impl Attack {
    fn begin(kind: Flood, certificate: &Arc<Certificate>, target: &Target) -> Self {
        let (fate, mut tasks) = (Arc::new(Fate::default()), JoinSet::new());
        for _ in 0..CONNECTIONS {
            let (certificate, target) = (Arc::clone(certificate), target.clone());
            let fate = Arc::clone(&fate);
            tasks.spawn(async move {
                loop {
                    // Refused and cut off are all the same to an attacker.
                    let _ = flood(kind, &certificate, &target, &fate).await;
                    sleep(AWAY).await;
                }
            });
        }
        Self { fate, tasks }
    }

    fn sent(&self) -> usize {
        self.fate.sent.load(Ordering::Relaxed)
    }

    fn closed(&self) -> usize {
        self.fate.closed.lock().unwrap().len()
    }

    async fn end(mut self) -> Arc<Fate> {
        self.tasks.shutdown().await;
        self.fate
    }
}

/// Waits for something that comes by itself.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The most memory that the process takes while something goes on.
async fn greatest<T>(site: &Running, going_on: impl Future<Output = T>) -> (T, usize) {
    let mut going_on = pin!(going_on);
    let mut most = 0;
    loop {
        most = most.max(site.process.resident_bytes());
        tokio::select! {
            done = &mut going_on => return (done, most.max(site.process.resident_bytes())),
            () = sleep(Duration::from_millis(20)) => {}
        }
    }
}

/// Serves clients of both versions during an attack.
async fn withstand(kind: Flood) {
    let certificate = Arc::new(Certificate::new());
    let site = Running::start(&certificate.configuration(), None).await;
    let target = site.target();
    certificate.serve(&target, Duration::from_millis(500)).await;
    let (files, before) = (site.process.open_files(), site.process.resident_bytes());
    let attack = Attack::begin(kind, &certificate, &target);
    let (figures, most) = greatest(&site, async {
        until("the attack does not begin", || attack.sent() >= CONNECTIONS * kind.burst()).await;
        let figures = certificate.serve(&target, crate::length()).await;
        if kind.is_cut_off() {
            until("nobody is cut off", || attack.closed() >= CONNECTIONS).await;
        }
        figures
    })
    .await;
    let fate = attack.end().await;
    site.until_open_files_are(files).await;
    certificate.serve(&target, Duration::from_millis(100)).await;
    let closed = std::mem::take(&mut *fate.closed.lock().unwrap());
    let sent = fate.sent.load(Ordering::Relaxed);
    let more = most.saturating_sub(before);
    println!(
        "{kind:?}, {CONNECTIONS} connections: {sent} pieces, {} connections cut off, {} KiB more; {figures}",
        closed.len(),
        more >> 10,
    );
    assert!(more < ROOM, "{kind:?}: {more} bytes more");
    assert!(figures.p99 < crate::HELD_UP, "{kind:?}: {figures}");
    if kind.is_cut_off() {
        // A reset may destroy the last frames of a connection; it does not always.
        let calm = closed.iter().filter(|one| one.goaway == Some(ENHANCE_YOUR_CALM)).count();
        assert!(calm > 0 && calm >= closed.len() / 2, "{kind:?}: {closed:?}");
        // And it is cut off soon.
        assert!(sent / closed.len() < 10_000, "{kind:?}: {sent} pieces, {} cut off", closed.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_reset_at_once() {
    withstand(Flood::Resets).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_mistakes() {
    withstand(Flood::Mistakes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_without_end() {
    withstand(Flood::EndlessHead).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_grow_when_they_are_read() {
    withstand(Flood::Bombs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pings() {
    withstand(Flood::Pings).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_whose_answers_are_not_read() {
    withstand(Flood::UnreadPings).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_whose_acknowledgements_are_not_read() {
    withstand(Flood::UnreadSettings).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_in_empty_pieces() {
    withstand(Flood::EmptyPieces).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_room_for_their_responses() {
    withstand(Flood::NoRoom).await;
}

/// No misuse of a connection lasts.
#[tokio::test(flavor = "multi_thread")]
async fn no_misused_connection_is_kept_for_ever() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let short = Duration::from_millis(300);
    let limits = Limits {
        head_timeout: short,
        idle_timeout: short,
        write_timeout: short,
        body_stall_timeout: short,
        body_pace: BodyPace { averaged_over: short, ..BodyPace::default() },
        ..Limits::default()
    };
    let certificate = Certificate::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target { address: listener.local_addr().unwrap(), key: "none".to_owned() };
    let (drain, signal) = Drain::new();
    // Reads what comes, and answers with more than there is room for, but for one path.
    let answer = move |request: Request<Incoming>, _: RequestId| async move {
        let length = if request.uri().path() == "/none" { 1 } else { 200_000 };
        let _ = timeout(short, request.into_body().collect()).await;
        Response::new(Full::from("x".repeat(length)))
    };
    let tls = Arc::new(Tls::load(&certificate.files).unwrap());
    let serving = tokio::spawn(serve_tls(tls, listener, answer, limits, signal));
    for kind in Flood::ALL {
        let fate = Fate::default();
        let flooding = flood(kind, &certificate, &target, &fate);
        let ended = timeout(PATIENCE, flooding).await;
        assert!(ended.is_ok(), "{kind:?} holds a connection");
        println!("{kind:?}: {fate:?}");
    }
    drain.stop(tokio::time::Instant::now() + PATIENCE);
    assert_eq!(serving.await.unwrap().unwrap().cut_off, 0);
}
