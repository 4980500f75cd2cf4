//! Upkeep in the background: periodic tasks that do not depend on messages.

pub mod domain_verification;
pub mod history;
pub mod purge;
pub mod timekeeper;
