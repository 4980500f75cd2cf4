//! The sources of a configuration and how they are merged: file first, environment over it, as one
//! flat table.
//!
//! Knows the names of all keys, and nothing of what their values mean.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use config::{File, FileFormat, Map, Source as _, Value, ValueKind};

use crate::error::{ConfigError, Origin, Problem};
use pillarbox_domain::likely::likely;

/// Every key's full name.
pub(super) const KEYS: [&str; 47] = [
    "listen",
    "operator_listen",
    "operator_hosts",
    "operator_password_file",
    "operator_user_header",
    "operator_trusted_proxies",
    "data_dir",
    "admin_socket",
    "max_request_bytes",
    "max_connections",
    "trusted_proxies",
    "max_reading_bytes",
    "max_writing_bytes",
    "tls.certificate",
    "tls.key",
    "smtp.listen",
    "smtp.tls_listen",
    "resend_api.listen",
    "sending.max_pending_bytes",
    "sending.max_in_flight",
    "sending.max_rate",
    "sending.request_timeout",
    "sending.retry_initial",
    "sending.retry_max",
    "sending.retry_for",
    "sending.on_unknown",
    "sending.drain",
    "sending.keep_bodies",
    "test.capture",
    "ses.region",
    "ses.endpoint",
    "ses.configuration_set",
    "ses.tracking_override",
    "ses.proxy",
    "ses.events.queue_url",
    "webhooks.proxy",
    "alerts.url",
    "alerts.secret_file",
    "store.engine",
    "store.postgres.hosts",
    "store.postgres.database",
    "store.postgres.user",
    "store.postgres.password_file",
    "store.postgres.ca_file",
    "store.postgres.answer_timeout",
    "cluster.node",
    "cluster.dead_after",
];

/// Keys of earlier versions, by their full names, with what to do instead.
const REMOVED: [(&str, &str); 2] =
    [("ses.events.sns_listen", POSTS_REMOVED), ("ses.events.sns_topics", POSTS_REMOVED)];
const POSTS_REMOVED: &str = "events come only through an SQS queue. Remove the key and set \
                             ses.events.queue_url; pillarbox aws setup creates the queue and sets \
                             that key";

const SECTIONS: [&str; 12] = [
    "tls",
    "smtp",
    "resend_api",
    "sending",
    "test",
    "ses",
    "ses.events",
    "webhooks",
    "alerts",
    "store",
    "store.postgres",
    "cluster",
];
const PREFIX: &str = "PILLARBOX_";

/// A value and its source.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) value: ValueKind,
    pub(super) origin: Origin,
}

/// All sources, merged: the values of known keys, and what names no key.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) values: BTreeMap<String, Given>,
    pub(super) unknown: Vec<Problem>,
}

/// The texts of the file in place of which those of variables are taken, by the key's name.
pub(super) type Overruled = BTreeMap<String, String>;

/// Values by the full names of their keys.
type Leaves = BTreeMap<String, Value>;

