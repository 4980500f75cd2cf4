//! Usage of organisations: recipients that were accepted, counted in the transaction that accepts
//! them.
//!
//! A transaction refuses messages that would exceed a limit. The usage known in memory refuses them
//! before, so that nothing is encoded and the writer is not used.

use rustc_hash::FxHashMap;

use crate::locks::{Mutex, locked};
use crate::{Engine, Store, StoreError};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::{Exceeded, Usage};

/// Usage of organisations as it was last seen.
#[derive(Debug, Default)]
pub(super) struct KnownUsage(Mutex<FxHashMap<OrganisationId, Usage>>);

impl KnownUsage {
    pub(super) fn of(&self, organisation: OrganisationId) -> Usage {
        locked(&self.0).get(&organisation).copied().unwrap_or_default()
    }

    /// Takes usage that is durable.
    pub(super) fn replace(&self, known: impl IntoIterator<Item = (OrganisationId, Usage)>) {
        locked(&self.0).extend(known);
    }
}

impl Store {
    /// Returns the limit that this many further recipients would exceed, by the usage known in
    /// memory. The transaction that accepts them decides.
    pub fn exceeded_limit(
        &self,
        organisation: OrganisationId,
        recipients: u64,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Exceeded> {
        let directory = self.directory().load();
        let limits = &directory.organisation(organisation)?.limits;
        if limits.is_none() {
            return None;
        }
        let now = now();
        self.memory().usage.of(organisation).at(now).exceeded(limits, recipients, now)
    }

    /// Returns the usage of organisations in the periods that `now` is in.
    pub async fn usage(
        &self,
        organisations: &[OrganisationId],
        now: Timestamp,
    ) -> Result<Vec<Usage>, StoreError> {
        let known = match &self.engine {
            Engine::Redb(engine) => engine.usage(organisations),
            Engine::Postgres(engine) => Box::pin(engine.usage(organisations, now)).await?,
        };
        Ok(known.into_iter().map(|usage| usage.at(now)).collect())
    }

    /// Returns the number of recipients that each organisation had accepted in the month that
    /// begins at `month`, by number. Organisations that were removed are among them.
    pub async fn usage_of_month(
        &self,
        month: Timestamp,
    ) -> Result<Vec<(OrganisationId, u64)>, StoreError> {
        let mut usage = ask_engine!(self, engine => engine.usage_of_month(month))?;
        usage.sort_unstable();
        Ok(usage)
    }
}
