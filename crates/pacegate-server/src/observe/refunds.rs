//! Refunds by clients, counted and logged, because each one undoes a charge.

use std::sync::atomic::{AtomicU64, Ordering};

use pacegate::Decision;

use pacegate_http::server::PerSecond;

/// Maximum number of log lines of each kind per second.
const LINES_PER_SECOND: u64 = 10;

/// The outcomes of refunds since the start.
#[derive(Debug)]
pub(crate) struct Refunds {
    allowed: Kind,
    rejected: Kind,
}

/// Each outcome has its own rate of log lines, so that rejected refunds do not hide others.
#[derive(Debug)]
struct Kind {
    count: AtomicU64,
    lines: PerSecond,
}

impl Default for Refunds {
    fn default() -> Self {
        let kind = || Kind { count: AtomicU64::new(0), lines: PerSecond::new(LINES_PER_SECOND) };
        Self { allowed: kind(), rejected: kind() }
    }
}

impl Kind {
    /// Counts a refund; returns whether to log it.
    fn note(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.lines.admit()
    }
}

impl Refunds {
    /// Records a refund; `left` is the state of its limits after it.
    pub(crate) fn allowed(&self, request_id: &str, left: &Decision) {
        if self.allowed.note() {
            tracing::info!(request_id, rule = rule(left), "refund made");
        }
    }

    /// Records a rejected refund, which left the limits unchanged.
    pub(crate) fn rejected(&self, request_id: &str, limits: &Decision) {
        if self.rejected.note() {
            tracing::warn!(
                request_id,
                rule = rule(limits),
                "refund rejected; send an API key with role checker, or set refundable: true on the rule"
            );
        }
    }

    /// Records a rejected call of `Refund`.
    pub(crate) fn rejected_call(&self, request_id: &str) {
        if self.rejected.note() {
            tracing::warn!(request_id, "refund rejected; it requires an API key with role checker");
        }
    }

    /// Returns the number of refunds by outcome.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        [("allowed", &self.allowed), ("refused", &self.rejected)]
            .map(|(name, kind)| (name, kind.count.load(Ordering::Relaxed)))
    }

    /// Returns the number of suppressed lines.
    pub(crate) fn suppressed(&self) -> u64 {
        self.allowed.lines.suppressed() + self.rejected.lines.suppressed()
    }
}

fn rule(decision: &Decision) -> Option<&str> {
    decision.binding_limit().map(|limit| &*limit.name)
}
