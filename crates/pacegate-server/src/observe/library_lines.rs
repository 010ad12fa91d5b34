//! Log lines of dependencies. Callers can provoke them, so their rate is bounded.

use pacegate_http::server::PerSecond;

static LINES: PerSecond = PerSecond::new(10);

/// Returns whether another log line of a dependency, such as `h2`, may be written now. Suppressed
/// lines are counted in `pacegate_log_lines_dropped_total`.
pub fn admits_line() -> bool {
    LINES.admit()
}

pub(crate) fn suppressed() -> u64 {
    LINES.suppressed()
}
