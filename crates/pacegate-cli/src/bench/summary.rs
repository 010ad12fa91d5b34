//! The result of a load test, as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::load::Ended;
use super::record::Record;

/// Sending is too slow if it takes longer than planned by more than one part in this number.
const LATE_PART_MAX: u32 = 50;
const COLUMNS: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// The parameters of a load test.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) target: String,
    /// For people.
    pub(super) protocol: &'static str,
    /// For programs.
    pub(super) protocol_id: &'static str,
    pub(super) connections: usize,
    pub(super) concurrency: usize,
    pub(super) keys: u64,
    pub(super) distribution: &'static str,
    pub(super) seed: u64,
    pub(super) rate: Option<u64>,
}

/// The result of a load test.
#[derive(Debug)]
pub(super) struct Summary {
    setting: Setting,
    ended: Ended,
    record: Record,
    /// Corrected for coordinated omission.
    latency: Histogram<u64>,
}

/// Corrects for coordinated omission: adds the requests that a steady caller would have sent during
/// pauses. Its interval is the median, because the mean includes the pauses.
pub(super) fn corrected(service: &Histogram<u64>) -> Histogram<u64> {
    service.clone_correct(service.value_at_quantile(0.5).max(1))
}

impl Summary {
    pub(super) fn new(setting: Setting, ended: Ended, record: Record) -> Self {
        let latency =
            if setting.rate.is_some() { record.latency.clone() } else { corrected(&record.service) };
        Self { setting, ended, record, latency }
    }

    fn requests(&self) -> u64 {
        self.record.decided() + self.record.failed()
    }

    fn rate(&self) -> f64 {
        self.requests() as f64 / self.ended.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// A warning if the requested rate was not reached.
    pub(super) fn shortfall(&self) -> Option<String> {
        let requested = self.setting.rate?;
        // The last response arrives up to one service time after the last request.
        let last = Duration::from_micros(self.record.service.max());
        let planned = self.ended.planned + self.ended.planned / LATE_PART_MAX + last;
        if self.ended.unsent == 0 && self.ended.elapsed <= planned {
            return None;
        }
        Some(format!(
            "the rate was not reached: {} of {} requests/s, {} requests were due and not sent. All {} callers were busy: \
             the service or this machine is too slow for the rate, or --concurrency is too low.",
            count(self.rate().round() as u64),
            count(requested),
            count(self.ended.unsent),
            self.setting.concurrency
        ))
    }

    pub(super) fn text(&self) -> String {
        let Setting { target, protocol, connections, concurrency, keys, distribution, rate, .. } =
            &self.setting;
        let mode = match rate {
            Some(rate) => format!("open loop, {} requests/s", count(*rate)),
            None => "closed loop".to_owned(),
        };
        let mut text = format!(
            "{target}: {protocol}, {connections} connections, {concurrency} callers, {} keys ({distribution}), {mode}\n",
            count(*keys)
        );
        let mut line = |name: &str, value: &str, note: &str| {
            let _ = writeln!(text, "{}", format!("  {name:<15}{value:>12}  {note}").trim_end());
        };
        let ended = if self.ended.interrupted { ", interrupted" } else { "" };
        let seconds = format!("in {:.2} s{ended}", self.ended.elapsed.as_secs_f64());
        line("requests", &count(self.requests()), &seconds);
        let requested = rate.map(|rate| format!("of {}/s requested", count(rate))).unwrap_or_default();
        line("rate", &format!("{}/s", count(self.rate().round() as u64)), &requested);
        let record = &self.record;
        line("allowed", &count(record.allowed), &self.part(record.allowed));
        line("blocked", &count(record.blocked), &self.part(record.blocked));
        for (name, number) in [("failed closed", record.failed_closed), ("degraded", record.degraded)] {
            if number > 0 {
                line(name, &count(number), &self.part(number));
            }
        }
        line("errors", &count(record.failed()), &self.part(record.failed()));
        for (kind, number) in &record.errors {
            line(&format!("  {kind}"), &count(*number), "");
        }
        if !self.latency.is_empty() {
            text.push_str(&self.times());
        }
        if let Some(shortfall) = self.shortfall() {
            let _ = writeln!(text, "\nwarning: {shortfall}");
        }
        text
    }

    fn times(&self) -> String {
        let heads: String = COLUMNS.iter().map(|(name, _)| format!("{name:>10}")).collect();
        let mut text = format!("\n  {:<15}{heads}\n", "milliseconds");
        let rows = match self.setting.rate {
            Some(_) => ["latency", "service time"],
            None => ["corrected", "as measured"],
        };
        for (name, histogram) in rows.iter().zip([&self.latency, &self.record.service]) {
            let _ = write!(text, "  {name:<15}");
            for (_, quantile) in COLUMNS {
                let _ = write!(text, "{:>10.3}", milliseconds(histogram, quantile));
            }
            text.push('\n');
        }
        text.push_str(match self.setting.rate {
            Some(_) => "  latency counts from the time a request was due, service time from the time it was sent\n",
            None => {
                "  corrected for coordinated omission: includes the requests that a steady caller would have sent during pauses\n"
            }
        });
        text
    }

    pub(super) fn json(&self) -> Value {
        let Setting { target, protocol_id, connections, concurrency, keys, distribution, seed, rate, .. } =
            &self.setting;
        let record = &self.record;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "target": target,
            "protocol": protocol_id,
            "loop": if rate.is_some() { "open" } else { "closed" },
            "connections": connections,
            "concurrency": concurrency,
            "keys": keys,
            "distribution": distribution,
            "seed": seed,
            "rate_asked": rate,
            "rate": rounded(self.rate()),
            "rate_kept_up": self.shortfall().is_none(),
            "seconds": rounded(self.ended.elapsed.as_secs_f64()),
            "interrupted": self.ended.interrupted,
            "requests": self.requests(),
            "allowed": record.allowed,
            "blocked": record.blocked,
            "failed_closed": record.failed_closed,
            "degraded": record.degraded,
            "error_count": record.failed(),
            "errors": record.errors,
            "unsent": self.ended.unsent,
            "latency_ms": times(&self.latency),
            "service_time_ms": times(&record.service),
        })
    }

    fn part(&self, number: u64) -> String {
        format!("{:>5.1} %", percent(number, self.requests()))
    }
}

fn times(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let mut times = serde_json::Map::new();
    for (name, quantile) in COLUMNS {
        times.insert(name.replace('.', "_"), rounded(milliseconds(histogram, quantile)).into());
    }
    times.insert("mean".to_owned(), rounded(histogram.mean() / 1_000.0).into());
    times.into()
}

/// Rounds to three decimals.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

pub(super) fn milliseconds(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile).min(histogram.max()) as f64 / 1_000.0
}

pub(super) fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Formats a number with thousands separators.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration in seconds.
pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
    }
}
