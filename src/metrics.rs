//! Counts of what became of each organisation's messages. Knows nothing of who reads them.

pub mod organisations;
