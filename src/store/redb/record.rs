//! Rows as bytes: a version byte, then postcard. Kept apart from the domain's types, because a
//! file written by an older version must stay readable when those change.

use serde::{Deserialize, Serialize};

/// Declares the stored twin of a domain enum without data, and both conversions.
macro_rules! stored_enum {
    ($stored:ident = $domain:ident { $($variant:ident),+ $(,)? }) => {
        #[derive(Serialize, Deserialize, Clone, Copy)]
        enum $stored { $($variant),+ }

        impl From<$domain> for $stored {
            fn from(value: $domain) -> Self {
                match value { $($domain::$variant => Self::$variant),+ }
            }
        }

        impl From<$stored> for $domain {
            fn from(value: $stored) -> Self {
                match value { $($stored::$variant => Self::$variant),+ }
            }
        }
    };
}

#[cfg(any(test, fuzzing))]
pub(in crate::store) mod check;
pub(in crate::store) mod event;
pub(in crate::store) mod kept_event;
pub(in crate::store) mod message;
pub(in crate::store) mod set_aside;
pub(in crate::store) mod tenant;
pub(in crate::store) mod time_record;

/// The version of every kind of row that has no newer one.
const VERSION: u8 = 1;

/// A row that cannot be read: the file is damaged, or of a version that this one does not know.
#[derive(Debug, thiserror::Error)]
pub(in crate::store) enum RowError {
    /// A version byte that is not known.
    #[error("a row has version {0}, which this pillarbox does not know")]
    Version(u8),
    /// The bytes do not decode.
    #[error("a row does not decode: {0}")]
    Damaged(#[from] postcard::Error),
    /// The bytes decode to something that the rules exclude.
    #[error("a row holds what it must not: {0}")]
    Invalid(&'static str),
}

fn encode<T: Serialize>(row: &T, size_hint: usize) -> Vec<u8> {
    encode_as(VERSION, row, size_hint)
}

fn encode_as<T: Serialize>(version: u8, row: &T, size_hint: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_hint);
    bytes.push(version);
    postcard::to_extend(row, bytes).expect("rows are plain data and a Vec takes any length")
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RowError> {
    decode_as(VERSION, bytes)
}

fn decode_as<'a, T: Deserialize<'a>>(version: u8, bytes: &'a [u8]) -> Result<T, RowError> {
    match bytes.split_first() {
        Some((&found, row)) if found == version => Ok(postcard::from_bytes(row)?),
        Some((&found, _)) => Err(RowError::Version(found)),
        None => Err(RowError::Invalid("nothing")),
    }
}

fn version(bytes: &[u8]) -> Option<u8> {
    bytes.first().copied()
}
