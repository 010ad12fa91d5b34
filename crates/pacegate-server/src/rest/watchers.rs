//! Places for those who watch: bounded for all of them, and for each reader, so that no reader can take them all.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::respond::{ApiError, Code};

/// How many may watch at once.
const WATCHERS_MAX: usize = 64;
/// How often one key, or one certificate, may watch at once.
const READER_MAX: usize = 8;

/// Who watches, and how often.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, usize>>);

/// A place among the watchers, free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    watchers: Arc<Watchers>,
    reader: String,
}

impl Watchers {
    /// A place for the owner of a key.
    pub(crate) fn take(self: &Arc<Self>, reader: String) -> Result<Watching, ApiError> {
        let mut readers = self.0.lock();
        if readers.values().sum::<usize>() >= WATCHERS_MAX {
            return Err(ApiError::new(Code::ServiceUnavailable, "too many watch already"));
        }
        let own = readers.entry(reader.clone()).or_default();
        if *own >= READER_MAX {
            let message = format!("this key watches {READER_MAX} times already; close one of those first");
            return Err(ApiError::new(Code::RateLimited, message).retry_after(1));
        }
        *own += 1;
        Ok(Watching { watchers: self.clone(), reader })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut readers = self.watchers.0.lock();
        if let Some(own) = readers.get_mut(&self.reader) {
            *own -= 1;
            if *own == 0 {
                readers.remove(&self.reader);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn one_reader_leaves_places_for_others() {
        let watchers = Arc::new(Watchers::default());
        let take = |reader: usize| watchers.take(format!("reader {reader}"));
        let mut own: Vec<_> = (0..READER_MAX).map(|_| take(0).unwrap()).collect();
        assert_eq!(take(0).unwrap_err().code, Code::RateLimited);
        own.pop();
        own.push(take(0).unwrap());
        let others: Vec<_> = (1..WATCHERS_MAX / READER_MAX)
            .flat_map(|reader| (0..READER_MAX).map(move |_| reader))
            .map(|reader| take(reader).unwrap())
            .collect();
        assert_eq!(take(1_000).unwrap_err().code, Code::ServiceUnavailable);
        drop((own, others));
        assert!(watchers.0.lock().is_empty());
    }
}
