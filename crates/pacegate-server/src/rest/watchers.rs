//! Bounds for live streams: a total, and one per reader, so that no reader can use up the total.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::respond::{ApiError, Code};

/// Maximum number of concurrent streams.
const WATCHERS_MAX: usize = 64;
/// Maximum number of concurrent streams of one key or certificate.
const READER_MAX: usize = 8;

/// The number of open streams by reader.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, usize>>);

/// An open stream; dropping it frees its slot.
#[derive(Debug)]
pub(crate) struct Watching {
    watchers: Arc<Watchers>,
    reader: String,
}

impl Watchers {
    /// Opens a stream for the owner of a key.
    pub(crate) fn take(self: &Arc<Self>, reader: String) -> Result<Watching, ApiError> {
        let mut readers = self.0.lock();
        if readers.values().sum::<usize>() >= WATCHERS_MAX {
            return Err(ApiError::new(Code::ServiceUnavailable, "too many open streams"));
        }
        let own = readers.entry(reader.clone()).or_default();
        if *own >= READER_MAX {
            let message = format!("this key has {READER_MAX} open streams; close one first");
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
    fn one_reader_cannot_use_up_all_streams() {
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
