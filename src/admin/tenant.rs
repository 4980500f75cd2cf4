//! Organisations and API keys.

use crate::admin::wire::{
    Key, KeyAdded, KeyInClear, KeyList, Organisation, OrganisationList, OrganisationRemoved,
    Refusal, Response, UNREADABLE,
};
use crate::admin::{Admin, expiry, organisation_name};
use crate::dispatch::Cancelled;
use crate::domain::api_key::ApiKey;
use crate::domain::id::KeyId;
use crate::domain::message::Cancellation;
use crate::domain::organisation::{self, ApiKeyEntry};
use crate::queue::Selection;
use crate::store::{Change, NewApiKey};

/// The longest label of a key, in characters.
const MAX_LABEL_CHARS: usize = 100;

impl Admin {
    pub(super) async fn add_organisation(&self, name: &str) -> Result<Response, Refusal> {
        let name = organisation_name(name)?;
        let added = self.store.add_organisation(name.clone()).await?;
        added.map(|added| Response::OrganisationAdded(shown(&added))).ok_or_else(|| {
            Refusal::new(format!("there is an organisation {name} already; choose another name"))
        })
    }

    pub(super) fn list_organisations(&self) -> Response {
        let organisations = self.store.organisations().iter().map(shown).collect();
        Response::Organisations(OrganisationList { organisations })
    }

    pub(super) async fn remove_organisation(&self, name: &str) -> Result<Response, Refusal> {
        let organisation = self.organisation(name)?;
        let keys = self.store.api_keys();
        let domains = self.store.domains();
        if self.store.remove_organisation(organisation.id).await? == Change::None {
            // Another command was first.
            return Err(Refusal::new(format!("{name} has just been removed")));
        }
        let selection = Selection::of(organisation.id);
        let cancelled = self.cancel(selection, Cancellation::OrganisationRemoved).await;
        let Cancelled { cancelled, calls_under_way, .. } = cancelled.map_err(|error| {
            Refusal::new(format!(
                "{name} was removed, and nothing of it is sent any more; but not all of its queued \
                 messages are recorded as cancelled yet ({error}): each is as its turn comes"
            ))
        })?;
        Ok(Response::OrganisationRemoved(OrganisationRemoved {
            name: organisation.name.as_str().to_owned(),
            keys_revoked: keys.iter().filter(|k| k.organisation == organisation.id).count(),
            domains_removed: domains.iter().filter(|d| d.organisation == organisation.id).count(),
            messages_cancelled: cancelled,
            calls_under_way,
        }))
    }

    pub(super) async fn add_key(
        &self,
        organisation: &str,
        label: String,
        expires: Option<&str>,
    ) -> Result<Response, Refusal> {
        let organisation = self.organisation(organisation)?;
        if label.chars().count() > MAX_LABEL_CHARS || label.chars().any(char::is_control) {
            return Err(Refusal::new(format!(
                "a key's name is at most {MAX_LABEL_CHARS} characters, none of them a control \
                 character"
            )));
        }
        let key = ApiKey::generate().map_err(|error| {
            Refusal::new(format!("the system gives no random numbers ({error}); try again"))
        })?;
        let now = self.clock.now();
        let expires_at = expires.map(|text| expiry::parse(text, now)).transpose()?;
        let new = NewApiKey { label, expires_at, hash: key.hash() };
        let added = self.store.add_api_key(organisation.id, new, now).await?;
        let entry = added.ok_or_else(|| Self::gone(&organisation))?;
        Ok(Response::KeyAdded(KeyAdded {
            id: entry.id.0,
            key: KeyInClear(key.reveal().to_owned()),
            organisation: organisation.name.as_str().to_owned(),
        }))
    }

    pub(super) fn list_keys(&self, organisation: Option<&str>) -> Result<Response, Refusal> {
        let only = organisation.map(|name| self.organisation(name)).transpose()?;
        let keys = self.store.api_keys();
        let shown = keys
            .iter()
            .filter(|key| only.as_ref().is_none_or(|only| only.id == key.organisation))
            .map(|key| self.key(key))
            .collect();
        Ok(Response::Keys(KeyList { keys: shown }))
    }

    pub(super) async fn revoke_key(&self, id: u32) -> Result<Response, Refusal> {
        let entry = self.store.api_keys().into_iter().find(|key| key.id == KeyId(id));
        let change = self.store.revoke_api_key(KeyId(id)).await?;
        match (entry, change) {
            (Some(entry), Change::Made) => Ok(Response::KeyRevoked(self.key(&entry))),
            // Its row cannot be read. It let nobody in, and it is gone now.
            (None, Change::Made) => Ok(Response::KeyRevoked(Key {
                id,
                organisation: format!("({UNREADABLE})"),
                label: String::new(),
                created_at: String::new(),
                expires_at: None,
                last_used_at: None,
            })),
            (_, Change::None) => Err(Refusal::new(format!(
                "there is no key {id}, or it is revoked already; `pillarbox key list` shows those \
                 there are"
            ))),
        }
    }

    fn key(&self, entry: &ApiKeyEntry) -> Key {
        Key {
            id: entry.id.0,
            organisation: self.shown(entry.organisation),
            label: entry.label.clone(),
            created_at: entry.created_at.to_string(),
            expires_at: entry.expires_at.map(|end| end.to_string()),
            last_used_at: self.store.key_last_used(entry.id).map(|time| time.to_string()),
        }
    }
}

fn shown(organisation: &organisation::Organisation) -> Organisation {
    Organisation { id: organisation.id.0, name: organisation.name.as_str().to_owned() }
}
