//! Searches for the first number at which a condition starts to hold.
//!
//! Every condition must, once it holds, hold for all larger numbers.

/// The smallest number from `start` on for which `holds`.
///
/// The condition must hold eventually.
pub(super) fn first_from(start: i128, holds: impl Fn(i128) -> bool) -> i128 {
    let mut reach = 1;
    while !holds(start + reach - 1) {
        reach *= 2;
    }
    bisect(start, start + reach - 1, holds)
}

/// The smallest number in `start..end` for which `holds`, if there is one.
pub(super) fn first_within(start: i128, end: i128, holds: impl Fn(i128) -> bool) -> Option<i128> {
    if start < end && holds(end - 1) { Some(bisect(start, end - 1, holds)) } else { None }
}

/// The smallest number in `low..=high` for which `holds`, given that it holds for `high`.
fn bisect(mut low: i128, mut high: i128, holds: impl Fn(i128) -> bool) -> i128 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}
