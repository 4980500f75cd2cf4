//! Tasks of the engine, each of which runs for as long as the engine. If one ends before, be it by a
//! panic, everybody learns which.

use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tasks of the node. They are aborted when it is dropped.
#[derive(Default)]
pub(super) struct Tasks {
    running: JoinSet<()>,
    ended: watch::Sender<Option<&'static str>>,
}

/// Task that runs. When this is dropped, the task has ended.
struct Running {
    name: &'static str,
    ended: watch::Sender<Option<&'static str>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.send_replace(Some(self.name));
    }
}

impl Tasks {
    /// Starts a task.
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let running = Running { name, ended: self.ended.clone() };
        let task = async move {
            let _running = running;
            work.await;
        };
        self.running.spawn(task);
    }

    /// Name of the last task that has ended.
    pub(super) fn ended(&self) -> Option<&'static str> {
        *self.ended.borrow()
    }

    /// Waits until a task has ended, and returns its name.
    pub(super) async fn one_ended(&self) -> &'static str {
        let mut ended = self.ended.subscribe();
        // The sender is here.
        let name = ended.wait_for(Option::is_some).await.ok().and_then(|name| *name);
        name.expect("it is waited for")
    }
}
