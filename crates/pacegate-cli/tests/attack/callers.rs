//! What the attacks have in common: the size of the service's process, and a caller whose service must not suffer.

#![allow(dead_code, unreachable_pub, reason = "each attack uses a part of it")]

use std::time::{Duration, Instant};

use crate::process::Service;

/// Memory that the process has in use, in bytes.
pub fn resident_bytes(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The value below which the given share of the durations lies.
pub fn quantile(durations: &mut [Duration], share: f64) -> Duration {
    durations.sort_unstable();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a few thousand"
    )]
    let place = ((durations.len() as f64 - 1.0) * share).round() as usize;
    durations[place]
}

/// How long a call takes, with its result.
#[allow(clippy::disallowed_methods, reason = "measures the service from outside")]
pub fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = call();
    (result, start.elapsed())
}
