//! Bodies of requests and responses, within limits of size, time and memory.
//!
//! The bodies of requests that are being read, and of those read and not yet dropped, come out of
//! one budget; the responses that clients have not read come out of another. Both have a share for
//! each holder, such as an organisation. Knows nothing of what a body says.

use std::convert::Infallible;
use std::error::Error;
use std::hash::Hash;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, SizeHint};
use memmap2::MmapMut;
use tokio::time::{Instant, timeout, timeout_at};

use crate::limits::{BodyPace, Limits};
use crate::rejection::{Memory, Rejection};
use pillarbox_runtime::shared_limits::{Budget, Exhausted, Reservation, Slots};

/// First room of a body, in bytes; what the budget counts grows by doubling.
const FIRST_BYTES: usize = 8 * 1024;
/// Length from which on a body lies in a memory map of its own.
const MAPPED_FROM_BYTES: usize = 1024 * 1024;
/// Most bytes of a body that hyper holds beside it. It reads ahead as far as a client
/// has sent fast before, up to its buffer's size or HTTP/2's window.
const READ_AHEAD_BYTES: usize = 64 * 1024;
/// Requests of one holder that wait for memory, besides the one that is next.
const MAX_WAITING: usize = 63;

/// Reads the request bodies of a listener. Clones share one budget.
#[derive(Debug, Clone)]
pub struct BodyReader<K: Copy + Eq + Hash> {
    budget: Budget<K>,
    /// One request of each holder waits for memory, so that none waits for another's.
    waiting: Arc<Slots<K>>,
    max_bytes: usize,
    stall_timeout: Duration,
    pace: BodyPace,
}

/// A request's body. Its memory goes back to the budget when it is dropped.
#[derive(Debug)]
pub struct RequestBody<K: Copy + Eq + Hash> {
    bytes: Bytes,
    _reserved: Reservation<K>,
}

impl<K: Copy + Eq + Hash> Deref for RequestBody<K> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<K: Copy + Eq + Hash> BodyReader<K> {
    /// A reader with these limits and a budget of its own.
    pub fn new(limits: &Limits) -> Self {
        Self {
            budget: Budget::new(limits.max_reading_bytes),
            waiting: Arc::new(Slots::new(1, MAX_WAITING)),
            max_bytes: limits.max_request_bytes,
            stall_timeout: limits.body_stall_timeout,
            pace: limits.body_pace,
        }
    }

    /// A reader of bodies up to another size, with the same budget.
    #[must_use]
    pub fn of_at_most(&self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self.clone() }
    }

    /// Changes how many bytes all bodies together may take.
    pub fn set_max(&self, max_bytes: usize) {
        self.budget.set_max(max_bytes);
    }

    /// Reads a body of a holder's request to its end.
    ///
    /// A body over the limit is refused by its announced length before a byte of it is asked for,
    /// and a chunked one as soon as it has come too far. Memory is taken as bytes come: a length
    /// that is announced and never sent keeps nothing from others.
    pub async fn read<B>(&self, holder: K, mut body: B) -> Result<RequestBody<K>, Rejection>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let most = match body.size_hint().exact() {
            Some(length) => {
                let length = usize::try_from(length).ok().filter(|&len| len <= self.max_bytes);
                length.ok_or_else(|| self.too_large())?
            }
            None => self.max_bytes,
        };
        let mut room = FIRST_BYTES.min(most);
        let mut reserved = self.reserve(holder, charge(room)).await?;
        let mut received = Received::Small(Vec::new());
        let mut pace = Pace::begin(self);
        while let Some(frame) = pace.next_frame(&mut body).await? {
            let needed = received.len() + frame.len();
            if needed > self.max_bytes {
                return Err(self.too_large());
            }
            if needed > room {
                room = (2 * room).min(most).max(needed);
                // At once or not at all: waiting while holding would let bodies wait for each
                // other.
                reserved.grow_to(charge(room)).map_err(full)?;
            }
            if received.len() == 0 && body.is_end_stream() {
                // The common case: nothing to put together, nothing to copy.
                return Ok(RequestBody { bytes: frame, _reserved: reserved });
            }
            received.append(&frame, room, most.max(room));
        }
        Ok(RequestBody { bytes: received.into(), _reserved: reserved })
    }

    /// Takes memory for `bytes` out of the budget. Waits for it to be given back, while holding
    /// nothing and behind requests of the same holder alone.
    async fn reserve(&self, holder: K, bytes: usize) -> Result<Reservation<K>, Rejection> {
        let exhausted = match self.budget.reserve(holder, bytes) {
            Ok(reserved) => return Ok(reserved),
            Err(exhausted) => exhausted,
        };
        let wait = async {
            let _next = self.waiting.take(holder).await.ok()?;
            Some(self.budget.reserve_later(holder, bytes).await)
        };
        let waited = timeout(self.stall_timeout, wait).await;
        waited.ok().flatten().ok_or_else(|| full(exhausted))
    }

    fn too_large(&self) -> Rejection {
        Rejection::PayloadTooLarge { limit: self.max_bytes }
    }
}

