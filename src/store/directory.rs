//! Directory: the index in memory of organisations, API keys, sender domains and endpoints of
//! webhooks. They are few, and every request needs them.
//!
//! Readers share the index; a change of one of them makes a new one. The uses of keys are
//! noted beside it: a write for each request would cost more than the answer is worth.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use rustc_hash::FxHashMap;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use crate::error::DamagedRow;
use crate::record::directory::{decode_api_key, decode_domain, decode_organisation};
use crate::record::webhooks::decode_webhook;
use crate::rows::{InTable as _, Key, KeyedRow, Table};
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::organisation::{
    ApiKeyEntry, DomainState, Organisation, SenderDomain, SenderStatus,
};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{Webhook, WebhookId};

/// Tables of the rows in the directory.
pub(super) const TABLES: [Table; 4] =
    [Table::Organisations, Table::ApiKeys, Table::Domains, Table::Webhooks];

/// Snapshot of organisations and of everything that gives them the right to send.
#[derive(Debug, Clone, Default)]
pub(super) struct OrganisationIndex {
    /// Number that differs after each change.
    pub(super) version: u64,
    /// Organisations, by number.
    pub(super) organisations: Vec<Organisation>,
    /// API keys, by number.
    pub(super) api_keys: Vec<ApiKeyEntry>,
    /// Sender domains, by organisation, then by name.
    pub(super) domains: Vec<SenderDomain>,
    /// Endpoints, by number.
    pub(super) webhooks: Vec<Webhook>,
    /// API keys by the first bytes of the hash.
    keys_by_prefix: FxHashMap<[u8; 8], Vec<KeyId>>,
    /// Rows that cannot be read: clients and messages that depend on them are refused.
    pub(super) damaged: Vec<DamagedRow>,
}

impl OrganisationIndex {
    /// Reads the directory from the tables that `rows` returns.
    pub(super) fn read<E>(
        mut rows: impl FnMut(Table) -> Result<Vec<KeyedRow>, E>,
    ) -> Result<Self, E> {
        let mut index = Self::default();
        for table in TABLES {
            for (key, row) in rows(table)? {
                index.set(table, &key, Some(&row));
            }
        }
        Ok(index)
    }

    /// Takes a row that was put, or removed if it is `None`.
    pub(super) fn set(&mut self, table: Table, key: &Key, row: Option<&[u8]>) {
        let id = key.number(0);
        match table {
            Table::Organisations => {
                let at = self.organisations.binary_search_by_key(&id, |known| known.id.0);
                let new = row.map(|row| decode_organisation(id, row).in_table(table, id));
                let new = self.readable(new);
                replace_at(&mut self.organisations, at, new);
            }
            Table::ApiKeys => {
                let at = self.api_keys.binary_search_by_key(&id, |known| known.id.0);
                let new = row.map(|row| decode_api_key(id, row).in_table(table, id));
                let new = self.readable(new);
                if let Some(known) = at.ok().map(|at| &self.api_keys[at]) {
                    let same = self.keys_by_prefix.entry(prefix(&known.hash)).or_default();
                    same.retain(|key| *key != known.id);
                }
                if let Some(new) = &new {
                    self.keys_by_prefix.entry(prefix(&new.hash)).or_default().push(new.id);
                }
                replace_at(&mut self.api_keys, at, new);
            }
            Table::Domains => {
                let name = key.text(4);
                let place = (OrganisationId(id), name);
                let at = self.domains.binary_search_by(|known| {
                    (known.organisation, known.name.as_str()).cmp(&place)
                });
                let shown = format_args!("{name} of organisation {id}");
                let new = row.map(|row| decode_domain(id, name, row).in_table(table, shown));
                let new = self.readable(new);
                replace_at(&mut self.domains, at, new);
            }
            Table::Webhooks => {
                let at = self.webhooks.binary_search_by_key(&id, |known| known.id.0);
                let new = row.map(|row| decode_webhook(id, row).in_table(table, id));
                let new = self.readable(new);
                replace_at(&mut self.webhooks, at, new);
            }
            _ => {}
        }
    }

    /// Notes a row that cannot be read.
    fn readable<T>(&mut self, row: Option<Result<T, DamagedRow>>) -> Option<T> {
        let note = |row: DamagedRow| {
            row.log();
            self.damaged.push(row);
        };
        row?.map_err(note).ok()
    }

    /// The key with this hash. The comparison takes the same time wherever the
    /// hashes differ beyond the prefix that finds them.
    pub(super) fn key(&self, hash: &ApiKeyHash) -> Option<&ApiKeyEntry> {
        let ids = self.keys_by_prefix.get(&prefix(hash))?;
        ids.iter()
            .filter_map(|id| self.api_key(*id))
            .find(|entry| bool::from(entry.hash.0.ct_eq(&hash.0)))
    }

    pub(super) fn api_key(&self, id: KeyId) -> Option<&ApiKeyEntry> {
        let position = self.api_keys.binary_search_by_key(&id, |key| key.id).ok()?;
        Some(&self.api_keys[position])
    }

    pub(super) fn named(&self, name: &str) -> Option<&Organisation> {
        self.organisations.iter().find(|organisation| organisation.name.as_str() == name)
    }

    /// Returns true if the organisation has this name, or is no longer known.
    pub(super) fn may_be_named(&self, id: OrganisationId, name: &str) -> bool {
        self.organisation(id).is_none_or(|organisation| organisation.name.as_str() == name)
    }

