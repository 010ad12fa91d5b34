//! Process metrics of the operating system, under their conventional names.

use procfs::process::{LimitValue, Process};

/// The figures that the operating system provides.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) threads: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) max_files: Option<u64>,
}

pub(super) fn figures() -> Figures {
    let Ok(process) = Process::myself() else { return Figures::default() };
    let open_files = process.fd_count().ok().map(|count| count as u64);
    let max_files = max_files_of(&process);
    let Ok(stat) = process.stat() else { return Figures { open_files, max_files, ..Figures::default() } };
    let ticks = procfs::ticks_per_second() as f64;
    Figures {
        cpu_seconds: Some((stat.utime + stat.stime) as f64 / ticks),
        resident_bytes: Some(stat.rss * procfs::page_size()),
        virtual_bytes: Some(stat.vsize),
        threads: u64::try_from(stat.num_threads).ok(),
        open_files,
        max_files,
    }
}

/// Returns the maximum number of open files of this process; `None` if unlimited.
fn max_files_of(process: &Process) -> Option<u64> {
    match process.limits().ok()?.max_open_files.soft_limit {
        LimitValue::Value(value) => Some(value),
        LimitValue::Unlimited => None,
    }
}
