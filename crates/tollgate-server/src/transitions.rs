//! Keys that change between normal, warning and throttled: each change is counted, and logged as far as the log can bear it.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Decision, Standing};

use crate::profiles::now;

/// How many changes are logged a second; an attack on many keys must not fill the disk.
const LINES_PER_SECOND: u64 = 10;

/// How often keys changed their state on this node.
#[derive(Debug, Default)]
pub(crate) struct Transitions {
    to_normal: AtomicU64,
    to_warning: AtomicU64,
    to_throttled: AtomicU64,
    /// The second of the last lines, and how many there were in it.
    second: AtomicU64,
    lines: AtomicU64,
}

impl Transitions {
    /// Takes note of what a charge changed. Identifiers stay out of the log.
    pub(crate) fn observe(&self, decision: &Decision) {
        if !decision.allowed || decision.replayed {
            return;
        }
        for (limit, answer) in decision.limits().iter().zip(&decision.answers) {
            if !answer.allowed || answer.standing == answer.previous_standing {
                continue;
            }
            let count = match answer.standing {
                Standing::Normal => &self.to_normal,
                Standing::Warning => &self.to_warning,
                Standing::Throttled => &self.to_throttled,
            };
            count.fetch_add(1, Ordering::Relaxed);
            if self.may_log() {
                let (from, to) = (answer.previous_standing.name(), answer.standing.name());
                tracing::info!(rule = &*limit.name, from, to, "a key changed its state");
            }
        }
    }

    /// How often keys became normal, warning and throttled.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.to_normal, &self.to_warning, &self.to_throttled].map(|count| count.load(Ordering::Relaxed))
    }

    fn may_log(&self) -> bool {
        let second = now().as_micros() / 1_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.lines.store(0, Ordering::Relaxed);
        }
        self.lines.fetch_add(1, Ordering::Relaxed) < LINES_PER_SECOND
    }
}
