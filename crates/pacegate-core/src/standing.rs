//! How close a key is to its limit, with hysteresis against flapping.

use crate::named;

/// `normal`, `warning` or `throttled`: the state of a key as clients see it.
///
/// Above 80 % used is a warning, below 70 % is normal again, and nothing remaining is throttled. In
/// between, the standing does not change.
///
/// ```
/// use pacegate_core::Standing;
///
/// assert!(Standing::Normal < Standing::Warning && Standing::Warning < Standing::Throttled);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Far from the limit.
    #[default]
    Normal,
    /// Close to the limit; well-behaved clients slow down.
    Warning,
    /// Nothing remains now.
    Throttled,
}

named!(Standing { Normal => "normal", Warning => "warning", Throttled => "throttled" });

impl Standing {
    /// The standing after this one when `remaining` of `capacity` is left.
    #[inline]
    pub(crate) fn settle(self, remaining: u32, capacity: u32) -> Self {
        // Between the thresholds it is unchanged; something remains again, so throttled becomes a
        // warning.
        Self::regardless_of_previous(remaining, capacity).unwrap_or(self.min(Self::Warning))
    }

    /// The standing that does not depend on the previous one; `None` between the two thresholds.
    #[inline(always)]
    pub(crate) fn regardless_of_previous(remaining: u32, capacity: u32) -> Option<Self> {
        let left = u64::from(remaining) * 100;
        let capacity = u64::from(capacity);
        if left > capacity * 30 {
            Some(Self::Normal)
        } else if remaining == 0 {
            Some(Self::Throttled)
        } else if left < capacity * 20 {
            Some(Self::Warning)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Standing::{self, Normal, Throttled, Warning};

    #[test]
    fn settles_with_hysteresis() {
        let rows: [(Standing, u32, Standing); 9] = [
            (Normal, 100, Normal),
            (Normal, 20, Normal),
            (Normal, 19, Warning),
            (Warning, 20, Warning),
            (Warning, 30, Warning),
            (Warning, 31, Normal),
            (Warning, 0, Throttled),
            (Throttled, 25, Warning),
            (Throttled, 31, Normal),
        ];
        for (before, remaining, after) in rows {
            assert_eq!(before.settle(remaining, 100), after, "{before:?} with {remaining} remaining");
        }
    }
}
