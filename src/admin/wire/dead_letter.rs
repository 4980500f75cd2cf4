//! Dead letters on the administration's wire.

use serde::{Deserialize, Serialize};

/// A document of the provider that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// Tells it from others.
    pub id: String,
    /// When it arrived.
    pub received_at: String,
    /// Why it could not be read.
    pub reason: String,
    /// How long all of it was, in bytes.
    pub length: usize,
}

/// Dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterList {
    /// Newest first.
    pub dead_letters: Vec<DeadLetter>,
}

/// A dead letter with its document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterShown {
    /// Which.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// The beginning of the document, as far as it is kept.
    pub document: String,
}

/// Dead letters are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLettersCleared {
    /// How many.
    pub cleared: usize,
}

/// Which dead letters are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Letters {
    /// All of them.
    All,
    /// Those whose ids begin so.
    Ids(Vec<String>),
}