/// Reads the file and merges the environment over it.
pub(super) fn merge(
    path: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<(Sources, Overruled), ConfigError> {
    let (variables, stray) = read_environment(environment);
    let file = path.map(read_file).transpose()?.unwrap_or_default();
    let mut leaves = Leaves::new();
    flatten("", Value::new(None, file), &mut leaves);
    let mut overruled = Overruled::new();
    for (key, value) in variables {
        // A section in the place of a key gives way too, and so does a value in that of a section.
        leaves.retain(|name, _| !is_within(name, key) && !is_within(key, name));
        if let Some(Ok(text)) = leaves.insert(key.to_owned(), value).map(Value::into_string) {
            overruled.insert(key.to_owned(), text);
        }
    }

    let origin = |value: &Value| match (value.origin(), path) {
        (Some(variable), _) => Origin::Variable(variable.to_owned()),
        (None, Some(path)) => Origin::File(path.to_owned()),
        (None, None) => Origin::Default,
    };
    let mut sources = Sources { values: BTreeMap::new(), unknown: Vec::new() };
    for (name, value) in leaves {
        let origin = origin(&value);
        if KEYS.contains(&name.as_str()) {
            sources.values.insert(name, Given { value: value.kind, origin });
        } else if let Some(instead) = removed(|key| key == name) {
            sources.unknown.push(Problem::Removed { name, origin, instead });
        } else {
            let likely = likely_key(&name).map(str::to_owned);
            sources.unknown.push(Problem::Unknown { name, origin, likely });
        }
    }
    sources.unknown.sort_by(|a, b| unknown_name(a).cmp(unknown_name(b)));
    sources.unknown.extend(stray);
    Ok((sources, overruled))
}

fn unknown_name(problem: &Problem) -> &str {
    match problem {
        Problem::Unknown { name, .. } | Problem::Removed { name, .. } => name,
        Problem::BadValue { .. } | Problem::Inconsistent(_) => "",
    }
}

/// The name of a key's environment twin.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// The file's tree; its values have no origin.
fn read_file(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    File::from_str(&text, FileFormat::Toml).collect().map_err(|error| {
        let source: Box<dyn Error + Send + Sync> = match error {
            config::ConfigError::FileParse { cause, .. } => cause,
            other => other.into(),
        };
        // The error shows the line, in which a proxy's password may be.
        let source = match without_users(&source.to_string()) {
            Some(text) => text.into(),
            None => source,
        };
        ConfigError::Syntax { path: path.to_owned(), source }
    })
}

/// A text without the values of proxies and the users of URLs; `None` if there are none in it.
fn without_users(text: &str) -> Option<String> {
    let cut = |line: &str| match (line.find("://"), line.rfind('@'), line.find('=')) {
        (Some(start), Some(end), _) if start < end => {
            Some(format!("{}://...{}", &line[..start], &line[end..]))
        }
        (.., Some(end)) if line[..end].contains("proxy") => Some(format!("{}= ...", &line[..end])),
        _ => None,
    };
    text.lines().any(|line| cut(line).is_some()).then(|| {
        let lines = text.lines().map(|line| cut(line).unwrap_or_else(|| line.to_owned()));
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// The variables that name a key, by that key, with the variable's name as the origin; and those
/// that are meant for us and name none.
fn read_environment(
    environment: impl Iterator<Item = (String, String)>,
) -> (BTreeMap<&'static str, Value>, Vec<Problem>) {
    let mut variables = BTreeMap::new();
    let mut stray = Vec::new();
    for (name, text) in environment {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if let Some(key) = KEYS.into_iter().find(|key| variable(key) == name) {
            variables.insert(key, Value::new(Some(&name), text));
        } else if let Some(instead) = removed(|key| variable(key) == name) {
            stray.push(Problem::Removed { origin: Origin::Variable(name.clone()), name, instead });
        } else {
            let likely = likely_key(&rest.to_ascii_lowercase().replace("__", ".")).map(variable);
            stray.push(Problem::Unknown { origin: Origin::Variable(name.clone()), name, likely });
        }
    }
    stray.sort_by(|a, b| unknown_name(a).cmp(unknown_name(b)));
    (variables, stray)
}

/// Advice for a key that was removed.
fn removed(is_it: impl Fn(&str) -> bool) -> Option<&'static str> {
    REMOVED.into_iter().find_map(|(key, instead)| is_it(key).then_some(instead))
}

/// True if the name is in a section of this name.
fn is_within(name: &str, section: &str) -> bool {
    name.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'))
}

/// Collects the tree's leaves by their full names. A table that should not be there is a leaf too,
/// when it is empty: a misspelt section must not pass for none.
fn flatten(name: &str, value: Value, leaves: &mut Leaves) {
    let Value { kind: ValueKind::Table(table), .. } = value else {
        leaves.insert(name.to_owned(), value);
        return;
    };
    if table.is_empty() && !name.is_empty() && !SECTIONS.contains(&name) {
        leaves.insert(name.to_owned(), Value::new(None, table));
        return;
    }
    for (key, value) in table {
        let name = if name.is_empty() { key } else { format!("{name}.{key}") };
        flatten(&name, value, leaves);
    }
}

/// The key that was probably meant: the same key of another section (in TOML, a top-level key below
/// a section's head belongs to that section), or one with a similar name.
fn likely_key(name: &str) -> Option<&'static str> {
    let last = |name: &str| name.rsplit('.').next().map(str::to_owned);
    KEYS.into_iter().find(|key| last(key) == last(name)).or_else(|| likely(name, KEYS))
}
