//! A worker of a pool that shares one limit in Redis: any number of them together stays within the
//! limit.
//!
//! ```text
//! redis-server --port 6379 &
//! for worker in a b c; do cargo run -p pacegate-examples --bin worker_pool -- examples/worker_pool.yaml $worker 60 & done
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its terminal")]

use anyhow::Context;
use pacegate::Check;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().context("say which configuration to read")?;
    let worker = arguments.next().context("say who this is")?;
    let jobs: u32 = arguments.next().context("say how many jobs")?.parse().context("is not a number")?;

    // Connects to the Redis that the file names; every worker that reads it counts there.
    let limiter = pacegate_connect::from_config(file).await?;
    let (mut done, mut left) = (0, 0);
    for _ in 0..jobs {
        let decision = limiter.check(&Check::key("reports").plan("daily-reports")).await?;
        // While Redis is unavailable the usage of the other workers is unknown. The file sets
        // `closed`, so no job is done.
        anyhow::ensure!(!decision.degraded(), "the limit could not be asked");
        if decision.allowed() {
            done += 1;
        } else {
            left += 1;
        }
    }
    println!("worker {worker} did {done} jobs and left {left} for tomorrow");
    Ok(())
}
