//! The rules of transactional mail, as plain types and pure functions.
//!
//! Knows nothing of tokio, serde, redb, HTTP or the clock: time is a parameter, and everything here
//! can be tested without I/O. Every other layer may use it; it uses no other layer.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod worded;

pub mod likely;

pub mod limits;

pub mod time;

pub mod clock_corrections;

pub mod id;

pub mod organisation;

pub mod api_key;

pub mod encoded_words;

pub mod mailbox;

pub mod request;

pub mod admission;

pub mod envelope;

pub mod message;

pub mod message_terms;

mod proof_of_acceptance;

pub mod attempt;

pub mod retry;

pub mod event;

pub mod outcome;

pub mod timeline;

pub mod search;

pub mod history;

pub mod feed;

pub mod suppression;

pub mod usage;
pub mod webhook;

pub mod alert;
