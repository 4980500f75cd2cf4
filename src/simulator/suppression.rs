//! The account's suppression list.
//!
//! Knows SES's answers about it. Must not know messages; whoever sends asks it about a recipient.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::address::Address;
use super::answer::Refusal;
use super::send::read_json;
use crate::domain::time::Timestamp;

/// Why SES suppresses an address (SES v2 API reference, `SuppressionListReason`).
const REASONS: [&str; 2] = ["BOUNCE", "COMPLAINT"];

#[derive(Debug)]
struct Entry {
    reason: String,
    since: Timestamp,
}

/// Addresses in lower case.
#[derive(Debug, Default)]
pub(super) struct SuppressionList(BTreeMap<String, Entry>);

impl SuppressionList {
    pub(super) fn holds(&self, address: &str) -> bool {
        !self.0.is_empty() && self.0.contains_key(&address.to_ascii_lowercase())
    }

    /// Puts an address on the list, in place of an earlier entry.
    pub(super) fn add(&mut self, address: &str, reason: String, now: Timestamp) {
        self.0.insert(address.to_ascii_lowercase(), Entry { reason, since: now });
    }

    /// `PutSuppressedDestination`.
    pub(super) fn put(&mut self, body: &[u8], now: Timestamp) -> Result<Value, Refusal> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            email_address: Option<String>,
            reason: Option<String>,
        }
        let wire: Wire = read_json(body)?;
        let address = wire.email_address.ok_or_else(|| Refusal::missing_member("emailAddress"))?;
        let reason = wire.reason.ok_or_else(|| Refusal::missing_member("reason"))?;
        Address::parse(&address)?;
        if !REASONS.contains(&reason.as_str()) {
            let rule = "Member must satisfy enum value set: [BOUNCE, COMPLAINT]";
            return Err(Refusal::constraint("reason", rule));
        }
        self.add(&address, reason, now);
        Ok(json!({}))
    }

    /// `GetSuppressedDestination`.
    pub(super) fn get(&self, address: &str) -> Result<Value, Refusal> {
        let found = self.0.get_key_value(&address.to_ascii_lowercase());
        let (address, entry) = found.ok_or_else(|| absent(address))?;
        Ok(json!({ "SuppressedDestination": {
            "EmailAddress": address,
            "Reason": entry.reason,
            "LastUpdateTime": entry.since.unix_millis() / 1_000,
        } }))
    }

    /// `DeleteSuppressedDestination`.
    pub(super) fn delete(&mut self, address: &str) -> Result<Value, Refusal> {
        let removed = self.0.remove(&address.to_ascii_lowercase());
        removed.map(|_| json!({})).ok_or_else(|| absent(address))
    }
}

fn absent(address: &str) -> Refusal {
    Refusal::not_found(format!("Email address {address} does not exist on your suppression list."))
}
