//! Suppressions on the administration's wire.

use serde::{Deserialize, Serialize};

use crate::admin::wire::Scope;

/// What became of each address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionChanges {
    /// In the order of the request.
    pub addresses: Vec<SuppressionChange>,
}

/// What became of an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuppressionChange {
    /// The address in the form in which it is compared.
    pub address: String,
    /// What was done.
    pub outcome: SuppressionOutcome,
    /// What became of it on the SES account's own list, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ses: Option<AtSes>,
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

/// What became of an address on the SES account's own suppression list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AtSes {
    /// It is on it no more.
    Cleared,
    /// It was not on it.
    NotThere,
    /// SES did not do it.
    Failed {
        /// Why not.
        message: String,
    },
}

/// A page of suppressions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionList {
    /// Those for all organisations first, then by organisation; by address.
    pub suppressions: Vec<Suppression>,
    /// Where the next page starts, if there is one.
    pub next: Option<SuppressionCursor>,
}

/// Stands for what a row that cannot be read would say: the reason of a suppression, which
/// suppresses all the same, or whose a key was.
pub const UNREADABLE: &str = "unreadable";

/// A suppression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppression {
    /// The name of the organisation; `None` for all of them.
    pub organisation: Option<String>,
    /// The address.
    pub address: String,
    /// `bounce`, `complaint`, `manual` or [`UNREADABLE`].
    pub reason: String,
    /// Since when; empty where that cannot be read.
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

/// A row of a list of suppressions, with its texts as they were given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRow {
    /// For whom.
    pub scope: Scope,
    /// The address.
    pub address: String,
    /// Why; an operator's decision where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when; from now on where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The message that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What is done about the good rows of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImportMode {
    /// They are taken in, in one transaction.
    Apply,
    /// Nothing: the list is only looked at.
    Check,
}

/// What became of the rows of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuppressionsImported {
    /// How many are suppressed from now on.
    pub added: usize,
    /// How many were suppressed before; those entries stay.
    pub already_there: usize,
    /// The rows that were not taken in.
    pub refused: Vec<RefusedRow>,
}

/// A row that was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRow {
    /// Its position in the request, from 0 on.
    pub row: usize,
    /// The rule that it breaks.
    pub rule: String,
}
