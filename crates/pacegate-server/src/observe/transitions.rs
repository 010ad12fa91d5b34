//! Keys that change between normal, warning and throttled: each change is counted, and logged as far as the log can bear it.

use std::sync::atomic::{AtomicU64, Ordering};

use pacegate::{Decision, NamedLimit, Standing};

use pacegate_http::server::PerSecond;

/// How many changes are logged a second; an attack on many keys must not fill the disk.
const LINES_PER_SECOND: u64 = 10;

/// How often keys changed their state on this node.
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
    /// Takes note of what a charge changed. `key` writes whose it was, as the log may show it.
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
                    "a key changed its state"
                );
            }
        }
    }

    /// How often keys became normal, warning and throttled.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.to_normal, &self.to_warning, &self.to_throttled].map(|count| count.load(Ordering::Relaxed))
    }

    /// How many changes had no line.
    pub(crate) fn held_back(&self) -> u64 {
        self.lines.held_back()
    }
}
