//! State transitions of keys between normal, warning and throttled: all are counted, and logged at
//! a bounded rate.

use std::sync::atomic::{AtomicU64, Ordering};

use pacegate::{Decision, NamedLimit, Standing};

use pacegate_http::server::PerSecond;

/// Maximum number of logged transitions per second, so that an attack does not fill the disk.
const LINES_PER_SECOND: u64 = 10;

/// The number of state transitions on this node.
#[derive(Debug)]
pub(crate) struct Transitions {
    to_normal: AtomicU64,
    to_warning: AtomicU64,
    to_throttled: AtomicU64,
    lines: PerSecond,
}

impl Default for Transitions {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            to_normal: zero(),
            to_warning: zero(),
            to_throttled: zero(),
            lines: PerSecond::new(LINES_PER_SECOND),
        }
    }
}

impl Transitions {
    /// Records the transitions of a decision. `key` returns the key of a limit as logs show it.
    pub(crate) fn observe(&self, decision: &Decision, request_id: &str, key: impl Fn(&NamedLimit) -> String) {
        if !decision.allowed() || decision.replayed() {
            return;
        }
        for (limit, answer) in decision.limits().iter().zip(decision.answers()) {
            if !answer.allowed || answer.standing == answer.previous_standing {
                continue;
            }
            let count = match answer.standing {
                Standing::Normal => &self.to_normal,
                Standing::Warning => &self.to_warning,
                Standing::Throttled => &self.to_throttled,
            };
            count.fetch_add(1, Ordering::Relaxed);
            if self.lines.admit() {
                let (from, to) = (answer.previous_standing.name(), answer.standing.name());
                let request_id = Some(request_id).filter(|id| !id.is_empty());
                tracing::info!(
                    request_id,
                    key = key(limit),
                    rule = &*limit.name,
                    from,
                    to,
                    "key state changed"
                );
            }
        }
    }

    /// Returns the number of transitions to normal, warning and throttled.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.to_normal, &self.to_warning, &self.to_throttled].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the number of suppressed lines.
    pub(crate) fn suppressed(&self) -> u64 {
        self.lines.suppressed()
    }
}
