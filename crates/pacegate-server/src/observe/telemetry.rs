//! The metrics of the service. Each service in a process has its own.
//!
//! Checks only add to existing counters; names and labels are built when metrics are scraped.

mod distinct;
mod export;
mod histogram;
mod process;
mod rules;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use pacegate::{Check, Decision, Limiter, Timestamp};
use tonic::Code;

use crate::clock::now;
use crate::run::Protocol;
pub(crate) use export::scrape;
pub(crate) use histogram::{Counted, Histogram};
use pacegate_http::server::Figures as Connections;
pub(crate) use rules::{Name as RuleName, Rule, Rules};

/// Upper bounds of the latency buckets in seconds, from a few microseconds in memory to beyond a
/// store's deadline.
const LATENCY_BUCKETS: [f64; 14] =
    [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 1.0];
/// The classes of HTTP status codes.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const CODES: usize = 17;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Allowed,
    Blocked,
    Error,
}

impl Ending {
    const ALL: [Self; 3] = [Self::Allowed, Self::Blocked, Self::Error];

    fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Blocked => "blocked",
            Self::Error => "error",
        }
    }
}

/// All metrics of a service.
#[derive(Debug)]
pub(crate) struct Telemetry {
    is_on: bool,
    started: Timestamp,
    pub(crate) rules: Rules,
    /// Indexed by store, then by the ending of the check.
    latency: Vec<[Histogram; Ending::ALL.len()]>,
    http_responses: [AtomicU64; CLASSES.len()],
    grpc_responses: [AtomicU64; CODES],
    /// Indexed by protocol.
    connections: [Arc<Connections>; Protocol::ALL.len()],
}

impl Telemetry {
    /// Creates the metrics; checks are measured only if `is_on`.
    pub(crate) fn new(limiter: &Limiter, is_on: bool) -> Self {
        let of_store = |_| std::array::from_fn(|_| Histogram::new(&LATENCY_BUCKETS));
        Self {
            is_on,
            started: now(),
            rules: Rules::default(),
            latency: limiter.stores().health().map(of_store).collect(),
            http_responses: std::array::from_fn(|_| AtomicU64::new(0)),
            grpc_responses: std::array::from_fn(|_| AtomicU64::new(0)),
            connections: Default::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Records a decision and its duration.
    #[inline]
    pub(crate) fn observe(&self, checks: &[Check<'_>], decision: &Decision, took: Duration) {
        if !self.is_on {
            return;
        }
        let place = decision.binding_limit().map_or(0, |limit| limit.store_index());
        let ending = if decision.allowed() { Ending::Allowed } else { Ending::Blocked };
        self.time(place, ending, took);
        if !decision.replayed() {
            self.rules.observe(checks, decision);
        }
    }

    /// Records a check that could not be decided.
    pub(crate) fn observe_error(&self, took: Duration) {
        if self.is_on {
            self.time(0, Ending::Error, took);
        }
    }

    fn time(&self, place: usize, ending: Ending, took: Duration) {
        if let Some(store) = self.latency.get(place) {
            store[ending as usize].record(took);
        }
    }

    /// Returns the latency of all checks.
    pub(crate) fn latency(&self) -> Counted {
        let mut all = Histogram::new(&LATENCY_BUCKETS).counted();
        self.latency.iter().flatten().for_each(|histogram| all.add(&histogram.counted()));
        all
    }

    pub(crate) fn count_http(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1).min(CLASSES.len() - 1);
        self.http_responses[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a gRPC response by the status in its head; without one, the status is OK so far.
    pub(crate) fn count_grpc(&self, status: Option<&[u8]>) {
        let code = status.map_or(Code::Ok, Code::from_bytes) as usize;
        self.grpc_responses[code.min(CODES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the connection metrics of a protocol.
    pub(crate) fn connections(&self, protocol: Protocol) -> &Arc<Connections> {
        &self.connections[protocol as usize]
    }
}
