//! Tags: the part of a hash that tables in memory keep.

/// The 32 bits that a table in memory keeps of a hash: its tag.
pub(super) const fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// A tag as a hash for the table, which uses the highest bits and the lowest.
pub(super) fn spread(tag: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(tag)
}
