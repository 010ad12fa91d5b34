//! Division by a number that is known long before: a multiplication instead of 10 to 40 cycles.

use crate::time::EXACT_MAX;

/// A divisor of numbers up to [`EXACT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Divisor {
    multiplier: u64,
    shift: u32,
}

/// Bits of the largest dividend.
const BITS: u32 = u64::BITS - EXACT_MAX.leading_zeros();

impl Divisor {
    /// Prepares the division by `divisor`, which is between 1 and [`EXACT_MAX`].
    ///
    /// With `divisor` ≤ 2^s and `multiplier` = ⌈2^(53 + s) / divisor⌉, the quotient of a dividend
    /// below 2^53 is too large by less than 1 / divisor, and so never rounded up (Granlund and
    /// Montgomery, "Division by invariant integers using multiplication").
    pub(crate) const fn new(divisor: u64) -> Self {
        let shift = u64::BITS - (divisor - 1).leading_zeros();
        let multiplier = (1u128 << (BITS + shift)).div_ceil(divisor as u128);
        Self { multiplier: multiplier as u64, shift }
    }

    /// Divides a number up to [`EXACT_MAX`], rounding down.
    #[inline(always)]
    pub(crate) const fn divide(self, dividend: u64) -> u64 {
        // The dividend is shifted to the top first, so that the product is used from bit 64 on.
        let product = ((dividend << (u64::BITS - BITS)) as u128) * (self.multiplier as u128);
        ((product >> u64::BITS) as u64) >> self.shift
    }

    /// Divides a number up to [`EXACT_MAX`], rounding up.
    #[inline(always)]
    pub(crate) const fn divide_up(self, dividend: u64) -> u64 {
        if dividend == 0 { 0 } else { self.divide(dividend - 1) + 1 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of every magnitude.
    fn number() -> impl Strategy<Value = u64> {
        (0..BITS, any::<u64>()).prop_map(|(bits, number)| number & (EXACT_MAX >> bits))
    }

    #[test]
    fn extremes_are_exact() {
        for divisor in [1, 2, 3, 7, 10, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, EXACT_MAX - 1, EXACT_MAX] {
            let prepared = Divisor::new(divisor);
            for dividend in [0, 1, 2, divisor - 1, divisor, EXACT_MAX - 1, EXACT_MAX] {
                assert_eq!(prepared.divide(dividend), dividend / divisor, "{dividend} / {divisor}");
                assert_eq!(
                    prepared.divide_up(dividend),
                    dividend.div_ceil(divisor),
                    "{dividend} / {divisor}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn quotients_are_exact(dividend in number(), divisor in number(), offset in 0u64..3) {
            let divisor = divisor.max(1);
            let prepared = Divisor::new(divisor);
            // Next to multiples, where rounding shows.
            let multiple = (dividend / divisor * divisor + offset).saturating_sub(1).min(EXACT_MAX);
            for dividend in [dividend, multiple] {
                prop_assert_eq!(prepared.divide(dividend), dividend / divisor);
                prop_assert_eq!(prepared.divide_up(dividend), dividend.div_ceil(divisor));
            }
        }
    }
}
