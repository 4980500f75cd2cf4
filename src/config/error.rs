//! Problems of a configuration, with all that is needed to correct them in one go.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {} is not valid TOML: {source}", path.display())]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser, with the line.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Keys or values are wrong.
    #[error("{0}")]
    Invalid(Problems),
}

/// Everything that is wrong with the keys and values; never empty.
#[derive(Debug)]
pub struct Problems(pub(super) Vec<Problem>);

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The file at this path.
    File(PathBuf),
    /// The environment variable of this name.
    Variable(String),
    /// Neither the file nor the environment names it.
    Default,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// There is no such key.
    Unknown {
        /// Given name: a key's full name, or an environment variable's.
        name: String,
        /// Source of the name.
        origin: Origin,
        /// Closest known name, in the same form; `None` if none is close.
        likely: Option<String>,
    },
    /// The key was removed.
    Removed {
        /// Given name: a key's full name, or an environment variable's.
        name: String,
        /// Source of the name.
        origin: Origin,
        /// Next step of the operator, as a sentence's part.
        instead: &'static str,
    },
    /// A value is not one of those allowed.
    BadValue {
        /// The key's full name.
        key: &'static str,
        /// The value, as it was written.
        given: String,
        /// Source of the value.
        origin: Origin,
        /// Allowed values, as a sentence's part.
        allowed: String,
    },
    /// Values are allowed one by one and not together.
    Inconsistent(Inconsistency),
}

/// Values that do not go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inconsistency {
    /// The keys' full names, with each value as it was written (if it was) and its origin.
    pub values: Vec<(&'static str, Option<String>, Origin)>,
    /// Rule that they break together.
    pub rule: String,
}

impl Problems {
    /// The problems, in the order of the keys; unknown ones last.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        write!(f, "{count} {noun} in the configuration:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, origin, likely } => {
                write!(f, "{name}: there is no such key ({origin})")?;
                likely.iter().try_for_each(|likely| write!(f, "; did you mean {likely}?"))
            }
            Self::Removed { name, origin, instead } => {
                write!(f, "{name}: the key was removed ({origin}); {instead}")
            }
            Self::BadValue { key, given, origin, allowed } => {
                write!(f, "{key}: is {given} ({origin}); allowed: {allowed}")
            }
            Self::Inconsistent(Inconsistency { values, rule }) => {
                for (index, (key, given, origin)) in values.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{key}")?;
                    match given {
                        Some(given) => write!(f, " = {given} ({origin})")?,
                        None => write!(f, " ({origin})")?,
                    }
                }
                write!(f, ": {rule}")
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "in {}", path.display()),
            Self::Variable(name) => write!(f, "in the environment variable {name}"),
            Self::Default => f.write_str("not given"),
        }
    }
}
