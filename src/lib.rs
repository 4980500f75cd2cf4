//! pillarbox: a self-hosted transactional email service over Amazon SES.
//!
//! Layers; a module uses only those below its own, and the adapters never each other:
//!
//! ```text
//! 4 edges      main  cli  service  http  admin  operator
//! 3 flows      intake  outbox  dispatch  retention
//! 2 adapters   store  ses        simulator (used by service and tests alone)
//! 1 core       domain  clock  config
//! ```
//!
//! Data flows one way:
//!
//! ```text
//! request -> SendRequest -> Admitted -> stored (durable) -> dispatched -> recorded -> events
//! ```

pub mod clock;
pub mod domain;
pub mod http;
