//! Locks, atomics, threads and time of the standard library, for code whose interleavings are tested.
//!
//! In the build of `tests/schedules`, another file takes the place of this one: there, a scheduler
//! chooses which thread runs next.

pub use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};
pub use std::thread;
pub use std::time::Instant;

pub use tokio::task::{spawn, spawn_blocking};

/// Marks a place between two accesses to shared memory that no lock protects. Does nothing here.
#[inline]
pub const fn between_accesses() {}
