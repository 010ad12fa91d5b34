//! A bound per second, for log lines and rows that an attack must not multiply.

use std::sync::atomic::{AtomicU64, Ordering};

use super::now;

/// Admits a maximum number of events per second, and counts the others.
#[derive(Debug)]
pub struct PerSecond {
    max: u64,
    /// The current second, and the number of events in it.
    second: AtomicU64,
    count: AtomicU64,
    suppressed: AtomicU64,
}

impl PerSecond {
    /// Admits at most `max` events per second.
    pub const fn new(max: u64) -> Self {
        Self { max, second: AtomicU64::new(0), count: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Returns whether one more event is admitted now.
    pub fn admit(&self) -> bool {
        let second = now().as_micros() / 1_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        let admitted = self.count.fetch_add(1, Ordering::Relaxed) < self.max;
        if !admitted {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    /// Returns the number of rejected events since the start.
    pub fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_above_the_bound_are_rejected_and_counted() {
        let lines = PerSecond::new(10);
        let passed = (0..1_000).filter(|_| lines.admit()).count();
        // The clock may have advanced to the next second, but no further.
        assert!((10..=20).contains(&passed), "{passed}");
        assert_eq!(passed as u64 + lines.suppressed(), 1_000);
        assert!(!PerSecond::new(0).admit());
    }
}
