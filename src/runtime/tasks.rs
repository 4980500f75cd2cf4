//! Background tasks of the process, in one list. The list says what follows if a task panics, or
//! ends before it is stopped: the task begins again, or the process ends. No task stops without a
//! report.
//!
//! Work for one connection or call is not in the list: its owner gets the result.

use std::any::Any;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::error;

/// Exit code of a process that cannot continue because of a fault of its own: `EX_SOFTWARE` of
/// sysexits.h.
pub const EXIT_FAULT: i32 = 70;
/// Pause before a task begins again. It doubles with each fault, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause. A task that has run for this long begins again after [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Fault of a task that panicked. The message of the panic may hold data of a client, so it stays
/// on standard error, to which the panic has written it.
const PANICKED: &str = "it panicked";

/// Consequence of a fault of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFault {
    /// The task begins again after a pause, and the condition `task_failed` says so.
    BeginAgain,
    /// The process ends with [`EXIT_FAULT`]: without the task, the service does not do its work.
    EndProcess,
}

/// Faults of a task since the start of the process.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Number of the faults.
    pub count: u64,
    /// Time of the last one.
    pub last: Option<Instant>,
}

macro_rules! tasks {
    ($($(#[$doc:meta])* $task:ident $name:literal $after:ident,)*) => {
        /// A background task of the process.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Task {
            $($(#[$doc])* $task,)*
        }

        impl Task {
            /// Every task.
            pub const ALL: &[Self] = &[$(Self::$task,)*];

            /// Name in the log, in conditions and in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$task => $name,)* }
            }

            /// Consequence of a fault of this task.
            pub const fn after_fault(self) -> AfterFault {
                match self { $(Self::$task => AfterFault::$after,)* }
            }
        }
    };
}

tasks! {
    /// Starts and stops the service, reads the configuration again, and reports the state of the
    /// service to the supervisor.
    Main "main" EndProcess,
    /// Sends pending messages.
    Sending "sending" EndProcess,
    /// Takes connections of HTTP.
    ClientListener "client_listener" EndProcess,
    /// Takes connections of the API in Resend's shape.
    ResendListener "resend_listener" EndProcess,
    /// Takes connections of SMTP submission.
    SmtpListener "smtp_listener" EndProcess,
    /// Takes connections of operators.
    OperatorListener "operator_listener" EndProcess,
    /// Takes connections of administration commands.
    AdministrationSocket "administration_socket" EndProcess,
    /// Writes to the data file.
    StoreWriter "store_writer" EndProcess,
    /// Stores accepted messages in `PostgreSQL`.
    Acceptance "acceptance" EndProcess,
    /// Stores outcomes in `PostgreSQL`.
    Outcomes "outcomes" EndProcess,
    /// Finds messages by their idempotency keys in `PostgreSQL`.
    Replays "replays" EndProcess,
    /// Confirms feed entries of nodes that died.
    FeedConfirmation "feed_confirmation" EndProcess,
    /// Informs other nodes that this one lives.
    SignsOfLife "signs_of_life" EndProcess,
    /// Reads the changes of other nodes.
    OtherNodesChanges "other_nodes_changes" EndProcess,
    /// Reads the state of the database.
    DatabaseState "database_state" EndProcess,
    /// Fails the messages of nodes that died.
    DeadNodesMessages "dead_nodes_messages" EndProcess,
    /// Ends the process if one of the tasks on `PostgreSQL` above has ended.
    EngineTasks "engine_tasks" BeginAgain,
    /// Ends the process if the other nodes took it for dead.
    Fence "fence" BeginAgain,
    /// Has the clock follow the database's.
    ServerClock "server_clock" BeginAgain,
    /// Has sending follow this node's part of the pace.
    NodeShare "node_share" BeginAgain,
    /// Refuses messages while an operator drains this node.
    NodeDrain "node_drain" BeginAgain,
    /// Answers requests of other nodes.
    OtherNodesRequests "other_nodes_requests" BeginAgain,
    /// Notices if the data file is lost.
    DataFile "data_file" BeginAgain,
    /// Stores the times at which API keys were last used.
    KeyUse "key_use" BeginAgain,
    /// Deletes expired records.
    Purge "purge" BeginAgain,
    /// Stores counts for the history.
    History "history" BeginAgain,
    /// Stores the time, and ends doubts of the clock.
    TimeRecord "time_record" BeginAgain,
    /// Asks SES for the account's quota.
    Quota "quota" BeginAgain,
    /// Asks SES about sender domains.
    DomainVerification "domain_verification" BeginAgain,
    /// Receives delivery events.
    Polling "polling" BeginAgain,
    /// Reports events of test organisations' messages.
    SimulatedEvents "simulated_events" BeginAgain,
    /// Keeps a task for each endpoint of webhooks.
    Webhooks "webhooks" BeginAgain,
    /// Delivers to one endpoint.
    WebhookEndpoint "webhook_endpoint" BeginAgain,
    /// Posts alerts to operators.
    Alerts "alerts" BeginAgain,
    /// Finds conditions, and reports the state of the service to the operators' page.
    OperatorsPage "operators_page" BeginAgain,
    /// Checks that the service manager keeps the bodies of pending messages.
    KeptBodies "kept_bodies" BeginAgain,
}

/// A task that runs, of whatever it is made: what runs tasks is compiled once for all of them.
pub type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

static FAULTS: [Mutex<Faults>; Task::ALL.len()] =
    [const { Mutex::new(Faults { count: 0, last: None }) }; Task::ALL.len()];

impl Task {
    /// Runs the task for as long as it is polled. `begin` begins it, again after each fault.
    pub fn again<'a, F>(self, begin: impl FnMut() -> F + Send + 'a) -> Running<'a>
    where
        F: Future<Output = ()> + Send + 'a,
    {
        self.again_until(pending::<()>(), begin)
    }

    /// As [`Task::again`], until `stop` ends. The task itself has to notice the stop, and to end.
    pub fn again_until<'a, F>(
        self,
        stop: impl Future + Send + 'a,
        mut begin: impl FnMut() -> F + Send + 'a,
    ) -> Running<'a>
    where
        F: Future<Output = ()> + Send + 'a,
    {
        let stop = Box::pin(async { drop(stop.await) });
        Box::pin(self.run(stop, Box::new(move || Box::pin(begin()))))
    }

    async fn run<'a>(
        self,
        stop: Running<'a>,
        mut begin: Box<dyn FnMut() -> Running<'a> + Send + 'a>,
    ) {
        // The budget of a task would make it seem pending once it is used up.
        let mut stop = pin!(tokio::task::coop::unconstrained(stop));
        let mut pause = FIRST_PAUSE;
        loop {
            let begun_at = tokio::time::Instant::now();
            // What a fault leaves is dropped before the pause.
            let ended = caught(pin!(async {
                self.panic_if_tested();
                begin().await;
            }))
            .await;
            let is_stopped =
                poll_fn(|context| Poll::Ready(stop.as_mut().poll(context).is_ready())).await;
            match ended {
                Ok(()) if is_stopped => return,
                Ok(()) => self.note("it ended before it was stopped"),
                Err(_) => self.note(PANICKED),
            }
            if is_stopped {
                return;
            }
            if self.after_fault() == AfterFault::EndProcess {
                self.end_process();
            }
            if begun_at.elapsed() >= LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = &mut stop => return,
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Runs a task that cannot begin again, until `stop` ends. The task itself has to notice the
    /// stop, and end.
    pub fn once<'a>(
        self,
        stop: impl Future + Send + 'a,
        work: impl Future<Output = ()> + Send + 'a,
    ) -> Running<'a> {
        let mut work = Some(work);
        let begin = move || work.take().expect("a task that ends the process begins once");
        self.again_until(stop, begin)
    }

    /// Runs a task that ends with a result.
    pub async fn result<T>(self, work: impl Future<Output = T>) -> T {
        let run = pin!(async {
            self.panic_if_tested();
            work.await
        });
        caught(run).await.unwrap_or_else(|_| {
            self.note(PANICKED);
            self.end_process()
        })
    }

    /// Returns the function to run on a thread that has this task.
    pub fn thread(self, work: impl FnOnce()) -> impl FnOnce() {
        move || {
            let run = AssertUnwindSafe(|| {
                self.panic_if_tested();
                work();
            });
            if catch_unwind(run).is_err() {
                self.note(PANICKED);
                self.end_process();
            }
        }
    }

    /// Faults since the start of the process.
    pub fn faults(self) -> Faults {
        self.noted().clone()
    }

    fn noted(self) -> MutexGuard<'static, Faults> {
        FAULTS[self as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(self, fault: &'static str) {
        error!(
            task = self.name(),
            fault, "a background task failed because of a fault in the service"
        );
        let mut faults = self.noted();
        faults.count += 1;
        faults.last = Some(Instant::now());
    }

    /// Ends the process, because this task failed.
    pub fn end_process(self) -> ! {
        error!(task = self.name(), "the process ends, because it cannot work without this task");
        std::process::exit(EXIT_FAULT);
    }

    /// Panics at the first beginnings of a task that a test names. Does nothing in a release.
    pub fn panic_if_tested(self) {
        const BEGINNINGS: u64 = 2;
        if cfg!(debug_assertions)
            && std::env::var("TEST_TASK_PANICS")
                .is_ok_and(|tasks| tasks.split(',').any(|task| task == self.name()))
            && self.faults().count < BEGINNINGS
        {
            panic!("a test has {} panic", self.name());
        }
    }
}

