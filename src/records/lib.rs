//! Records of messages as clients and operators read them: lists, and their form in JSON.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod listing;
pub mod views;
