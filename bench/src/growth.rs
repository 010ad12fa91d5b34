//! How the cost of a check and the memory per key grow with the number of keys.

use std::env;
use std::hint::black_box;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::contender::Kind;
use crate::machine::resident_bytes;
use crate::stopwatch::{now, quantile};
use crate::workload::{key, uniform};

/// The numbers of keys that are measured.
pub const KEYS: [usize; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// The contenders that are measured.
pub const KINDS: [Kind; 2] = [Kind::Pacegate, Kind::Governor];

/// Number of checks in a round.
const CHECKS: usize = 1 << 20;
const ROUNDS: usize = 5;

/// One contender with one number of keys.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Point {
    /// Number of keys.
    pub keys: usize,
    /// Memory per key.
    pub bytes: f64,
    /// Time of a check of a known key, chosen uniformly, in the best round.
    pub nanos: f64,
    /// The longest insertion of a key, in microseconds.
    pub longest: f64,
    /// Of 10,000 insertions, 9,999 took at most this, in microseconds.
    pub p9999: f64,
}

/// Measures one point in this process.
///
/// # Errors
/// If the contender denies a key or `/proc` cannot be read.
pub fn measure(kind: Kind, keys: usize) -> Result<Point> {
    // Loads the code and the first pages of the allocator, which are not memory of keys.
    ensure!(kind.build(1)?.check(&key(0)), "{} denied its first key", kind.name());
    let mut insertions = vec![u32::MAX; keys];
    let before = resident_bytes()?;
    let contender = kind.build(keys)?;
    for (number, nanos) in insertions.iter_mut().enumerate() {
        let key = key(number);
        let start = now();
        ensure!(contender.check(&key), "{} denied a new key", kind.name());
        *nanos = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
    }
    let bytes = resident_bytes()?.saturating_sub(before);
    insertions.sort_unstable();

    let order: Vec<String> =
        uniform(u32::try_from(keys)?, CHECKS).into_iter().map(|number| key(number as usize)).collect();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = now();
        let refused = order.iter().filter(|key| !contender.check(key)).count();
        best = best.min(start.elapsed().as_nanos() as f64 / CHECKS as f64);
        ensure!(refused == 0, "{} denied {refused} known keys", kind.name());
    }
    black_box(&contender);
    Ok(Point {
        keys,
        bytes: bytes as f64 / keys as f64,
        nanos: best,
        longest: f64::from(quantile(&insertions, 1.0)) / 1_000.0,
        p9999: f64::from(quantile(&insertions, 0.9999)) / 1_000.0,
    })
}

/// Runs this program again with `--point NAME KEYS` for every number of keys, so that each starts
/// with a fresh heap.
///
/// # Errors
/// If a child process cannot be started or fails.
pub fn curve(kind: Kind) -> Result<Vec<Point>> {
    let program = env::current_exe().context("finding this program")?;
    let point = |keys: usize| {
        let child = Command::new(&program)
            .args(["--point", kind.name(), &keys.to_string()])
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("running {}", program.display()))?;
        ensure!(child.status.success(), "--point {} {keys} failed: {}", kind.name(), child.status);
        serde_json::from_slice(&child.stdout).context("--point prints a point")
    };
    KEYS.into_iter().map(point).collect()
}
