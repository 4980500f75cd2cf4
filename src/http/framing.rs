//! The framing guard between a client's socket and hyper.
//!
//! It passes whole request heads that were checked, then exactly the bytes of their bodies, and
//! keeps the time of heads, idle connections and unread responses. hyper therefore never sees a
//! malformed head, half a head, or a request whose end is in doubt. To hyper, a refusal looks as
//! if the client had ended its side: hyper finishes the responses before it, and the connection's
//! owner then takes the guard back and sends the error itself.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::connections::{Activity, ClientConnection};
use crate::head::{self, Framing, HeadLimits};
use crate::limits::Limits;
use crate::rejection::Rejection;

/// The most CR and LF bytes before a request line. RFC 9112 section 2.2 asks to ignore at least
/// one empty line.
const MAX_LEADING_NEWLINES: usize = 8;

/// Place of the guard in the byte stream, as far as the connection's service has to know it.
///
/// Both run in one task, so the order of memory accesses is never in doubt.
#[derive(Debug, Default)]
pub(super) struct Progress {
    heads: AtomicU64,
    body_left: AtomicU64,
    /// The connection's place among the client connections, if it is one.
    client: Option<Arc<ClientConnection>>,
    /// Bytes that went to the socket below TLS, if that is more exact than the writes are.
    written: Option<Arc<AtomicU64>>,
}

impl Progress {
    pub(super) fn new(
        client: Option<Arc<ClientConnection>>,
        written: Option<Arc<AtomicU64>>,
    ) -> Self {
        Self { client, written, ..Self::default() }
    }

    /// The connection's place among the client connections, if it is one.
    pub(super) fn client(&self) -> Option<&ClientConnection> {
        self.client.as_deref()
    }

    fn written(&self) -> u64 {
        self.written.as_ref().map_or(0, |written| written.load(Ordering::Relaxed))
    }

    /// Returns true if the body of the connection's request number `request` (1 for the first) is
    /// still to come, at least in part.
    pub(super) fn is_body_left(&self, request: u64) -> bool {
        // Later heads pass only once this request's body has.
        self.heads.load(Ordering::Relaxed) == request && self.body_left.load(Ordering::Relaxed) > 0
    }
}

/// Place of the guard in the client's byte stream.
#[derive(Debug)]
enum Place {
    /// Before or within a request head.
    Head,
    /// Within a body of which so many bytes are left.
    Body(u64),
    /// Within a body in chunks or behind it. There is no second parser for chunks here: all bytes
    /// pass from here on, and the connection ends with this request's response, so that nothing
    /// after the body is ever taken for a request.
    Chunks,
    /// No further request follows.
    Ended(End),
}

/// Reason why no further request follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The client ended its side.
    ByClient,
    /// No byte came for too long; no response is possible.
    Idle,
    /// A request was refused and is still to be answered.
    Refused(Rejection),
}

/// The guard over a client's socket.
#[derive(Debug)]
pub(super) struct FramingGuard<I> {
    io: I,
    place: Place,
    progress: Arc<Progress>,
    /// Bytes read and not passed: `cleared` bytes that may pass, then part of a head.
    held: Vec<u8>,
    cleared: usize,
    /// The length of a held part at which it is checked though it seems incomplete.
    next_check: usize,
    leading_newlines: usize,
    is_end_told: bool,
    read_deadline: Deadline,
    write_deadline: Deadline,
    /// Bytes that had gone to the socket at the beginning of the write's deadline.
    written_then: u64,
    write_side: WriteSide,
    head_limits: HeadLimits,
    head_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
}

/// State of the side that is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteSide {
    Open,
    Failed,
}

impl<I> FramingGuard<I> {
    pub(super) fn new(io: I, limits: &Limits, progress: Arc<Progress>) -> Self {
        Self {
            io,
            place: Place::Head,
            progress,
            held: Vec::new(),
            cleared: 0,
            next_check: 0,
            leading_newlines: 0,
            is_end_told: false,
            read_deadline: Deadline::default(),
            write_deadline: Deadline::default(),
            written_then: 0,
            write_side: WriteSide::Open,
            head_limits: HeadLimits {
                max_head_bytes: limits.max_head_bytes,
                max_body_bytes: limits.max_request_bytes,
            },
            head_timeout: limits.head_timeout,
            idle_timeout: limits.idle_timeout,
            write_timeout: limits.write_timeout,
        }
    }

