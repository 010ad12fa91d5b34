//! Concurrent callers on shared keys: exactly the limit must be admitted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Number of `threads` × `attempts` concurrent calls of `take` that are admitted.
///
/// ```
/// let once = std::sync::Mutex::new(true);
/// let take = || std::mem::take(&mut *once.lock().unwrap());
/// let admitted = pacegate_testkit::admission::count(8, 10, take);
/// assert_eq!(admitted, 1);
/// ```
pub fn count(threads: usize, attempts: usize, take: impl Fn() -> bool + Sync) -> u64 {
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..attempts {
                    admitted.fetch_add(u64::from(take()), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_inner()
}
