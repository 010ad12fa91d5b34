//! The budget of new keys per second, so that callers that invent identities cannot fill Redis
//! quickly.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// A budget for each second of this process.
#[derive(Debug)]
pub(crate) struct NewKeys {
    per_second: u64,
    start: Instant,
    /// The current second, counted from 1, and the number of keys created in it.
    second: AtomicU64,
    made: AtomicU64,
}

impl NewKeys {
    pub(crate) fn new(per_second: u64) -> Self {
        Self { per_second, start: Instant::now(), second: AtomicU64::new(0), made: AtomicU64::new(0) }
    }

    /// Whether the budget of this second is used up. Requests in flight are not counted yet, so the
    /// budget can be exceeded by their number.
    pub(crate) fn is_spent(&self) -> bool {
        self.made.load(Ordering::Relaxed) >= self.per_second
            && self.second.load(Ordering::Relaxed) == self.this_second()
    }

    /// Counts `made` new keys.
    pub(crate) fn count(&self, made: u64) {
        let second = self.this_second();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.made.store(0, Ordering::Relaxed);
        }
        self.made.fetch_add(made, Ordering::Relaxed);
    }

    fn this_second(&self) -> u64 {
        self.start.elapsed().as_secs() + 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn budget_is_per_second() {
        let keys = NewKeys::new(3);
        assert!(!keys.is_spent());
        keys.count(2);
        assert!(!keys.is_spent());
        keys.count(2);
        assert!(keys.is_spent());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!keys.is_spent());
        keys.count(3);
        assert!(keys.is_spent());
    }
}
