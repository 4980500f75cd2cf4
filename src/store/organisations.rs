//! Organisations. Removing one removes its keys, domains and endpoints with it.

use crate::directory::{OrganisationIndex, TABLES};
use crate::record::directory::{decode_organisation, encode_organisation};
use crate::rows::{Counter, Key, KeyRange, KeyedRow, Lock, NewRow, Rows, Stop, Table, next_number};
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
    // The rows of its endpoints are removed later, a step at a time.
    for table in [Table::ApiKeys, Table::Webhooks] {
        for (key, row) in rows.range(table, &KeyRange::all(), usize::MAX)? {
            if NewRow::of(table, &key, row).organisation == Some(id) {
                rows.remove(table, &key)?;
            }
        }
    }
    for (key, _) in rows.range(Table::Domains, &KeyRange::of(id.0), usize::MAX)? {
        rows.remove(Table::Domains, &key)?;
    }
    rows.remove(Table::Organisations, &Key::from(id.0))?;
    Ok(Change::Made)
}

/// Returns true if the organisation has not been removed.
pub(super) fn exists(rows: &mut dyn Rows, id: OrganisationId) -> Result<bool, Stop> {
    Ok(rows.get(Table::Organisations, &Key::from(id.0))?.is_some())
}

/// Reads the directory from the tables that `rows` returns.
pub(super) fn read_index<E>(
    mut rows: impl FnMut(Table) -> Result<Vec<KeyedRow>, E>,
) -> Result<OrganisationIndex, E> {
    let mut index = OrganisationIndex::default();
    for table in TABLES {
        for (key, row) in rows(table)? {
            set_row(&mut index, table, &key, Some(&row));
        }
    }
    Ok(index)
}

/// Takes a row of the directory that was put, or removed if it is `None`.
pub(super) fn set_row(index: &mut OrganisationIndex, table: Table, key: &Key, row: Option<&[u8]>) {
    index.set(table, key.number(0), key.text(4), row);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::record::directory::{encode_api_key, encode_domain};
    use crate::record::webhooks::encode_webhook;
    use pillarbox_domain::api_key::ApiKeyHash;
    use pillarbox_domain::feed::FeedTypes;
    use pillarbox_domain::id::KeyId;
    use pillarbox_domain::organisation::{ApiKeyEntry, DomainState, KeyRights, SenderDomain};
    use pillarbox_domain::time::Timestamp;
    use pillarbox_domain::webhook::{
        SigningSecret, Webhook, WebhookFormat, WebhookId, WebhookState, WebhookUrl,
    };

    /// A key of a table, and a row for it.
    fn row(table: Table, id: u32, variant: u8) -> (Key, Vec<u8>) {
        let key = Key::from(id);
        let at = Timestamp::from_unix_millis(variant.into());
        let organisation = OrganisationId(id);
        match table {
            Table::Organisations => {
                let name = format!("name-{variant}").parse().unwrap();
                let kind = OrganisationKind::Production;
                (key, encode_organisation(&Organisation::new(organisation, name, kind)))
            }
            Table::ApiKeys => {
                let entry = ApiKeyEntry {
                    id: KeyId(id),
                    organisation,
                    label: String::new(),
                    created_at: at,
                    expires_at: None,
                    // Keys with the same first bytes.
                    hash: ApiKeyHash(std::array::from_fn(|place| u8::from(place == 31) * variant)),
                    rights: Arc::new(KeyRights::all()),
                };
                (key, encode_api_key(&entry))
            }
            Table::Domains => {
                let name = format!("{variant}.example");
                let key = key.and(name.as_str());
                let (added_at, since, state) = (at, at, DomainState::Pending);
                let domain =
                    SenderDomain { organisation, name, state, added_at, since, last_check: None };
                (key, encode_domain(&domain))
            }
            _ => {
                let webhook = Webhook {
                    id: WebhookId(id),
                    organisation,
                    url: WebhookUrl::parse("https://app.example.com/hooks").unwrap(),
                    types: FeedTypes::default(),
                    format: WebhookFormat::Standard,
                    authority: None,
                    created_at: at,
                    secret: SigningSecret::from_bytes(&[variant; 32]),
                    replaced: Vec::new(),
                    state: WebhookState::Active,
                };
                (key, encode_webhook(&webhook))
            }
        }
    }

    fn content(index: &OrganisationIndex) -> String {
        let OrganisationIndex { organisations, api_keys, domains, webhooks, .. } = index;
        let found = (0..4).map(|variant| {
            let hash = ApiKeyHash(std::array::from_fn(|place| u8::from(place == 31) * variant));
            index.key(&hash).is_some()
        });
        let found: Vec<bool> = found.collect();
        format!("{organisations:?} {api_keys:?} {domains:?} {webhooks:?} {found:?}")
    }

    proptest! {
        /// Changes one after the other lead to what is read from the rows that they leave.
        #[test]
        fn a_changed_directory_is_the_one_that_is_read(
            changes in proptest::collection::vec((0..4_usize, 0..3_u32, 0..4_u8, any::<bool>()), 0..40),
        ) {
            let mut index = OrganisationIndex::default();
            let mut rows: BTreeMap<(Table, Key), Vec<u8>> = BTreeMap::new();
            for (table, id, variant, is_put) in changes {
                let table = TABLES[table];
                let (key, row) = row(table, id, variant);
                set_row(&mut index, table, &key, is_put.then_some(&*row));
                if is_put {
                    rows.insert((table, key), row);
                } else {
                    rows.remove(&(table, key));
                }
            }
            let of = |table| {
                let rows = rows.iter().filter(|((of, _), _)| *of == table);
                Ok::<_, ()>(rows.map(|((_, key), row)| (key.clone(), row.clone())).collect())
            };
            assert_eq!(content(&index), content(&read_index(of).unwrap()));
        }
    }
}
