//! Signals to the process.

use std::task::{Context, Waker};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::ServiceError;

/// The signals that end a process.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, ServiceError> {
        Ok(Self {
            terminate: listen_for(SignalKind::terminate())?,
            interrupt: listen_for(SignalKind::interrupt())?,
        })
    }

    /// Returns true if one came and was not waited for.
    pub(super) fn came(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.terminate.poll_recv(&mut context).is_ready()
            || self.interrupt.poll_recv(&mut context).is_ready()
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

pub(super) fn listen_for(kind: SignalKind) -> Result<Signal, ServiceError> {
    signal(kind).map_err(|source| ServiceError::System { what: "cannot wait for signals", source })
}
