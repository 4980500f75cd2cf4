//! The end of serving, in the steps that keep clients from losing requests.
//!
//! Whoever runs the service drives it: first responses ask clients to come back on a new
//! connection, then the listener and the idle connections close, and what is in flight has until
//! a deadline.

use std::future;

use tokio::sync::watch;
use tokio::time::Instant;

/// Step of a drain, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainPhase {
    /// Serving as usual.
    Serving,
    /// Open connections are served, and every response carries `Connection: close`; no new
    /// connection is taken. Where the socket is held from outside, new ones wait there for the
    /// next process.
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
pub struct Drain(watch::Sender<DrainPhase>);

/// The server's end; clones see the same steps.
#[derive(Debug, Clone)]
pub struct DrainSignal(watch::Receiver<DrainPhase>);

impl Drain {
    /// A drain that has not begun.
    pub fn new() -> (Self, DrainSignal) {
        let (sender, receiver) = watch::channel(DrainPhase::Serving);
        (Self(sender), DrainSignal(receiver))
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
        self.0.send_if_modified(|phase| {
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
        *self.0.borrow()
    }

    /// Ends once the drain is at another step than `phase`.
    pub async fn left(&mut self, phase: DrainPhase) {
        if self.0.wait_for(|now| *now != phase).await.is_err() {
            // The driver is gone, and with it whoever could take another step.
            future::pending::<()>().await;
        }
    }

    /// Ends once the drain is at [`DrainPhase::Stopped`], with its deadline.
    pub async fn stopped(mut self) -> Instant {
        let stopped = self.0.wait_for(|phase| matches!(phase, DrainPhase::Stopped { .. })).await;
        match stopped.map(|phase| *phase) {
            Ok(DrainPhase::Stopped { deadline }) => deadline,
            // The driver is gone, and with it whoever could stop the server.
            Ok(DrainPhase::Serving | DrainPhase::Holding | DrainPhase::Closing) | Err(_) => {
                future::pending().await
            }
        }
    }
}
