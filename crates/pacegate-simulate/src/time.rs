//! Times in logs and in reports.

use std::time::Duration;

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use pacegate::Timestamp;

const SECOND: u64 = 1_000_000;
const DAY_SECONDS: i64 = 86_400;
const UTC: Offset = Offset::UTC;
const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// A time in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogTime {
    pub(crate) at: Timestamp,
    /// Whether the time has no fraction of a second.
    pub(crate) whole_second: bool,
}

impl LogTime {
    /// Parses `10/Oct/2000:13:55:36 -0700`, RFC 3339, or a number of seconds, milliseconds or
    /// microseconds since 1970, depending on its size.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = text.trim().as_bytes();
        match bytes {
            [_, _, b'/', ..] => common(bytes),
            [_, _, _, _, b'-', ..] => internet(bytes),
            _ => number(bytes),
        }
    }
}

/// Parses `10/Oct/2000:13:55:36 -0700`.
fn common(bytes: &[u8]) -> Option<LogTime> {
    let (date, rest) = bytes.split_at_checked(12)?;
    let [d0, d1, b'/', m0, m1, m2, b'/', y0, y1, y2, y3, b':'] = date else { return None };
    let month = MONTHS.iter().position(|name| **name == [*m0, *m1, *m2])? as u64 + 1;
    let date = days(digits(&[*y0, *y1, *y2, *y3])?, month, digits(&[*d0, *d1])?)?;
    let (clock, zone) = rest.split_at_checked(8)?;
    let offset = match zone {
        [] => 0,
        [b' ', zone @ ..] => offset(zone)?,
        _ => return None,
    };
    moment(date, clock, offset, None)
}

/// Parses `2000-10-10T13:55:36.123-07:00`. A space can replace the `T`. The default zone is UTC.
fn internet(bytes: &[u8]) -> Option<LogTime> {
    let (date, rest) = bytes.split_at_checked(10)?;
    let [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1] = date else { return None };
    let date = days(digits(&[*y0, *y1, *y2, *y3])?, digits(&[*m0, *m1])?, digits(&[*d0, *d1])?)?;
    let rest = rest.strip_prefix(b"T").or(rest.strip_prefix(b"t")).or(rest.strip_prefix(b" "))?;
    let (clock, rest) = rest.split_at_checked(8)?;
    let (fraction, zone) = match rest {
        [b'.' | b',', rest @ ..] => {
            let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (Some(fraction(&rest[..length])?), &rest[length..])
        }
        _ => (None, rest),
    };
    let offset = match zone.trim_ascii() {
        [] | b"Z" | b"z" | b"UTC" => 0,
        zone => offset(zone)?,
    };
    moment(date, clock, offset, fraction)
}

/// Parses seconds, milliseconds or microseconds: between 1973 and 2255, each has three digits more
/// than the previous one.
fn number(bytes: &[u8]) -> Option<LogTime> {
    let (whole, part) = match bytes.iter().position(|byte| *byte == b'.') {
        Some(point) => (&bytes[..point], Some(fraction(&bytes[point + 1..])?)),
        None => (bytes, None),
    };
    let value = digits(whole)?;
    let micros = match whole.len() {
        1..=11 => value * SECOND + part.unwrap_or_default(),
        12..=14 => value * 1_000 + part.unwrap_or_default() / 1_000,
        15..=17 => value,
        _ => return None,
    };
    let whole_second = whole.len() <= 11 && part.is_none();
    Some(LogTime { at: Timestamp::from_micros(micros), whole_second })
}

/// Combines a day, a clock such as `13:55:36` and its offset from UTC.
fn moment(days: i64, clock: &[u8], offset: i64, fraction: Option<u64>) -> Option<LogTime> {
    let [h0, h1, b':', m0, m1, b':', s0, s1] = clock else { return None };
    let (hour, minute, second) = (digits(&[*h0, *h1])?, digits(&[*m0, *m1])?, digits(&[*s0, *s1])?);
    // 60 is a leap second.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days * DAY_SECONDS + (hour * 3_600 + minute * 60 + second) as i64 - offset;
    let micros = u64::try_from(seconds).ok()? * SECOND + fraction.unwrap_or_default();
    Some(LogTime { at: Timestamp::from_micros(micros), whole_second: fraction.is_none() })
}

