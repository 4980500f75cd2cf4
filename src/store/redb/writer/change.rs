//! What a batch may change of what readers keep in memory.

/// Whether a batch suppressed an address that was not suppressed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum SuppressionChange {
    /// None.
    Unchanged,
    /// At least one: messages admitted before must be looked at again.
    Added,
}

/// Whether a batch changed organisations, keys or domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum DirectoryChange {
    /// Nothing of them.
    Unchanged,
    /// The snapshot has to be made anew.
    Changed,
}
