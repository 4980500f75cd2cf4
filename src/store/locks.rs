//! Locks. The guarded data is consistent at every moment, so a panic elsewhere is no reason to
//! stop.

use std::sync::PoisonError;

pub(super) use pillarbox_runtime::sync::{Mutex, RwLock};
use pillarbox_runtime::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read_lock<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write_lock<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
