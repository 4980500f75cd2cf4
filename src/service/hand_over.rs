//! Restart in place: the service ends in order, and the installed program goes on in its process, with
//! its sockets and the bodies of pending messages.
//!
//! Connections that come meanwhile wait in the listening sockets, which stay open.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use command_fds::{CommandFdExt as _, FdMapping};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, timeout_at};
use tracing::{error, info, warn};

use crate::fd_store::{self, Kept, Stored, Storing};
use crate::inherited::{self, ARENA, ArenaKeeper, own_name};
use crate::kept_bodies::{self, RefusedArena};
use crate::listeners::ListenerCopies;
use crate::signals::Signals;
use crate::{LONGEST_END, Service, ServiceError, clients_left, supervisor};
use pillarbox_admin::bodies::{BodyFacts, Keeper};
use pillarbox_admin::restart::{Restarts, own_command_line};
use pillarbox_body_store::BodyStore;
use pillarbox_config::KeepBodies;
use pillarbox_dispatch::{LAST_CALLS, Phase, Rest};
use pillarbox_queue::MessageQueue;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::tasks::Task;

/// Least time that requests in flight have.
const LEAST_ANSWERS: Duration = Duration::from_secs(2);
/// The number of the first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST_DESCRIPTOR: i32 = 3;

/// Descriptors that the next program gets, and the requests for it.
#[derive(Debug)]
pub(super) struct HandOver {
    pub(super) listeners: ListenerCopies,
    pub(super) arena: Option<Arc<Arena>>,
    /// Arenas of earlier programs that this one does not use.
    pub(super) refused: Arc<Mutex<Vec<RefusedArena>>>,
    pub(super) restarts: Arc<Restarts>,
}

/// Memory with the bodies of pending messages, for the next program.
#[derive(Debug)]
pub(super) struct Arena {
    bodies: BodyStore,
    /// Keeper of it while no process runs; `None` as long as that is not known.
    kept: watch::Sender<Option<Kept>>,
}

impl Arena {
    /// Has the service manager keep bodies, unless it keeps some already or none are to be kept.
    pub(super) fn store(bodies: BodyStore, keep: KeepBodies, stored: Stored) -> Option<Arc<Self>> {
        if keep == KeepBodies::No {
            info!(
                "bodies of pending messages do not survive this process: sending.keep_bodies is off"
            );
            return None;
        }
        let arena = Arc::new(Self { bodies, kept: watch::Sender::new(None) });
        arena.keep(stored);
        Some(arena)
    }

    fn keep(self: &Arc<Self>, stored: Stored) {
        let mut storing = Some(fd_store::store(self.bodies.as_fd(), stored));
        let (arena, mut kept) = (Arc::clone(self), self.kept.subscribe());
        let begin = move || Arc::clone(&arena).learn_keeper(storing.take(), stored);
        let stop = async move { kept.wait_for(Option::is_some).await.is_ok() };
        tokio::spawn(Task::KeptBodies.again_until(stop, begin));
    }

    /// Learns who keeps it. A task that begins again has it stored anew.
    async fn learn_keeper(self: Arc<Self>, storing: Option<Storing>, stored: Stored) {
        let storing = storing.unwrap_or_else(|| {
            if stored == Stored::Nothing
                && let Err(error) = fd_store::drop_stored()
            {
                error!(%error, "the service manager may keep the bodies twice");
            }
            fd_store::store(self.bodies.as_fd(), stored)
        });
        let kept = storing.kept().await;
        let bodies = self.bodies.usage().records;
        match &kept {
            Kept::ByManager => info!(
                bodies,
                "the service manager keeps the bodies of pending messages: they survive a restart \
                 and a crash"
            ),
            Kept::ByNobody(why) => info!(
                bodies,
                "bodies of pending messages survive `pillarbox restart`, but not a stop or a \
                 crash: {why}"
            ),
        }
        self.kept.send_replace(Some(kept));
    }

    /// Fate of messages that a stop leaves.
    pub(super) fn rest(&self) -> Rest {
        match *self.kept.borrow() {
            Some(Kept::ByManager) => Rest::Kept,
            Some(Kept::ByNobody(_)) | None => Rest::Lost,
        }
    }

