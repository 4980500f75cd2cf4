//! Suppressions on the administration's wire.

use serde::{Deserialize, Serialize};

/// What became of each address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionChanges {
    /// In the order of the request.
    pub addresses: Vec<SuppressionChange>,
}

/// What became of an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionChange {
    /// The address in the form in which it is compared.
    pub address: String,
    /// What was done.
    pub outcome: SuppressionOutcome,
}

/// What was done about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SuppressionOutcome {
    /// It is suppressed from now on.
    Added,
    /// It was suppressed before; that entry stays.
    AlreadyThere,
    /// It is suppressed no more.
    Removed,
    /// It was not suppressed.
    NotThere,
    /// It is suppressed for all organisations, and stays so.
    StillForAll,
}

/// A page of suppressions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionList {
    /// Those for all organisations first, then by organisation; by address.
    pub suppressions: Vec<Suppression>,
    /// Where the next page starts, if there is one.
    pub next: Option<SuppressionCursor>,
}

/// A suppression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppression {
    /// The name of the organisation; `None` for all of them.
    pub organisation: Option<String>,
    /// The address.
    pub address: String,
    /// `bounce`, `complaint` or `manual`.
    pub reason: String,
    /// Since when.
    pub since: String,
    /// The message that caused it.
    pub message: Option<String>,
}

/// A place in the list of suppressions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuppressionCursor {
    /// The number of the organisation; `None` for all of them.
    pub organisation: Option<u32>,
    /// The address.
    pub address: String,
}
