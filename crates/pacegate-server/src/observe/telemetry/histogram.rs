//! Histograms of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts durations in fixed buckets. Recording costs two additions.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// The upper bounds of the buckets in seconds; one more bucket holds longer durations.
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    sum_nanos: AtomicU64,
}

/// A snapshot of a histogram.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// The upper bound of each bucket in seconds, and its count.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum_seconds: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_nanos: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn record(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn counted(&self) -> Counted {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Counted {
            buckets: bounds.zip(counts).collect(),
            sum_seconds: self.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

impl Counted {
    pub(crate) fn total(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Adds the counts of another histogram with the same buckets.
    pub(crate) fn add(&mut self, other: &Self) {
        for ((_, count), (_, more)) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
        self.sum_seconds += other.sum_seconds;
    }

    /// Returns the counts since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        Self {
            buckets: pairs.map(|((bound, now), (_, then))| (*bound, now.saturating_sub(*then))).collect(),
            sum_seconds: self.sum_seconds - earlier.sum_seconds,
        }
    }

    /// Returns the quantile `share` of the durations in seconds, assuming an even distribution
    /// within each bucket.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let wanted = share * total as f64;
        let (mut below, mut start) = (0.0, 0.0);
        for (end, count) in &self.buckets {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                let within = ((wanted - below) / count).clamp(0.0, 1.0);
                return Some(if end.is_finite() { start + (end - start) * within } else { start });
            }
            below += count;
            start = *end;
        }
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [f64; 3] = [0.001, 0.01, 0.1];

    #[test]
    fn durations_are_counted_in_the_first_bucket_that_holds_them() {
        let histogram = Histogram::new(&BOUNDS);
        for millis in [1, 2, 10, 11, 5_000] {
            histogram.record(Duration::from_millis(millis));
        }
        let counted = histogram.counted();
        let counts: Vec<u64> = counted.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 2, 1, 1]);
        assert_eq!(counted.total(), 5);
        assert!((counted.sum_seconds - 5.024).abs() < 1e-9);
    }

    #[test]
    fn quantiles_lie_within_their_buckets() {
        let histogram = Histogram::new(&BOUNDS);
        assert_eq!(histogram.counted().quantile(0.5), None);
        for _ in 0..90 {
            histogram.record(Duration::from_micros(500));
        }
        for _ in 0..10 {
            histogram.record(Duration::from_millis(50));
        }
        let counted = histogram.counted();
        let of = |share| counted.quantile(share).unwrap();
        assert!((of(0.45) - 0.0005).abs() < 1e-9);
        assert!(of(0.9) <= 0.001);
        assert!((0.01..=0.1).contains(&of(0.99)));
        histogram.record(Duration::from_secs(60));
        let later = histogram.counted().since(&counted);
        assert_eq!((later.total(), later.quantile(0.5)), (1, Some(0.1)), "capped at the last bound");
    }
}