    /// Reason why no further request follows, once hyper has seen the end of the stream. Before
    /// that, a refusal does not count: hyper may have closed the connection with an earlier
    /// response.
    pub(super) fn end(&self) -> Option<&End> {
        match &self.place {
            Place::Ended(end) if self.is_end_told => Some(end),
            Place::Ended(_) | Place::Head | Place::Body(_) | Place::Chunks => None,
        }
    }

    /// Returns true if part of a head has come.
    pub(super) fn is_in_head(&self) -> bool {
        matches!(self.place, Place::Head) && !self.held.is_empty()
    }

    /// Returns true if the client takes what is written to it.
    pub(super) fn is_writable(&self) -> bool {
        self.write_side == WriteSide::Open
    }

    /// The socket, for the connection's owner once hyper is done.
    pub(super) fn into_inner(self) -> I {
        self.io
    }

    /// Returns how many of `bytes`, which follow those already passed, may pass. The rest is part of
    /// a head, or of no use after the end.
    fn admit(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        while passed < bytes.len() {
            let rest = &bytes[passed..];
            match self.place {
                Place::Head => {
                    let newlines = leading_newlines(rest);
                    if newlines > 0 {
                        passed += self.admit_newlines(newlines);
                    } else if let Some(head) = self.admit_head(rest) {
                        passed += head;
                    } else {
                        break;
                    }
                }
                Place::Body(left) => {
                    let part = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    passed += part;
                    self.expect_body(left - part as u64);
                }
                Place::Chunks => passed = bytes.len(),
                Place::Ended(_) => break,
            }
        }
        passed
    }

    fn admit_newlines(&mut self, count: usize) -> usize {
        self.leading_newlines += count;
        if self.leading_newlines > MAX_LEADING_NEWLINES {
            let reason = "too many empty lines come before the request line";
            self.place = Place::Ended(End::Refused(Rejection::BadRequest { reason }));
            return 0;
        }
        count
    }

    /// The length of the head at the start of `bytes`, if it is complete and may pass.
    fn admit_head(&mut self, bytes: &[u8]) -> Option<usize> {
        match head::check(bytes, self.head_limits) {
            Ok(Some(head)) => {
                self.leading_newlines = 0;
                self.read_deadline.clear();
                self.progress.heads.fetch_add(1, Ordering::Relaxed);
                match head.framing {
                    Framing::Length(length) => self.expect_body(length),
                    Framing::Chunked => self.place = Place::Chunks,
                }
                Some(head.len)
            }
            Ok(None) => None,
            Err(error) => {
                self.place = Place::Ended(End::Refused(error));
                None
            }
        }
    }

    fn expect_body(&mut self, left: u64) {
        self.progress.body_left.store(left, Ordering::Relaxed);
        self.place = if left == 0 { Place::Head } else { Place::Body(left) };
    }

    /// Takes the bytes just read to the end of `buf`, and leaves those there that may pass.
    fn take_in(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        if self.held.is_empty() {
            // The common case: whole requests, which stay in the buffer.
            let passed = self.admit(&buf.filled()[before..]);
            self.hold(&buf.filled()[before + passed..]);
            buf.set_filled(before + passed);
        } else {
            let old_len = self.held.len();
            self.held.extend_from_slice(&buf.filled()[before..]);
            buf.set_filled(before);
            if self.is_check_due(old_len) {
                let held = mem::take(&mut self.held);
                self.cleared = self.admit(&held);
                self.held = held;
                self.note_partial_head(self.held.len() - self.cleared);
            }
        }
    }

    fn hold(&mut self, part: &[u8]) {
        if !part.is_empty() && matches!(self.place, Place::Head) {
            self.held.extend_from_slice(part);
            self.note_partial_head(part.len());
            self.read_deadline.clear();
            if let Some(client) = self.progress.client() {
                client.enter(Activity::Incomplete);
            }
        }
    }

    fn note_partial_head(&mut self, len: usize) {
        self.next_check = 2 * len;
    }

    /// Returns true if the held part may be a whole head by now. One that comes byte by byte must
    /// not be parsed with every byte.
    fn is_check_due(&self, old_len: usize) -> bool {
        let len = self.held.len();
        len >= self.next_check
            || len > self.head_limits.max_head_bytes
            || has_empty_line(&self.held[old_len.saturating_sub(3)..])
    }

