//! References to limits that are reused instead of counted.

use std::cell::Cell;
use std::sync::Arc;

use crate::rule::NamedLimit;

thread_local! {
    /// The reference of the last decision that this thread has dropped.
    static SPARE: Cell<Option<Arc<NamedLimit>>> = const { Cell::new(None) };
}

/// A reference to a limit, or none. When it is dropped, the next decision of the thread under the
/// same limit reuses it.
///
/// Counting references would write, twice per decision, a cache line that all threads share.
#[derive(Clone, Debug)]
pub(super) struct CachedLimit(Option<Arc<NamedLimit>>);

impl CachedLimit {
    pub(super) const NONE: Self = Self(None);

    #[inline(always)]
    pub(super) fn new(limit: &Arc<NamedLimit>) -> Self {
        // A thread that ends has no spare reference any more.
        match SPARE.try_with(Cell::take) {
            Ok(Some(spare)) if Arc::ptr_eq(&spare, limit) => Self(Some(spare)),
            _ => Self(Some(limit.clone())),
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[Arc<NamedLimit>] {
        self.0.as_slice()
    }
}

impl Drop for CachedLimit {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(limit) = self.0.take() {
            let _ = SPARE.try_with(|spare| spare.set(Some(limit)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use pacegate_core::Limit;
    use pacegate_store::FailureMode;

    use super::*;

    #[test]
    fn dropped_reference_is_reused() {
        let limit = Arc::new(NamedLimit::default("key", Limit::largest(), FailureMode::default()));
        for _ in 0..3 {
            let first = CachedLimit::new(&limit);
            let second = first.clone();
            assert_eq!((Arc::strong_count(&limit), first.as_slice().len()), (3, 1));
            drop((first, second));
        }
        // One reference is left for the next decision; another limit takes its place.
        assert_eq!(Arc::strong_count(&limit), 2);
        let other = Arc::new(NamedLimit::default("key", Limit::largest(), FailureMode::default()));
        assert!(Arc::ptr_eq(&CachedLimit::new(&other).as_slice()[0], &other));
        assert_eq!(Arc::strong_count(&limit), 1);
        // A thread keeps none after its end.
        let moved = limit.clone();
        thread::spawn(move || drop(CachedLimit::new(&moved))).join().unwrap();
        assert_eq!(Arc::strong_count(&limit), 1);
    }
}
