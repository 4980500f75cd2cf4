use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Frame, SizeHint};

use super::*;

fn reader(max_request_bytes: usize, max_reading_bytes: usize) -> BodyReader<u32> {
    BodyReader::new(&Limits { max_request_bytes, max_reading_bytes, ..Limits::default() })
}

const ACME: u32 = 1;
const BETA: u32 = 2;

enum Step {
    Data(Bytes),
    /// A byte, after this time.
    Wait(Duration),
    Stall,
}

/// A body of unknown length, or of an announced one, and what it waits for.
struct Script(VecDeque<Step>, Option<u64>, Option<Pin<Box<tokio::time::Sleep>>>);

impl Script {
    fn new(steps: impl Into<VecDeque<Step>>) -> Self {
        Self(steps.into(), None, None)
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.front() {
            Some(Step::Stall) => Poll::Pending,
            Some(&Step::Wait(time)) => {
                let wait = self.2.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
                std::task::ready!(wait.as_mut().poll(cx));
                self.2 = None;
                self.0.pop_front();
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
            }
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
    Script::new((0..count).map(|_| data()).collect::<VecDeque<_>>())
}

#[tokio::test]
async fn a_body_in_one_frame_is_not_copied() {
    let reader = reader(1_000, 10_000);
    let bytes = Bytes::from(vec![b'x'; 1_000]);
    let body = reader.read(ACME, Full::new(bytes.clone())).await.unwrap();
    assert_eq!(body.as_ptr(), bytes.as_ptr());
    assert!(reader.read(ACME, Full::<Bytes>::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn frames_are_put_together() {
    let mut script = chunks(3, 4_000);
    script.1 = Some(12_000);
    assert_eq!(reader(12_000, 100_000).read(ACME, script).await.unwrap().len(), 12_000);
    assert_eq!(reader(12_000, 100_000).read(ACME, chunks(3, 4_000)).await.unwrap().len(), 12_000);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_gives_its_memory_back() {
    let reader = reader(20_000, 102_400);
    let too_large = Rejection::PayloadTooLarge { limit: 20_000 };
    let announced = Script([Step::Stall].into(), Some(20_001), None);
    assert_eq!(reader.read(ACME, announced).await.unwrap_err(), too_large);
    assert_eq!(reader.read(ACME, chunks(5, 5_000)).await.unwrap_err(), too_large);
    assert_eq!(reader.budget.in_use(), 0);
    assert_eq!(reader.read(ACME, chunks(4, 5_000)).await.unwrap().len(), 20_000);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_body_times_out() {
    let reader = reader(1_000_000, 10_000_000);
    let start = Instant::now();
    let steps = [Step::Data(Bytes::from_static(b"x")), Step::Stall];
    let stalled = Script(steps.into(), Some(2), None);
    assert_eq!(reader.read(ACME, stalled).await.unwrap_err(), Rejection::RequestTimeout);
    let taken = start.elapsed();
    assert!(taken >= reader.stall_timeout && taken < 2 * reader.stall_timeout, "{taken:?}");
    assert_eq!(reader.budget.in_use(), 0);
}

/// A body that gives so many bytes a second.
struct Drip(usize, Pin<Box<tokio::time::Sleep>>, Option<usize>);

impl Drip {
    fn endless(bytes_per_second: usize) -> Self {
        Self(bytes_per_second, Box::pin(tokio::time::sleep(Duration::ZERO)), None)
    }

    fn of(length: usize, bytes_per_second: usize) -> Self {
        Self(bytes_per_second, Box::pin(tokio::time::sleep(Duration::ZERO)), Some(length))
    }
}

impl Body for Drip {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.2 == Some(0) {
            return Poll::Ready(None);
        }
        std::task::ready!(self.1.as_mut().poll(cx));
        self.1.as_mut().reset(Instant::now() + Duration::from_secs(1));
        let bytes = self.2.unwrap_or(usize::MAX).min(self.0);
        self.2 = self.2.map(|left| left - bytes);
        Poll::Ready(Some(Ok(Frame::data(vec![b'x'; bytes].into()))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_slower_than_its_pace_is_given_up_and_gives_its_memory_back() {
    let reader = reader(1_000_000, 10_000_000);
    for bytes_per_second in [1, 3_000] {
        let start = Instant::now();
        let read = reader.read(ACME, Drip::endless(bytes_per_second)).await;
        assert_eq!(read.unwrap_err(), Rejection::RequestTimeout);
        assert_eq!(start.elapsed(), Duration::from_secs(10), "{bytes_per_second}");
        assert_eq!(reader.budget.in_use(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_keeps_its_pace_has_all_the_time_that_its_size_takes() {
    const LARGEST: usize = 10 << 20;
    let reader = reader(LARGEST, 4 * LARGEST);
    let start = Instant::now();
    let body = reader.read(ACME, Drip::of(LARGEST, 4_096)).await.unwrap();
    assert_eq!(body.len(), LARGEST);
    assert_eq!(start.elapsed(), Duration::from_secs(2_559));
    // A small one that is slower has the first stretch.
    assert_eq!(reader.read(ACME, Drip::of(9, 1)).await.unwrap().len(), 9);
    assert!(reader.read(ACME, Drip::of(12, 1)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_came_fast_at_first_must_not_drip_on() {
    let reader = reader(1_000_000, 10_000_000);
    let start = Instant::now();
    let mut steps: VecDeque<_> = [Step::Data(vec![b'x'; 900_000].into())].into();
    steps.extend((0..1_000).map(|_| Step::Wait(Duration::from_secs(4))));
    let read = reader.read(ACME, Script::new(steps)).await;
    assert_eq!(read.unwrap_err(), Rejection::RequestTimeout);
    assert_eq!(start.elapsed(), Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn bodies_wait_for_memory_and_get_it_when_others_are_done() {
    let reader = reader(10_240, 20_480);
    let full = || Full::new(Bytes::from(vec![b'x'; 8_192]));
    let first = reader.read(ACME, full()).await.unwrap();
    let no_share = super::full(Exhausted::Whole);
    assert_eq!(reader.read(ACME, full()).await.unwrap_err(), no_share);
    let second = tokio::spawn({
        let reader = reader.clone();
        async move { reader.read(ACME, full()).await.map(|body| body.len()) }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!second.is_finished());
    // Small ones of others do not wait behind it.
    let start = Instant::now();
    let other = reader.read(BETA, Full::new(Bytes::from_static(b"{}"))).await.unwrap();
    assert_eq!((other.len(), start.elapsed()), (2, Duration::ZERO));
    drop(first);
    assert_eq!(second.await.unwrap(), Ok(8_192));
    drop(other);
    assert_eq!(reader.budget.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn so_many_requests_of_one_organisation_wait_and_no_more() {
    let reader = reader(10_240, 40_960);
    let body = || Full::new(Bytes::from(vec![b'x'; 8_192]));
    let _held = [reader.read(ACME, body()).await, reader.read(ACME, body()).await];
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..=MAX_WAITING {
        let reader = reader.clone();
        waiting.spawn(async move { reader.read(ACME, body()).await.map(|body| body.len()) });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    assert!(reader.read(ACME, body()).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO, "refused at once");
    while let Some(read) = waiting.join_next().await {
        assert!(read.unwrap().is_err());
    }
    assert_eq!(start.elapsed(), Duration::from_secs(9), "all of them in their time");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_announced_and_never_come_take_no_memory_from_others() {
    let reader = reader(1_000_000, 4_000_000);
    let mut silent = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let reader = reader.clone();
        let announced = Script([Step::Stall].into(), Some(1_000_000), None);
        silent.spawn(async move { reader.read(ACME, announced).await.map(|body| body.len()) });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    let mut whole = chunks(100, 10_000);
    whole.1 = Some(1_000_000);
    assert_eq!(reader.read(BETA, whole).await.unwrap().len(), 1_000_000);
    assert_eq!(start.elapsed(), Duration::ZERO);
    while let Some(read) = silent.join_next().await {
        assert_eq!(read.unwrap(), Err(Rejection::RequestTimeout));
    }
    assert_eq!(reader.budget.in_use(), 0);
}

#[tokio::test]
async fn a_body_that_cannot_grow_is_refused_at_once() {
    let reader = reader(100_000, 200_000);
    let held = reader.read(ACME, chunks(8, 5_000)).await.unwrap();
    let refused = reader.read(BETA, chunks(8, 5_000)).await.unwrap_err();
    assert!(matches!(refused, Rejection::MemoryFull { .. }), "{refused:?}");
    drop(held);
    assert_eq!(reader.budget.in_use(), 0);
}

#[tokio::test]
async fn a_budget_of_four_of_the_largest_takes_one_of_each_size() {
    for size in [1_024, 100_000, 10 << 20] {
        let reader = reader(size, 4 * size);
        let body = reader.read(ACME, chunks(size / 512, 512)).await.unwrap();
        assert_eq!(body.len(), size / 512 * 512);
    }
}

#[test]
fn a_response_counts_until_its_last_part_is_gone() {
    let responses = Responses::new(1_000);
    let mut body = responses.count(ACME, Bytes::from(vec![b'x'; 600])).unwrap();
    assert_eq!(responses.0.in_use(), 600);
    let piece = body.split_to(10);
    drop(body);
    assert_eq!((piece.len(), responses.0.in_use()), (10, 600));
    assert_eq!(responses.require_room(ACME), Err(unread(Exhausted::Share)));
    assert_eq!(responses.require_room(BETA), Ok(()));
    let too_much = responses.count(BETA, Bytes::from(vec![b'x'; 401]));
    assert_eq!(too_much, Err(unread(Exhausted::Whole)));
    drop(piece);
    assert_eq!(responses.0.in_use(), 0);
    assert_eq!(responses.require_room(ACME), Ok(()));
}

#[tokio::test]
async fn a_large_body_arrives_as_it_was_sent_announced_or_not() {
    let reader = reader(3 * MAPPED_FROM_BYTES, 100 * MAPPED_FROM_BYTES);
    let sent: Vec<u8> = (0..=250).cycle().take(3 * MAPPED_FROM_BYTES).collect();
    // Parts that cross the length from which on it lies in a map of its own.
    for length in [MAPPED_FROM_BYTES - 1, MAPPED_FROM_BYTES, sent.len() - 1, sent.len()] {
        for announced in [Some(length as u64), None] {
            let parts = sent[..length].chunks(100_003);
            let parts = parts.map(|part| Step::Data(Bytes::copy_from_slice(part)));
            let body = Script(parts.collect(), announced, None);
            let read = reader.read(ACME, body).await.unwrap();
            assert!(*read == sent[..length], "{length} bytes, {announced:?} announced");
        }
    }
}
