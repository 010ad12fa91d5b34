//! Estimates how many different keys were seen, in 2 KiB however many there are (HyperLogLog).

use std::sync::atomic::{AtomicU8, Ordering};

/// The first bits of a hash choose a register.
const REGISTER_BITS: u32 = 11;
const REGISTERS: usize = 1 << REGISTER_BITS;

/// A set that knows about how many hashes are in it: 1 key in 40 too many or too few is usual for
/// thousands of keys, and up to a hundred keys the number is almost always exact.
#[derive(Debug)]
pub(super) struct Distinct([AtomicU8; REGISTERS]);

impl Default for Distinct {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; REGISTERS])
    }
}

impl Distinct {
    /// Adds the hash of a key. Inserting the same one again changes nothing.
    pub(super) fn insert(&self, hash: u64) {
        let register = (hash >> (u64::BITS - REGISTER_BITS)) as usize;
        // The position of the first one among the other bits; all of them are zero once in 2^53.
        let rank = ((hash << REGISTER_BITS) | (1 << (REGISTER_BITS - 1))).leading_zeros() as u8 + 1;
        self.0[register].fetch_max(rank, Ordering::Relaxed);
    }

    /// About how many different hashes were inserted.
    pub(super) fn estimate(&self) -> u64 {
        let registers = REGISTERS as f64;
        let (mut sum, mut empty) = (0.0, 0_u32);
        for register in &self.0 {
            let rank = register.load(Ordering::Relaxed);
            sum += (-f64::from(rank)).exp2();
            empty += u32::from(rank == 0);
        }
        let raw = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        // Few keys leave registers empty, whose number says more than the ranks.
        let few = registers * (registers / f64::from(empty.max(1))).ln();
        let estimate = if raw <= 2.5 * registers && empty > 0 { few } else { raw };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use foldhash::quality::FixedState;

    use super::*;

    #[test]
    fn number_of_keys_is_about_right_at_every_size() {
        let hasher = FixedState::default();
        for count in [0_u64, 1, 3, 40, 1_204, 5_000, 100_000, 1_000_000] {
            let keys = Distinct::default();
            for key in 0..count {
                keys.insert(hasher.hash_one(key));
                keys.insert(hasher.hash_one(key));
            }
            let (estimate, allowed) = (keys.estimate(), count / 15);
            assert!(estimate.abs_diff(count) <= allowed, "{count} keys are estimated as {estimate}");
        }
    }
}
