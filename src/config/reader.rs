//! Takes values by key, one after the other, and keeps account of what is wrong with them.
//!
//! A wrong value is replaced by the default, so that reading goes on and finds the next problem;
//! [`Reader::finish`] then lets nothing of it out.

use std::collections::BTreeMap;

use config::ValueKind;

use crate::error::{ConfigError, Inconsistency, Origin, Problem, Problems};
use crate::sources::{Given, KEYS, Sources};
use crate::{SES_PROXY, WEBHOOKS_PROXY};

/// The merged layers, being read.
#[derive(Debug)]
pub(super) struct Reader {
    values: BTreeMap<String, Given>,
    unknown: Vec<Problem>,
    problems: Vec<Problem>,
}

impl Reader {
    pub(super) fn new(Sources { values, unknown }: Sources) -> Self {
        Self { values, unknown, problems: Vec::new() }
    }

    /// The key's value, or the default if it is not given.
    ///
    /// `parse` returns what is allowed if it refuses the value.
    pub(super) fn take<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl FnOnce(&Given) -> Result<T, String>,
    ) -> T {
        self.take_optional(key, parse).unwrap_or(default)
    }

    /// The key's value, if it is given.
    pub(super) fn take_optional<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&Given) -> Result<T, String>,
    ) -> Option<T> {
        debug_assert!(KEYS.contains(&key), "{key} is missing from the list of keys");
        let given = self.values.get(key)?;
        parse(given)
            .map_err(|allowed| {
                let origin = given.origin.clone();
                self.problems.push(Problem::BadValue {
                    key,
                    given: shown(key, given),
                    origin,
                    allowed,
                });
            })
            .ok()
    }

    /// Reports that values do not go together, unless one of them is wrong by itself: then the
    /// intended value is unknown.
    pub(super) fn inconsistent(&mut self, keys: &[&'static str], rule: &str) {
        let is_bad = |problem: &Problem| match problem {
            Problem::BadValue { key, .. } => keys.contains(key),
            Problem::Unknown { .. } | Problem::Removed { .. } | Problem::Inconsistent(_) => false,
        };
        if self.problems.iter().any(is_bad) {
            return;
        }
        let values = keys
            .iter()
            .map(|&key| match self.values.get(key) {
                Some(given) => (key, Some(shown(key, given)), given.origin.clone()),
                None => (key, None, Origin::Default),
            })
            .collect();
        let rule = rule.to_owned();
        self.problems.push(Problem::Inconsistent(Inconsistency { values, rule }));
    }

    /// Returns `Ok` if everything was in order.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let mut problems = self.problems;
        problems.extend(self.unknown);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(Problems(problems))) }
    }
}

/// A value as it was written. The user part of a URL may be a password, and is not shown, nor is what
/// may have been meant for one.
fn shown(key: &str, given: &Given) -> String {
    match &given.value {
        ValueKind::String(_) if [SES_PROXY, WEBHOOKS_PROXY].contains(&key) => {
            "a text that is not shown, because it may hold a password".to_owned()
        }
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::Boolean(value) => value.to_string(),
        ValueKind::I64(value) => value.to_string(),
        ValueKind::I128(value) => value.to_string(),
        ValueKind::U64(value) => value.to_string(),
        ValueKind::U128(value) => value.to_string(),
        ValueKind::Float(value) => format!("{value:?}"),
        ValueKind::String(text) if text.contains("://") && text.contains('@') => {
            "a URL with a user in it".to_owned()
        }
        ValueKind::String(text) => format!("{text:?}"),
        ValueKind::Table(_) => "a section".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
    }
}
