//! Log lines of the libraries below the service. Callers can provoke them, so there are only so many a second.

use pacegate_http::server::PerSecond;

static LINES: PerSecond = PerSecond::new(10);

/// Whether one more line of a library, such as `h2`, may be written now. What is not written is in `pacegate_log_lines_dropped_total`.
pub fn admits_line() -> bool {
    LINES.admit()
}

pub(crate) fn held_back() -> u64 {
    LINES.held_back()
}
