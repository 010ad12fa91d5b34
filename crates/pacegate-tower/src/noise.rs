//! Errors that every request of a broken service would log are logged once a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

const PAUSE: Duration = Duration::from_secs(1);

/// Says when it is time for another line.
#[derive(Debug)]
pub(crate) struct Noise {
    start: Instant,
    /// When the next line may be written, in milliseconds since the start.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Default for Noise {
    fn default() -> Self {
        Self { start: Instant::now(), next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }
}

impl Noise {
    /// How many lines were left out since the last one; `None` when this one is left out too.
    pub(crate) fn may_speak(&self) -> Option<u64> {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let pause = PAUSE.as_millis() as u64;
        let mine = now >= next
            && self
                .next
                .compare_exchange(next, now.saturating_add(pause), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}
