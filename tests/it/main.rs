//! Integration tests, in one binary: the contract over real HTTP against the real service, and the
//! parts that are tested from outside.
//!
//! Tests that need a binary of their own (`tests/crash`, `tests/network`, `tests/interop`,
//! `tests/soak.rs`) share the kit.

#![expect(clippy::unwrap_used, reason = "a test fails if something is not as it must be")]

mod admin;
mod alerts;
mod behaviour;
mod doctor;
mod domains;
mod events;
mod http_transport;
#[path = "../kit/lib.rs"]
#[expect(dead_code, unused_imports, reason = "each test binary uses a part of the kit")]
mod kit;
mod proxy;
mod resolver;
mod sending;
mod simulator;
mod smtp;
mod submission;
mod suppression;
mod webhook_load;
mod webhooks;
