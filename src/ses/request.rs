//! Requests to AWS and their answers, for every service.
//!
//! A request's body records how far it got; an answer's body has a bounded length. Knows nothing of
//! signatures, credentials or operations.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use reqwest::{Response, Url};
use tokio::sync::oneshot;

use pillarbox_domain::attempt::RequestBody;
use pillarbox_runtime::error_chain::error_chain;

/// The longest answer that is read; SES's own are under a few KiB.
pub(super) const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The longest body that a connection without anything unsent takes at once: Linux gives a socket
/// room for as much from the start (`net.ipv4.tcp_wmem`).
const TAKEN_AT_ONCE: usize = 16 * 1024;
/// Bytes of a large request that are in memory at one time.
pub(super) const PART_BYTES: usize = 64 * 1024;
/// The content type of SES's requests.
pub(super) const JSON: (&str, &str) = ("content-type", "application/json");

/// One call, before it is signed.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The service's name in the signature, such as `ses`.
    pub(super) service: &'static str,
    pub(super) method: Method,
    pub(super) url: &'a Url,
    pub(super) headers: &'a [(&'static str, &'static str)],
    pub(super) body: RequestBody,
}

/// Options of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallOptions<'a> {
    /// The region in the signature.
    pub(super) region: &'a str,
    /// The longest that it may take, if it is not the client's own limit.
    pub(super) timeout: Option<Duration>,
    /// The longest answer that is read.
    pub(super) max_answer_bytes: usize,
}

/// An answer whose status and headers arrived.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The body, or why it cannot be had: it broke off, came too late or is too long.
    pub(super) body: Result<Bytes, String>,
}

/// A body that records when its last byte is handed over for writing, all before it being written.
///
/// An error's kind does not prove that a request was not written: a time limit may end in the
/// middle of a TLS handshake or a second after the last byte. The last byte does, because a request
/// without all of its announced body is acted on by no server. hyper asks for more of a body as
/// long as its buffer has room, so a long one holds its last byte back until hyper has dropped the
/// bytes before. (A TLS connection may then still hold some of it, 64 KiB at most.)
pub(super) struct WatchedBody {
    body: RequestBody,
    /// Bytes that were handed over.
    handed: usize,
    /// Ends when all bytes that were handed over are dropped; `None` if there were none.
    last_gone: Option<oneshot::Receiver<Infallible>>,
    written: Arc<AtomicBool>,
}

/// A part of a request could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the message cannot be read")]
pub(super) struct Unreadable;

/// Bytes whose owner is notified when they are dropped.
struct Held {
    bytes: Bytes,
    _gone: oneshot::Sender<Infallible>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl WatchedBody {
    pub(super) fn new(body: RequestBody, written: Arc<AtomicBool>) -> Self {
        Self { body, handed: 0, last_gone: None, written }
    }

    fn left(&self) -> usize {
        self.body.len_bytes() - self.handed
    }

    /// Bytes that are handed over next.
    fn next_len(&self) -> usize {
        match (&self.body, self.left()) {
            (_, left) if self.handed == 0 && left <= TAKEN_AT_ONCE => left,
            (_, 1) => 1,
            (RequestBody::Whole(_), left) => left - 1,
            (RequestBody::Parts(_), left) => PART_BYTES.min(left - 1),
        }
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = Unreadable;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unreadable>>> {
        if self.left() == 0 {
            return Poll::Ready(None);
        }
        let (from, len) = (self.handed, self.next_len());
        let is_last = len == self.left();
        // The parts are written in order, so the earlier bytes are dropped with the part before.
        if let Some(gone) = &mut self.last_gone
            && is_last
        {
            // An error is all that can come: nothing is ever sent.
            let _ = ready!(Pin::new(gone).poll(context));
        }
        let Some(part) = self.body.part(from, len) else {
            return Poll::Ready(Some(Err(Unreadable)));
        };
        self.handed += len;
        if is_last {
            self.written.store(true, Ordering::Release);
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        let (gone, last_gone) = oneshot::channel();
        self.last_gone = Some(last_gone);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(Held { bytes: part, _gone: gone })))))
    }

    fn is_end_stream(&self) -> bool {
        self.left() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(u64::try_from(self.left()).expect("a length fits in 64 bits"))
    }
}

/// Reads a body of at most `max_bytes`.
pub(super) async fn read_bounded(
    mut response: Response,
    max_bytes: usize,
) -> Result<Bytes, String> {
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > max_bytes => {
                return Err(format!("the answer is longer than {max_bytes} bytes"));
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body.freeze()),
            Err(error) => return Err(error_chain(&error.without_url())),
        }
    }
}