    /// Waits until the keeper is known. If that takes too long, there is none: the next program
    /// stores it anew.
    async fn known_by(&self, end: Instant) {
        if timeout_at(end, self.kept.subscribe().wait_for(Option::is_some)).await.is_ok() {
            return;
        }
        if let Err(error) = fd_store::drop_stored() {
            error!(%error, "the service manager may keep the bodies twice");
        }
    }

    fn keeper(&self) -> Keeper {
        let reason = match &*self.kept.borrow() {
            Some(Kept::ByManager) => return Keeper::ServiceManager,
            Some(Kept::ByNobody(why)) => why.to_string(),
            None => "the service manager has not said yet whether it keeps them".to_owned(),
        };
        Keeper::Nobody { reason }
    }
}

/// Bodies of pending messages, for operators.
pub(super) fn body_facts(
    queue: &Arc<MessageQueue>,
    survived_messages: usize,
    clock: &Clock,
    arena: Option<&Arc<Arena>>,
    refused: &Arc<Mutex<Vec<RefusedArena>>>,
) -> Arc<BodyFacts> {
    let (shown, dropped) = (arena.cloned(), arena.cloned());
    let keeper = move || match &shown {
        Some(arena) => arena.keeper(),
        None => Keeper::NotWanted,
    };
    let (told, given_up) = (Arc::clone(refused), Arc::clone(refused));
    Arc::new(BodyFacts {
        queue: Arc::clone(queue),
        survived_messages,
        // Requests are not answered yet, so what is pending was accepted earlier.
        began: (Instant::now(), clock.now()),
        keeper: Box::new(keeper),
        unreadable: Box::new(move || reasons(&told)),
        drop_unreadable: Box::new(move || give_up(&given_up, dropped.as_ref())),
    })
}

fn locked(refused: &Mutex<Vec<RefusedArena>>) -> MutexGuard<'_, Vec<RefusedArena>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reasons(refused: &Mutex<Vec<RefusedArena>>) -> Option<String> {
    let reasons: Vec<_> = locked(refused).iter().map(|one| one.why.to_string()).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Has the service manager drop arenas that are not used, and keep this process's own.
fn give_up(refused: &Mutex<Vec<RefusedArena>>, arena: Option<&Arc<Arena>>) -> io::Result<()> {
    let mut refused = locked(refused);
    if refused.iter().any(|one| one.keeper == ArenaKeeper::Manager) {
        // They have one name, so this one goes with the others for a moment.
        fd_store::drop_stored()?;
        if let Some(arena) = arena {
            arena.kept.send_replace(None);
            arena.keep(Stored::Nothing);
        }
    }
    for RefusedArena { memory, .. } in refused.drain(..) {
        kept_bodies::free(&memory);
    }
    Ok(())
}

/// End of a service that was asked to restart.
#[derive(Debug)]
pub(super) enum HandedOver {
    /// The next program may be executed.
    To(NextProgram),
    /// A signal came first: the service is to stop.
    Stopping(Box<Service>),
}

/// Program that goes on in this process, with what it gets.
#[derive(Debug)]
pub struct NextProgram {
    descriptors: Vec<(String, OwnedFd)>,
}

impl NextProgram {
    /// Adds a descriptor of the service's own.
    pub(super) fn add_own(&mut self, name: &str, descriptor: OwnedFd) {
        self.descriptors.push((own_name(name), descriptor));
    }

    fn add_copy(&mut self, name: String, descriptor: BorrowedFd<'_>) {
        match descriptor.try_clone_to_owned() {
            Ok(copy) => self.descriptors.push((name, copy)),
            Err(error) => error!(%error, name, "a descriptor is not handed over"),
        }
    }

    /// Executes the installed program by this process's command line, and returns only if that
    /// fails. Then nothing of this process can be used any more but its standard streams.
    pub fn execute(self) -> ServiceError {
        let what = "the installed program cannot be executed";
        ServiceError::System { what, source: self.try_execute() }
    }

