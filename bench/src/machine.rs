//! Facts about this machine and its processes, from Linux.

use std::fs;

use anyhow::{Context, Result};

/// Clock ticks per second of processor time in `/proc`, which is the same on every Linux.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

/// Returns one line about the machine, for the head of the results.
pub fn description() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&processor, "model name").unwrap_or("unknown processor").to_owned();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

/// Returns the resident memory of this process, in bytes.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    // /proc/self/statm has the same figure in pages, which depends on the page size.
    let kibibytes =
        field(&status, "VmRSS").and_then(|value| value.trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kibibytes.context("no VmRSS in /proc/self/status")? * 1_024)
}

/// Returns how often this thread was preempted.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn preemptions() -> Result<u64> {
    let status =
        fs::read_to_string("/proc/thread-self/status").context("reading /proc/thread-self/status")?;
    let switches = field(&status, "nonvoluntary_ctxt_switches").and_then(|value| value.parse().ok());
    switches.context("no nonvoluntary_ctxt_switches in /proc/thread-self/status")
}

/// Returns the user and system time of a process so far, in seconds.
///
/// # Errors
/// If the process has exited or `/proc` cannot be read.
pub fn processor_seconds(process: u32) -> Result<f64> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    ticks(&stat).map(|ticks| ticks as f64 / CLOCK_TICKS_PER_SECOND).with_context(|| format!("{path}: {stat}"))
}

fn ticks(stat: &str) -> Option<u64> {
    // The name of the program is in parentheses and can contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_times_behind_an_odd_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 100 1 1";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("42 (a"), None);
    }

    #[test]
    fn knows_this_process() {
        assert!(resident_bytes().unwrap() > 100_000);
        assert!(processor_seconds(std::process::id()).unwrap() >= 0.0);
        preemptions().unwrap();
    }
}
