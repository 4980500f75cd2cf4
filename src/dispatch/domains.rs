//! Sender domains that the provider does not take for now: their messages wait, others go on.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tracing::warn;

use crate::domain::attempt::Problem;
use crate::domain::id::OrganisationId;
use crate::domain::mailbox::DomainName;
use crate::domain::retry::Backoff;

/// The paused domains.
#[derive(Debug, Default)]
pub struct Domains(Mutex<HashMap<(OrganisationId, String), Pause>>);

#[derive(Debug)]
struct Pause {
    until: Instant,
    failures: u32,
    message: String,
}

impl Domains {
    /// Until when the domain is paused.
    pub fn paused_until(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
        now: Instant,
    ) -> Option<Instant> {
        let paused = self.lock();
        if paused.is_empty() {
            return None;
        }
        paused
            .get(&(organisation, domain.as_str().to_owned()))
            .map(|pause| pause.until)
            .filter(|until| *until > now)
    }

    /// Pauses the domain, longer each time.
    pub fn pause(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
        problem: &Problem,
        backoff: Backoff,
    ) {
        let now = Instant::now();
        let mut paused = self.lock();
        // A domain that has been well for long starts anew.
        paused.retain(|_, pause| pause.until + backoff.max() > now);
        let pause = paused.entry((organisation, domain.as_str().to_owned())).or_insert(Pause {
            until: now,
            failures: 0,
            message: String::new(),
        });
        if pause.until > now {
            return;
        }
        pause.failures += 1;
        pause.until = now + backoff.ceiling(pause.failures);
        pause.message.clone_from(&problem.message);
        warn!(
            %domain,
            provider_code = problem.provider_code,
            message = problem.message,
            "the provider does not take messages from this domain; they wait"
        );
    }

    /// The domains that are paused at `now`, with what the provider said.
    pub fn paused(&self, now: Instant) -> Vec<(OrganisationId, String, String)> {
        let paused = self.lock();
        let mut all: Vec<_> = paused
            .iter()
            .filter(|(_, pause)| pause.until > now)
            .map(|((organisation, domain), pause)| {
                (*organisation, domain.clone(), pause.message.clone())
            })
            .collect();
        all.sort_unstable();
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(OrganisationId, String), Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
