//! Tables as bytes: what a copy of the file is made from, whatever the rows mean.

use std::ops::ControlFlow;

use redb::{
    Key, ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle,
    Value, WriteTransaction,
};

use crate::store::redb::tables::{
    API_KEYS, BY_ORGANISATION, CLOCK, DAMAGED_MESSAGES, DEAD_LETTERS, DOMAINS, EVENTS, IDEMPOTENCY,
    KEY_USE, MESSAGES, META, ORGANISATIONS, PENDING, SENT, SUPPRESSIONS, UNMATCHED,
};

/// Every table of the file; a position here is the table's number in a [`Chunk`].
pub(super) const TABLES: [&dyn RawTable; 16] = [
    &META,
    &MESSAGES,
    &BY_ORGANISATION,
    &PENDING,
    &IDEMPOTENCY,
    &EVENTS,
    &SENT,
    &UNMATCHED,
    &DEAD_LETTERS,
    &SUPPRESSIONS,
    &ORGANISATIONS,
    &API_KEYS,
    &DOMAINS,
    &KEY_USE,
    &DAMAGED_MESSAGES,
    &CLOCK,
];

/// Is shown a key and a value, and says whether it wants more.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;
/// Keys with their values.
type RawRows<'a, 'b> = &'a mut dyn Iterator<Item = (&'b [u8], &'b [u8])>;

/// A table whose keys and values are taken as bytes.
pub(super) trait RawTable: Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// How many rows it has.
    fn rows(&self, transaction: &ReadTransaction) -> Result<u64, redb::Error>;

    /// Shows every row, in order, until told to stop.
    fn each(
        &self,
        transaction: &ReadTransaction,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>, redb::Error>;

    /// Writes rows as [`RawTable::each`] showed them; gives how many.
    fn insert(
        &self,
        transaction: &WriteTransaction,
        rows: RawRows<'_, '_>,
    ) -> Result<u64, redb::Error>;
}

impl<K: Key + Sync + 'static, V: Value + Sync + 'static> RawTable
    for TableDefinition<'static, K, V>
{
    fn name(&self) -> &str {
        TableHandle::name(self)
    }

    fn rows(&self, transaction: &ReadTransaction) -> Result<u64, redb::Error> {
        Ok(transaction.open_table(*self)?.len()?)
    }

    fn each(
        &self,
        transaction: &ReadTransaction,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>, redb::Error> {
        for row in transaction.open_table(*self)?.iter()? {
            let (key, value) = row?;
            let (key, value) = (key.value(), value.value());
            if visit(K::as_bytes(&key).as_ref(), V::as_bytes(&value).as_ref()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn insert(
        &self,
        transaction: &WriteTransaction,
        rows: RawRows<'_, '_>,
    ) -> Result<u64, redb::Error> {
        let mut table = transaction.open_table(*self)?;
        let mut count = 0;
        for (key, value) in rows {
            table.insert(K::from_bytes(key), V::from_bytes(value))?;
            count += 1;
        }
        Ok(count)
    }
}

/// Rows of one table, as bytes that can travel: the table's number, then for each row the lengths
/// of key and value (four bytes each, the lowest first), the key and the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk(Vec<u8>);

/// The bytes are no chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what was received is not a part of a backup")]
pub struct NotAChunk;

impl Chunk {
    /// The length, in bytes, from which on no further row is added.
    pub(super) const FULL_BYTES: usize = 1 << 20;
    /// The longest chunk, in bytes: a full one, and a row with all that a request may hold.
    pub const MAX_BYTES: usize = 64 << 20;

    pub(super) fn of(table: u8) -> Self {
        Self(vec![table])
    }

    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        for part in [key, value] {
            let length = u32::try_from(part.len()).expect("redb's rows are shorter than 4 GiB");
            self.0.extend_from_slice(&length.to_le_bytes());
        }
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= Self::FULL_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 1
    }

    /// A chunk's bytes as they travelled, checked to be whole.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, NotAChunk> {
        let chunk = Self(bytes);
        if usize::from(*chunk.0.first().ok_or(NotAChunk)?) >= TABLES.len() {
            return Err(NotAChunk);
        }
        let mut rows = Rows(&chunk.0[1..]);
        while rows.next().is_some() {}
        if rows.0.is_empty() { Ok(chunk) } else { Err(NotAChunk) }
    }

    /// The bytes to travel.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn table(&self) -> &'static dyn RawTable {
        TABLES[usize::from(self.0[0])]
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        Rows(&self.0[1..])
    }
}

/// The rows of a chunk; stops at the first that is not whole.
pub(super) struct Rows<'a>(&'a [u8]);

impl<'a> Iterator for Rows<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (key_length, rest) = self.0.split_first_chunk()?;
        let (value_length, rest) = rest.split_first_chunk()?;
        let length = |bytes| usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        let (key, rest) = rest.split_at_checked(length(*key_length))?;
        let (value, rest) = rest.split_at_checked(length(*value_length))?;
        self.0 = rest;
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_reads_back_and_a_broken_one_is_told() {
        let mut chunk = Chunk::of(1);
        chunk.push(b"key", b"value");
        chunk.push(b"", b"");
        let bytes = chunk.as_bytes().to_vec();
        let read = Chunk::from_bytes(bytes.clone()).unwrap();
        let rows: Vec<_> = read.rows().collect();
        assert_eq!(rows, [(&b"key"[..], &b"value"[..]), (b"", b"")]);
        for bad in [&[][..], &[200], &bytes[..bytes.len() - 1], &bytes[..5]] {
            assert_eq!(Chunk::from_bytes(bad.to_vec()), Err(NotAChunk), "{bad:?}");
        }
    }
}