    /// Passes bytes that were held and are cleared by now.
    fn pass_held(&mut self, buf: &mut ReadBuf<'_>) {
        let count = self.cleared.min(buf.remaining());
        buf.put_slice(&self.held[..count]);
        self.held.drain(..count);
        self.cleared -= count;
        if self.held.is_empty() {
            // Slow heads are rare; what they needed is given back.
            self.held = Vec::new();
        }
    }

    /// The socket has nothing to read for now: whether the client has taken too long.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !matches!(self.place, Place::Head) {
            // The reader of the body keeps its time.
            return Poll::Pending;
        }
        let is_first = self.progress.heads.load(Ordering::Relaxed) == 0;
        let in_head = self.is_in_head();
        let timeout = if is_first || in_head { self.head_timeout } else { self.idle_timeout };
        let is_told = self.progress.client().is_some_and(|client| client.poll_told(cx).is_ready());
        if !is_told {
            ready!(self.read_deadline.poll(cx, timeout));
        }
        let end = if in_head { End::Refused(Rejection::RequestTimeout) } else { End::Idle };
        self.place = Place::Ended(end);
        Poll::Ready(())
    }

    fn end_by_client(&mut self) {
        let end = if self.is_in_head() {
            let reason = "the request ended before its head was complete";
            End::Refused(Rejection::BadRequest { reason })
        } else {
            End::ByClient
        };
        self.place = Place::Ended(end);
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for FramingGuard<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        loop {
            if this.cleared > 0 {
                this.pass_held(buf);
                return Poll::Ready(Ok(()));
            }
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if matches!(this.place, Place::Ended(_)) {
                this.is_end_told = true;
                return Poll::Ready(Ok(()));
            }
            match Pin::new(&mut this.io).poll_read(cx, buf) {
                Poll::Ready(Ok(())) if buf.filled().len() == before => this.end_by_client(),
                Poll::Ready(Ok(())) => {
                    this.take_in(buf, before);
                    // Zero bytes would mean the end of the stream.
                    if buf.filled().len() > before {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(error)) => {
                    this.place = Place::Ended(End::ByClient);
                    this.is_end_told = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => ready!(this.poll_silence(cx)),
            }
        }
    }
}

impl<I: AsyncWrite + Unpin> FramingGuard<I> {
    /// Keeps the time of a write: it may wait, but not for ever.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match write {
            Poll::Pending => {
                let written = self.progress.written();
                if written != self.written_then {
                    self.written_then = written;
                    self.write_deadline.clear();
                }
                ready!(self.write_deadline.poll(cx, self.write_timeout));
                self.write_side = WriteSide::Failed;
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Ready(Err(error)) => {
                self.write_side = WriteSide::Failed;
                Poll::Ready(Err(error))
            }
            Poll::Ready(Ok(done)) => {
                self.write_deadline.clear();
                Poll::Ready(Ok(done))
            }
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for FramingGuard<I> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.watch(cx, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.watch(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flush = Pin::new(&mut this.io).poll_flush(cx);
        this.watch(cx, flush)
    }

    /// Flushes and leaves the socket open: its owner may have an answer of its own to write.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

/// Deadline over one timer, cheap to set and to clear with every request.
///
/// The timer is made when it is first needed, and moved only when it must ring earlier, or rang
/// for a deadline that has moved on since: requests that come faster than the timeout cost no
/// timer operation at all.
#[derive(Debug, Default)]
struct Deadline {
    at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Forgets the deadline; the next poll starts it anew.
    fn clear(&mut self) {
        self.at = None;
    }

    /// Starts the deadline `timeout` from now unless it runs already; ready once it has passed.
    fn poll(&mut self, cx: &mut Context<'_>, timeout: Duration) -> Poll<()> {
        let at = *self.at.get_or_insert_with(|| Instant::now() + timeout);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
        Poll::Pending
    }
}

/// The bytes of whole line ends at the start of `bytes`.
fn leading_newlines(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some(after) = rest.strip_prefix(b"\n").or_else(|| rest.strip_prefix(b"\r\n")) {
        rest = after;
    }
    bytes.len() - rest.len()
}

fn has_empty_line(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

#[cfg(test)]
mod tests;
