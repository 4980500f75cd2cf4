//! Organisations and API keys on the administration's wire.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Organisation {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// All organisations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrganisationList {
    /// By number.
    pub organisations: Vec<Organisation>,
}

/// What went with a removed organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrganisationRemoved {
    /// Its name.
    pub name: String,
    /// Keys that were revoked.
    pub keys_revoked: usize,
    /// Sender domains that were withdrawn.
    pub domains_removed: usize,
    /// Queued messages that were cancelled.
    #[serde(default)]
    pub messages_cancelled: usize,
    /// Messages whose call to the provider was under way. They are not tried again after it.
    #[serde(default)]
    pub calls_under_way: usize,
}

/// A new API key, in clear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyAdded {
    /// Its number.
    pub id: u32,
    /// The key itself.
    pub key: KeyInClear,
    /// The name of the organisation.
    pub organisation: String,
}

/// An API key in clear, on its one way to its owner. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyInClear(pub String);

impl fmt::Debug for KeyInClear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyInClear(..)")
    }
}

/// An API key as it is listed: never the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Its number.
    pub id: u32,
    /// The name of the organisation.
    pub organisation: String,
    /// What the operator calls it; may be empty.
    pub label: String,
    /// When it was made.
    pub created_at: String,
    /// When it stops letting anybody in; nothing for never.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// When it was last used, if it was.
    #[serde(default)]
    pub last_used_at: Option<String>,
}

/// API keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyList {
    /// By number.
    pub keys: Vec<Key>,
}
