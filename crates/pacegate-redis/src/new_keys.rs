//! How many new keys are made a second, so that callers who make up identities cannot fill Redis quickly.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// A budget for each second of this process.
#[derive(Debug)]
pub(crate) struct NewKeys {
    per_second: u64,
    start: Instant,
    /// The second that is counted, from 1 on, and how many keys were made in it.
    second: AtomicU64,
    made: AtomicU64,
}

impl NewKeys {
    pub(crate) fn new(per_second: u64) -> Self {
        Self { per_second, start: Instant::now(), second: AtomicU64::new(0), made: AtomicU64::new(0) }
    }

    /// Whether no more keys are made in this second. Those that are under way are not known yet, so that the
    /// budget can be exceeded by as many.
    pub(crate) fn is_spent(&self) -> bool {
        self.made.load(Ordering::Relaxed) >= self.per_second
            && self.second.load(Ordering::Relaxed) == self.this_second()
    }

    /// So many were made.
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
    async fn each_second_has_a_budget_of_its_own() {
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
