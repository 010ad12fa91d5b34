//! So much a second, and no more: log lines and rows that an attack must not multiply.

use std::sync::atomic::{AtomicU64, Ordering};

use super::now;

/// Lets so many pass each second, and counts the others.
#[derive(Debug)]
pub struct PerSecond {
    max: u64,
    /// The second that is being counted for, and how many came in it.
    second: AtomicU64,
    count: AtomicU64,
    held_back: AtomicU64,
}

impl PerSecond {
    /// Lets `max` pass each second.
    pub const fn new(max: u64) -> Self {
        Self { max, second: AtomicU64::new(0), count: AtomicU64::new(0), held_back: AtomicU64::new(0) }
    }

    /// Whether one more may pass now.
    pub fn admit(&self) -> bool {
        let second = now().as_micros() / 1_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        let admitted = self.count.fetch_add(1, Ordering::Relaxed) < self.max;
        if !admitted {
            self.held_back.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    /// How many were not let pass since the start.
    pub fn held_back(&self) -> u64 {
        self.held_back.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_and_the_others_are_counted() {
        let lines = PerSecond::new(10);
        let passed = (0..1_000).filter(|_| lines.admit()).count();
        // The clock may have gone on to the next second, not to the one after that.
        assert!((10..=20).contains(&passed), "{passed}");
        assert_eq!(passed as u64 + lines.held_back(), 1_000);
        assert!(!PerSecond::new(0).admit());
    }
}
