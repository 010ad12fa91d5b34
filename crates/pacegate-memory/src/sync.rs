//! The locks and atomics of this crate, replaced by shuttle's when a test explores interleavings.

/// A lock that is released by a plain write. A thread that finds it locked yields its processor
/// until it is free.
///
/// A lock that wakes waiting threads has to look for them when it is released, which takes as long
/// as locking it. The store's locks are held for some 20 ns.
#[cfg(not(feature = "shuttle"))]
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, spin::relax::Yield>;
#[cfg(not(feature = "shuttle"))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::MutexGuard;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic::{AtomicUsize, Ordering};

/// shuttle's mutex with the interface of the other one.
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
