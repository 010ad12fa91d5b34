//! The keys of checks and their order, which are built in advance to keep measurements cheap.

use anyhow::{Result, bail};

/// A set of keys and an order to check them in, the same for every contender.
#[derive(Debug)]
pub struct Workload {
    /// Name on the command line.
    pub name: &'static str,
    /// Returns its name in tables.
    pub title: &'static str,
    /// The keys.
    pub keys: Vec<String>,
    /// Indices of keys. Their number is a power of two.
    order: Vec<u32>,
}

impl Workload {
    /// The names that [`named`](Self::named) knows.
    pub const NAMES: [&str; 3] = ["hot", "uniform", "skewed"];

    /// Builds a workload.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "hot" => Self { name: "hot", title: "one hot key", keys: keys(1), order: vec![0; 1 << 10] },
            "uniform" => Self {
                name: "uniform",
                title: "100 k keys, uniform",
                keys: keys(100_000),
                order: uniform(100_000, 1 << 20),
            },
            "skewed" => Self {
                name: "skewed",
                title: "1 M keys, skewed",
                keys: keys(1_000_000),
                order: zipf(1_000_000, 1 << 22),
            },
            other => bail!("unknown workload {other:?}; expected one of {}", Self::NAMES.join(", ")),
        })
    }

    /// Returns a part of the order: `checks` keys for thread `part` of `parts`. The order is
    /// cyclic.
    pub fn walk(&self, part: usize, parts: usize, checks: usize) -> Walk<'_> {
        Walk { keys: &self.keys, order: &self.order, start: self.order.len() / parts * part, checks }
    }

    /// Every key once.
    pub fn every_key(&self) -> impl Iterator<Item = &String> {
        self.keys.iter()
    }
}

/// A number of keys to check one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'a> {
    keys: &'a [String],
    order: &'a [u32],
    start: usize,
    checks: usize,
}

impl Walk<'_> {
    /// Checks every key, and returns the number of denials.
    #[inline]
    pub fn refused(&self, mut check: impl FnMut(&String) -> bool) -> usize {
        let mask = self.order.len() - 1;
        let mut refused = 0;
        for step in 0..self.checks {
            let key = &self.keys[self.order[(self.start + step) & mask] as usize];
            refused += usize::from(!check(key));
        }
        refused
    }
}

/// Returns the key of a number, with 12 bytes.
pub fn key(number: usize) -> String {
    format!("user:{number:07}")
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(key).collect()
}

/// Returns `length` numbers below `keys`, the same ones on every run.
pub fn uniform(keys: u32, length: usize) -> Vec<u32> {
    let mut random = Random(1);
    (0..length).map(|_| random.below(keys)).collect()
}

/// Returns keys by Zipf's law: the nth most popular one is n times as rare as the first.
fn zipf(keys: u32, length: usize) -> Vec<u32> {
    let mut random = Random(2);
    let mut sum = 0.0;
    let cumulative: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        })
        .collect();
    // Popular keys are distributed among the others. Otherwise they would share cache lines.
    let mut by_rank: Vec<u32> = (0..keys).collect();
    for rank in (1..keys).rev() {
        by_rank.swap(rank as usize, random.below(rank + 1) as usize);
    }
    let mut draw = || {
        let point = random.fraction() * sum;
        let rank = cumulative.partition_point(|&up_to| up_to <= point);
        by_rank[rank.min(by_rank.len() - 1)]
    };
    (0..length).map(|_| draw()).collect()
}

/// SplitMix64: the same numbers on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_name_existing_keys() {
        assert!(uniform(1_000, 1 << 12).iter().all(|&position| position < 1_000));
        let skewed = zipf(1_000, 1 << 16);
        let mut counts = vec![0u32; 1_000];
        skewed.iter().for_each(|&position| counts[position as usize] += 1);
        counts.sort_unstable_by(|left, right| right.cmp(left));
        // The first rank has 1 / H(1000) = 13.4 % of the draws, twice as many as the second.
        assert!((8_300..9_200).contains(&counts[0]), "{}", counts[0]);
        assert!((4_100..4_700).contains(&counts[1]), "{}", counts[1]);
    }

    #[test]
    fn a_walk_goes_round() {
        let workload = Workload { name: "", title: "", keys: keys(4), order: vec![0, 1, 2, 3] };
        let mut seen = Vec::new();
        let refused = workload.walk(1, 2, 5).refused(|key| {
            seen.push(key.clone());
            key != "user:0000003"
        });
        assert_eq!(seen.concat(), [2, 3, 0, 1, 2].map(key).concat());
        assert_eq!(refused, 1);
    }
}
