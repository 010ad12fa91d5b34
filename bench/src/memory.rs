//! Memory per key, measured in a separate process for each contender.

use std::env;
use std::hint::black_box;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::contender::Kind;
use crate::machine::resident_bytes;
use crate::table::{Table, grouped};
use crate::workload::key;

/// Number of keys.
pub const KEYS: usize = 1_000_000;

/// Inserts the keys into a new contender, and returns the growth of this process in bytes.
///
/// The keys are created one by one and dropped, so that only memory of the contender is counted.
///
/// # Errors
/// If the contender denies a key or `/proc` cannot be read.
pub fn grow(kind: Kind) -> Result<u64> {
    // Loads the code and the first pages of the allocator, which are not memory of keys.
    ensure!(kind.build(1)?.check(&key(0)), "{} denied its first key", kind.name());
    let before = resident_bytes()?;
    let contender = kind.build(KEYS)?;
    let refused = (0..KEYS).filter(|&number| !contender.check(&key(number))).count();
    let after = resident_bytes()?;
    black_box(&contender);
    ensure!(refused == 0, "{} denied {refused} new keys", kind.name());
    Ok(after.saturating_sub(before))
}

/// Runs this program again with `--memory NAME` for every contender.
///
/// # Errors
/// If a child process cannot be started or fails.
pub fn compare() -> Result<Table> {
    let program = env::current_exe().context("finding this program")?;
    let mut table = Table::new(["1 M keys", "bytes per key", "grown by, MiB"]);
    for kind in Kind::ALL {
        let child = Command::new(&program)
            .args(["--memory", kind.name()])
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("running {}", program.display()))?;
        ensure!(child.status.success(), "--memory {} failed: {}", kind.name(), child.status);
        let bytes: u64 =
            String::from_utf8_lossy(&child.stdout).trim().parse().context("--memory prints bytes")?;
        table.row([kind.name().into(), grouped(bytes / KEYS as u64), grouped(bytes >> 20)]);
    }
    Ok(table)
}
