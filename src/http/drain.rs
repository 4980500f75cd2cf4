//! The end of serving, in the steps that keep clients from losing requests.
//!
//! The owner of the service drives it: first responses ask clients to come back on a new
//! connection, then the listener and the idle connections close, and the requests in flight have
//! until a deadline.

use std::future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio::time::Instant;

/// Step of a drain, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainPhase {
    /// Connections are accepted and served as usual.
    Serving,
    /// Open connections are served, and every response carries `Connection: close`; no new
    /// connection is taken. If the socket is held from outside, new ones wait there for the next
    /// process.
    Holding,
    /// New connections are taken too; every response carries `Connection: close`.
    Closing,
    /// No new connection is taken, idle ones are closed, and the rest ends at the deadline.
    Stopped {
        /// Instant at which connections that are still open are cut off.
        deadline: Instant,
    },
}

/// The driver's end. The steps go forward alone; dropping it stops nothing.
#[derive(Debug)]
pub struct Drain {
    phase: watch::Sender<DrainPhase>,
    has_begun: Arc<AtomicBool>,
}

/// The server's end; clones see the same steps.
#[derive(Debug, Clone)]
pub struct DrainSignal {
    phase: watch::Receiver<DrainPhase>,
    /// Every response asks for the step: as long as there is none, without a lock.
    has_begun: Arc<AtomicBool>,
}

impl Drain {
    /// A drain that has not begun.
    pub fn new() -> (Self, DrainSignal) {
        let (sender, receiver) = watch::channel(DrainPhase::Serving);
        let has_begun = Arc::default();
        let signal = DrainSignal { phase: receiver, has_begun: Arc::clone(&has_begun) };
        (Self { phase: sender, has_begun }, signal)
    }

    /// Stops taking connections, and lets every response ask its client to come back on a new one.
    pub fn hold_connections(&self) {
        self.advance(DrainPhase::Holding);
    }

    /// Takes connections, and lets every response ask its client to come back on a new one.
    pub fn close_connections(&self) {
        self.advance(DrainPhase::Closing);
    }

    /// Stops accepting, closes idle connections and gives the others until `deadline`.
    pub fn stop(&self, deadline: Instant) {
        self.advance(DrainPhase::Stopped { deadline });
    }

    fn advance(&self, next: DrainPhase) {
        // Before the step itself: a client that sees the step must find the mark.
        self.has_begun.store(true, Ordering::SeqCst);
        self.phase.send_if_modified(|phase| {
            let forward = next > *phase;
            if forward {
                *phase = next;
            }
            forward
        });
    }
}

impl DrainSignal {
    /// Returns the current step.
    pub fn phase(&self) -> DrainPhase {
        if self.has_begun.load(Ordering::SeqCst) {
            *self.phase.borrow()
        } else {
            DrainPhase::Serving
        }
    }

    /// Ends once the drain is at another step than `phase`.
    pub async fn left(&mut self, phase: DrainPhase) {
        if self.phase.wait_for(|now| *now != phase).await.is_err() {
            // The driver was dropped, so no further step follows.
            future::pending::<()>().await;
        }
    }

    /// Ends once the drain is at [`DrainPhase::Stopped`], with its deadline.
    pub async fn stopped(mut self) -> Instant {
        let stopped =
            self.phase.wait_for(|phase| matches!(phase, DrainPhase::Stopped { .. })).await;
        match stopped.map(|phase| *phase) {
            Ok(DrainPhase::Stopped { deadline }) => deadline,
            // The driver was dropped, so nothing else could stop the server.
            Ok(DrainPhase::Serving | DrainPhase::Holding | DrainPhase::Closing) | Err(_) => {
                future::pending().await
            }
        }
    }
}
