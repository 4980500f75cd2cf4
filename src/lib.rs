//! pillarbox: a self-hosted transactional email service over Amazon SES.
//!
//! Layers: a module uses those below its own, and some of its own layer without a circle. Each module
//! of the lower layers is a crate that has its folder here, except `body_store` and `config`; no
//! adapter depends on another. `tests/layers.rs` holds what the compiler cannot:
//!
//! ```text
//! 5 edges      main  cli  service  api  resend_api  smtp  admin  operator  logging
//! 4 flows      alerts  intake  queue  dispatch  events  maintenance  providers  records  webhooks
//! 3 adapters   body_store  config  store  ses  http  simulator (used by providers, service, cli and tests alone)
//! 2 runtime    runtime
//! 1 rules      domain
//! ```
//!
//! Data flows one way:
//!
//! ```text
//! request -> SendRequest -> Admitted -> stored (durable) -> dispatched -> recorded -> events
//! ```

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

// The binary's allocator; the library does not use it.
use mimalloc as _;

pub mod admin;
pub mod alerts;
pub mod api;
pub mod body_store;
pub mod cli;
pub mod config;
pub mod dispatch;
pub mod events;
pub mod intake;
pub mod logging;
pub mod maintenance;
pub mod operator;
pub mod providers;
pub mod queue;
pub mod records;
pub mod resend_api;
pub mod service;
pub mod smtp;
pub mod webhooks;
