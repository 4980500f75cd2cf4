//! Responses that a client leaves unread, stream by stream.
//!
//! A stream's window belongs to its client: who never opens it has its response kept, and who goes
//! on with other requests meanwhile is never idle. Since when a response has been waiting for its
//! client is known here; what follows from it is not.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// What is handed over at once, in bytes. What has been handed over is not seen any more, and a
/// window of a single byte has all of it kept.
const PIECE_BYTES: usize = 16 * 1024;

/// The responses of one connection.
#[derive(Debug, Default)]
pub(super) struct Unread(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Since when each that waits for its client has done so.
    since: HashMap<u64, Instant>,
}

impl Unread {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a response's body from now on.
    pub(super) fn watch<B>(self: &Arc<Self>, body: B) -> Watched<B> {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        state.since.insert(number, Instant::now());
        drop(state);
        let (body, rest) = (Box::pin(body), Bytes::new());
        Watched { body, rest, number, unread: Arc::clone(self) }
    }

    /// Since when the one that has waited for the longest has done so.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.state().since.values().min().copied()
    }
}

/// A response's body, watched until it is dropped.
#[derive(Debug)]
pub(super) struct Watched<B> {
    body: Pin<Box<B>>,
    /// What is left of the piece that came last.
    rest: Bytes,
    number: u64,
    unread: Arc<Unread>,
}

impl<B> Watched<B> {
    fn hand_over(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        // The next piece is asked for once the client has room for it.
        self.unread.state().since.insert(self.number, Instant::now());
        Frame::data(piece)
    }
}

impl<B: Body<Data = Bytes, Error = Infallible>> Body for Watched<B> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            match self.body.as_mut().poll_frame(cx) {
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

impl<B> Drop for Watched<B> {
    fn drop(&mut self) {
        self.unread.state().since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_comes_in_pieces_and_is_waiting_until_the_next_is_asked_for() {
        let unread = Arc::new(Unread::default());
        let whole: Vec<u8> = (0..=u8::MAX).cycle().take(2 * PIECE_BYTES + 1).collect();
        let start = Instant::now();
        let mut body = unread.watch(Full::new(Bytes::from(whole.clone())));
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
    }
}