    fn try_execute(self) -> io::Error {
        let mut command = match own_command_line() {
            Ok(command) => command,
            Err(error) => return error,
        };
        let names: Vec<_> = self.descriptors.iter().map(|(name, _)| name.as_str()).collect();
        command
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_PID", std::process::id().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        let numbered = (FIRST_DESCRIPTOR..).zip(self.descriptors);
        let mappings =
            numbered.map(|(child_fd, (_, parent_fd))| FdMapping { parent_fd, child_fd }).collect();
        match command.fd_mappings(mappings) {
            Ok(command) => command.exec(),
            Err(error) => io::Error::other(error),
        }
    }
}

impl Service {
    /// Ends once a restart was asked for.
    pub(super) async fn restart_asked(&self) {
        self.next.restarts.asked().await;
    }

    /// Ends in order, and leaves what is pending to the next program: no call starts any more, those
    /// under way have [`LAST_CALLS`], and connections wait. A signal makes a stop of it while calls
    /// are under way, and later stops the next program.
    pub(super) async fn hand_over(mut self, signals: &mut Signals) -> HandedOver {
        let pending = self.queue.pending().messages;
        let until = Instant::now() + LAST_CALLS;
        info!(
            pending,
            "handing over to the next program, which sends the pending messages; connections wait"
        );
        if self.next.arena.is_none() {
            // What came now would end with this program.
            self.intake.close();
        }
        self.drain.hold_connections();
        self.phase.send_replace(match self.next.arena {
            Some(_) => Phase::Handover { until },
            None => Phase::Draining { until, rest: Rest::Lost },
        });
        let calls_end = async {
            tokio::select! {
                ended = &mut self.sending => Some(ended),
                () = signals.next() => None,
            }
        };
        let (ended, ()) = tokio::join!(calls_end, clients_left(&self.api));
        match ended {
            Some(Ok(())) => {}
            Some(Err(error)) => error!(%error, "the dispatcher's task failed"),
            None => return HandedOver::Stopping(Box::new(self)),
        }
        if let Some(arena) = &self.next.arena {
            arena.known_by(until).await;
        }
        let mut next = self.next_program();
        let answers_end = until.max(Instant::now() + LEAST_ANSWERS);
        let ending = self.end_to_hand_over(answers_end);
        if timeout_at(answers_end + LONGEST_END, ending).await.is_err() {
            error!(
                "the hand-over took too long; the next program recovers the messages that are left"
            );
        }
        if signals.came() {
            warn!("a signal arrived during the hand-over: the next program stops at once");
            match File::open("/dev/null") {
                Ok(file) => next.add_own(inherited::STOP, file.into()),
                Err(error) => error!(%error, "the next program could not be told to stop"),
            }
        }
        supervisor::handing_over();
        HandedOver::To(next)
    }

    fn next_program(&mut self) -> NextProgram {
        let mut next = NextProgram { descriptors: std::mem::take(&mut self.next.listeners.0) };
        if let Some(socket) = self.administration.take_copy() {
            socket.keep_file();
            next.descriptors.push((inherited::admin_name(socket.file), socket.listener));
        }
        // From here on, nothing is freed that the next program needs.
        self.queue.bodies().leave();
        if let Some(arena) = self.next.arena.take() {
            let name = match arena.rest() {
                Rest::Kept => ARENA.to_owned(),
                Rest::Lost => own_name(ARENA),
            };
            next.add_copy(name, arena.bodies.as_fd());
        }
        // The next program must know of what the manager keeps, or it would store its own beside it.
        let refused = locked(&self.next.refused);
        for refused in refused.iter().filter(|one| one.keeper == ArenaKeeper::Manager) {
            next.add_copy(ARENA.to_owned(), refused.memory.as_fd());
        }
        drop(refused);
        next
    }

    async fn end_to_hand_over(mut self, answers_end: Instant) {
        self.drain.stop(answers_end);
        self.end_answering().await;
        // What was being accepted is answered, and goes over as well.
        self.intake.close();
        if timeout_at(answers_end, self.intake.cleared()).await.is_err() {
            error!("messages are still being accepted; the next program recovers them");
        }
        self.end_rest().await;
        self.operators.stop().await;
    }
}
