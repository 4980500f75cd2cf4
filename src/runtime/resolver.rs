//! Host names: resolved by the system's resolver, within a time, by a bounded number of threads of
//! which each holder has a share.
//!
//! The system's resolver, because operators rely on its sources: `/etc/hosts`, search domains,
//! names of containers, `nsswitch.conf`. It cannot be cancelled, so a resolution that no caller
//! waits for keeps its thread until it ends. Knows nothing of the servers that are called.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::detached_thread;
use crate::in_flight::InFlightGuard;
use crate::shared_limits::{Budget, Reservation, Slots};

/// Time after which a resolution is slow. Addresses that were found before are used meanwhile, and
/// the next resolution of the name takes one of the threads that only slow names use.
const SLOW: Duration = Duration::from_secs(1);
/// Time for which addresses are used again, so that an answer that came too late for its caller
/// serves the next one.
const FRESH: Duration = Duration::from_secs(10);
/// The most names that are known at one time.
const MAX_NAMES: usize = 16 * 1024;

/// Limits of a resolver.
#[derive(Debug, Clone, Copy)]
pub struct ResolverLimits {
    /// Largest number of resolutions at one time, each on a thread. Half of them may be of slow
    /// names.
    pub max_lookups: usize,
    /// Longest wait of a caller.
    pub patience: Duration,
    /// Time for which addresses are kept, and used if a later resolution gets no answer.
    pub kept: Duration,
}

/// Resolver of names for holders that share its threads. Clones share everything.
#[derive(Debug)]
pub struct Resolver<K>(Arc<Inner<K>>);

/// Reason why a name has no addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No answer came in time.
    #[error("no answer to the look-up of {name} within {} s", patience.as_secs_f32())]
    TimedOut {
        /// Host name that was to be resolved.
        name: String,
        /// Time for which the caller waited.
        patience: Duration,
    },
    /// The system's resolver has no addresses, or failed.
    #[error("{name} cannot be looked up: {reason}")]
    Failed {
        /// Host name that was to be resolved.
        name: String,
        /// The resolver's reason.
        reason: Arc<str>,
    },
}

/// Addresses of a name, without a port.
type Found = Arc<[SocketAddr]>;
type Answer = Result<Found, Arc<str>>;
/// Function that asks the system; tests replace it.
type Ask = fn(&str) -> std::io::Result<Vec<SocketAddr>>;

#[derive(Debug)]
struct Inner<K> {
    limits: ResolverLimits,
    all: Lane<K>,
    slow: Lane<K>,
    names: Mutex<HashMap<String, Name>>,
    ask: Ask,
}

/// Threads with a share for each holder.
#[derive(Debug)]
struct Lane<K> {
    threads: Budget<K>,
    /// One resolution of each holder waits for a thread, so that none waits for another's.
    next: Slots<K>,
}

#[derive(Debug)]
struct Name {
    /// The resolution under way, if there is one.
    lookup: Option<watch::Receiver<Option<Answer>>>,
    /// The last addresses, and the time at which they were found.
    found: Option<(Instant, Found)>,
    /// True if its last resolution was slow.
    is_slow: bool,
    asked_at: Instant,
}

impl<K> Clone for Resolver<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Copy + Eq + Hash> Lane<K> {
    fn new(threads: usize) -> Self {
        Self { threads: Budget::new(threads), next: Slots::new(1, MAX_NAMES) }
    }

    /// Takes a thread for a holder, once one is granted.
    async fn take(&self, holder: K) -> Option<Reservation<K>> {
        let _next = self.next.take(holder).await.ok()?;
        Some(self.threads.reserve_later(holder, 1).await)
    }
}

