//! Right to send: the facts by which a message was admitted, checked again in the transaction that
//! accepts it.
//!
//! Keys, domains and organisations change seldom, and a message is accepted thousands of times a
//! second. So the right carries the version of the directory that it was found in, and nothing is
//! searched again as long as that is the version.

use std::fmt;
use std::sync::Arc;

use crate::Store;
use crate::directory::OrganisationIndex;
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message_terms::MessageDefaults;
use pillarbox_domain::organisation::{ApiKeyEntry, KeyRights};
use pillarbox_domain::time::Timestamp;

/// Right of a request to have its messages accepted.
#[derive(Clone)]
pub struct SendingRight {
    /// Version of the directory before the first read of it.
    version: u64,
    /// The API key that the request came with, if any.
    key: Option<KeyOfRight>,
}

#[derive(Clone)]
struct KeyOfRight {
    id: KeyId,
    expires_at: Option<Timestamp>,
    rights: Arc<KeyRights>,
    /// Source of the time.
    now: Now,
}

type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

impl fmt::Debug for SendingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendingRight").field("key", &self.key()).finish_non_exhaustive()
    }
}

impl SendingRight {
    /// The API key that the request came with, if any.
    pub fn key(&self) -> Option<KeyId> {
        self.key.as_ref().map(|key| key.id)
    }

    /// Defaults of its key, for messages that name no terms themselves.
    pub(super) fn defaults(&self) -> MessageDefaults {
        self.key.as_ref().map(|key| key.rights.defaults).unwrap_or_default()
    }

    /// Returns true if messages of this sender domain may be sent by it.
    pub(super) fn allows_sender(&self, domain: &DomainName<'_>) -> bool {
        self.key.as_ref().is_none_or(|key| key.rights.allow_sender(domain.as_str()))
    }

    /// Returns true if the key is no longer valid. A key's expiry may have come nearer, and nothing
    /// else of a key changes.
    pub(super) fn has_ended(&self, directory: &OrganisationIndex) -> bool {
        let Some(key) = &self.key else { return false };
        if !self.is_outdated(directory) {
            return key.is_past(key.expires_at);
        }
        directory.api_key(key.id).is_none_or(|entry| key.is_past(entry.expires_at))
    }

    /// Returns true if the directory is another one than the one in which the right was found.
    pub(super) const fn is_outdated(&self, directory: &OrganisationIndex) -> bool {
        self.version != directory.version
    }
}

impl KeyOfRight {
    fn is_past(&self, expires_at: Option<Timestamp>) -> bool {
        expires_at.is_some_and(|end| (self.now)() >= end)
    }
}

impl Store {
    /// The right of an API key to have messages of the organisation accepted, or of this process if
    /// there is none; `None` if the key is not valid. Call it before anything else. The acceptance
    /// checks the right again, at the time that `now` returns then.
    pub fn sending_right(
        &self,
        organisation: OrganisationId,
        key: Option<KeyId>,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Option<SendingRight> {
        let index = self.directory().load();
        let version = index.version;
        let Some(id) = key else {
            return Some(SendingRight { version, key: None });
        };
        let entry = index.api_key(id).filter(|entry| entry.organisation == organisation)?;
        let ApiKeyEntry { expires_at, rights, .. } = entry;
        let (rights, now) = (Arc::clone(rights), Arc::new(now) as Now);
        let key = KeyOfRight { id, expires_at: *expires_at, rights, now };
        let is_valid = !key.is_past(key.expires_at) && index.organisation(organisation).is_some();
        is_valid.then_some(SendingRight { version, key: Some(key) })
    }
}
