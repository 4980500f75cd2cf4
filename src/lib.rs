//! pillarbox: a self-hosted transactional email service over Amazon SES.
//!
//! Layers: a module uses those below its own, and some of its own layer without a circle; adapters
//! never use each other. `tests/layers.rs` holds all of this:
//!
//! ```text
//! 4 edges      main  cli  service  api  resend_api  smtp  admin  operator  logging
//! 3 flows      alerts  intake  queue  dispatch  events  providers  quota  purge_schedule  aws_setup  domain_verification  history  listing  timekeeper  views  webhooks
//! 2 adapters   body_store  store  ses  http  simulator (used by providers, service, cli and tests alone)
//! 1 core       domain  clock  config  detached_thread  error_chain  in_flight  organisation_counts  pem  proxy  resolver  shared_limits  tasks  text_buffer
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
pub mod aws_setup;
pub mod body_store;
pub mod cli;
pub mod clock;
pub mod config;
pub mod detached_thread;
pub mod dispatch;
pub mod domain;
pub mod domain_verification;
pub mod error_chain;
pub mod events;
pub mod history;
pub mod http;
pub mod in_flight;
pub mod intake;
pub mod listing;
pub mod logging;
pub mod operator;
pub mod organisation_counts;
pub mod pem;
pub mod providers;
pub mod proxy;
pub mod purge_schedule;
pub mod queue;
pub mod quota;
pub mod resend_api;
pub mod resolver;
pub mod service;
pub mod ses;
pub mod shared_limits;
pub mod simulator;
pub mod smtp;
pub mod store;
pub mod tasks;
pub mod text_buffer;
pub mod timekeeper;
pub mod views;
pub mod webhooks;
