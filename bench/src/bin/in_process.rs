//! Compares Pacegate in process with `governor`, `throttlecrab` and `limitador`. Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::env;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use pacegate_bench::contender::Kind;
use pacegate_bench::workload::Workload;
use pacegate_bench::{machine, memory, pause, speed};

/// Measures time and memory of a check, compared with other libraries, and pauses caused by expiry.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only insert 1 M keys into one contender, and print the growth of the process in bytes.
    #[arg(long, value_name = "NAME")]
    memory: Option<String>,
    /// Only measure the longest check while 1 M expired keys are dropped.
    #[arg(long)]
    pause: bool,
    /// Only run one contender on one workload (hot, uniform, skewed), for a profiler.
    #[arg(long, num_args = 3, value_names = ["NAME", "WORKLOAD", "CHECKS"])]
    spin: Option<Vec<String>>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(name) = arguments.memory {
        println!("{}", memory::grow(Kind::named(&name)?)?);
        return Ok(());
    }
    if let Some(spin) = arguments.spin {
        let [name, workload, checks] = spin.as_slice() else { bail!("--spin takes NAME WORKLOAD CHECKS") };
        let checks = checks.parse().context("CHECKS is a number")?;
        return speed::spin(Kind::named(name)?, &Workload::named(workload)?, checks);
    }
    if arguments.pause {
        println!("{}", pause::compare()?);
        return Ok(());
    }
    println!("{}\n", machine::description());
    for name in Workload::NAMES {
        println!("{}", speed::compare(&Workload::named(name)?)?);
    }
    println!("{}", memory::compare()?);
    // In separate processes with a fresh heap.
    let program = env::current_exe().context("finding this program")?;
    let status = Command::new(&program).arg("--pause").status().context("running this program again")?;
    ensure!(status.success(), "--pause failed: {status}");
    Ok(())
}
