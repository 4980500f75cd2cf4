//! One connection that speaks HTTP/2, from its preface to its close.
//!
//! hyper keeps the protocol; this keeps it within limits: streams, resets, headers, memory and
//! time. Every task of a connection ends with it.
//!
//! A stream's window belongs to its client: if the client never opens it, its response is kept, and
//! a client that goes on with other requests meanwhile is never idle. So each response is watched.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::body::ResponseBody;
use crate::connections::ClientConnection;
use crate::drain::DrainPhase;
use crate::erased::AnyStream;
use crate::head;
use crate::limits::Limits;
use crate::{Connection, Shared, told};

/// Requests of one connection at one time (RFC 9113 section 6.5.2 asks for 100 or more only of
/// those who want them to be processed together).
const MAX_STREAMS: u32 = 64;
/// Bytes of bodies that a client may send before they are read: on each stream, and on all.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 128 * 1024;
/// Bytes of a response that wait for the client, on each stream.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Heads up to this many times the limit are read, so that they get an answer of ours. Larger ones,
/// which no client sends that goes by the settings, get a bare 431 of the protocol's own.
const HEAD_ROOM: usize = 4;
/// Streams that the client resets before they are handled, and errors of its own making, until the
/// connection is closed (CVE-2023-44487, CVE-2025-8671).
const MAX_RESETS: usize = 20;
const MAX_ERRORS: usize = 64;
/// Bytes of a response that are handed to hyper at once. Bytes that hyper has cannot be observed
/// any more, and a window of a single byte has all of it kept.
const PIECE_BYTES: usize = 16 * 1024;
/// Time until a silent client is asked whether it is there, and time for its answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for requests that are on their way while an idle connection makes room.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// Serves a connection until it is closed.
pub(super) async fn serve(
    io: AnyStream,
    shared: Arc<Shared>,
    client: Option<Arc<ClientConnection>>,
) {
    let tasks = Tasks::default();
    let activity = Arc::new(Streams::starting(client.clone()));
    let unread = Arc::new(Unread::default());
    let limits = shared.limits.clone();
    let mut drain = shared.drain.clone();
    let seen = Connection::of(client.clone(), None);
    let service = {
        let (activity, unread) = (Arc::clone(&activity), Arc::clone(&unread));
        let seen = seen.clone();
        service_fn(move |request| {
            let (shared, under_way) = (Arc::clone(&shared), activity.begin());
            let (unread, seen) = (Arc::clone(&unread), seen.clone());
            async move {
                let (target, fields) = (request.uri(), request.headers());
                let checked = head::check_sizes(target, fields, shared.limits.max_head_bytes);
                let response = match checked {
                    Ok(()) => shared.answer(request, &seen).await,
                    Err(rejection) => shared.refuse(&rejection),
                };
                // The request is under way until its response is read.
                Ok::<_, Infallible>(response.map(|body| unread.watch(body, under_way)))
            }
        })
    };
    let hyper = builder(&limits, tasks.clone());
    let mut connection = pin!(hyper.serve_connection(TokioIo::new(io), service));
    // Set once it is asked to end; it is cut off if it does not.
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
                // The owner of the drain has a deadline of its own.
                ending = Ending::Busy;
                connection.as_mut().graceful_shutdown();
            }
            () = seen.ending(), if ending == Ending::NotYet => {
                ending = Ending::Busy;
                connection.as_mut().graceful_shutdown();
            }
            () = told(client.as_deref()), if ending == Ending::NotYet => {
                ending = Ending::Idle { cut_off: Instant::now() + LAST_REQUESTS };
                connection.as_mut().graceful_shutdown();
            }
            () = activity.idle(&limits), if ending == Ending::NotYet => {
                ending = Ending::Idle { cut_off: Instant::now() + limits.write_timeout };
                connection.as_mut().graceful_shutdown();
            }
            () = ending.over() => break,
            // A client that asks for more and leaves one response unread is not idle, and keeps the
            // connection.
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

/// End of a connection that is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotYet,
    /// Requests that have begun are finished first.
    Busy,
    Idle {
        cut_off: Instant,
    },
}

