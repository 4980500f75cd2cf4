//! The contract's tables, row by row, over real HTTP against the real service.

mod harness;
mod idempotency;
mod reading;
mod refusals;
mod restart;
mod secrets;
mod sending;
mod windows;
