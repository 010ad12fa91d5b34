//! Progress of a load test: one line that is overwritten on a terminal, or a line every few
//! seconds.

use std::convert::Infallible;
use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::load::Load;
use super::summary::{count, milliseconds, percent, seconds};

const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);
const BAR_WIDTH: usize = 16;
/// Moves to the start of the line and clears it.
const CLEAR: &str = "\r\x1b[2K";

/// Shows the progress of `load` for as long as it is polled.
pub(super) async fn show(load: &Load) -> Infallible {
    let terminal = stderr().is_terminal();
    let mut ticks = interval(if terminal { TERMINAL_INTERVAL } else { PLAIN_INTERVAL });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(line) = line(load) else { continue };
        // A closed standard error output is not an error.
        let _ = if terminal { write!(stderr(), "{CLEAR}{line}") } else { writeln!(stderr(), "{line}") };
        let _ = stderr().flush();
    }
}

/// Clears the line.
pub(super) fn clear() {
    if stderr().is_terminal() {
        let _ = write!(stderr(), "{CLEAR}");
        let _ = stderr().flush();
    }
}

fn line(load: &Load) -> Option<String> {
    let bar = bar(load.progress());
    let Some(elapsed) = load.measured() else { return Some(format!("{bar} warming up")) };
    let record = load.records.total().ok()?;
    let requests = record.decided() + record.failed();
    let rate = requests as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    Some(format!(
        "{bar} {:>7}  {}/s  {:.1} % allowed  p99 {:.2} ms  {} errors",
        seconds(elapsed),
        count(rate.round() as u64),
        percent(record.allowed, requests),
        milliseconds(&record.latency, 0.99),
        count(record.failed()),
    ))
}

fn bar(progress: f64) -> String {
    let filled = (progress * BAR_WIDTH as f64) as usize;
    format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR_WIDTH.saturating_sub(filled)))
}
