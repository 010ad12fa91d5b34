//! Refunds over the wire, counted and logged: each one undoes what a limit has counted.

use std::sync::atomic::{AtomicU64, Ordering};

use pacegate::Decision;

use pacegate_http::server::PerSecond;

/// How many lines a second there are of each kind.
const LINES_PER_SECOND: u64 = 10;

/// What became of refunds since the start.
#[derive(Debug)]
pub(crate) struct Refunds {
    allowed: Kind,
    refused: Kind,
}

/// Each kind has lines of its own, so that refusals do not hide refunds that were made.
#[derive(Debug)]
struct Kind {
    count: AtomicU64,
    lines: PerSecond,
}

impl Default for Refunds {
    fn default() -> Self {
        let kind = || Kind { count: AtomicU64::new(0), lines: PerSecond::new(LINES_PER_SECOND) };
        Self { allowed: kind(), refused: kind() }
    }
}

impl Kind {
    /// Counts one; says whether it is logged.
    fn note(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.lines.admit()
    }
}

impl Refunds {
    /// A refund was made; `left` is how its limits stand since.
    pub(crate) fn allowed(&self, request_id: &str, left: &Decision) {
        if self.allowed.note() {
            tracing::info!(request_id, rule = rule(left), "refund made");
        }
    }

    /// A refund was refused, and the limits stayed as they are.
    pub(crate) fn refused(&self, request_id: &str, limits: &Decision) {
        if self.refused.note() {
            tracing::warn!(
                request_id,
                rule = rule(limits),
                "refund refused; send an API key of the role checker, or set refundable: true on the rule"
            );
        }
    }

    /// A call of `Refund` was refused.
    pub(crate) fn refused_call(&self, request_id: &str) {
        if self.refused.note() {
            tracing::warn!(request_id, "refund refused; it needs an API key of the role checker");
        }
    }

    /// How many were allowed and refused.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        [("allowed", &self.allowed), ("refused", &self.refused)]
            .map(|(name, kind)| (name, kind.count.load(Ordering::Relaxed)))
    }

    /// How many log lines were too many.
    pub(crate) fn held_back(&self) -> u64 {
        self.allowed.lines.held_back() + self.refused.lines.held_back()
    }
}

fn rule(decision: &Decision) -> Option<&str> {
    decision.binding_limit().map(|limit| &*limit.name)
}
