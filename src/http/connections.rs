//! Client connections, of HTTP and SMTP together: those without a valid key have half of the limit,
//! and one address has a share of that half.
//!
//! A connection has a valid key from its first accepted key until [`KEY_LASTS`] after its last
//! request with one. If there is no room, one without a key makes it: one that has sent nothing of a
//! request, or one whose request has been incomplete for a while. Must not know what a key is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::Instant;

/// Time after its last request with a valid key for which a connection counts as having one.
const KEY_LASTS: Duration = Duration::from_mins(1);
/// Time for which a request may be incomplete while there is no room. Proxies send a head at once.
const INCOMPLETE: Duration = Duration::from_secs(2);
/// The least number of connections that one address may have.
const LEAST_OF_ADDRESS: usize = 16;
/// The most connections that are asked to end and have not ended: so many, and an eighth of the
/// limit. Each is a file beyond the limit.
const MAX_LEAVING: usize = 64;
/// Pause of a listener while there are so many.
pub const CROWDED_PAUSE: Duration = Duration::from_millis(5);
/// Pause between two searches for keys that count no more.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);
/// Connections that are chosen in one pass over all, to make room one after the other.
const CHOSEN_AT_ONCE: usize = 64;
/// Pause after a pass that found none.
const CHOICE_PAUSE: Duration = Duration::from_millis(20);

/// All client connections. Clones are the same.
#[derive(Debug, Clone)]
pub struct ClientConnections(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max: usize,
    trusted: Vec<IpNet>,
    start: Instant,
    open: Mutex<Open>,
    /// Copy of the number in `open`, to be read without the lock.
    keyless: AtomicUsize,
    /// Connections that are asked to end and have not ended.
    leaving: AtomicUsize,
    counts: [AtomicU64; Closed::ALL.len()],
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// Connections by number. One that is asked to end is not among them.
    all: HashMap<u64, Arc<State>>,
    /// Number of those without a key.
    keyless: usize,
    /// Those without a key of each address.
    of_address: HashMap<IpAddr, HashSet<u64>>,
    swept_at: Duration,
    /// Numbers of those that make room next.
    chosen: VecDeque<u64>,
    /// No pass over all before this.
    choice_pause: Duration,
}

/// Activity of a connection, as it counts if there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Activity {
    /// A TLS handshake, or a session of SMTP before its first command.
    Handshake,
    /// No byte of a request has come.
    Silent,
    /// A request has begun and is not complete; of SMTP, the session has no key yet.
    Incomplete,
    /// The last answer was given.
    Ending,
    /// The last request was answered, and no byte of the next one has come.
    Idle,
    /// A request is being answered.
    Busy,
}

/// Reason why a connection without a key was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// It made room, and had sent nothing.
    Idle,
    /// It made room, and its request was incomplete.
    Incomplete,
    /// It was new, and there was no room.
    Refused,
}

impl Closed {
    /// All activities that can be closed.
    pub const ALL: [Self; 3] = [Self::Idle, Self::Incomplete, Self::Refused];

    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Incomplete => "incomplete",
            Self::Refused => "refused",
        }
    }
}

