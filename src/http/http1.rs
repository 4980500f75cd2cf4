//! One connection that speaks HTTP/1.1, from its first byte to its close.
//!
//! hyper reads requests and writes responses behind the framing guard; what hyper cannot answer
//! is answered here. Knows nothing of TCP, of routes or of what a handler does.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::SystemTime;

use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use crate::body::ResponseBody;
use crate::connections::{Activity, ClientConnection};
use crate::drain::DrainPhase;
use crate::erased::AnyStream;
use crate::framing::{End, FramingGuard, Progress};
use crate::head::MAX_HEADER_FIELDS;
use crate::limits::{Limits, Linger};
use crate::rejection::Rejection;
use crate::{Connection, LINGER_FOR_ROOM, Shared};

/// hyper's read buffer grows up to this, in bytes, while a client sends fast.
const MAX_READ_BUFFER_BYTES: usize = 64 * 1024;
/// Bytes that are read at once while the rest of a request is thrown away.
const DISCARD_BYTES: usize = 16 * 1024;

/// Returns hyper's part, which all connections of a listener share.
pub(super) fn builder(limits: &Limits) -> http1::Builder {
    let mut hyper = http1::Builder::new();
    hyper
        .timer(TokioTimer::new())
        // The guard keeps the heads' time; hyper's own timeout closes without an answer, and
        // costs a timer per request.
        .header_read_timeout(None)
        // A client may end its side after its last request and still gets its responses. It
        // also lets hyper finish the responses before a refused request.
        .half_close(true)
        .max_headers(MAX_HEADER_FIELDS)
        // Heads are limited by the guard; a whole one must fit.
        .max_buf_size(MAX_READ_BUFFER_BYTES.max(2 * limits.max_head_bytes));
    hyper
}

/// Serves a connection until it is closed.
pub(super) async fn serve(
    io: AnyStream,
    shared: &Shared,
    client: Option<Arc<ClientConnection>>,
    peer: Option<IpAddr>,
) {
    serve_with(io, shared, client, peer, None).await;
}

/// Serves a connection over TLS until it is closed. `written` counts the bytes below TLS.
pub(super) async fn serve_counted(
    io: AnyStream,
    shared: &Shared,
    client: Option<Arc<ClientConnection>>,
    written: Arc<AtomicU64>,
) {
    serve_with(io, shared, client, None, Some(written)).await;
}

async fn serve_with(
    io: AnyStream,
    shared: &Shared,
    client: Option<Arc<ClientConnection>>,
    peer: Option<IpAddr>,
    written: Option<Arc<AtomicU64>>,
) {
    let progress = Arc::new(Progress::new(client.clone(), written));
    let responses = Responses::default();
    let guard = FramingGuard::new(io, &shared.limits, Arc::clone(&progress));
    let seen = Connection::of(client.clone(), peer);
    let service = service_fn(|request| respond(shared, &progress, &responses, &seen, request));
    let mut connection = shared.http1.serve_connection(TokioIo::new(guard), service);
    let mut stopped = pin!(shared.drain.clone().stopped());
    let mut stop = Stop::NotYet;
    let served = poll_fn(|cx| {
        if let Poll::Ready(served) = Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(served);
        }
        if stop == Stop::NotYet && stopped.as_mut().poll(cx).is_ready() {
            stop = if responses.is_any_due() { Stop::WhileBusy } else { Stop::WhileIdle };
            Pin::new(&mut connection).graceful_shutdown();
            return Pin::new(&mut connection).poll(cx);
        }
        Poll::Pending
    })
    .await;
    let guard = connection.into_parts().io.into_inner();
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
    let linger = shared.limits.linger;
    let Some(client) = client else { return close(guard, stop, shared, linger).await };
    if client.is_told() {
        return close(guard, stop, shared, LINGER_FOR_ROOM).await;
    }
    client.enter(Activity::Ending);
    tokio::select! {
        () = close(guard, stop, shared, linger) => {}
        () = client.told() => {}
    }
}

/// Stop of the connection by the drain, and what the connection was doing then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    NotYet,
    WhileIdle,
    WhileBusy,
}

/// Closes a connection after hyper: answers what hyper could not, and lets the client read it.
async fn close(guard: FramingGuard<AnyStream>, stop: Stop, shared: &Shared, linger: Linger) {
    let answer = match guard.end() {
        Some(End::Refused(rejection)) => Some(rejection.clone()),
        Some(End::ByClient | End::Idle) => None,
        // The client has begun a request that will not be served here.
        None => (stop != Stop::NotYet && guard.is_in_head()).then_some(Rejection::ShuttingDown),
    };
    let is_over = match guard.end() {
        Some(End::ByClient | End::Idle) => true,
        Some(End::Refused(_)) => false,
        None => stop == Stop::WhileIdle && answer.is_none(),
    };
    if is_over || !guard.is_writable() {
        // The client does not wait for an answer, or does not read it.
        return;
    }
    let raw = answer.map(|rejection| {
        let id = shared.refused(&rejection);
        shared.handler.write(&rejection).to_raw(id, SystemTime::now())
    });
    let io = guard.into_inner();
    finish(io, raw.as_deref().unwrap_or_default(), &shared.limits, linger).await;
}

/// Writes a connection's last bytes and closes it in such a way that the client can read them.
pub(super) async fn finish(mut io: AnyStream, last: &[u8], limits: &Limits, linger: Linger) {
    let write = async {
        io.write_all(last).await?;
        io.shutdown().await
    };
    // A client that has disconnected, or does not read, gets no more of our time.
    if let Ok(Ok(())) = timeout(limits.write_timeout, write).await {
        // However it ends, the connection is closed next.
        let _ = timeout_at(Instant::now() + linger.timeout, discard(&mut io, linger)).await;
    }
}

/// Throws away what the client still sends: closing a socket with unread bytes resets the
/// connection, and a reset can destroy the answer before the client has read it.
async fn discard(io: &mut AnyStream, linger: Linger) -> io::Result<()> {
    let mut buffer = vec![0; DISCARD_BYTES];
    let mut left = linger.max_bytes;
    while left > 0 {
        let count = timeout(linger.idle_timeout, io.read(&mut buffer)).await??;
        if count == 0 {
            break;
        }
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}

/// Counts a connection's requests and responses.
#[derive(Debug, Default)]
struct Responses {
    requests: AtomicU64,
    given: AtomicU64,
}

impl Responses {
    /// The number of the request that begins now: 1 for the first.
    fn begin(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn give(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    fn is_any_due(&self) -> bool {
        self.requests.load(Ordering::Relaxed) != self.given.load(Ordering::Relaxed)
    }
}

/// Has a request handled, and sees to what every response needs.
async fn respond(
    shared: &Shared,
    progress: &Progress,
    responses: &Responses,
    connection: &Connection,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let number = responses.begin();
    let client = progress.client().map(|client| (client, client.begin_request()));
    let is_chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let mut response = shared.answer(request, connection).await;
    responses.give();
    if let Some((client, begun)) = client {
        client.answered(begun);
    }
    // After a body that was not read to its end, or whose end only hyper knows, no further request
    // is read.
    let is_last = is_chunked
        || progress.is_body_left(number)
        || connection.is_ending()
        || shared.drain.phase() > DrainPhase::Serving;
    if is_last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

#[cfg(test)]
mod tests;