/// Runs work, and returns its panic if it panics. Large work is better pinned before, because a
/// future that is given has room for it twice.
pub async fn caught<F: Future>(work: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_begins_again_after_pauses_that_double_until_it_has_lasted() {
        let beginnings = AtomicU32::new(0);
        let start = tokio::time::Instant::now();
        let begun_at = Mutex::new(Vec::new());
        let running = Task::Purge.again(|| {
            begun_at.lock().unwrap().push(start.elapsed().as_secs());
            let beginning = beginnings.fetch_add(1, Ordering::Relaxed);
            async move {
                match beginning {
                    // An end is a fault as much as a panic.
                    0 => {}
                    9 => sleep(Duration::from_mins(2)).await,
                    11 => pending().await,
                    _ => panic!("beginning {beginning}"),
                }
            }
        });
        let _ = tokio::time::timeout(Duration::from_mins(20), running).await;
        let begun_at = begun_at.into_inner().unwrap();
        let expected = [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 364, 366];
        assert_eq!(begun_at, expected);
        let Faults { count, last } = Task::Purge.faults();
        assert_eq!((count, last.is_some()), (11, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_a_task_and_its_pause_and_is_no_fault() {
        let (stop, stopped) = oneshot::channel::<()>();
        drop(stop);
        Task::Quota.again_until(stopped, async || {}).await;
        assert_eq!(Task::Quota.faults().count, 0);
        let (stop, stopped) = oneshot::channel::<()>();
        let pausing = Task::Quota.again_until(stopped, async || panic!("a fault"));
        let ((), ()) = tokio::join!(pausing, async {
            sleep(FIRST_PAUSE / 2).await;
            drop(stop);
        });
        assert_eq!(Task::Quota.faults().count, 1);
    }

    #[test]
    fn names_are_the_labels_of_metrics_and_are_all_different() {
        let mut names: Vec<_> = Task::ALL.iter().map(|task| task.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Task::ALL.len());
        let is_label = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(names.iter().all(is_label), "{names:?}");
    }
}
