//! Upkeep in the background: periodic tasks that do not depend on messages.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod domain_verification;
pub mod history;
pub mod purge;
pub mod timekeeper;
