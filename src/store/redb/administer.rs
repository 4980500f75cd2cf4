//! Organisations, API keys and sender domains: what an operator changes.

use redb::ReadableTable;

use crate::domain::id::{KeyId, OrganisationId};
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{
    ApiKeyEntry, DomainCheck, DomainState, Organisation, OrganisationName, SenderDomain,
};
use crate::domain::time::Timestamp;
use crate::store::NewApiKey;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::tenant::{
    decode_api_key, decode_domain, decode_organisation, encode_api_key, encode_domain,
    encode_organisation,
};
use crate::store::redb::suppress::Change;
use crate::store::redb::tables::{LAST_KEY, LAST_ORGANISATION};
use crate::store::redb::writer::{Batch, DirectoryChange};

/// Adds an organisation; `None` where the name is taken. A row that cannot be read takes no name.
pub(in crate::store) fn add_organisation(
    batch: &mut Batch<'_>,
    name: OrganisationName,
) -> Result<Option<Organisation>, ReadError> {
    for row in batch.tables.organisations.open()?.iter()? {
        if decode_organisation(row?.1.value()).is_ok_and(|taken| taken == name) {
            return Ok(None);
        }
    }
    let id = OrganisationId(batch.tables.next_number(LAST_ORGANISATION)?);
    batch.tables.organisations.open()?.insert(id.0, encode_organisation(&name).as_slice())?;
    batch.directory = DirectoryChange::Changed;
    Ok(Some(Organisation { id, name }))
}

/// Removes an organisation with its keys and domains. Its records stay until their retention
/// ends, and its suppressions with them. A key that cannot be read lets nobody in, and stays.
pub(in crate::store) fn remove_organisation(
    batch: &mut Batch<'_>,
    id: OrganisationId,
) -> Result<Change, ReadError> {
    let mut keys = Vec::new();
    for row in batch.tables.api_keys.open()?.iter()? {
        let (number, row) = row?;
        let key = decode_api_key(number.value(), row.value());
        if key.is_ok_and(|key| key.organisation == id) {
            keys.push(number.value());
        }
    }
    if batch.tables.organisations.open()?.remove(id.0)?.is_none() {
        return Ok(Change::None);
    }
    for key in keys {
        batch.tables.api_keys.open()?.remove(key)?;
        batch.tables.key_use.open()?.remove(key)?;
    }
    batch.tables.domains.open()?.retain_in((id.0, "")..(id.0 + 1, ""), |_, _| false)?;
    batch.directory = DirectoryChange::Changed;
    Ok(Change::Made)
}

/// Adds an API key by its hash; `None` where there is no such organisation.
pub(in crate::store) fn add_api_key(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    key: NewApiKey,
    now: Timestamp,
) -> Result<Option<ApiKeyEntry>, ReadError> {
    if batch.tables.organisations.open()?.get(organisation.0)?.is_none() {
        return Ok(None);
    }
    let id = KeyId(batch.tables.next_number(LAST_KEY)?);
    let NewApiKey { label, expires_at, hash } = key;
    let entry = ApiKeyEntry { id, organisation, label, created_at: now, expires_at, hash };
    batch.tables.api_keys.open()?.insert(id.0, encode_api_key(&entry).as_slice())?;
    batch.directory = DirectoryChange::Changed;
    Ok(Some(entry))
}

/// Revokes an API key.
pub(in crate::store) fn revoke_api_key(
    batch: &mut Batch<'_>,
    id: KeyId,
) -> Result<Change, ReadError> {
    let removed = batch.tables.api_keys.open()?.remove(id.0)?.is_some();
    batch.tables.key_use.open()?.remove(id.0)?;
    if !removed {
        return Ok(Change::None);
    }
    batch.directory = DirectoryChange::Changed;
    Ok(Change::Made)
}

/// Adds a sender domain, or sets the state of one that is there; `None` where there is no such
/// organisation.
pub(in crate::store) fn put_domain(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    name: &DomainName<'_>,
    state: DomainState,
    now: Timestamp,
) -> Result<Option<SenderDomain>, ReadError> {
    if batch.tables.organisations.open()?.get(organisation.0)?.is_none() {
        return Ok(None);
    }
    let domain = match domain(batch, organisation, name)? {
        Some(known) => moved(known, state, now),
        None => SenderDomain {
            organisation,
            name: name.as_str().to_owned(),
            state,
            added_at: now,
            since: now,
            last_check: None,
        },
    };
    write_domain(batch, &domain)?;
    Ok(Some(domain))
}

/// Writes down what the provider said of a sender domain and moves it from one state to another,
/// which may be the same; does nothing where it has changed or gone since it was read.
pub(in crate::store) fn change_domain(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    name: &DomainName<'_>,
    from: DomainState,
    to: DomainState,
    check: DomainCheck,
) -> Result<Change, ReadError> {
    match domain(batch, organisation, name)? {
        Some(domain) if domain.state == from => {
            let domain = moved(domain, to, check.at);
            write_domain(batch, &SenderDomain { last_check: Some(check), ..domain })?;
            Ok(Change::Made)
        }
        Some(_) | None => Ok(Change::None),
    }
}

/// The domain in this state, which it keeps where it is in it already.
fn moved(domain: SenderDomain, state: DomainState, now: Timestamp) -> SenderDomain {
    let since = if domain.state == state { domain.since } else { now };
    SenderDomain { state, since, ..domain }
}

/// The domain's row; `None` also where it cannot be read, so that it can be added again.
fn domain(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    name: &DomainName<'_>,
) -> Result<Option<SenderDomain>, ReadError> {
    let row = batch.tables.domains.open()?.get((organisation.0, name.as_str()))?;
    Ok(row.and_then(|row| decode_domain(organisation.0, name.as_str(), row.value()).ok()))
}

fn write_domain(batch: &mut Batch<'_>, domain: &SenderDomain) -> Result<(), ReadError> {
    let key = (domain.organisation.0, domain.name.as_str());
    batch.tables.domains.open()?.insert(key, encode_domain(domain).as_slice())?;
    batch.directory = DirectoryChange::Changed;
    Ok(())
}

/// Withdraws a sender domain.
pub(in crate::store) fn remove_domain(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    name: &DomainName<'_>,
) -> Result<Change, ReadError> {
    if batch.tables.domains.open()?.remove((organisation.0, name.as_str()))?.is_none() {
        return Ok(Change::None);
    }
    batch.directory = DirectoryChange::Changed;
    Ok(Change::Made)
}
