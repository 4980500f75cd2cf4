//! Reference of the keys: what the example file, the errors and the defaults say of each.
//!
//! One source for the page of the documentation and the manual page.

use crate::{Config, ConfigError, EXAMPLE, Problem};

/// A key, and what an operator has to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyReference {
    /// Full name, such as `sending.drain`.
    pub key: String,
    /// Environment variable that wins over the file.
    pub variable: String,
    /// Purpose of the key, as lines of text.
    pub meaning: String,
    /// Default, or an example if there is none.
    pub value: DefaultOrExample,
    /// Allowed values, in the words of the error that a bad value gets.
    pub allowed: String,
}

/// A value in the form that the file has it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultOrExample {
    /// The value that applies if none is given.
    Default(String),
    /// There is no default; this is a possible value.
    Example(String),
}

/// Returns every key, in the example file's order.
pub fn reference() -> Vec<KeyReference> {
    let mut keys = Vec::new();
    let (mut section, mut comment) = (String::new(), Vec::new());
    for line in EXAMPLE.lines() {
        let given = assignment(line).map(|(name, value)| (name, DefaultOrExample::Default(value)));
        let commented_out = || {
            let (name, value) = assignment(line.strip_prefix("# ")?)?;
            Some((name, DefaultOrExample::Example(value)))
        };
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((name, value)) = given.or_else(commented_out) {
            let key = format!("{section}{name}");
            let variable = format!("PILLARBOX_{}", key.replace('.', "__").to_ascii_uppercase());
            let allowed = allowed(&key, &variable);
            keys.push(KeyReference { key, variable, meaning: comment.join("\n"), value, allowed });
        } else if let Some(text) = line.strip_prefix("# ") {
            comment.push(text);
            continue;
        }
        comment.clear();
    }
    keys
}

/// The name and the value of a line that gives a key its value.
fn assignment(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(" = ")?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

/// Allowed values of a key: no key takes a zero byte, and the error says what it takes.
fn allowed(key: &str, variable: &str) -> String {
    let bad = [(variable.to_owned(), "\0".to_owned())];
    let problems = match Config::load(None, bad.into_iter()) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => unreachable!("{key} of the example takes a zero byte: {other:?}"),
    };
    let mut allowed = problems.iter().filter_map(|problem| match problem {
        Problem::BadValue { key: named, allowed, .. } if *named == key => Some(allowed.clone()),
        Problem::BadValue { .. }
        | Problem::Unknown { .. }
        | Problem::Removed { .. }
        | Problem::Inconsistent(_) => None,
    });
    allowed.next().expect("every key of the example is a key")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::KEYS;

    #[test]
    fn every_key_is_there_once() {
        let mut keys: Vec<_> = reference().into_iter().map(|entry| entry.key).collect();
        let mut expected = KEYS.to_vec();
        keys.sort();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }
}
