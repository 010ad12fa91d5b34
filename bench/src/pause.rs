//! Pauses of checks while a million expired keys are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use pacegate::{Cost, Limit, Limiter, MemoryOptions, MemoryStore, Plan, Timestamp, store::Clock};

use crate::machine::preemptions;
use crate::stopwatch::{median, now, quantile};
use crate::table::{Table, grouped};
use crate::workload::key;

const KEYS: usize = 1_000_000;
/// Number of new keys in each situation, enough to drop most of the expired ones.
const CHECKS: usize = 1_000_000;
const RUNS: usize = 3;
const START_MICROS: u64 = 1_800_000_000_000_000;
const LONG_AFTER: Duration = Duration::from_secs(3_600);
const PAUSE_NANOS: u32 = 1_000_000;

/// A clock that is set manually.
#[derive(Debug)]
struct HandClock(AtomicU64);

impl HandClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A store with a million keys, and its clock.
struct Scene {
    store: Arc<MemoryStore>,
    clock: Arc<HandClock>,
    plan: Plan,
    /// Number of keys that have been used.
    used: usize,
}

impl Scene {
    fn new(keys_max: usize) -> Result<Self> {
        let clock = Arc::new(HandClock(AtomicU64::new(START_MICROS)));
        let options = MemoryOptions { max_keys: keys_max, ..MemoryOptions::default() };
        let store = Arc::new(MemoryStore::with_clock(options, clock.clone()));
        // One check of sixty per minute is dropped after a second.
        let builder = Limiter::builder().plan("bench", [Limit::per_minute(60)]).memory(store.clone());
        let mut scene = Self { store, clock, plan: builder.build()?.plan("bench")?, used: 0 };
        for key in scene.new_keys(KEYS) {
            scene.check(&key)?;
        }
        ensure!(scene.store.keys() == KEYS, "the store has {} keys, expected {KEYS}", scene.store.keys());
        Ok(scene)
    }

    fn new_keys(&mut self, count: usize) -> Vec<String> {
        let keys = (self.used..self.used + count).map(key).collect();
        self.used += count;
        keys
    }

    fn check(&self, key: &str) -> Result<()> {
        ensure!(self.plan.check_now(key, Cost::ONE)?.allowed(), "a new key was denied");
        Ok(())
    }

    /// Checks new keys and measures each check.
    fn observe(&mut self) -> Result<Observation> {
        let keys = self.new_keys(CHECKS);
        let mut nanoseconds = vec![0u32; keys.len()];
        let keys_before = self.store.keys();
        let preempted = preemptions()?;
        let mut last = now();
        for (key, nanoseconds) in keys.iter().zip(&mut nanoseconds) {
            self.check(key)?;
            let present = now();
            *nanoseconds = u32::try_from((present - last).as_nanos()).unwrap_or(u32::MAX);
            last = present;
        }
        let preempted = preemptions()? - preempted;
        nanoseconds.sort_unstable();
        Ok(Observation { nanoseconds, preempted, keys_before, keys_after: self.store.keys() })
    }
}

struct Observation {
    /// Latency of every check, in ascending order.
    nanoseconds: Vec<u32>,
    /// Number of preemptions during the checks.
    preempted: u64,
    keys_before: usize,
    keys_after: usize,
}

impl Observation {
    fn longest(&self) -> u32 {
        quantile(&self.nanoseconds, 1.0)
    }
}

/// Measures the three situations several times: a pause of the store is in every run, a pause of
/// the scheduler is not.
///
/// # Errors
/// If a check fails or `/proc` cannot be read.
pub fn compare() -> Result<Table> {
    let mut situations: [(&str, Vec<Observation>); 3] = [
        ("1 M live keys", Vec::new()),
        ("1 M expired keys are dropped", Vec::new()),
        ("the same in a store full of them", Vec::new()),
    ];
    for _ in 0..RUNS {
        let mut roomy = Scene::new(KEYS + 2 * CHECKS)?;
        situations[0].1.push(roomy.observe()?);
        roomy.clock.advance(LONG_AFTER);
        situations[1].1.push(roomy.observe()?);
        drop(roomy);

        let mut full = Scene::new(KEYS)?;
        full.clock.advance(LONG_AFTER);
        situations[2].1.push(full.observe()?);
    }

    let mut table = Table::new([
        "1 M new keys while",
        "p50 ns",
        "p99 ns",
        "p99.99 µs",
        "longest µs, each run",
        "longer than 1 ms",
        "preempted",
        "keys before → after",
    ]);
    for (title, runs) in &situations {
        table.row(row(title, runs));
    }
    Ok(table)
}

fn row(title: &str, runs: &[Observation]) -> Vec<String> {
    let typical = |fraction| median(runs.iter().map(|run| f64::from(quantile(&run.nanoseconds, fraction))));
    let each =
        |figure: &dyn Fn(&Observation) -> String| runs.iter().map(figure).collect::<Vec<_>>().join(" / ");
    let pauses =
        |run: &Observation| run.nanoseconds.iter().filter(|&&nanoseconds| nanoseconds > PAUSE_NANOS).count();
    let keys = runs.last().map(|run| (run.keys_before as u64, run.keys_after as u64)).unwrap_or_default();
    vec![
        title.into(),
        format!("{:.0}", typical(0.5)),
        format!("{:.0}", typical(0.99)),
        format!("{:.1}", typical(0.9999) / 1e3),
        each(&|run| format!("{:.0}", f64::from(run.longest()) / 1e3)),
        each(&|run| pauses(run).to_string()),
        each(&|run| run.preempted.to_string()),
        format!("{} → {}", grouped(keys.0), grouped(keys.1)),
    ]
}
