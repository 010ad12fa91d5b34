//! The decisions of the last 15 minutes, second by second.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Number of seconds that are kept.
pub(super) const SECONDS: usize = 15 * 60;

/// Decisions by second, in about 20 KB.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    seconds: VecDeque<Second>,
    /// The totals at the end of the last second; zero at the start of the node.
    before: (u64, u64),
}

/// The decisions of one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Second {
    /// When it began, in seconds since the epoch.
    pub(super) start: u64,
    pub(super) allowed: u64,
    pub(super) blocked: u64,
}

impl History {
    /// Records the second that ended at `now`, in seconds since the epoch, by the totals of allowed
    /// and blocked requests until then.
    pub(super) fn record(&self, now: u64, totals: (u64, u64)) {
        let kept = &mut *self.0.lock();
        let (allowed, blocked) = std::mem::replace(&mut kept.before, totals);
        let (allowed, blocked) = (totals.0.saturating_sub(allowed), totals.1.saturating_sub(blocked));
        let start = now.saturating_sub(1);
        match kept.seconds.back_mut() {
            // Two ticks in one second, or a clock that was set back.
            Some(last) if last.start >= start => {
                last.allowed += allowed;
                last.blocked += blocked;
            }
            _ => kept.seconds.push_back(Second { start, allowed, blocked }),
        }
        if kept.seconds.len() > SECONDS {
            kept.seconds.pop_front();
        }
    }

    /// The seconds from `since` on, oldest first.
    pub(super) fn since(&self, since: u64) -> Vec<Second> {
        self.0.lock().seconds.iter().filter(|second| second.start >= since).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_the_last_fifteen_minutes() {
        let history = History::default();
        for second in 0..2_000 {
            history.record(10_000 + second, (second * 3, second));
        }
        let all = history.since(0);
        assert_eq!((all.len(), all[0].start), (900, 11_099));
        assert!(all.iter().all(|second| (second.allowed, second.blocked) == (3, 1)));
        assert_eq!(history.since(11_990).len(), 9);
    }

    #[test]
    fn history_loses_no_request_when_the_clock_moves() {
        let history = History::default();
        for (now, total) in [(100, 0), (101, 5), (101, 6), (90, 7), (102, 9)] {
            history.record(now, (total, 0));
        }
        let seconds: Vec<(u64, u64)> = history.since(0).iter().map(|one| (one.start, one.allowed)).collect();
        assert_eq!(seconds, [(99, 0), (100, 7), (101, 2)]);
    }
}
