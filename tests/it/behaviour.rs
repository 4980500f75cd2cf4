//! The contract's tables, row by row, over real HTTP against the real service.

mod access;
mod addresses;
mod attachments;
mod backup;
mod batch;
mod bodies;
mod cancel;
mod cancel_own;
mod caught;
mod certificate;
mod clock;
mod credentials;
mod data_file;
mod destinations;
mod dev;
mod dev_store;
#[cfg(feature = "interop")]
mod disk;
mod edges;
mod events;
mod expiry;
mod feed;
mod handover;
mod idempotency;
mod keys;
mod limits;
mod listing;
mod logs;
mod lost;
mod memory;
mod operator;
mod outcomes;
mod page;
mod page_data;
mod page_search;
mod partial;
mod pause;
mod priority;
mod provider_answers;
mod readiness;
mod reading;
mod refusals;
mod resend;
mod restart;
mod restart_in_place;
mod rights;
mod scopes;
mod secrets;
mod sending;
mod sockets;
mod status;
mod stop;
mod systemd;
#[cfg(debug_assertions)]
mod tasks;
mod test_organisations;
mod timeline;
pub(crate) mod tls;
mod tracking;
mod windows;

/// Configuration of a service that tries a failed message again almost at once.
const RETRIES_AT_ONCE: &str = "[sending]\nretry_initial = \"1ms\"\nretry_max = \"2ms\"";
