//! `key`: API keys.

use crate::output::{Columns, Table, escaped};
use pillarbox_admin::key::{Key, KeyAdded, Keys};

pub(super) fn added(added: &KeyAdded) -> String {
    format!(
        "key {} for {}:\n\n    {}\n\nThe key is shown only once. Keep it on your servers: do not \
         put it into a browser or an app.\n",
        added.id, added.organisation, added.key.0
    )
}

pub(super) fn table(list: &Keys) -> String {
    let columns: Columns<Key, 10> = [
        ("ID", |key| key.id.to_string()),
        ("ORGANISATION", |key| key.organisation.clone()),
        ("CREATED", |key| key.created_at.clone()),
        ("EXPIRES", |key| or_never(key.expires_at.as_deref())),
        ("LAST USED", |key| or_never(key.last_used_at.as_deref())),
        ("SCOPES", |key| key.scopes.join(",")),
        ("DOMAINS", |key| match key.domains.as_slice() {
            [] => "all".to_owned(),
            domains => domains.join(","),
        }),
        ("NAME", |key| key.label.clone()),
        ("PRIORITY", |key| key.priority.clone()),
        ("MESSAGES EXPIRE", |key| or_never(key.message_expires_in.as_deref())),
    ];
    Table::of(&list.keys, columns).or("no keys; pillarbox key add --org NAME makes one")
}

fn or_never(time: Option<&str>) -> String {
    time.unwrap_or("never").to_owned()
}

pub(super) fn revoked(key: &Key) -> String {
    let label = match key.label.as_str() {
        "" => String::new(),
        label => format!(" ({})", escaped(label)),
    };
    format!("revoked key {} of {}{label}\n", key.id, key.organisation)
}
