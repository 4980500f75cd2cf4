//! Records of messages as clients and operators read them: lists, and their form in JSON.

pub mod listing;
pub mod views;
