//! Sender domains that the provider does not take for now: what it said, and when each is tried
//! again. Their messages wait in the queue.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tracing::{info, warn};

use crate::domain::attempt::Problem;
use crate::domain::id::OrganisationId;
use crate::domain::mailbox::DomainName;
use crate::domain::retry::Backoff;

type Pauses = BTreeMap<(OrganisationId, DomainName<'static>), Pause>;

/// The paused domains, until each is seen to work.
#[derive(Debug, Default)]
pub(super) struct PausedDomains(Mutex<Pauses>);

/// Pause of one domain.
#[derive(Debug, Clone)]
pub(super) struct Pause {
    /// When the provider last refused the domain. Earlier calls tell nothing of the time since.
    since: Instant,
    /// When the domain is tried again.
    pub(super) until: Instant,
    failures: u32,
    /// What the provider said.
    pub(super) message: String,
}

impl PausedDomains {
    /// Whether any domain is paused.
    pub(super) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Pauses a domain because of a call that was started at `started`, longer each time. Returns
    /// until when, or `None` if that call says nothing new.
    pub(super) fn fault(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
        problem: &Problem,
        started: Instant,
        backoff: Backoff,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut paused = self.lock();
        let key = (organisation, domain.clone().into_owned());
        let failures = match paused.get(&key) {
            Some(pause) if started <= pause.since => return None,
            Some(pause) => pause.failures.saturating_add(1),
            None => 1,
        };
        let until = now + backoff.ceiling(failures);
        let message = problem.message.clone();
        warn!(
            %domain,
            provider_code = problem.provider_code,
            message,
            "the provider does not take messages from this domain; they wait"
        );
        paused.insert(key, Pause { since: now, until, failures, message });
        Some(until)
    }

    /// Ends the pause of a domain because the provider accepted a message in a call that was
    /// started at `started`. Returns `true` if it was paused, and the call is from after that.
    pub(super) fn works(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
        started: Instant,
    ) -> bool {
        let key = (organisation, domain.clone().into_owned());
        let mut paused = self.lock();
        if paused.get(&key).is_none_or(|pause| started <= pause.since) {
            return false;
        }
        paused.remove(&key);
        info!(%domain, "the provider takes messages from this domain again");
        true
    }

    /// The domains that were paused and have not been seen to work since.
    pub(super) fn paused(&self) -> Vec<(OrganisationId, DomainName<'static>, Pause)> {
        let paused = self.lock();
        let all = paused
            .iter()
            .map(|((organisation, domain), pause)| (*organisation, domain.clone(), pause.clone()));
        all.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Pauses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