    pub(super) fn webhook(&self, id: WebhookId) -> Option<&Webhook> {
        let position = self.webhooks.binary_search_by_key(&id, |webhook| webhook.id).ok()?;
        Some(&self.webhooks[position])
    }

    pub(super) fn organisation(&self, id: OrganisationId) -> Option<&Organisation> {
        let position = self.organisations.binary_search_by_key(&id, |o| o.id).ok()?;
        Some(&self.organisations[position])
    }

    pub(super) fn sender_status(&self, organisation: OrganisationId, name: &str) -> SenderStatus {
        if self.organisation(organisation).is_none() {
            return SenderStatus::OrganisationRemoved;
        }
        let found = self
            .domains
            .binary_search_by(|d| (d.organisation, d.name.as_str()).cmp(&(organisation, name)));
        match found.map(|position| self.domains[position].state) {
            Ok(DomainState::Verified | DomainState::Assumed) => SenderStatus::Verified,
            Ok(DomainState::Pending) => SenderStatus::Unverified,
            Err(_) => SenderStatus::DomainRemoved,
        }
    }
}

/// Puts or removes what a binary search has found, or not.
fn replace_at<T>(list: &mut Vec<T>, at: Result<usize, usize>, new: Option<T>) {
    match (at, new) {
        (Ok(at), Some(new)) => list[at] = new,
        (Ok(at), None) => drop(list.remove(at)),
        (Err(at), Some(new)) => list.insert(at, new),
        (Err(_), None) => {}
    }
}

fn prefix(hash: &ApiKeyHash) -> [u8; 8] {
    *hash.0.first_chunk().expect("a hash has 32 bytes")
}

/// Uses of keys: a key's number and an instant in milliseconds.
pub(super) type KeyUses = Vec<(u32, u64)>;

/// The index as of the last change that is known, and the uses of keys.
#[derive(Debug, Default)]
pub(super) struct Directory {
    index: ArcSwap<OrganisationIndex>,
    changed: watch::Sender<()>,
    pub(super) key_use: KeyUse,
}

impl Directory {
    pub(super) fn load(&self) -> Guard<Arc<OrganisationIndex>> {
        self.index.load()
    }

    pub(super) fn load_full(&self) -> Arc<OrganisationIndex> {
        self.index.load_full()
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Takes a new index, and notifies the followers. Another read may have begun later and ended
    /// earlier: its index is newer and stays.
    pub(super) fn replace(&self, index: OrganisationIndex) {
        let read = Arc::new(index);
        self.index
            .rcu(|known| Arc::clone(if known.version > read.version { known } else { &read }));
        self.changed.send_replace(());
    }
}

/// Times at which keys were last used, and the times that are stored; in milliseconds.
#[derive(Debug, Default)]
pub(super) struct KeyUse(ArcSwap<FxHashMap<u32, Arc<Times>>>);

#[derive(Debug, Default)]
struct Times {
    used: AtomicU64,
    stored: AtomicU64,
}

impl KeyUse {
    /// Takes the uses that are stored.
    pub(super) fn replace(&self, uses: impl IntoIterator<Item = (u32, u64)>) {
        let uses = uses.into_iter().map(|(id, time)| {
            let (used, stored) = (AtomicU64::new(time), AtomicU64::new(time));
            (id, Arc::new(Times { used, stored }))
        });
        self.0.store(Arc::new(uses.collect()));
    }

    pub(super) fn note(&self, id: KeyId, now: Timestamp) {
        let now = now.unix_millis();
        match self.0.load().get(&id.0) {
            // Many requests come in the same millisecond: only the first of them writes.
            Some(times) if times.used.load(Ordering::Relaxed) >= now => {}
            Some(times) => {
                times.used.fetch_max(now, Ordering::Relaxed);
            }
            None => {
                self.0.rcu(|known| {
                    let mut uses = FxHashMap::clone(known);
                    uses.entry(id.0).or_default().used.fetch_max(now, Ordering::Relaxed);
                    uses
                });
            }
        }
    }

    pub(super) fn last(&self, id: KeyId) -> Option<Timestamp> {
        let used = self.0.load().get(&id.0)?.used.load(Ordering::Relaxed);
        Some(Timestamp::from_unix_millis(used))
    }

    /// Returns the uses that are newer than the stored ones. They count as stored from here on.
    pub(super) fn take_unstored(&self) -> KeyUses {
        let uses = self.0.load();
        let newer = uses.iter().filter_map(|(id, times)| {
            let used = times.used.load(Ordering::Relaxed);
            (times.stored.swap(used, Ordering::Relaxed) < used).then_some((*id, used))
        });
        newer.collect()
    }

    /// Marks uses as not stored again.
    pub(super) fn give_back(&self, newer: &[(u32, u64)]) {
        let uses = self.0.load();
        for times in newer.iter().filter_map(|(id, _)| uses.get(id)) {
            times.stored.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::record::directory::{encode_api_key, encode_domain, encode_organisation};
    use crate::record::webhooks::encode_webhook;
    use pillarbox_domain::feed::FeedTypes;
    use pillarbox_domain::organisation::{KeyRights, OrganisationKind};
    use pillarbox_domain::webhook::{SigningSecret, WebhookFormat, WebhookState, WebhookUrl};

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
                index.set(table, &key, is_put.then_some(&*row));
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
            assert_eq!(content(&index), content(&OrganisationIndex::read(of).unwrap()));
        }
    }
}
