//! Right to send: what a message was admitted by, looked at again in the transaction that accepts it.
//!
//! Keys, domains and organisations change seldom, and a message is accepted thousands of times a
//! second. So the right carries the version of the directory that it was found in, and nothing is
//! looked up as long as that is the version.

use std::fmt;
use std::sync::Arc;

use crate::domain::id::{KeyId, OrganisationId};
use crate::domain::time::Timestamp;
use crate::store::Store;
use crate::store::directory::OrganisationIndex;

/// Right of a request to have its messages accepted.
#[derive(Clone)]
pub struct SendingRight {
    /// Version of the directory before anything was asked of it.
    version: u64,
    /// The API key that the request came with, if any.
    key: Option<KeyId>,
    /// The key's expiry, if it has one, and what tells the time.
    expiry: Option<(Timestamp, Now)>,
}

type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

impl fmt::Debug for SendingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendingRight").field("key", &self.key).finish_non_exhaustive()
    }
}

impl SendingRight {
    /// Returns the right of a key, or of this process if there is none; `None` if the key is not
    /// valid, or not the organisation's.
    pub(super) fn find(
        index: &OrganisationIndex,
        organisation: OrganisationId,
        key: Option<KeyId>,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Option<Self> {
        let Some(id) = key else {
            return Some(Self { version: index.version, key, expiry: None });
        };
        let entry = index.api_key(id).filter(|entry| entry.organisation == organisation)?;
        let expiry = entry.expires_at.map(|end| (end, Arc::new(now) as Now));
        let right = Self { version: index.version, key, expiry };
        (!right.is_expired() && index.organisation(organisation).is_some()).then_some(right)
    }

    /// The API key that the request came with, if any.
    pub const fn key(&self) -> Option<KeyId> {
        self.key
    }

    pub(super) fn has_ended(&self, directory: &OrganisationIndex) -> bool {
        self.is_expired()
            || (self.is_outdated(directory)
                && self.key.is_some_and(|key| directory.api_key(key).is_none()))
    }

    /// Returns true if the directory is another one than that in which the right was found.
    pub(super) const fn is_outdated(&self, directory: &OrganisationIndex) -> bool {
        self.version != directory.version
    }

    fn is_expired(&self) -> bool {
        self.expiry.as_ref().is_some_and(|(end, now)| now() >= *end)
    }
}

impl Store {
    /// The right of an API key to have messages of the organisation accepted, or of this process if
    /// there is none; `None` if the key is not valid. To be asked for before anything else, and
    /// looked at again by the acceptance, at the time that `now` says then.
    pub fn sending_right(
        &self,
        organisation: OrganisationId,
        key: Option<KeyId>,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Option<SendingRight> {
        SendingRight::find(&self.directory().load(), organisation, key, now)
    }
}
