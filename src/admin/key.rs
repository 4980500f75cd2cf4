//! API keys: made, listed, replaced and revoked.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    Admin, KeyAdd, KeyList, KeyRevoke, KeyRotate, Refusal, Result, UNREADABLE, domain_name,
};
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::id::KeyId;
use pillarbox_domain::message_terms::{MessageDefaults, Priority, parse_expires_in};
use pillarbox_domain::organisation::{ApiKeyEntry, KeyRights, Scope};
use pillarbox_domain::time::Timestamp;
use pillarbox_store::{Change, FIRST_WITH_RIGHTS, FIRST_WITH_TERMS, NewApiKey};

/// The longest label of a key, in characters.
const MAX_LABEL_CHARS: usize = 100;
/// The most sender domains that one key is limited to.
const MAX_DOMAINS: usize = 100;

/// A new API key, in clear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyAdded {
    pub id: u32,
    pub key: SecretInClear,
    pub organisation: String,
}

/// An API key or a secret in clear, on its one way to its owner. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretInClear(pub String);

impl fmt::Debug for SecretInClear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretInClear(..)")
    }
}

/// An API key as it is listed: never the key itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    pub id: u32,
    pub organisation: String,
    /// Operator's name for it; may be empty.
    pub label: String,
    pub created_at: String,
    /// Time from which it is refused; `None` if it never expires.
    pub expires_at: Option<String>,
    pub last_used_at: Option<String>,
    /// Calls that it allows.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// Sender domains that it is for; every domain of the organisation if there is none.
    #[serde(default)]
    pub domains: Vec<String>,
    /// Priority of messages that name none themselves.
    #[serde(default)]
    pub priority: String,
    /// Time limit of sending for messages that set none; `None` means `retry_for`.
    pub message_expires_in: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    pub keys: Vec<Key>,
}

pub(super) async fn add(admin: &Admin, call: KeyAdd) -> Result<KeyAdded> {
    let organisation = admin.organisation(&call.organisation)?;
    if call.label.chars().count() > MAX_LABEL_CHARS || call.label.chars().any(char::is_control) {
        return Err(Refusal::new(format!(
            "a key's name is at most {MAX_LABEL_CHARS} characters, none of them a control \
             character"
        )));
    }
    let rights = rights(&call)?;
    if rights.defaults != MessageDefaults::default() {
        admin.require_no_node_before(FIRST_WITH_TERMS).await?;
    } else if rights != KeyRights::all() {
        admin.require_no_node_before(FIRST_WITH_RIGHTS).await?;
    }
    let key = ApiKey::generate()?;
    let now = admin.clock.now();
    let expires_at = call.expires.map(|text| expiry(&text, now)).transpose()?;
    let new = NewApiKey { label: call.label, expires_at, hash: key.hash(), rights };
    let added = admin.store.add_api_key(organisation.id, new, now).await?;
    let entry = added.ok_or_else(|| Admin::gone(&organisation))?;
    Ok(in_clear(admin, &entry, &key))
}

pub(super) async fn rotate(admin: &Admin, call: KeyRotate) -> Result<KeyAdded> {
    let KeyRotate { id, overlap } = call;
    let overlap = humantime::parse_duration(&overlap)
        .map_err(|_| Refusal::new(format!("{overlap:?} is not a duration such as 24h")))?;
    let key = ApiKey::generate()?;
    let now = admin.clock.now();
    if now.plus(overlap) > Timestamp::LAST {
        return Err(Refusal::new("the overlap is too long"));
    }
    let rotated = admin.store.rotate_api_key(KeyId(id), key.hash(), overlap, now).await?;
    let entry = rotated.ok_or_else(|| unknown(id))?;
    Ok(in_clear(admin, &entry, &key))
}

fn in_clear(admin: &Admin, entry: &ApiKeyEntry, key: &ApiKey) -> KeyAdded {
    KeyAdded {
        id: entry.id.0,
        key: SecretInClear(key.reveal().to_owned()),
        organisation: admin.shown(entry.organisation),
    }
}

/// Reads the rights that a key gets, and what it says of its messages. Without any scope it has all.
fn rights(call: &KeyAdd) -> Result<KeyRights> {
    let scope = |text: &String| {
        let scope = Scope::ALL.into_iter().find(|scope| scope.as_str() == text);
        scope.ok_or_else(|| {
            let known = Scope::ALL.map(Scope::as_str).join(" and ");
            Refusal::new(format!("there is no scope {text:?}; the scopes are {known}"))
        })
    };
    let domain = |text: &String| domain_name(text).map(|name| name.as_str().to_owned());
    let mut rights = KeyRights::all();
    if !call.scopes.is_empty() {
        rights.scopes = call.scopes.iter().map(scope).collect::<Result<_, _>>()?;
    }
    rights.domains = call.domains.iter().map(domain).collect::<Result<_, _>>()?;
    if rights.domains.len() > MAX_DOMAINS {
        return Err(Refusal::new(format!("a key is valid for at most {MAX_DOMAINS} domains")));
    }
    if let Some(text) = &call.priority {
        let known = Priority::ALL.into_iter().find(|priority| priority.as_str() == text);
        let unknown = || Refusal::new("the priority must be high or normal");
        rights.defaults.priority = known.ok_or_else(unknown)?;
    }
    let expires_in = call.message_expires_in.as_deref().map(parse_expires_in).transpose();
    rights.defaults.expires_in =
        expires_in.map_err(|error| Refusal::new(format!("the expiry of messages {error}")))?;
    Ok(rights)
}

