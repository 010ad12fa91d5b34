//! Outcomes and latencies of requests.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// Maximum recorded time, in microseconds. Longer times count as this.
const MICROSECONDS_MAX: u64 = 2 * 3_600 * 1_000_000;
/// Precision of recorded times, in significant digits.
const DIGITS: u8 = 3;
/// Number of shards of a record, to reduce contention between callers.
const PARTS: usize = 16;

/// The decision of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    Blocked,
    /// Denied because the store is unavailable and the limit fails closed.
    FailedClosed,
}

/// A decision with its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    /// Decided without the store, because it is unavailable.
    pub(super) degraded: bool,
}

/// Why a request has no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Connecting failed.
    Connect(String),
    /// The connection was lost before the response.
    Lost,
    /// The request timed out.
    Timeout,
    /// An error response, by its status.
    Status(String),
    /// The response is not one of Pacegate.
    Unreadable,
    /// The service rejects all requests like this one, for this reason.
    Rejected(String),
}

impl Fault {
    fn kind(&self) -> Cow<'static, str> {
        match self {
            Self::Connect(_) => "connect".into(),
            Self::Lost => "connection lost".into(),
            Self::Timeout => "timeout".into(),
            Self::Status(status) => format!("status {status}").into(),
            Self::Unreadable => "unreadable response".into(),
            Self::Rejected(_) => "rejected".into(),
        }
    }
}

/// The duration of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Since it was due.
    pub(super) latency: Duration,
    /// Since it was sent.
    pub(super) service: Duration,
}

/// Outcomes and times of many requests.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) allowed: u64,
    pub(super) blocked: u64,
    pub(super) failed_closed: u64,
    pub(super) degraded: u64,
    /// Number of requests without a decision, by reason.
    pub(super) errors: BTreeMap<Cow<'static, str>, u64>,
    /// Microseconds since requests were due.
    pub(super) latency: Histogram<u64>,
    /// Microseconds since requests were sent.
    pub(super) service: Histogram<u64>,
}

impl Record {
    fn new() -> anyhow::Result<Self> {
        let histogram = Histogram::new_with_bounds(1, MICROSECONDS_MAX, DIGITS)?;
        Ok(Self {
            allowed: 0,
            blocked: 0,
            failed_closed: 0,
            degraded: 0,
            errors: BTreeMap::new(),
            latency: histogram.clone(),
            service: histogram,
        })
    }

    pub(super) fn decided(&self) -> u64 {
        self.allowed + self.blocked + self.failed_closed
    }

    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    fn add(&mut self, outcome: &Result<Decision, Fault>, times: Times) {
        match outcome {
            Ok(decision) => {
                match decision.verdict {
                    Verdict::Allowed => self.allowed += 1,
                    Verdict::Blocked => self.blocked += 1,
                    Verdict::FailedClosed => self.failed_closed += 1,
                }
                self.degraded += u64::from(decision.degraded);
            }
            Err(fault) => *self.errors.entry(fault.kind()).or_default() += 1,
        }
        // A timeout took at least this long. A refused connection is fast and would distort the
        // figures.
        if matches!(outcome, Ok(_) | Err(Fault::Timeout)) {
            self.latency.saturating_record(microseconds(times.latency));
            self.service.saturating_record(microseconds(times.service));
        }
    }

    fn merge(&mut self, other: &Self) -> anyhow::Result<()> {
        self.allowed += other.allowed;
        self.blocked += other.blocked;
        self.failed_closed += other.failed_closed;
        self.degraded += other.degraded;
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        self.latency.add(&other.latency)?;
        self.service.add(&other.service)?;
        Ok(())
    }
}

fn microseconds(duration: Duration) -> u64 {
    // The histogram does not count zeros.
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// A record that many callers write concurrently.
#[derive(Debug)]
pub(super) struct Records {
    parts: Vec<Mutex<Record>>,
}

impl Records {
    pub(super) fn new() -> anyhow::Result<Self> {
        let parts = (0..PARTS).map(|_| Record::new().map(Mutex::new)).collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }

    /// Records the outcome of a request.
    pub(super) fn add(&self, caller: usize, outcome: &Result<Decision, Fault>, times: Times) {
        lock(&self.parts[caller % PARTS]).add(outcome, times);
    }

    /// The sum of all shards.
    pub(super) fn total(&self) -> anyhow::Result<Record> {
        let mut total = Record::new()?;
        for part in &self.parts {
            total.merge(&lock(part))?;
        }
        Ok(total)
    }
}

fn lock(part: &Mutex<Record>) -> MutexGuard<'_, Record> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
