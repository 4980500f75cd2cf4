//! Organisations, API keys and sender domains, as the store's callers see them.

use crate::domain::api_key::ApiKeyHash;
use crate::domain::id::{KeyId, OrganisationId};
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{
    ApiKeyEntry, DomainCheck, DomainState, Organisation, OrganisationName, SenderDomain,
    SenderStatus,
};
use crate::domain::time::Timestamp;
use crate::store::redb::{administer, key_use};
use crate::store::{Change, NewApiKey, Store, StoreError};

impl Store {
    /// The organisation that an API key lets in at `now`, with the key's number; notes the use, in
    /// memory.
    pub fn authenticate(&self, hash: &ApiKeyHash, now: Timestamp) -> Option<(Organisation, KeyId)> {
        let directory = self.shared.directory();
        let key = directory.key(hash).filter(|key| key.is_live(now))?;
        key_use::note(&self.shared, key.id, now);
        Some((directory.organisation(key.organisation)?.clone(), key.id))
    }

    /// When an API key was last used, to the millisecond while the service runs.
    pub fn key_last_used(&self, id: KeyId) -> Option<Timestamp> {
        key_use::last(&self.shared, id)
    }

    /// Stores when the API keys were last used, as far as that is newer than what is stored.
    pub async fn store_key_use(&self) -> Result<(), StoreError> {
        let newer = key_use::take_unstored(&self.shared);
        if newer.is_empty() {
            return Ok(());
        }
        let stored = newer.clone();
        let done = self.writer.run(64, move |batch| key_use::write(batch, &stored)).await;
        if done.is_err() {
            key_use::give_back(&self.shared, &newer);
        }
        done
    }

    /// Adds an organisation; `None` where the name is taken.
    pub async fn add_organisation(
        &self,
        name: OrganisationName,
    ) -> Result<Option<Organisation>, StoreError> {
        self.writer.run(128, move |batch| administer::add_organisation(batch, name)).await
    }

    /// Removes an organisation with its keys and domains; its records stay.
    pub async fn remove_organisation(&self, id: OrganisationId) -> Result<Change, StoreError> {
        self.writer.run(128, move |batch| administer::remove_organisation(batch, id)).await
    }

    /// All organisations.
    pub fn organisations(&self) -> Vec<Organisation> {
        self.shared.directory().organisations.clone()
    }

    /// The organisation with this name.
    pub fn organisation(&self, name: &OrganisationName) -> Option<Organisation> {
        self.shared.directory().organisations.iter().find(|o| o.name == *name).cloned()
    }

    /// The organisation with this number.
    pub fn organisation_by_id(&self, id: OrganisationId) -> Option<Organisation> {
        self.shared.directory().organisation(id).cloned()
    }

    /// Adds an API key by its hash; `None` where there is no such organisation.
    pub async fn add_api_key(
        &self,
        organisation: OrganisationId,
        key: NewApiKey,
        now: Timestamp,
    ) -> Result<Option<ApiKeyEntry>, StoreError> {
        self.writer
            .run(128, move |batch| administer::add_api_key(batch, organisation, key, now))
            .await
    }

    /// Revokes an API key; no request that arrives after this is let in with it.
    pub async fn revoke_api_key(&self, id: KeyId) -> Result<Change, StoreError> {
        self.writer.run(128, move |batch| administer::revoke_api_key(batch, id)).await
    }

    /// All API keys, as hashes.
    pub fn api_keys(&self) -> Vec<ApiKeyEntry> {
        self.shared.directory().api_keys.clone()
    }

    /// Adds a sender domain, or sets the state of one that is there; `None` where there is no such
    /// organisation.
    pub async fn put_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        state: DomainState,
        now: Timestamp,
    ) -> Result<Option<SenderDomain>, StoreError> {
        let name = name.into_owned();
        self.writer
            .run(128, move |batch| administer::put_domain(batch, organisation, &name, state, now))
            .await
    }

    /// Writes down what the provider said of a sender domain and moves it from one state to
    /// another, which may be the same; does nothing where it has changed or gone since it was read.
    pub async fn change_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        from: DomainState,
        to: DomainState,
        check: DomainCheck,
    ) -> Result<Change, StoreError> {
        let name = name.into_owned();
        self.writer
            .run(128, move |batch| {
                administer::change_domain(batch, organisation, &name, from, to, check)
            })
            .await
    }

    /// Withdraws a sender domain.
    pub async fn remove_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
    ) -> Result<Change, StoreError> {
        let name = name.into_owned();
        self.writer
            .run(128, move |batch| administer::remove_domain(batch, organisation, &name))
            .await
    }

    /// Whether an organisation may send from a domain now.
    pub fn sender_status(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
    ) -> SenderStatus {
        self.shared.directory().sender_status(organisation, domain.as_str())
    }

    /// All sender domains.
    pub fn domains(&self) -> Vec<SenderDomain> {
        self.shared.directory().domains.clone()
    }
}
