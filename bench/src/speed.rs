//! The time of a check: all contenders on one workload, in turns, so that noise affects all of
//! them.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::contender::{BURST, Contender, Kind};
use crate::stopwatch::{median, now};
use crate::table::Table;
use crate::workload::Workload;

/// Numbers of concurrent threads.
pub const THREADS: [usize; 2] = [1, 2];
const ROUNDS: usize = 5;
/// Target length of one measurement.
const MEASUREMENT: Duration = Duration::from_millis(400);
/// Number of checks that determine the length of a measurement.
const PILOT_CHECKS: usize = 20_000;
/// Maximum number of checks in one measurement of one thread.
const CHECKS_MAX: usize = 5_000_000;

// One contender is used with both numbers of threads, and its hottest key must never be denied. The
// last term is the run before each measurement.
const _: () = assert!(CHECKS_MAX * ROUNDS * 3 * 11 / 10 < BURST as usize);

/// The times of one contender at one number of threads, in nanoseconds per check.
#[derive(Clone, Debug, Default)]
struct Samples(Vec<f64>);

impl Samples {
    fn best(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        median(self.0.iter().copied())
    }
}

/// Measures every contender on `workload` with one and two threads.
///
/// # Errors
/// If a contender denies a check, because its figures would not be comparable.
pub fn compare(workload: &Workload) -> Result<Table> {
    let mut contenders = Vec::new();
    for kind in Kind::ALL {
        let contender = kind.build(workload.keys.len())?;
        let refused = workload.every_key().filter(|key| !contender.check(key)).count();
        ensure!(refused == 0, "{} denied {refused} new keys", kind.name());
        contenders.push((kind, contender));
    }
    let samples = [rounds(&contenders, workload, THREADS[0])?, rounds(&contenders, workload, THREADS[1])?];

    let mut table = Table::new([
        workload.title,
        "1 thread: best ns",
        "median ns",
        "best / pacegate",
        "2 threads: best ns",
        "median ns",
        "best / pacegate",
    ]);
    for (position, (kind, _)) in contenders.iter().enumerate() {
        let figures = samples.iter().flat_map(|samples| {
            let (own, pacegate) = (&samples[position], &samples[0]);
            [
                format!("{:.1}", own.best()),
                format!("{:.1}", own.median()),
                format!("{:.2}", own.best() / pacegate.best()),
            ]
        });
        table.row(std::iter::once(kind.name().to_owned()).chain(figures));
    }
    Ok(table)
}

/// Runs one contender alone, for a profiler: every key once, then `checks` checks in one thread.
///
/// # Errors
/// If the contender denies a check.
pub fn spin(kind: Kind, workload: &Workload, checks: usize) -> Result<()> {
    let contender = kind.build(workload.keys.len())?;
    let refused = workload.every_key().filter(|key| !contender.check(key)).count();
    let refused = refused + contender.walk(workload.walk(0, 1, checks), true);
    ensure!(refused == 0, "{} denied {refused} checks", kind.name());
    Ok(())
}

fn rounds(
    contenders: &[(Kind, Box<dyn Contender>)],
    workload: &Workload,
    threads: usize,
) -> Result<Vec<Samples>> {
    let mut samples = vec![Samples::default(); contenders.len()];
    let mut checks = Vec::new();
    for (kind, contender) in contenders {
        let nanoseconds = measure(*kind, contender.as_ref(), workload, threads, PILOT_CHECKS)?;
        let fitting = MEASUREMENT.as_nanos() as f64 / nanoseconds.max(1.0);
        checks.push((fitting as usize).clamp(PILOT_CHECKS, CHECKS_MAX));
    }
    for _ in 0..ROUNDS {
        for (position, (kind, contender)) in contenders.iter().enumerate() {
            // The previous contender has filled the caches.
            measure(*kind, contender.as_ref(), workload, threads, checks[position] / 10)?;
            let nanoseconds = measure(*kind, contender.as_ref(), workload, threads, checks[position])?;
            samples[position].0.push(nanoseconds);
        }
    }
    Ok(samples)
}

/// Returns nanoseconds per check of a thread while `threads` threads run `checks` checks each.
fn measure(
    kind: Kind,
    contender: &dyn Contender,
    workload: &Workload,
    threads: usize,
    checks: usize,
) -> Result<f64> {
    let barrier = Barrier::new(threads);
    let run = |part: usize| {
        let walk = workload.walk(part, threads, checks);
        barrier.wait();
        let start = now();
        let refused = contender.walk(walk, threads == 1);
        (start, now(), refused)
    };
    let run = &run;
    let runs: Vec<(Instant, Instant, usize)> = thread::scope(|scope| {
        let handles: Vec<_> = (1..threads).map(|part| scope.spawn(move || run(part))).collect();
        let own = run(0);
        let others =
            handles.into_iter().map(|handle| handle.join().map_err(|_| anyhow!("a thread panicked")));
        std::iter::once(Ok(own)).chain(others).collect::<Result<_>>()
    })?;
    let refused: usize = runs.iter().map(|(_, _, refused)| refused).sum();
    ensure!(refused == 0, "{} denied {refused} checks", kind.name());
    let start = runs.iter().map(|(start, _, _)| *start).min();
    let end = runs.iter().map(|(_, end, _)| *end).max();
    let elapsed = start.zip(end).map(|(start, end)| end - start).unwrap_or_default();
    Ok(elapsed.as_nanos() as f64 / checks as f64)
}
