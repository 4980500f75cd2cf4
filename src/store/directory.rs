//! Directory: the index in memory of organisations, API keys, sender domains and endpoints of
//! webhooks. They are few, and every request needs them.
//!
//! Readers share the index; a change of one of them makes a new one. The uses of keys are
//! noted beside it: a write for each request would cost more than the answer is worth.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use rustc_hash::FxHashMap;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use crate::error::{DamagedRow, RowError};
use crate::record::directory::{decode_api_key, decode_domain, decode_organisation};
use crate::record::webhooks::decode_webhook;
use crate::tables::Table;
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::organisation::{ApiKeyEntry, Organisation, SenderDomain, SenderStatus};
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
    keys_by_prefix: BTreeSet<([u8; 8], KeyId)>,
    /// Rows that cannot be read: clients and messages that depend on them are refused.
    pub(super) damaged: Vec<DamagedRow>,
}

impl OrganisationIndex {
    /// Takes a row that was put, or removed if it is `None`. The key of a domain has a name behind
    /// the number.
    pub(super) fn set(&mut self, table: Table, id: u32, name: &str, row: Option<&[u8]>) {
        match table {
            Table::Organisations => {
                let new = self.readable(row.map(|row| decode_organisation(id, row)), table, id);
                let at = self.organisations.binary_search_by_key(&id, |known| known.id.0);
                replace_at(&mut self.organisations, at, new);
            }
            Table::ApiKeys => {
                let new = self.readable(row.map(|row| decode_api_key(id, row)), table, id);
                let at = self.api_keys.binary_search_by_key(&id, |known| known.id.0);
                if let Ok(at) = at {
                    self.keys_by_prefix.remove(&(prefix(&self.api_keys[at].hash), KeyId(id)));
                }
                if let Some(new) = &new {
                    self.keys_by_prefix.insert((prefix(&new.hash), new.id));
                }
                replace_at(&mut self.api_keys, at, new);
            }
            Table::Domains => {
                let shown = format_args!("{name} of organisation {id}");
                let new = self.readable(row.map(|row| decode_domain(id, name, row)), table, shown);
                let at = self.find_domain(OrganisationId(id), name);
                replace_at(&mut self.domains, at, new);
            }
            Table::Webhooks => {
                let new = self.readable(row.map(|row| decode_webhook(id, row)), table, id);
                let at = self.webhooks.binary_search_by_key(&id, |known| known.id.0);
                replace_at(&mut self.webhooks, at, new);
            }
            _ => {}
        }
    }

    /// Notes a row that cannot be read.
    fn readable<T>(
        &mut self,
        row: Option<Result<T, RowError>>,
        table: Table,
        shown: impl Display,
    ) -> Option<T> {
        let note = |reason: RowError| {
            let row = DamagedRow::new(table.as_str(), shown, &reason);
            row.log();
            self.damaged.push(row);
        };
        row?.map_err(note).ok()
    }

    /// The key with this hash. The comparison takes the same time wherever the
    /// hashes differ beyond the prefix that finds them.
    pub(super) fn key(&self, hash: &ApiKeyHash) -> Option<&ApiKeyEntry> {
        let [first, last] = [0, u32::MAX].map(|id| (prefix(hash), KeyId(id)));
        self.keys_by_prefix
            .range(first..=last)
            .filter_map(|(_, id)| self.api_key(*id))
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

    /// Returns the position of a domain, or the one at which it would be.
    fn find_domain(&self, organisation: OrganisationId, name: &str) -> Result<usize, usize> {
        self.domains
            .binary_search_by(|d| (d.organisation, d.name.as_str()).cmp(&(organisation, name)))
    }

    pub(super) fn sender_status(&self, organisation: OrganisationId, name: &str) -> SenderStatus {
        if self.organisation(organisation).is_none() {
            return SenderStatus::OrganisationRemoved;
        }
        match self.find_domain(organisation, name).map(|position| self.domains[position].state) {
            Ok(state) if state.is_verified() => SenderStatus::Verified,
            Ok(_) => SenderStatus::Unverified,
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

    /// Returns the uses that are newer than the stored ones.
    pub(super) fn unstored(&self) -> KeyUses {
        let uses = self.0.load();
        let newer = uses.iter().filter_map(|(id, times)| {
            let used = times.used.load(Ordering::Relaxed);
            (times.stored.load(Ordering::Relaxed) < used).then_some((*id, used))
        });
        newer.collect()
    }

    pub(super) fn note_stored(&self, stored: &[(u32, u64)]) {
        let uses = self.0.load();
        for (id, time) in stored {
            if let Some(times) = uses.get(id) {
                times.stored.fetch_max(*time, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_was_read_earlier_does_not_replace_a_later_one() {
        let directory = Directory::default();
        let read = |version| OrganisationIndex { version, ..OrganisationIndex::default() };
        for (version, expected) in [(2, 2), (1, 2), (3, 3)] {
            directory.replace(read(version));
            assert_eq!(directory.load().version, expected);
        }
    }

    #[test]
    fn uses_that_could_not_be_stored_are_stored_the_next_time() {
        let uses = KeyUse::default();
        uses.note(KeyId(7), Timestamp::from_unix_millis(18));
        assert_eq!(uses.unstored(), [(7, 18)]);
        assert_eq!(uses.unstored(), [(7, 18)]);
        uses.note(KeyId(7), Timestamp::from_unix_millis(19));
        uses.note_stored(&[(7, 18)]);
        assert_eq!(uses.unstored(), [(7, 19)]);
        uses.note_stored(&[(7, 19)]);
        assert_eq!(uses.unstored(), []);
    }
}
