//! One turn of one row: latencies and resource usage.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use super::caller::{self, Caller};
use super::database::Database;
use crate::stopwatch::{now, quantile};

const WARM_UP: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub(super) struct Turn {
    /// Checks per second.
    pub(super) rate: f64,
    /// P50, P95 and P99.
    pub(super) microseconds: [f64; 3],
    /// Checks per transaction.
    pub(super) batch: f64,
    /// Cores used by this process.
    pub(super) client_cores: f64,
    /// Cores used by the database.
    pub(super) database_cores: f64,
    /// Number of failed checks, and the reason of the first.
    pub(super) failed: usize,
    pub(super) failure: Option<String>,
}

impl Turn {
    /// Runs all callers for `duration`.
    pub(super) fn measure(
        database: &Database,
        runtime: &Runtime,
        callers: &mut Vec<Caller>,
        users: &Arc<Vec<String>>,
        duration: Duration,
    ) -> Result<Self> {
        runtime.block_on(caller::run(callers, users, WARM_UP))?;
        let transactions = database.transactions()?;
        let (client, server, start) = (processor_seconds(), database.processor_seconds()?, now());
        let mut seen = runtime.block_on(caller::run(callers, users, duration))?;
        let elapsed = (now() - start).as_secs_f64();
        let (client, server) = (processor_seconds() - client, database.processor_seconds()? - server);
        let transactions = database.transactions()? - transactions;

        seen.nanoseconds.sort_unstable();
        let at = |fraction| f64::from(quantile(&seen.nanoseconds, fraction)) / 1e3;
        let checks = seen.nanoseconds.len() as f64;
        Ok(Self {
            rate: checks / elapsed,
            microseconds: [0.5, 0.95, 0.99].map(at),
            batch: checks / transactions.max(1) as f64,
            client_cores: client / elapsed,
            database_cores: server / elapsed,
            failed: seen.failed,
            failure: seen.failure,
        })
    }
}

/// Returns the processor time of all threads of this process so far.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