/// Received part of a body.
///
/// A large one lies in a memory map of its own. Pages that nothing was written to take no memory,
/// and all of it goes back to the system at once when it is dropped. The allocator would keep it
/// for a while, and a second one for each time that the body grew.
enum Received {
    Small(Vec<u8>),
    Large(Mapped),
}

/// Memory map, and how many bytes at its beginning were written.
struct Mapped {
    map: MmapMut,
    len: usize,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl Received {
    fn len(&self) -> usize {
        match self {
            Self::Small(bytes) => bytes.len(),
            Self::Large(mapped) => mapped.len,
        }
    }

    /// Adds a part of a body that has `room` for now, and has `most` bytes in the end at most.
    fn append(&mut self, part: &[u8], room: usize, most: usize) {
        if let Self::Small(bytes) = self {
            if room < MAPPED_FROM_BYTES {
                bytes.reserve_exact(room - bytes.len());
                return bytes.extend_from_slice(part);
            }
            let Ok(mut map) = MmapMut::map_anon(most) else {
                // The system has no map left. Then the allocator may have memory.
                bytes.reserve(part.len());
                return bytes.extend_from_slice(part);
            };
            map[..bytes.len()].copy_from_slice(bytes);
            *self = Self::Large(Mapped { map, len: bytes.len() });
        }
        if let Self::Large(Mapped { map, len }) = self {
            map[*len..][..part.len()].copy_from_slice(part);
            *len += part.len();
        }
    }
}

impl From<Received> for Bytes {
    fn from(received: Received) -> Self {
        match received {
            Received::Small(bytes) => bytes.into(),
            Received::Large(mapped) => Self::from_owner(mapped),
        }
    }
}

/// Bytes of the budget that a body with so much room takes.
fn charge(room: usize) -> usize {
    room + room.min(READ_AHEAD_BYTES)
}

fn full(exhausted: Exhausted) -> Rejection {
    Rejection::MemoryFull { memory: Memory::Requests, exhausted }
}

/// Pace of a body, which must not be too slow.
///
/// Every stretch of time has to bring its bytes, so the number of stretches, and with it the time
/// that a body may take, is bounded by its size.
struct Pace {
    stall_timeout: Duration,
    stretch: Duration,
    min_stretch_bytes: usize,
    last_frame: Instant,
    stretch_end: Instant,
    stretch_bytes: usize,
}

impl Pace {
    fn begin<K: Copy + Eq + Hash>(reader: &BodyReader<K>) -> Self {
        let BodyPace { bytes_per_second, averaged_over } = reader.pace;
        let bytes = averaged_over.as_millis() * bytes_per_second as u128 / 1_000;
        let now = Instant::now();
        Self {
            stall_timeout: reader.stall_timeout,
            stretch: averaged_over,
            min_stretch_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            last_frame: now,
            stretch_end: now + averaged_over,
            stretch_bytes: 0,
        }
    }

