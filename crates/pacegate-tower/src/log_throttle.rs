//! Limits repeated error messages to one line per second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(1);

/// Decides whether another line may be logged.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    start: Instant,
    /// The time of the next line, in milliseconds since the start.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self { start: Instant::now(), next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }
}

impl LogThrottle {
    /// Returns the number of lines suppressed since the last one; `None` if this one is suppressed
    /// too.
    pub(crate) fn allow(&self) -> Option<u64> {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let interval = INTERVAL.as_millis() as u64;
        let mine = now >= next
            && self
                .next
                .compare_exchange(next, now.saturating_add(interval), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}
