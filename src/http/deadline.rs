//! A deadline that is cheap to set and to clear with every request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline over one timer.
///
/// The timer is made when it is first needed, and moved only when it must ring earlier, or rang
/// for a deadline that has moved on since: requests that come faster than the timeout cost no
/// timer operation at all.
#[derive(Debug, Default)]
pub(super) struct Deadline {
    at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Forgets the deadline; the next poll starts it anew.
    pub(super) fn clear(&mut self) {
        self.at = None;
    }

    /// Starts the deadline `timeout` from now unless it runs already; ready once it has passed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, timeout: Duration) -> Poll<()> {
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_cleared_deadline_starts_anew_and_may_become_earlier() {
        let start = Instant::now();
        let mut deadline = Deadline::default();
        let poll_once = |deadline: &mut Deadline, timeout| {
            deadline.poll(&mut Context::from_waker(std::task::Waker::noop()), timeout)
        };
        assert!(poll_once(&mut deadline, 3 * SECOND).is_pending());
        tokio::time::advance(2 * SECOND).await;
        deadline.clear();
        poll_fn(|cx| deadline.poll(cx, 3 * SECOND)).await;
        assert!(start.elapsed() >= 5 * SECOND, "{:?}", start.elapsed());
        deadline.clear();
        assert!(poll_once(&mut deadline, 100 * SECOND).is_pending());
        deadline.clear();
        poll_fn(|cx| deadline.poll(cx, SECOND)).await;
        assert!(start.elapsed() < 7 * SECOND, "{:?}", start.elapsed());
    }
}