/// Open connection, until it is dropped.
#[derive(Debug)]
pub struct ClientConnection {
    all: Arc<Inner>,
    number: u64,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// `None` for a trusted proxy: it has no limit of its own.
    address: Option<IpAddr>,
    /// The [`Activity`] in the upper 8 bits; below, since when, in milliseconds.
    activity: AtomicU64,
    /// It counts as having a key. Changed under the lock alone.
    has_key: AtomicBool,
    /// The last request with a valid key ended then, in milliseconds.
    keyed_at: AtomicU64,
    /// Requests with a valid key.
    keyed: AtomicU32,
    is_told: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl ClientConnections {
    /// At most `max` connections. The addresses of `trusted` proxies have no share of their own.
    pub fn new(max: usize, trusted: Vec<IpNet>) -> Self {
        Self(Arc::new(Inner {
            max,
            trusted,
            start: Instant::now(),
            open: Mutex::default(),
            keyless: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            counts: Default::default(),
        }))
    }

    /// Takes in a new connection. If there is no room, another one is asked to end; if none can,
    /// the new one has to go.
    pub fn admit(&self, address: Option<IpAddr>, activity: Activity) -> Option<ClientConnection> {
        let inner = &self.0;
        let now = inner.now();
        let address = address.map(|address| address.to_canonical());
        let address =
            address.filter(|address| !inner.trusted.iter().any(|net| net.contains(address)));
        let mut open = inner.open();
        if now >= open.swept_at + SWEEP_PAUSE {
            inner.sweep(&mut open, now);
        }
        let of_address = address.and_then(|address| open.of_address.get(&address));
        let has_room = if of_address.is_some_and(|open| open.len() >= inner.most_of_address()) {
            inner.make_room_of_address(&mut open, address, now)
        } else if open.keyless >= inner.half() || open.all.len() >= inner.max {
            inner.make_room(&mut open, now)
        } else {
            true
        };
        if !has_room {
            inner.count(Closed::Refused);
            return None;
        }
        let number = open.next;
        open.next += 1;
        let state = Arc::new(State {
            address,
            activity: AtomicU64::new(packed(activity, now)),
            has_key: AtomicBool::new(false),
            keyed_at: AtomicU64::new(0),
            keyed: AtomicU32::new(0),
            is_told: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        inner.insert(&mut open, number, &state);
        Some(ClientConnection { all: Arc::clone(inner), number, state })
    }

    /// Returns true if so many make room that no other is to be accepted for [`CROWDED_PAUSE`].
    pub fn is_crowded(&self) -> bool {
        let most = MAX_LEAVING.min(self.0.max.div_ceil(8));
        self.0.leaving.load(Ordering::Relaxed) >= most
    }

    /// Connections without a valid key.
    pub fn keyless(&self) -> usize {
        self.0.keyless.load(Ordering::Relaxed)
    }

    /// Connections without a key that were closed for this reason.
    pub fn closed(&self, reason: Closed) -> u64 {
        self.0.counts[reason as usize].load(Ordering::Relaxed)
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The most connections without a key.
    fn half(&self) -> usize {
        self.max.div_ceil(2)
    }

    fn most_of_address(&self) -> usize {
        (self.half() / 4).max(LEAST_OF_ADDRESS)
    }

    fn count(&self, closed: Closed) {
        self.counts[closed as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn insert(&self, open: &mut Open, number: u64, state: &Arc<State>) {
        open.all.insert(number, Arc::clone(state));
        if !state.has_key.load(Ordering::Relaxed) {
            self.add_keyless(open, number, state);
        }
    }

    fn remove(&self, open: &mut Open, number: u64) {
        if let Some(state) = open.all.remove(&number)
            && !state.has_key.load(Ordering::Relaxed)
        {
            self.remove_keyless(open, number, &state);
        }
    }

    fn add_keyless(&self, open: &mut Open, number: u64, state: &State) {
        open.keyless += 1;
        self.keyless.store(open.keyless, Ordering::Relaxed);
        if let Some(address) = state.address {
            open.of_address.entry(address).or_default().insert(number);
        }
    }

    fn remove_keyless(&self, open: &mut Open, number: u64, state: &State) {
        open.keyless -= 1;
        self.keyless.store(open.keyless, Ordering::Relaxed);
        if let Some(address) = state.address
            && let Some(numbers) = open.of_address.get_mut(&address)
        {
            numbers.remove(&number);
            if numbers.is_empty() {
                open.of_address.remove(&address);
            }
        }
    }

    /// Finds the keys that count no more.
    fn sweep(&self, open: &mut Open, now: Duration) {
        open.swept_at = now;
        let lapsed: Vec<_> = open
            .all
            .iter()
            .filter(|(_, state)| state.has_key.load(Ordering::Relaxed) && state.has_lapsed(now))
            .map(|(number, state)| (*number, Arc::clone(state)))
            .collect();
        for (number, state) in lapsed {
            state.has_key.store(false, Ordering::Relaxed);
            self.add_keyless(open, number, &state);
        }
    }

    /// Asks one of an address's connections to end; returns false if none can.
    fn make_room_of_address(
        &self,
        open: &mut Open,
        address: Option<IpAddr>,
        now: Duration,
    ) -> bool {
        let numbers = address.and_then(|address| open.of_address.get(&address));
        let ranked = numbers.into_iter().flatten().filter_map(|number| {
            let rank = open.all.get(number)?.rank(now)?;
            Some((rank, *number))
        });
        let first = ranked.min().map(|(_, number)| number);
        first.is_some_and(|number| self.tell(open, number, now))
    }

    /// Asks one connection to end; returns false if none can.
    fn make_room(&self, open: &mut Open, now: Duration) -> bool {
        loop {
            while let Some(number) = open.chosen.pop_front() {
                if self.tell(open, number, now) {
                    return true;
                }
            }
            if now < open.choice_pause {
                return false;
            }
            self.choose(open, now);
            if open.chosen.is_empty() {
                open.choice_pause = now + CHOICE_PAUSE;
                return false;
            }
        }
    }

    /// Chooses the connections that make room next. A pass over all costs too much for one new
    /// connection.
    fn choose(&self, open: &mut Open, now: Duration) {
        self.sweep(open, now);
        let keyless = open.all.iter().filter(|(_, state)| !state.has_key.load(Ordering::Relaxed));
        let mut ranked: Vec<_> =
            keyless.filter_map(|(number, state)| Some((state.rank(now)?, *number))).collect();
        if ranked.len() > CHOSEN_AT_ONCE {
            ranked.select_nth_unstable(CHOSEN_AT_ONCE);
            ranked.truncate(CHOSEN_AT_ONCE);
        }
        ranked.sort_unstable();
        // The first are of one kind: others only come once there is none of it.
        let first = ranked.first().map(|((kind, _), _)| *kind);
        ranked.retain(|((kind, _), _)| Some(*kind) == first);
        open.chosen = ranked.into_iter().map(|(_, number)| number).collect();
    }

    fn tell(&self, open: &mut Open, number: u64, now: Duration) -> bool {
        let Some(state) = open.all.get(&number) else { return false };
        if state.has_key.load(Ordering::Relaxed) {
            return false;
        }
        let Some((kind, _)) = state.rank(now) else { return false };
        let state = Arc::clone(state);
        self.remove(open, number);
        self.count(if kind == Kind::Incomplete { Closed::Incomplete } else { Closed::Idle });
        self.leaving.fetch_add(1, Ordering::Relaxed);
        state.is_told.store(true, Ordering::SeqCst);
        state.wake();
        true
    }
}

/// Kind of connection that can make room; the first kinds go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Handshake,
    Silent,
    Incomplete,
    Ending,
    Idle,
}

fn packed(activity: Activity, now: Duration) -> u64 {
    let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    ((activity as u64) << 56) | (millis & (u64::MAX >> 8))
}

impl State {
    fn activity(&self) -> (Activity, Duration) {
        let packed = self.activity.load(Ordering::SeqCst);
        let activity = match packed >> 56 {
            0 => Activity::Handshake,
            1 => Activity::Silent,
            2 => Activity::Incomplete,
            3 => Activity::Ending,
            4 => Activity::Idle,
            _ => Activity::Busy,
        };
        (activity, Duration::from_millis(packed & (u64::MAX >> 8)))
    }

    /// Returns how soon it makes room, the least first, or `None` if it cannot.
    fn rank(&self, now: Duration) -> Option<(Kind, Duration)> {
        let (activity, since) = self.activity();
        let is_long = now >= since + INCOMPLETE;
        let kind = match activity {
            Activity::Handshake => Kind::Handshake,
            Activity::Silent => Kind::Silent,
            Activity::Incomplete if is_long => Kind::Incomplete,
            Activity::Ending if is_long => Kind::Ending,
            Activity::Idle => Kind::Idle,
            Activity::Incomplete | Activity::Ending | Activity::Busy => return None,
        };
        Some((kind, since))
    }

    fn has_lapsed(&self, now: Duration) -> bool {
        let keyed_at = Duration::from_millis(self.keyed_at.load(Ordering::Relaxed));
        self.activity().0 != Activity::Busy && now >= keyed_at + KEY_LASTS
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let waker = self.waker().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl ClientConnection {
    /// Notes what the connection does from now on.
    pub fn enter(&self, activity: Activity) {
        self.state.activity.store(packed(activity, self.all.now()), Ordering::SeqCst);
        if matches!(activity, Activity::Incomplete | Activity::Busy) {
            self.stay();
        }
    }

    /// Notes that a request is complete. Returns what [`Self::answered`] wants to know.
    pub fn begin_request(&self) -> u32 {
        self.state.activity.store((Activity::Busy as u64) << 56, Ordering::SeqCst);
        self.stay();
        self.state.keyed.load(Ordering::Relaxed)
    }

    /// Notes that a request was answered.
    pub fn answered(&self, begun: u32) {
        let now = self.all.now();
        if self.state.keyed.load(Ordering::Relaxed) != begun {
            self.state.keyed_at.store(packed(Activity::Handshake, now), Ordering::Relaxed);
        }
        self.state.activity.store(packed(Activity::Idle, now), Ordering::SeqCst);
    }

    /// Notes a valid key.
    pub fn accept_key(&self) {
        self.state.keyed.fetch_add(1, Ordering::Relaxed);
        if self.state.has_key.load(Ordering::Relaxed) {
            return;
        }
        let now = packed(Activity::Handshake, self.all.now());
        self.state.keyed_at.store(now, Ordering::Relaxed);
        self.stay();
        let mut open = self.all.open();
        if open.all.contains_key(&self.number) && !self.state.has_key.swap(true, Ordering::Relaxed)
        {
            self.all.remove_keyless(&mut open, self.number, &self.state);
        }
    }

    /// Returns true if an answer to a request without a valid key ends the connection: at least
    /// half of what such connections may have is in use.
    pub fn ends_without_key(&self) -> bool {
        2 * self.all.keyless.load(Ordering::Relaxed) >= self.all.half()
    }

    /// Stays, though it was asked to end: a part of a request has come meanwhile.
    fn stay(&self) {
        if self.is_told() {
            let mut open = self.all.open();
            if self.state.is_told.swap(false, Ordering::SeqCst) {
                self.all.leaving.fetch_sub(1, Ordering::Relaxed);
                self.all.insert(&mut open, self.number, &self.state);
            }
        }
    }

    /// Returns true if the connection is to make room.
    pub fn is_told(&self) -> bool {
        self.state.is_told.load(Ordering::SeqCst)
    }

    /// Is ready if the connection is to make room. If not, the task is woken once it is.
    pub fn poll_told(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_told() {
            let mut waker = self.state.waker();
            match &mut *waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        // It may have been asked to end since.
        if self.is_told() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ends once the connection is to make room.
    pub async fn told(&self) {
        poll_fn(|context| self.poll_told(context)).await;
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        let mut open = self.all.open();
        self.all.remove(&mut open, self.number);
        if self.is_told() {
            self.all.leaving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
