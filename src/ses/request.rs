//! Requests to AWS and their answers, whatever service is called.
//!
//! A request's body tells how far it got; an answer's body has a bounded length. Knows nothing of
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

use crate::error_chain::error_chain;

/// The longest answer that is read; SES's own are under a few KiB.
pub(super) const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The longest body that a connection without anything unsent takes at once: Linux gives a socket
/// room for as much from the start (`net.ipv4.tcp_wmem`).
const TAKEN_AT_ONCE: usize = 16 * 1024;
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
    pub(super) body: Bytes,
}

/// Options of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallOptions<'a> {
    /// The region in the signature.
    pub(super) region: &'a str,
    /// The longest that it may take, where it is not the client's own limit.
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

/// A body that tells when its last byte is handed over for writing, all before it being written.
///
/// An error's kind does not prove that a request was not written: a time limit may end in the
/// middle of a TLS handshake or a second after the last byte. The last byte does, because a request
/// without all of its announced body is acted on by no server. hyper asks for more of a body as
/// long as its buffer has room, so a long one holds its last byte back until hyper has let go of
/// what came before. (A TLS connection may then still hold some of it, 64 KiB at most.)
pub(super) struct WatchedBody {
    first: Option<Bytes>,
    /// Ends when nobody holds the first part any more; `None` if there is none.
    first_gone: Option<oneshot::Receiver<Infallible>>,
    last: Bytes,
    written: Arc<AtomicBool>,
}

/// Bytes whose owner is told when they are let go of.
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
    pub(super) fn new(mut bytes: Bytes, written: Arc<AtomicBool>) -> Self {
        if bytes.len() <= TAKEN_AT_ONCE {
            return Self { first: None, first_gone: None, last: bytes, written };
        }
        let (gone, first_gone) = oneshot::channel();
        let last = bytes.split_off(bytes.len() - 1);
        let first = Some(Bytes::from_owner(Held { bytes, _gone: gone }));
        Self { first, first_gone: Some(first_gone), last, written }
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.last.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(first_gone) = &mut self.first_gone {
            // An error is all that can come: nothing is ever sent.
            let _ = ready!(Pin::new(first_gone).poll(context));
        }
        self.written.store(true, Ordering::Release);
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.last)))))
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.first.as_ref().map_or(0, Bytes::len) + self.last.len();
        SizeHint::with_exact(u64::try_from(left).expect("a length fits in 64 bits"))
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
