//! The clock skew of callers. It is measured and logged, and never affects decisions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::now;
use crate::observe::telemetry::{Counted, Histogram};

/// Skew above which a warning is logged, in seconds.
const TOLERANCE: f64 = 5.0;
/// Minimum number of seconds between two warnings.
const WARN_EVERY: u64 = 60;

/// Upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3_600.0];

/// Compares clocks.
#[derive(Debug)]
pub(crate) struct Skew {
    seconds: Histogram,
    /// The second of the last warning.
    warned: AtomicU64,
}

impl Default for Skew {
    fn default() -> Self {
        Self { seconds: Histogram::new(&BUCKETS), warned: AtomicU64::new(0) }
    }
}

impl Skew {
    /// Returns the measured skews.
    pub(crate) fn counted(&self) -> Counted {
        self.seconds.counted()
    }

    /// Measures the skew of a caller's time, in milliseconds since the epoch.
    #[inline]
    pub(crate) fn observe(&self, timestamp: Option<i64>) {
        if let Some(timestamp) = timestamp {
            self.compare(timestamp);
        }
    }

    fn compare(&self, timestamp: i64) {
        let own = now();
        // Exact enough: only the difference matters, and the buckets saturate.
        let seconds = timestamp as f64 / 1e3 - own.as_micros() as f64 / 1e6;
        // A skew of centuries is counted in the last bucket.
        self.seconds.record(Duration::from_secs_f64(seconds.abs().min(1e9)));
        if seconds.abs() <= TOLERANCE {
            return;
        }
        let second = own.as_micros() / 1_000_000;
        let warned = self.warned.load(Ordering::Relaxed);
        // The clock may have been set back since.
        let due = second.abs_diff(warned) >= WARN_EVERY;
        // Only one of several concurrent callers logs it.
        if due && self.warned.compare_exchange(warned, second, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(
                skew_seconds = seconds.round(),
                "clock skew of a caller; decisions are not affected"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// The captured log.
    #[derive(Clone, Debug, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the number of warnings for these skews, in milliseconds.
    fn warnings(differences: &[i64]) -> usize {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let skew = Skew::default();
        tracing::subscriber::with_default(subscriber, || {
            for difference in differences {
                let own = i64::try_from(now().as_micros() / 1_000).unwrap();
                skew.observe(Some(own + difference));
            }
            skew.observe(None);
        });
        assert_eq!(skew.counted().total(), differences.len() as u64);
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        text.matches("WARN").count()
    }

    #[test]
    fn clock_skew_is_logged_at_most_once_a_minute() {
        assert_eq!(warnings(&[1, 0, -3_000, 4_000]), 0, "within the tolerance");
        assert_eq!(warnings(&[6_000]), 1);
        assert_eq!(warnings(&[-6_000]), 1, "in either direction");
        assert_eq!(warnings(&[3_600_000, -3_600_000, 6_000, 0]), 1, "not for every request");
    }
}