    /// The next part of the body; `None` at its end.
    async fn next_frame<B>(&mut self, body: &mut B) -> Result<Option<Bytes>, Rejection>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        loop {
            let stalled = self.last_frame + self.stall_timeout;
            let Ok(frame) = timeout_at(stalled.min(self.stretch_end), body.frame()).await else {
                if Instant::now() >= stalled {
                    return Err(Rejection::RequestTimeout);
                }
                self.next_stretch()?;
                continue;
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.count(data.len())?;
                        return Ok(Some(data));
                    }
                    // Trailers say nothing to us.
                }
                Some(Err(_)) => {
                    let reason = "the body ended early or its chunks are malformed";
                    return Err(Rejection::BadRequest { reason });
                }
            }
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), Rejection> {
        self.last_frame = Instant::now();
        self.stretch_bytes += bytes;
        if self.last_frame >= self.stretch_end { self.next_stretch() } else { Ok(()) }
    }

    /// Ends a stretch, which must have brought enough, and begins the next.
    fn next_stretch(&mut self) -> Result<(), Rejection> {
        if self.stretch_bytes < self.min_stretch_bytes {
            return Err(Rejection::RequestTimeout);
        }
        self.stretch_bytes = 0;
        self.stretch_end = Instant::now() + self.stretch;
        Ok(())
    }
}

/// Budget of the responses that clients have not read. Clones share it.
///
/// A body's bytes are given back once the last of them is written to the socket, or the connection
/// has ended.
#[derive(Debug, Clone)]
pub struct Responses<K>(Budget<K>);

/// Response that is counted for as long as any part of it is held.
struct Counted<K: Copy + Eq + Hash> {
    body: Bytes,
    _reserved: Reservation<K>,
}

impl<K: Copy + Eq + Hash> AsRef<[u8]> for Counted<K> {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl<K: Copy + Eq + Hash + Send + 'static> Responses<K> {
    /// A budget of `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self(Budget::new(max_bytes))
    }

    /// Changes how many bytes may be unread in all.
    pub fn set_max(&self, max_bytes: usize) {
        self.0.set_max(max_bytes);
    }

    /// Refuses if a holder has left too much unread: before anything is done for it.
    pub fn require_room(&self, holder: K) -> Result<(), Rejection> {
        self.0.reserve(holder, 1).map(drop).map_err(unread)
    }

    /// Counts a body until it is read. The owner of its last part, such as a connection's write
    /// buffer, holds the reservation.
    pub fn count(&self, holder: K, body: Bytes) -> Result<Bytes, Rejection> {
        let reserved = self.0.reserve(holder, body.len()).map_err(unread)?;
        Ok(Bytes::from_owner(Counted { body, _reserved: reserved }))
    }
}

/// Body of a response: all of it, or parts that come one after the other.
pub enum ResponseBody {
    /// The whole body.
    Whole(Full<Bytes>),
    /// Its parts, as they come.
    Parts(NextPart),
}

/// Asks for the next part, as a future is polled; there is none after `None`.
type NextPart = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Send>;

impl ResponseBody {
    /// A body of the parts that `next` gives, until it gives none. It is polled as a future is.
    pub fn parts(
        next: impl FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Send + 'static,
    ) -> Self {
        Self::Parts(Box::new(next))
    }
}

impl From<Full<Bytes>> for ResponseBody {
    fn from(body: Full<Bytes>) -> Self {
        Self::Whole(body)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Parts(next) => next(context).map(|part| Some(Ok(Frame::data(part?)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Parts(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Parts(_) => SizeHint::default(),
        }
    }
}

fn unread(exhausted: Exhausted) -> Rejection {
    Rejection::MemoryFull { memory: Memory::Responses, exhausted }
}

#[cfg(test)]
mod tests;
