//! Organisations. Removing one removes its keys, domains and endpoints with it.

use crate::record::directory::{decode_api_key, decode_organisation, encode_organisation};
use crate::record::webhooks::decode_webhook;
use crate::rows::{Counter, Key, KeyRange, Lock, Rows, Stop, Table, next_number};
use crate::{Change, Store, StoreError};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::organisation::{
    Limits, Organisation, OrganisationKind, OrganisationName, Pause,
};

impl Store {
    /// Adds an organisation, or returns `None` if the name is taken. A row that cannot be read
    /// takes no name.
    pub async fn add_organisation(
        &self,
        name: OrganisationName,
    ) -> Result<Option<Organisation>, StoreError> {
        let kind = OrganisationKind::Production;
        self.change(Lock::Directory, 1, move |rows| add(rows, &name, kind)).await
    }

    /// As [`Store::add_organisation`], for one whose mail does not go to the provider.
    pub async fn add_test_organisation(
        &self,
        name: OrganisationName,
    ) -> Result<Option<Organisation>, StoreError> {
        let kind = OrganisationKind::Test;
        self.change(Lock::Directory, 1, move |rows| add(rows, &name, kind)).await
    }

    /// Changes the settings of an organisation. Returns the changed organisation, or `None` if it
    /// does not exist. `change` may run several times.
    pub async fn change_organisation(
        &self,
        id: OrganisationId,
        change: impl Fn(&mut Organisation) + Send + Sync + 'static,
    ) -> Result<Option<Organisation>, StoreError> {
        let change = move |rows: &mut dyn Rows| {
            let key = Key::from(id.0);
            let row = rows.get(Table::Organisations, &key)?;
            let Some(mut organisation) = row.and_then(|row| decode_organisation(id.0, &row).ok())
            else {
                return Ok(None);
            };
            change(&mut organisation);
            rows.put(Table::Organisations, &key, &encode_organisation(&organisation))?;
            Ok(Some(organisation))
        };
        self.change(Lock::Directory, 1, change).await
    }

    /// Removes an organisation with its keys, domains and endpoints. Its records stay until their
    /// retention ends, and its suppressions with them. A key that cannot be read admits no request,
    /// and stays.
    pub async fn remove_organisation(&self, id: OrganisationId) -> Result<Change, StoreError> {
        self.change(Lock::Directory, 1, move |rows| remove(rows, id)).await
    }

    /// All organisations.
    pub fn organisations(&self) -> Vec<Organisation> {
        self.directory().load().organisations.clone()
    }

    /// The organisation with this name.
    pub fn organisation(&self, name: &OrganisationName) -> Option<Organisation> {
        self.directory().load().named(name.as_str()).cloned()
    }

    /// The operator's order that an organisation's mail waits, if there is one.
    pub fn pause(&self, id: OrganisationId) -> Option<Pause> {
        self.directory().load().organisation(id)?.pause
    }

    /// The organisations that operators have paused.
    pub fn pauses(&self) -> Vec<(OrganisationId, Pause)> {
        let index = self.directory().load();
        index.organisations.iter().filter_map(|one| Some((one.id, one.pause?))).collect()
    }

    /// The organisations that have limits.
    pub fn limits(&self) -> Vec<(OrganisationId, Limits)> {
        let index = self.directory().load();
        let limited = index.organisations.iter().filter(|one| !one.limits.is_none());
        limited.map(|one| (one.id, one.limits)).collect()
    }

    /// The organisation with this number.
    pub fn organisation_by_id(&self, id: OrganisationId) -> Option<Organisation> {
        self.directory().load().organisation(id).cloned()
    }

    /// Kind by which the rest of an organisation is shown. The kind of a removed one is not stored
    /// any more: it counts as one of production.
    pub fn shown_kind(&self, id: OrganisationId) -> OrganisationKind {
        self.organisation_kind(id).unwrap_or(OrganisationKind::Production)
    }

    /// Kind of the organisation with this number; `None` if it does not exist, or no longer.
    pub fn organisation_kind(&self, id: OrganisationId) -> Option<OrganisationKind> {
        self.directory().load().organisation(id).map(|organisation| organisation.kind)
    }
}

fn add(
    rows: &mut dyn Rows,
    name: &OrganisationName,
    kind: OrganisationKind,
) -> Result<Option<Organisation>, Stop> {
    let all = rows.range(Table::Organisations, &KeyRange::all(), usize::MAX)?;
    let mut known =
        all.iter().filter_map(|(key, row)| decode_organisation(key.number(0), row).ok());
    if known.any(|known| known.name == *name) {
        return Ok(None);
    }
    let id = OrganisationId(next_number(rows, Counter::LastOrganisation)?);
    let organisation = Organisation::new(id, name.clone(), kind);
    rows.put(Table::Organisations, &Key::from(id.0), &encode_organisation(&organisation))?;
    Ok(Some(organisation))
}

fn remove(rows: &mut dyn Rows, id: OrganisationId) -> Result<Change, Stop> {
    if !exists(rows, id)? {
        return Ok(Change::None);
    }
    let api_keys = rows.range(Table::ApiKeys, &KeyRange::all(), usize::MAX)?;
    let webhooks = rows.range(Table::Webhooks, &KeyRange::all(), usize::MAX)?;
    let domains = rows.range(Table::Domains, &KeyRange::of(id.0), usize::MAX)?;
    for (key, row) in api_keys {
        if decode_api_key(key.number(0), &row).is_ok_and(|api_key| api_key.organisation == id) {
            rows.remove(Table::ApiKeys, &key)?;
        }
    }
    // The rows of its endpoints are removed later, a step at a time.
    for (key, row) in webhooks {
        if decode_webhook(key.number(0), &row).is_ok_and(|webhook| webhook.organisation == id) {
            rows.remove(Table::Webhooks, &key)?;
        }
    }
    for (key, _) in domains {
        rows.remove(Table::Domains, &key)?;
    }
    rows.remove(Table::Organisations, &Key::from(id.0))?;
    Ok(Change::Made)
}

/// Returns true if the organisation has not been removed.
pub(super) fn exists(rows: &mut dyn Rows, id: OrganisationId) -> Result<bool, Stop> {
    Ok(rows.get(Table::Organisations, &Key::from(id.0))?.is_some())
}
