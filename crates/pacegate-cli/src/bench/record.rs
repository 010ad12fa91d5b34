//! What came of the requests, and how long they took.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest time that is told apart, in microseconds: whatever takes longer counts as this.
const MICROSECONDS_MAX: u64 = 2 * 3_600 * 1_000_000;
/// How exact times are kept: to a thousandth.
const DIGITS: u8 = 3;
/// How many parts a record has, so that callers on different cores seldom meet.
const PARTS: usize = 16;

/// What a service decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    Blocked,
    /// Denied because a store fails.
    FailedClosed,
}

/// An answer to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    /// A store failed, and the answer was made without it.
    pub(super) degraded: bool,
}

/// Why there was no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No connection could be made.
    Connect(String),
    /// The connection broke before the answer was there.
    Lost,
    /// The answer did not come in time.
    Timeout,
    /// Something else than a decision, by its status.
    Status(String),
    /// What came is not an answer of Pacegate.
    Unreadable,
    /// The service will refuse all requests like this one: it says why.
    Refused(String),
}

impl Fault {
    fn kind(&self) -> Cow<'static, str> {
        match self {
            Self::Connect(_) => "connect".into(),
            Self::Lost => "connection lost".into(),
            Self::Timeout => "timeout".into(),
            Self::Status(status) => format!("status {status}").into(),
            Self::Unreadable => "unreadable answer".into(),
            Self::Refused(_) => "refused".into(),
        }
    }
}

/// How long a request took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// From when it was due.
    pub(super) latency: Duration,
    /// From when it was sent.
    pub(super) service: Duration,
}

/// Outcomes and times of many requests.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) allowed: u64,
    pub(super) blocked: u64,
    pub(super) failed_closed: u64,
    pub(super) degraded: u64,
    /// How many requests had no answer, by why.
    pub(super) errors: BTreeMap<Cow<'static, str>, u64>,
    /// Microseconds from when requests were due.
    pub(super) latency: Histogram<u64>,
    /// Microseconds from when they were sent.
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

    pub(super) fn answered(&self) -> u64 {
        self.allowed + self.blocked + self.failed_closed
    }

    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    fn add(&mut self, outcome: &Result<Answer, Fault>, times: Times) {
        match outcome {
            Ok(answer) => {
                match answer.verdict {
                    Verdict::Allowed => self.allowed += 1,
                    Verdict::Blocked => self.blocked += 1,
                    Verdict::FailedClosed => self.failed_closed += 1,
                }
                self.degraded += u64::from(answer.degraded);
            }
            Err(fault) => *self.errors.entry(fault.kind()).or_default() += 1,
        }
        // Who got no answer in time waited at least so long; a refused connection is quick and would only flatter the figures.
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
    // A zero would not be counted.
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// A record that many callers write at once.
#[derive(Debug)]
pub(super) struct Records {
    parts: Vec<Mutex<Record>>,
}

impl Records {
    pub(super) fn new() -> anyhow::Result<Self> {
        let parts = (0..PARTS).map(|_| Record::new().map(Mutex::new)).collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }

    /// Writes down what came of a request of one caller.
    pub(super) fn add(&self, caller: usize, outcome: &Result<Answer, Fault>, times: Times) {
        lock(&self.parts[caller % PARTS]).add(outcome, times);
    }

    /// Everything so far.
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
