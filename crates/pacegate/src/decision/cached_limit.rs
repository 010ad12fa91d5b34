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

/// A reference to a limit: the spare one of this thread if it has one.
#[inline(always)]
pub(crate) fn reuse(limit: &Arc<NamedLimit>) -> Arc<NamedLimit> {
    // A thread that ends has no spare reference any more.
    let reused = SPARE.try_with(|spare| match spare.take() {
        Some(other) if !Arc::ptr_eq(&other, limit) => {
            spare.set(Some(other));
            None
        }
        spare => spare,
    });
    reused.ok().flatten().unwrap_or_else(|| limit.clone())
}

impl CachedLimit {
    pub(super) const NONE: Self = Self(None);

    #[inline(always)]
    pub(super) fn new(limit: Arc<NamedLimit>) -> Self {
        Self(Some(limit))
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
            let first = CachedLimit::new(reuse(&limit));
            let second = first.clone();
            assert_eq!((Arc::strong_count(&limit), first.as_slice().len()), (3, 1));
            drop((first, second));
        }
        // One reference is left for the next decision, until one under another limit is dropped.
        let other = Arc::new(NamedLimit::default("key", Limit::largest(), FailureMode::default()));
        let reference = CachedLimit::new(reuse(&other));
        assert!(Arc::ptr_eq(&reference.as_slice()[0], &other));
        assert_eq!(Arc::strong_count(&limit), 2);
        drop(reference);
        assert_eq!((Arc::strong_count(&limit), Arc::strong_count(&other)), (1, 2));
        // A thread keeps none after its end.
        let moved = limit.clone();
        thread::spawn(move || drop(CachedLimit::new(reuse(&moved)))).join().unwrap();
        assert_eq!(Arc::strong_count(&limit), 1);
    }
}
