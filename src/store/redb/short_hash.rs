//! Tags: the 32 bits of a hash that tables in memory keep of what they stand for.

/// What is kept of a hash.
pub(super) const fn of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// A hash for the table, which looks at the highest bits and at the lowest.
pub(super) fn spread(tag: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(tag)
}
