//! The locks and atomics of this crate, replaced by shuttle's when a test explores interleavings.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::MutexGuard;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic::{AtomicUsize, Ordering};

/// shuttle's mutex with the interface of parking_lot's.
#[cfg(feature = "shuttle")]
#[derive(Debug)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

#[cfg(feature = "shuttle")]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
