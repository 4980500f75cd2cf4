//! The contract's tables, row by row, over real HTTP against the real service.

mod access;
mod attachments;
mod backup;
mod batch;
mod cancel;
mod caught;
mod certificate;
mod clock;
mod credentials;
mod data_file;
mod destinations;
mod dev;
#[cfg(feature = "interop")]
mod disk;
mod events;
mod feed;
mod handover;
mod idempotency;
mod keys;
mod listing;
mod logs;
mod lost;
mod memory;
mod operator;
mod outcomes;
mod page;
mod page_data;
mod reading;
mod refusals;
mod restart;
mod secrets;
mod sending;
mod sockets;
mod status;
mod systemd;
pub(crate) mod tls;
mod windows;
