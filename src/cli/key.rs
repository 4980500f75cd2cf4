//! `key`: API keys.

use crate::output::{Table, escaped};
use pillarbox_admin::key::{Key, KeyAdded, Keys};

pub(super) fn added(added: &KeyAdded) -> String {
    format!(
        "key {} for {}:\n\n    {}\n\nThe key is shown only once. Keep it on your servers: do not \
         put it into a browser or an app.\n",
        added.id, added.organisation, added.key.0
    )
}

pub(super) fn table(list: &Keys) -> String {
    let mut table = Table::new([
        "ID",
        "ORGANISATION",
        "CREATED",
        "EXPIRES",
        "LAST USED",
        "SCOPES",
        "DOMAINS",
        "NAME",
        "PRIORITY",
        "MESSAGES EXPIRE",
    ]);
    for key in &list.keys {
        let id = key.id.to_string();
        let expires = key.expires_at.as_deref().unwrap_or("never");
        let last_used = key.last_used_at.as_deref().unwrap_or("never");
        let scopes = key.scopes.join(",");
        let domains = match key.domains.as_slice() {
            [] => "all".to_owned(),
            domains => domains.join(","),
        };
        let expiry = key.message_expires_in.as_deref().unwrap_or("never");
        let Key { organisation, created_at, label, priority, .. } = key;
        table.row([
            &id,
            organisation,
            created_at,
            expires,
            last_used,
            &scopes,
            &domains,
            label,
            priority,
            expiry,
        ]);
    }
    table.or("no keys; pillarbox key add --org NAME makes one")
}

pub(super) fn revoked(key: &Key) -> String {
    let label = match key.label.as_str() {
        "" => String::new(),
        label => format!(" ({})", escaped(label)),
    };
    format!("revoked key {} of {}{label}\n", key.id, key.organisation)
}
