//! Time measurement and statistics.

use std::time::Instant;

/// Returns the current time, for measurements only.
#[inline]
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the quantile `fraction` of `sorted`, which is in ascending order. Zero if it is empty.
pub fn quantile<T: Copy + Default>(sorted: &[T], fraction: f64) -> T {
    let position = (sorted.len() as f64 * fraction) as usize;
    sorted.get(position.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Returns the median of a few values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_few_values() {
        assert_eq!(quantile::<u32>(&[], 0.5), 0);
        assert_eq!(quantile(&[7], 0.9999), 7);
        assert_eq!(quantile(&[1, 2, 3, 4, 5], 0.5), 3);
        assert_eq!(quantile(&[1, 2, 3, 4, 5], 1.0), 5);
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
    }
}