impl Ending {
    async fn over(self) {
        match self {
            Self::Idle { cut_off } => sleep_until(cut_off).await,
            Self::NotYet | Self::Busy => pending().await,
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
        .max_header_list_size(u32::try_from(HEAD_ROOM * limits.max_head_bytes).unwrap_or(u32::MAX))
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
        // Streams that have ended do not count any more.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(future);
    }
}

/// Requests under way, and since when there are none.
#[derive(Debug)]
struct Streams {
    state: Mutex<State>,
    client: Option<Arc<ClientConnection>>,
}

#[derive(Debug)]
struct State {
    under_way: usize,
    requests: u64,
    quiet_since: Instant,
    /// Numbers that the connection's place among the client connections needs at the end.
    begun: u32,
}

/// A request that is under way until this is dropped.
#[derive(Debug)]
struct UnderWay(Arc<Streams>);

impl Streams {
    fn starting(client: Option<Arc<ClientConnection>>) -> Self {
        let state = State { under_way: 0, requests: 0, quiet_since: Instant::now(), begun: 0 };
        Self { state: Mutex::new(state), client }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> UnderWay {
        let mut state = self.state();
        state.under_way += 1;
        state.requests += 1;
        if let Some(client) = &self.client {
            let begun = client.begin_request();
            if state.under_way == 1 {
                state.begun = begun;
            }
        }
        UnderWay(Arc::clone(self))
    }

    /// Returns when it is to be closed for want of requests, as far as is known now.
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
        if let Some(client) = self.0.client.as_ref().filter(|_| state.under_way == 0) {
            client.answered(state.begun);
        }
    }
}

/// The responses of one connection.
#[derive(Debug, Default)]
struct Unread(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// Since when each that waits for its client has done so.
    since: HashMap<u64, Instant>,
}

impl Unread {
    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a response's body from now on.
    fn watch(self: &Arc<Self>, body: ResponseBody, under_way: UnderWay) -> Watched {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        state.since.insert(number, Instant::now());
        drop(state);
        Watched {
            body,
            rest: Bytes::new(),
            number,
            unread: Arc::clone(self),
            _under_way: under_way,
        }
    }

    /// Since when the one that has waited for the longest has done so.
    fn oldest(&self) -> Option<Instant> {
        self.state().since.values().min().copied()
    }
}

/// A response's body, watched until it is dropped.
struct Watched {
    body: ResponseBody,
    /// The rest of the piece that came last.
    rest: Bytes,
    number: u64,
    unread: Arc<Unread>,
    _under_way: UnderWay,
}

impl Watched {
    fn hand_over(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        // The next piece is asked for once the client has room for it.
        self.unread.state().since.insert(self.number, Instant::now());
        Frame::data(piece)
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Poll::Pending => {
                    // It is we who have nothing to say.
                    self.unread.state().since.remove(&self.number);
                    return Poll::Pending;
                }
                ended @ Poll::Ready(None | Some(Err(_))) => return ended,
            }
        }
        Poll::Ready(Some(Ok(self.hand_over())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.unread.state().since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_comes_in_pieces_and_is_waiting_until_the_next_is_asked_for() {
        let unread = Arc::new(Unread::default());
        let whole: Vec<u8> = (0..=u8::MAX).cycle().take(2 * PIECE_BYTES + 1).collect();
        let start = Instant::now();
        let streams = Arc::new(Streams::starting(None));
        let mut body = unread.watch(Full::new(Bytes::from(whole.clone())).into(), streams.begin());
        assert_eq!(streams.closes_at(&Limits::default()), None);
        assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
        assert_eq!(unread.oldest(), Some(start));
        let mut got = Vec::new();
        for second in 1..=3 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!body.is_end_stream());
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE_BYTES);
            got.extend_from_slice(&piece);
            assert_eq!(unread.oldest(), Some(start + Duration::from_secs(second)));
            assert_eq!(body.size_hint().exact(), Some((whole.len() - got.len()) as u64));
        }
        assert!(body.is_end_stream() && body.frame().await.is_none());
        assert!(got == whole);
        drop(body);
        assert_eq!(unread.oldest(), None);
        assert!(streams.closes_at(&Limits::default()).is_some(), "it is idle from now on");
    }
}
