//! pillarbox: a self-hosted transactional email service over Amazon SES.
//!
//! The binary hands the command line to the crate `cli`. Each folder here is a crate, and the compiler
//! holds that there is no circle. A crate uses those of lower layers, and some of its own; no adapter
//! depends on another. `tests/layers.rs` holds what the compiler cannot:
//!
//! ```text
//! 5 edges      cli  service  api  resend_api  smtp  admin  operator
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

use std::process::ExitCode;

/// Bodies are allocated on one thread and freed on another, which the C library's allocator does
/// under locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pillarbox_cli::run()
}