/// Parses `-0700` or `-07:00` into seconds.
fn offset(zone: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match zone {
        [sign, h0, h1, b':', m0, m1] | [sign, h0, h1, m0, m1] => {
            (sign, digits(&[*h0, *h1])?, digits(&[*m0, *m1])?)
        }
        _ => return None,
    };
    let seconds = (hours * 3_600 + minutes * 60) as i64;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// Parses the digits after a point as microseconds. Further digits are ignored.
fn fraction(bytes: &[u8]) -> Option<u64> {
    let mut micros = 0;
    let mut unit = SECOND / 10;
    digits(&bytes[..bytes.len().min(18)])?;
    for byte in bytes {
        micros += u64::from(byte.wrapping_sub(b'0')) * unit;
        unit /= 10;
    }
    Some(micros)
}

/// Parses a number of one to eighteen digits.
fn digits(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 18 {
        return None;
    }
    bytes.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0')))
}

/// Returns the days from 1970 to a date.
fn days(year: u64, month: u64, day: u64) -> Option<i64> {
    if !(1970..=2255).contains(&year) {
        return None;
    }
    let date = Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?).ok()?;
    let midnight = UTC.to_timestamp(date.to_datetime(Time::midnight())).ok()?;
    Some(midnight.as_second() / DAY_SECONDS)
}

/// Returns a time as `2000-10-10T20:55:36Z`.
pub(crate) fn format_time(at: Timestamp) -> String {
    let seconds = i64::try_from(at.as_micros() / SECOND).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// Returns `0 s`, `90 s`, `15 min`, `36 h` or `12 d`: in the largest unit that is exact, or of
/// which there are at least ten.
pub(crate) fn format_duration(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = duration.as_secs();
    if seconds == 0 && duration.subsec_millis() > 0 {
        return format!("{} ms", duration.as_millis());
    }
    let fits =
        |(unit, _): &(u64, &str)| seconds >= *unit && (seconds.is_multiple_of(*unit) || seconds >= unit * 10);
    let (unit, name) = UNITS.into_iter().find(fits).unwrap_or((1, "s"));
    format!("{} {name}", (seconds + unit / 2) / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_time_is_parsed() {
        let rows: [(&str, u64, bool); 14] = [
            ("10/Oct/2000:13:55:36 -0700", 971_211_336_000_000, true),
            ("10/Oct/2000:20:55:36 +0000", 971_211_336_000_000, true),
            ("29/Feb/2024:00:00:00 +0530", 1_709_145_000_000_000, true),
            ("2000-10-10T20:55:36Z", 971_211_336_000_000, true),
            ("2000-10-10T13:55:36.5-07:00", 971_211_336_500_000, false),
            ("2000-10-10 20:55:36,123456789", 971_211_336_123_456, false),
            ("2000-10-10T20:55:36.000Z", 971_211_336_000_000, false),
            ("971211336", 971_211_336_000_000, true),
            ("971211336.25", 971_211_336_250_000, false),
            ("971211336123", 971_211_336_123_000, false),
            ("1700000000123", 1_700_000_000_123_000, false),
            ("1700000000123.5", 1_700_000_000_123_500, false),
            ("1700000000123456", 1_700_000_000_123_456, false),
            ("1970-01-01T00:00:00Z", 0, true),
        ];
        for (text, micros, whole_second) in rows {
            let expected = LogTime { at: Timestamp::from_micros(micros), whole_second };
            assert_eq!(LogTime::parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn invalid_times_are_rejected() {
        for text in [
            "",
            "-",
            "now",
            "10/Foo/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "31/Sep/2000:13:55:36 -0700",
            "2023-02-29T20:55:36Z",
            "10/Oct/2000:24:55:36 -0700",
            "10/Oct/2000:13:55:36 0700",
            "10/Oct/2000",
            "10/Oct/1969:13:55:36 +0000",
            "2000-13-10T20:55:36Z",
            "2000-10-10",
            "2000-10-10T20:55:36.Z",
            "2000-10-10T20:55:36+7",
            "1.2.3",
            "-5",
            "1e9",
            "123456789012345678901",
            "é0/Oct/2000:13:55:36 -0700",
        ] {
            assert_eq!(LogTime::parse(text), None, "{text}");
        }
    }

    #[test]
    fn written_times_are_parsed_back() {
        for micros in
            [0, 951_782_399, 951_782_400, 1_709_164_800, 4_102_444_799].map(|seconds| seconds * SECOND)
        {
            let at = Timestamp::from_micros(micros);
            assert_eq!(LogTime::parse(&format_time(at)).map(|time| time.at), Some(at));
        }
        assert_eq!(format_time(Timestamp::from_micros(971_211_336_900_000)), "2000-10-10T20:55:36Z");
    }

    #[test]
    fn durations_are_short() {
        let rows = [
            (0, "0 s"),
            (90, "90 s"),
            (900, "15 min"),
            (1_000, "17 min"),
            (86_399, "24 h"),
            (86_400, "1 d"),
            (400_000, "111 h"),
        ];
        for (seconds, expected) in rows {
            assert_eq!(format_duration(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(format_duration(Duration::from_millis(250)), "250 ms");
    }
}
