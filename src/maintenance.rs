//! Upkeep in the background: what is done now and then, whatever messages there are.

pub mod domain_verification;
pub mod history;
pub mod purge;
pub mod timekeeper;
