//! Reads request bodies, within limits of size, time and memory.
//!
//! The memory of all bodies being read, and of those read and not yet dropped, comes out of one
//! budget: many clients together must not be able to take more. Knows nothing of what a body says.

use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::http::error::ApiError;
use crate::http::limits::Limits;

/// The budget is counted in blocks of this many bytes.
const BLOCK_BYTES: usize = 1024;
/// What a body gets at first, in bytes; it grows by doubling.
const FIRST_BYTES: usize = 8 * 1024;

/// Reads the request bodies of a listener. Clones share one budget.
#[derive(Debug, Clone)]
pub struct BodyReader {
    budget: Arc<Semaphore>,
    /// The whole budget. A body never waits for more than there can be.
    blocks: u32,
    max_bytes: usize,
    stall_timeout: Duration,
    timeout: Duration,
}

/// A request's body. Its memory goes back to the budget when it is dropped.
#[derive(Debug)]
pub struct RequestBody {
    bytes: Bytes,
    _reserved: OwnedSemaphorePermit,
}

impl Deref for RequestBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The answer where too many bodies are being read: most are read within a second.
const READING_FULL: ApiError = ApiError::QueueFull { retry_after: Duration::from_secs(1) };

impl BodyReader {
    /// A reader with these limits and a budget of its own.
    pub fn new(limits: &Limits) -> Self {
        // Over four terabytes are no limit either.
        let blocks = u32::try_from(limits.max_reading_bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        let blocks = blocks.min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX)).max(1);
        Self {
            budget: Arc::new(Semaphore::new(blocks as usize)),
            blocks,
            max_bytes: limits.max_request_bytes,
            stall_timeout: limits.body_stall_timeout,
            timeout: limits.body_timeout,
        }
    }

    /// Reads a body to its end.
    ///
    /// A body over the limit is refused by its announced length before a byte of it is asked for,
    /// and a chunked one as soon as it has come too far. Memory is taken as bytes come: a length
    /// that is announced and never sent keeps nothing from others.
    pub async fn read<B>(&self, mut body: B) -> Result<RequestBody, ApiError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let deadline = Instant::now() + self.timeout;
        let most = match body.size_hint().exact() {
            Some(length) => {
                let length = usize::try_from(length).ok().filter(|&len| len <= self.max_bytes);
                length.ok_or_else(|| self.too_large())?
            }
            None => self.max_bytes,
        };
        let mut room = FIRST_BYTES.min(most);
        let mut reserved = self.reserve(room, deadline).await?;
        let mut bytes = Vec::new();
        while let Some(frame) = self.next_frame(&mut body, deadline).await? {
            let needed = bytes.len() + frame.len();
            if needed > self.max_bytes {
                return Err(self.too_large());
            }
            if needed > room {
                room = (2 * room).min(most).max(needed);
                self.grow(&mut reserved, room)?;
            }
            if bytes.is_empty() && body.is_end_stream() {
                // The common case: nothing to put together, nothing to copy.
                return Ok(RequestBody { bytes: frame, _reserved: reserved });
            }
            bytes.reserve_exact(room - bytes.len());
            bytes.extend_from_slice(&frame);
        }
        Ok(RequestBody { bytes: bytes.into(), _reserved: reserved })
    }

    /// The next part of the body; `None` at its end.
    async fn next_frame<B>(
        &self,
        body: &mut B,
        deadline: Instant,
    ) -> Result<Option<Bytes>, ApiError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        loop {
            let stalled = deadline.min(Instant::now() + self.stall_timeout);
            match timeout_at(stalled, body.frame()).await {
                Err(_) => return Err(ApiError::RequestTimeout),
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                    // Trailers say nothing to us.
                }
                Ok(Some(Err(_))) => {
                    let reason = "the body ended early or its chunks are malformed";
                    return Err(ApiError::BadRequest { reason });
                }
            }
        }
    }

    /// Takes memory for `bytes` out of the budget. Waits for others to give theirs back, while
    /// holding nothing itself.
    async fn reserve(
        &self,
        bytes: usize,
        deadline: Instant,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let wait = Arc::clone(&self.budget).acquire_many_owned(self.blocks_for(bytes));
        let stalled = deadline.min(Instant::now() + self.stall_timeout);
        match timeout_at(stalled, wait).await {
            Ok(permit) => Ok(permit.expect("the budget is never closed")),
            Err(_) => Err(READING_FULL),
        }
    }

    /// Grows a reservation to `bytes`, at once or not at all: waiting while holding would let
    /// bodies wait for each other.
    fn grow(&self, reserved: &mut OwnedSemaphorePermit, bytes: usize) -> Result<(), ApiError> {
        let held = u32::try_from(reserved.num_permits()).expect("at most the whole budget");
        let more = self.blocks_for(bytes) - held;
        let budget = Arc::clone(&self.budget);
        let grown = budget.try_acquire_many_owned(more).map_err(|_| READING_FULL)?;
        reserved.merge(grown);
        Ok(())
    }

    fn blocks_for(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX).min(self.blocks)
    }

    fn too_large(&self) -> ApiError {
        ApiError::PayloadTooLarge { limit: self.max_bytes }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body_util::Full;
    use hyper::body::{Frame, SizeHint};

    use super::*;

    fn reader(max_request_bytes: usize, max_reading_bytes: usize) -> BodyReader {
        BodyReader::new(&Limits { max_request_bytes, max_reading_bytes, ..Limits::default() })
    }

    fn free_bytes(reader: &BodyReader) -> usize {
        reader.budget.available_permits() * BLOCK_BYTES
    }

    enum Step {
        Data(Bytes),
        Stall,
    }

    /// A body of unknown length, or of an announced one.
    struct Script(VecDeque<Step>, Option<u64>);

    impl Body for Script {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.0.front() {
                Some(Step::Stall) => Poll::Pending,
                Some(Step::Data(data)) => {
                    let frame = Frame::data(data.clone());
                    self.0.pop_front();
                    Poll::Ready(Some(Ok(frame)))
                }
                None => Poll::Ready(None),
            }
        }

        fn size_hint(&self) -> SizeHint {
            self.1.map_or_else(SizeHint::default, SizeHint::with_exact)
        }
    }

    fn chunks(count: usize, bytes: usize) -> Script {
        let data = || Step::Data(Bytes::from(vec![b'x'; bytes]));
        Script((0..count).map(|_| data()).collect(), None)
    }

    #[tokio::test]
    async fn a_body_in_one_frame_is_not_copied() {
        let reader = reader(1_000, 10_000);
        let bytes = Bytes::from(vec![b'x'; 1_000]);
        let body = reader.read(Full::new(bytes.clone())).await.unwrap();
        assert_eq!(body.as_ptr(), bytes.as_ptr());
        assert!(reader.read(Full::<Bytes>::default()).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn frames_are_put_together() {
        let mut script = chunks(3, 4_000);
        script.1 = Some(12_000);
        assert_eq!(reader(12_000, 100_000).read(script).await.unwrap().len(), 12_000);
        assert_eq!(reader(12_000, 100_000).read(chunks(3, 4_000)).await.unwrap().len(), 12_000);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_and_gives_its_memory_back() {
        let reader = reader(20_000, 102_400);
        let too_large = ApiError::PayloadTooLarge { limit: 20_000 };
        let announced = Script([Step::Stall].into(), Some(20_001));
        assert_eq!(reader.read(announced).await.unwrap_err(), too_large);
        assert_eq!(reader.read(chunks(5, 5_000)).await.unwrap_err(), too_large);
        assert_eq!(free_bytes(&reader), 102_400);
        assert_eq!(reader.read(chunks(4, 5_000)).await.unwrap().len(), 20_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_times_out() {
        let reader = reader(1_000_000, 10_000_000);
        let start = Instant::now();
        let stalled = Script([Step::Data(Bytes::from_static(b"x")), Step::Stall].into(), Some(2));
        assert_eq!(reader.read(stalled).await.unwrap_err(), ApiError::RequestTimeout);
        let taken = start.elapsed();
        assert!(taken >= reader.stall_timeout && taken < 2 * reader.stall_timeout, "{taken:?}");
        assert_eq!(free_bytes(&reader), 9_999_360);
    }

    /// A body that gives one byte a second.
    struct Drip(Pin<Box<tokio::time::Sleep>>);

    impl Body for Drip {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            std::task::ready!(self.0.as_mut().poll(cx));
            self.0.as_mut().reset(Instant::now() + Duration::from_secs(1));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_stalls_has_its_time_all_the_same() {
        let reader = reader(1_000_000, 10_000_000);
        let start = Instant::now();
        let drip = Drip(Box::pin(tokio::time::sleep(Duration::ZERO)));
        assert_eq!(reader.read(drip).await.unwrap_err(), ApiError::RequestTimeout);
        let taken = start.elapsed();
        assert!(taken >= reader.timeout && taken < 2 * reader.timeout, "{taken:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_memory_and_get_it_when_others_are_done() {
        let reader = reader(10_240, 10_240);
        let full = || Full::new(Bytes::from(vec![b'x'; 10_240]));
        let first = reader.read(full()).await.unwrap();
        assert_eq!(reader.read(full()).await.unwrap_err(), READING_FULL);
        let second = tokio::spawn({
            let reader = reader.clone();
            async move { reader.read(full()).await.map(|body| body.len()) }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!second.is_finished());
        drop(first);
        assert_eq!(second.await.unwrap(), Ok(10_240));
        assert_eq!(free_bytes(&reader), 10_240);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_are_announced_and_never_come_take_no_memory_from_others() {
        let reader = reader(1_000_000, 2_000_000);
        let mut silent = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let reader = reader.clone();
            let announced = Script([Step::Stall].into(), Some(1_000_000));
            silent.spawn(async move { reader.read(announced).await.map(|body| body.len()) });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        let mut whole = chunks(100, 10_000);
        whole.1 = Some(1_000_000);
        assert_eq!(reader.read(whole).await.unwrap().len(), 1_000_000);
        assert_eq!(start.elapsed(), Duration::ZERO);
        while let Some(read) = silent.join_next().await {
            assert_eq!(read.unwrap(), Err(ApiError::RequestTimeout));
        }
        assert_eq!(free_bytes(&reader), 1_999_872);
    }

    #[tokio::test]
    async fn a_body_that_cannot_grow_is_refused_at_once() {
        let reader = reader(100_000, 20_480);
        let held = reader.read(Full::new(Bytes::from(vec![b'x'; 10_240]))).await.unwrap();
        assert_eq!(reader.read(chunks(10, 5_000)).await.unwrap_err(), READING_FULL);
        drop(held);
        assert_eq!(free_bytes(&reader), 20_480);
    }

    #[tokio::test]
    async fn a_body_over_the_whole_budget_is_read_alone() {
        let reader = reader(100_000, 10_240);
        let body = Full::new(Bytes::from(vec![b'x'; 100_000]));
        let body = reader.read(body).await.unwrap();
        assert_eq!((body.len(), free_bytes(&reader)), (100_000, 0));
    }
}