impl<K: Copy + Eq + Hash + Send + Sync + 'static> Resolver<K> {
    /// A resolver with these limits.
    pub fn new(limits: ResolverLimits) -> Self {
        Self::asking(limits, |name| Ok((name, 0).to_socket_addrs()?.collect()))
    }

    fn asking(limits: ResolverLimits, ask: Ask) -> Self {
        Self(Arc::new(Inner {
            limits,
            all: Lane::new(limits.max_lookups),
            slow: Lane::new(limits.max_lookups.div_ceil(2)),
            names: Mutex::default(),
            ask,
        }))
    }

    /// Returns the addresses of a name for a holder, with port 0.
    pub async fn resolve(&self, holder: K, name: &str) -> Result<Found, ResolveError> {
        let (mut lookup, found) = match self.begin(holder, name) {
            Begun::Found(found) => return Ok(found),
            Begun::LookedUp { lookup, found } => (lookup, found),
        };
        let patience = if found.is_some() { SLOW } else { self.0.limits.patience };
        let answered = timeout(patience, lookup.wait_for(Option::is_some)).await;
        let answer = answered.ok().and_then(|answer| answer.ok()?.clone());
        match (answer, found) {
            (Some(Ok(found)), _) | (None, Some(found)) => Ok(found),
            (Some(Err(reason)), _) => Err(ResolveError::Failed { name: name.to_owned(), reason }),
            (None, None) => Err(ResolveError::TimedOut { name: name.to_owned(), patience }),
        }
    }

    /// Joins the name's resolution, or begins one.
    fn begin(&self, holder: K, name: &str) -> Begun {
        let now = Instant::now();
        let mut names = self.0.names();
        let is_new = !names.contains_key(name);
        if is_new && names.len() >= MAX_NAMES {
            let kept = self.0.limits.kept.max(FRESH);
            names.retain(|_, name| name.lookup.is_some() || now < name.asked_at + kept);
        }
        if is_new && names.len() >= MAX_NAMES {
            let (_, lookup) = watch::channel(Some(Err("too many look-ups are under way".into())));
            return Begun::LookedUp { lookup, found: None };
        }
        let known = names.entry(name.to_owned()).or_insert_with(|| Name {
            lookup: None,
            found: None,
            is_slow: false,
            asked_at: now,
        });
        known.asked_at = now;
        if let Some((at, found)) = &known.found
            && now < *at + FRESH
        {
            return Begun::Found(Arc::clone(found));
        }
        let kept = self.0.limits.kept;
        let found = known.found.as_ref().filter(|(at, _)| now < *at + kept);
        let found = found.map(|(_, found)| Arc::clone(found));
        let lookup = known.lookup.get_or_insert_with(|| {
            let (answers, lookup) = watch::channel(None);
            let (inner, is_slow) = (Arc::clone(&self.0), known.is_slow);
            // In a task of its own, because its first caller may have gone before others have an
            // answer.
            tokio::spawn(inner.look_up(holder, name.to_owned(), is_slow, answers));
            lookup
        });
        Begun::LookedUp { lookup: lookup.clone(), found }
    }
}

/// State of a name at the moment of a call.
enum Begun {
    Found(Found),
    LookedUp {
        lookup: watch::Receiver<Option<Answer>>,
        /// Addresses from before.
        found: Option<Found>,
    },
}

impl<K: Copy + Eq + Hash + Send + Sync + 'static> Inner<K> {
    fn names(&self) -> MutexGuard<'_, HashMap<String, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_up(
        self: Arc<Self>,
        holder: K,
        name: String,
        is_slow: bool,
        answers: watch::Sender<Option<Answer>>,
    ) {
        let threads = async {
            let of_slow = if is_slow { Some(self.slow.take(holder).await?) } else { None };
            Some((of_slow, self.all.take(holder).await?))
        };
        let Ok(Some(threads)) = timeout(self.limits.patience, threads).await else {
            return self.end(&name, Err("too many look-ups get no answer".into()), &answers);
        };
        let (ask, asked) = (self.ask, name.clone());
        let lookup = detached_thread::run("lookup", move || {
            // Its thread is taken until it ends, even if nobody waits.
            let _threads = threads;
            ask(&asked)
        });
        tokio::pin!(lookup);
        let slow_at = Instant::now() + SLOW;
        let looked_up = tokio::select! {
            looked_up = &mut lookup => looked_up,
            () = sleep_until(slow_at) => {
                self.note(&name, |known| known.is_slow = true);
                lookup.await
            }
        };
        if Instant::now() < slow_at {
            self.note(&name, |known| known.is_slow = false);
        }
        let answer = match looked_up.and_then(|found| found) {
            Ok(found) if found.is_empty() => Err("it has no address".into()),
            Ok(found) => Ok(found.into()),
            Err(error) => Err(error.to_string().into()),
        };
        self.end(&name, answer, &answers);
    }

    fn note(&self, name: &str, change: impl FnOnce(&mut Name)) {
        if let Some(known) = self.names().get_mut(name) {
            change(known);
        }
    }

    fn end(&self, name: &str, answer: Answer, answers: &watch::Sender<Option<Answer>>) {
        self.note(name, |known| {
            known.lookup = None;
            match &answer {
                Ok(found) => known.found = Some((Instant::now(), Arc::clone(found))),
                // A name that no longer exists is not called at its old addresses.
                Err(_) => known.found = None,
            }
        });
        answers.send_replace(Some(answer));
    }
}

/// Resolver as the HTTP client calls it.
#[derive(Debug)]
pub struct HttpResolver<K> {
    resolver: Resolver<K>,
    caller: fn() -> Caller<K>,
}

/// Caller that a name is resolved for.
#[derive(Debug)]
pub struct Caller<K> {
    /// Holder whose share of the threads is used.
    pub holder: K,
    /// Guard that is dropped when the resolution ends.
    pub guard: Option<InFlightGuard>,
}

impl<K> HttpResolver<K> {
    /// A resolver for an HTTP client. `caller` returns who calls; it runs in the task of the
    /// request.
    pub fn new(resolver: Resolver<K>, caller: fn() -> Caller<K>) -> Self {
        Self { resolver, caller }
    }
}

impl<K: Copy + Eq + Hash + Send + Sync + 'static> reqwest::dns::Resolve for HttpResolver<K> {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let Caller { holder, guard } = (self.caller)();
        let resolver = self.resolver.clone();
        Box::pin(async move {
            let found = resolver.resolve(holder, name.as_str()).await?;
            drop(guard);
            let addresses: Vec<_> = found.iter().copied().collect();
            Ok(Box::new(addresses.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

#[cfg(test)]
mod tests;
