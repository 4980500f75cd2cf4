//! The administration socket in the service: what answers there, and a copy of it for the next program.

use std::fmt;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::error;

use crate::ServiceError;
use pillarbox_admin::Admin;
use pillarbox_admin::socket::{Socket, SocketCopy};
use pillarbox_api::cancel::{Canceller, Cancelling};
use pillarbox_domain::id::MessageId;
use pillarbox_http::drain::{Drain, DrainSignal};
use pillarbox_runtime::tasks::Task;

/// Cancels messages of applications as it does those of operators.
pub(super) struct MessageCanceller(pub(super) Arc<Admin>);

impl Canceller for MessageCanceller {
    fn cancel(&self, id: MessageId) -> Cancelling<'_> {
        Box::pin(self.0.cancel_message(id))
    }
}

impl fmt::Debug for MessageCanceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageCanceller").finish_non_exhaustive()
    }
}

/// Server of the operators' commands.
#[derive(Debug)]
pub(super) struct Administration {
    answering: JoinHandle<()>,
    drain: Drain,
    signal: DrainSignal,
    copy: Option<SocketCopy>,
}

impl Administration {
    /// Answers calls on the socket from now on.
    pub(super) fn start(socket: Socket, admin: &Arc<Admin>) -> Result<Self, ServiceError> {
        let (drain, signal) = Drain::new();
        let what = "cannot copy the administration socket";
        let copy = socket.copy().map_err(|source| ServiceError::System { what, source })?;
        let serving = socket.serve(Arc::clone(admin), signal.clone());
        let stop = signal.clone().stopped();
        let answering = tokio::spawn(Task::AdministrationSocket.once(stop, serving));
        Ok(Self { answering, drain, signal, copy: Some(copy) })
    }

    /// Returns the signal that the end of the administration has begun.
    pub(super) fn signal(&self) -> DrainSignal {
        self.signal.clone()
    }

    /// Takes the copy of the socket.
    pub(super) fn take_copy(&mut self) -> Option<SocketCopy> {
        self.copy.take()
    }

    /// Closes the copy of the socket: while it is open, connections wait there.
    pub(super) fn close_copy(&mut self) {
        self.copy = None;
    }

    /// Begins the end. Calls under way have until then.
    pub(super) fn drain(&self, until: Instant) {
        self.drain.stop(until);
    }

    /// Waits for the end.
    pub(super) async fn ended(&mut self) {
        if let Err(error) = (&mut self.answering).await {
            error!(%error, "the administration socket's task failed");
        }
    }
}
