//! Concurrent callers on shared keys: exactly as many pass as the limit says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// How many of `threads` × `attempts` calls of `take` are admitted when they come at the same time.
///
/// ```
/// let once = std::sync::Mutex::new(true);
/// let admitted = pacegate_testkit::admission::count(8, 10, || std::mem::take(&mut *once.lock().unwrap()));
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
