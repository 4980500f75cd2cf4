//! Base of the service: its clock, its tasks and threads, limits that holders share, and names and
//! proxies of outgoing calls. Knows nothing of mail.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod clock;
pub mod detached_thread;
pub mod error_chain;
pub mod in_flight;
pub mod pem;
pub mod proxy;
pub mod resolver;
pub mod shared_limits;
#[cfg(not(schedules))]
pub mod sync;
#[cfg(schedules)]
#[path = "../../tests/schedules/sync.rs"]
pub mod sync;
pub mod tasks;
pub mod text_buffer;