fn unknown(id: u32) -> Refusal {
    Refusal::new(format!(
        "there is no key {id}, or it is already revoked; to list the keys: pillarbox key list"
    ))
}

pub(super) fn list(admin: &Admin, call: &KeyList) -> Result<Keys> {
    let (only, all) = (call.organisation.as_deref(), admin.store.api_keys());
    let keys = admin.only(only, all, |key| key.organisation)?;
    Ok(Keys { keys: keys.iter().map(|key| admin.key(key)).collect() })
}

pub(super) async fn revoke(admin: &Admin, call: KeyRevoke) -> Result<Key> {
    let id = call.id;
    let entry = admin.store.api_keys().into_iter().find(|key| key.id == KeyId(id));
    let change = admin.store.revoke_api_key(KeyId(id)).await?;
    match (entry, change) {
        (Some(entry), Change::Made) => Ok(admin.key(&entry)),
        // Its row cannot be read. It allowed no call, and it is deleted now.
        (None, Change::Made) => {
            Ok(Key { id, organisation: format!("({UNREADABLE})"), ..Key::default() })
        }
        (_, Change::None) => Err(unknown(id)),
    }
}

impl Admin {
    /// An API key as it is listed.
    pub fn key(&self, entry: &ApiKeyEntry) -> Key {
        let KeyRights { scopes, domains, defaults } = &*entry.rights;
        let expires_in = defaults.expires_in.map(humantime::format_duration);
        Key {
            id: entry.id.0,
            organisation: self.shown(entry.organisation),
            label: entry.label.clone(),
            created_at: entry.created_at.to_string(),
            expires_at: entry.expires_at.map(|end| end.to_string()),
            last_used_at: self.store.key_last_used(entry.id).map(|time| time.to_string()),
            scopes: scopes.iter().map(|scope| scope.as_str().to_owned()).collect(),
            domains: domains.iter().cloned().collect(),
            priority: defaults.priority.as_str().to_owned(),
            message_expires_in: expires_in.map(|time| time.to_string()),
        }
    }
}

/// Reads when a key is to expire: a duration from `now` on, a day (from its beginning, in UTC) or an
/// instant, which must be still to come.
fn expiry(text: &str, now: Timestamp) -> Result<Timestamp> {
    let end = match humantime::parse_duration(text) {
        Ok(duration) => now.plus(duration),
        Err(_) => Timestamp::parse_rfc3339(text)
            .or_else(|_| Timestamp::parse_rfc3339(&format!("{text}T00:00:00Z")))
            .map_err(|_| {
                Refusal::new(format!(
                    "{text:?} is neither a duration such as 90d nor a date such as 2027-01-31 or \
                     2027-01-31T12:00:00Z"
                ))
            })?,
    };
    // Beyond it, a timestamp has no text.
    if end <= now || end > Timestamp::LAST {
        return Err(Refusal::new(format!(
            "a key cannot expire at {text}: give a time in the future"
        )));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_on_the_wire_and_not_in_debug() {
        let key = SecretInClear("pb_secret".to_owned());
        let added = KeyAdded { id: 7, key, organisation: "acme".to_owned() };
        assert!(!format!("{added:?}").contains("secret"));
        let text = serde_json::to_string(&added).unwrap();
        assert_eq!(text, r#"{"id":7,"key":"pb_secret","organisation":"acme"}"#);
    }

    #[test]
    fn durations_days_and_instants_are_read_and_the_past_is_not() {
        let now = Timestamp::parse_rfc3339("2026-11-21T12:00:00Z").unwrap();
        for (text, end) in [
            ("90d", "2027-02-19T12:00:00.000Z"),
            ("1h 30m", "2026-11-21T13:30:00.000Z"),
            ("2027-01-31", "2027-01-31T00:00:00.000Z"),
            ("2026-11-21T12:00:00.001Z", "2026-11-21T12:00:00.001Z"),
        ] {
            assert_eq!(expiry(text, now).unwrap().to_string(), end);
        }
        for text in ["", "soon", "0s", "2026-11-21", "2026-11-21T12:00:00Z", "9000y", "31.1.2027"] {
            assert!(expiry(text, now).is_err(), "{text}");
        }
    }
}
