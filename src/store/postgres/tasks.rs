//! Tasks of the engine, each of which runs as long as the engine. If one ends before, for example
//! by a panic, every waiter gets its name.

use tokio::sync::watch;
use tokio::task::JoinSet;

use pillarbox_runtime::tasks::Task;

/// Tasks of the node. They are aborted when it is dropped.
#[derive(Default)]
pub(super) struct Tasks {
    running: JoinSet<()>,
    ended: watch::Sender<Option<Task>>,
}

/// Task that runs. When this is dropped, the task has ended.
struct Running {
    task: Task,
    ended: watch::Sender<Option<Task>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.send_replace(Some(self.task));
    }
}

impl Tasks {
    pub(super) fn spawn(&mut self, task: Task, work: impl Future<Output = ()> + Send + 'static) {
        let running = Running { task, ended: self.ended.clone() };
        self.running.spawn(async move {
            let _running = running;
            task.panic_if_tested();
            work.await;
        });
    }

    pub(super) fn ended(&self) -> Option<Task> {
        *self.ended.borrow()
    }

    pub(super) async fn one_ended(&self) -> Task {
        let mut ended = self.ended.subscribe();
        // The sender is here.
        let task = ended.wait_for(Option::is_some).await.ok().and_then(|task| *task);
        task.expect("it is waited for")
    }
}
