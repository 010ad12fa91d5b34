//! A worker in a pool that shares one limit in Redis: all workers together do as much as the limit
//! allows.
//!
//! ```text
//! redis-server --port 6379 &
//! for worker in a b c; do cargo run -p pacegate-examples --bin worker_pool -- examples/worker_pool.yaml $worker 60 & done
//! ```

#![expect(clippy::print_stdout, reason = "an example prints to its terminal")]

use anyhow::Context;
use pacegate::Check;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().context("missing argument: the configuration file")?;
    let worker = arguments.next().context("missing argument: the name of the worker")?;
    let jobs: u32 = arguments
        .next()
        .context("missing argument: the number of jobs")?
        .parse()
        .context("invalid number of jobs")?;

    // Connects to the Redis server in the file. All workers with this file share its counters.
    let limiter = pacegate_connect::from_config(file).await?;
    let (mut done, mut left) = (0, 0);
    for _ in 0..jobs {
        let decision = limiter.check(&Check::key("reports").plan("daily-reports")).await?;
        // While Redis is unavailable, the work of the other workers is unknown. The file sets
        // `closed`, so no job is done.
        anyhow::ensure!(!decision.degraded(), "the store is unavailable");
        if decision.allowed() {
            done += 1;
        } else {
            left += 1;
        }
    }
    println!("worker {worker} did {done} jobs and left {left} for tomorrow");
    Ok(())
}
