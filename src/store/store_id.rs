//! Name of a store's content, by which an arena recognises its own store.

use sha2::{Digest as _, Sha256};

/// Name of a store's content: of a data file, or of a cluster and a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreId(pub [u8; 16]);

impl StoreId {
    /// Name of a data file, by the random number in it.
    pub(super) fn of_file(number: u64) -> Self {
        let mut id = *b"data file       ";
        id[8..].copy_from_slice(&number.to_le_bytes());
        Self(id)
    }

    /// Name of a node's part of a cluster, which has this random number.
    pub(super) fn of_node(cluster: i64, node: &str) -> Self {
        let digest =
            Sha256::new().chain_update(cluster.to_le_bytes()).chain_update(node).finalize();
        Self(*digest.first_chunk().expect("a digest has 32 bytes"))
    }
}
