//! One connection that speaks HTTP/2, from its preface to its close.
//!
//! hyper keeps the protocol; this keeps it within limits: streams, resets, headers, memory and
//! time. Every task of a connection ends with it.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::http::Handler;
use crate::http::connection::{Shared, answer};
use crate::http::drain::DrainPhase;
use crate::http::limits::Limits;
use unread::Unread;

mod unread;

/// Requests of one connection at one time (RFC 9113 section 6.5.2 asks for 100 or more only of
/// those who want them to be processed together).
const MAX_STREAMS: u32 = 64;
/// What a client may send of a body before it is read, in bytes: each stream, and all of them.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 128 * 1024;
/// What of responses waits for the client, each stream.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Streams that the client resets before they are looked at, and errors of its own making, until
/// the connection is closed (CVE-2023-44487, CVE-2025-8671).
const MAX_RESETS: usize = 20;
const MAX_ERRORS: usize = 64;
/// How often a silent client is asked whether it is there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Serves a connection until it is closed.
pub(super) async fn serve<I, H>(io: I, shared: Arc<Shared<H>>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let tasks = Tasks::default();
    let activity = Arc::new(Activity::starting());
    let unread = Arc::new(Unread::default());
    let limits = shared.limits.clone();
    let mut drain = shared.drain.clone();
    let service = {
        let (activity, unread) = (Arc::clone(&activity), Arc::clone(&unread));
        service_fn(move |request| {
            let (shared, under_way) = (Arc::clone(&shared), activity.begin());
            let unread = Arc::clone(&unread);
            async move {
                let response = answer(&shared, request).await;
                drop(under_way);
                Ok::<_, Infallible>(response.map(|body| unread.watch(body)))
            }
        })
    };
    let hyper = builder(&limits, tasks.clone());
    let mut connection = pin!(hyper.serve_connection(TokioIo::new(io), service));
    // From when on it is told to end, and cut off where it does not.
    let mut ending = Ending::NotYet;
    loop {
        tokio::select! {
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended early");
                }
                break;
            }
            () = drain.left(DrainPhase::Serving), if ending == Ending::NotYet => {
                // Whoever drains has a deadline of his own.
                ending = Ending::Draining;
                connection.as_mut().graceful_shutdown();
            }
            () = activity.idle(&limits), if ending == Ending::NotYet => {
                ending = Ending::Idle { cut_off: Instant::now() + limits.write_timeout };
                connection.as_mut().graceful_shutdown();
            }
            () = ending.over() => break,
            // Whoever asks for more and leaves one response unread is not idle, and keeps it.
            () = stalled(&unread, limits.write_timeout) => break,
        }
    }
    tasks.end();
}

/// Ends once a response has been waiting for its client for as long as one may.
async fn stalled(unread: &Unread, patience: Duration) {
    loop {
        let now = Instant::now();
        match unread.oldest().unwrap_or(now) + patience {
            at if at <= now => return,
            at => sleep_until(at).await,
        }
    }
}

/// Whether a connection is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotYet,
    Draining,
    Idle { cut_off: Instant },
}

impl Ending {
    async fn over(self) {
        match self {
            Self::Idle { cut_off } => sleep_until(cut_off).await,
            Self::NotYet | Self::Draining => pending().await,
        }
    }
}

fn builder(limits: &Limits, tasks: Tasks) -> http2::Builder<Tasks> {
    let mut hyper = http2::Builder::new(tasks);
    hyper
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_ERRORS)
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    hyper
}

/// Runs a connection's tasks, which end with it.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().abort_all();
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        let mut tasks = self.lock();
        // Those that have ended are nobody's concern any more.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(future);
    }
}

/// Whether requests are under way, and since when none is.
#[derive(Debug)]
struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    under_way: usize,
    requests: u64,
    quiet_since: Instant,
}

/// A request that is under way until this is dropped.
struct UnderWay(Arc<Activity>);

impl Activity {
    fn starting() -> Self {
        Self(Mutex::new(State { under_way: 0, requests: 0, quiet_since: Instant::now() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> UnderWay {
        let mut state = self.state();
        state.under_way += 1;
        state.requests += 1;
        UnderWay(Arc::clone(self))
    }

    /// When it is to be closed for want of requests, as far as is known now.
    fn closes_at(&self, limits: &Limits) -> Option<Instant> {
        let state = self.state();
        let patience = if state.requests == 0 { limits.head_timeout } else { limits.idle_timeout };
        (state.under_way == 0).then(|| state.quiet_since + patience)
    }

    /// Ends once no request has been under way for as long as a connection may stay silent.
    async fn idle(&self, limits: &Limits) {
        loop {
            let now = Instant::now();
            match self.closes_at(limits) {
                Some(at) if at <= now => return,
                Some(at) => sleep_until(at).await,
                None => sleep_until(now + limits.idle_timeout).await,
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.under_way -= 1;
        state.quiet_since = Instant::now();
    }
}
