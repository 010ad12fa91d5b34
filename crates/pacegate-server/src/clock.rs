//! The clock of this machine, and times as text.

use std::sync::LazyLock;

use jiff::Timestamp as Time;
use pacegate::{
    Timestamp,
    store::{Clock, WallClock},
};

/// The current time, for deadlines and records that are measured in seconds or longer.
pub(crate) fn now() -> Timestamp {
    static CLOCK: LazyLock<WallClock> = LazyLock::new(WallClock::new);
    CLOCK.now()
}

/// Formats a time as RFC 3339.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let at = Time::from_microsecond(i64::try_from(at.as_micros()).unwrap_or(i64::MAX));
    at.unwrap_or(Time::MAX).to_string()
}

/// Parses a time in RFC 3339 since 1970.
pub(crate) fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let time = text.parse::<Time>().ok()?;
    u64::try_from(time.as_microsecond()).ok().map(Timestamp::from_micros)
}
