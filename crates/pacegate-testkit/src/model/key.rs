//! The state of one key, and the interface of the algorithms.

use std::fmt::Debug;
use std::sync::Arc;

use super::bucket::Bucket;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::sliding_counter::SlidingCounter;
use super::sliding_log::SlidingLog;
use super::{MODEL_LAST_MOMENT, ModelAlgorithm, ModelAnswer, ModelFit, ModelLimit, ModelMark};

pub(super) type SharedCounter = Arc<dyn Counter>;

/// The count of one algorithm at one moment.
///
/// A counter is immutable: each step returns a new one, so that a peek cannot change a key.
pub(super) trait Counter: Debug + Send + Sync {
    /// The latest time this count has seen, in microseconds.
    fn seen(&self) -> i128;
    /// The same count with all usage taken at `now`, in its own terms.
    fn taken_at(&self, now: i128) -> SharedCounter;
    /// The same count moved to `now`, in the terms of `limit`.
    fn at(&self, limit: &ModelLimit, now: i128) -> SharedCounter;
    /// Whether `cost` is available.
    fn admits(&self, cost: i128) -> bool;
    /// Whole tokens remaining, never negative.
    fn remaining(&self) -> i128;
    /// Maximum cost of a charge that may run into debt.
    fn available_with_debt(&self) -> i128;
    /// When the counter is fresh again; none if it is already.
    fn reset_at(&self) -> Option<i128>;
    /// When `cost`, which does not exceed the capacity, would be admitted.
    fn retry_at(&self, cost: i128) -> i128;
    /// The counter with `cost` added.
    fn charged(&self, cost: i128) -> SharedCounter;
    /// The counter with up to `cost` refunded; none if nothing changes.
    fn refunded(&self, cost: i128, taken_at: Option<i128>) -> Option<SharedCounter>;
    /// The delay and the queue position of an admitted `cost`, for algorithms with a queue.
    fn queue(&self, _cost: i128) -> Option<(i128, i128)> {
        None
    }
}

/// The state of one key.
#[derive(Clone, Debug, Default)]
pub struct ModelKey {
    written: Option<Written>,
}

#[derive(Clone, Debug)]
struct Written {
    limit: ModelLimit,
    mark: ModelMark,
    counter: SharedCounter,
}

impl Written {
    fn counts_for(&self, limit: &ModelLimit) -> bool {
        self.limit.algorithm == limit.algorithm && self.limit.window == limit.window
    }

    fn corrected(&self, now: u64, limit: &ModelLimit) -> Written {
        let now = i128::from(now.min(MODEL_LAST_MOMENT));
        let ahead = self.counter.seen() - now > i128::from(self.limit.window);
        let mut corrected = self.clone();
        if ahead && self.counts_for(limit) {
            corrected.counter = self.counter.taken_at(now);
        }
        corrected
    }
}

/// A key as it appears at one moment under one limit.
struct View {
    limit: ModelLimit,
    now: u64,
    mark: ModelMark,
    counter: SharedCounter,
}

impl View {
    fn new(limit: &ModelLimit, now: u64, mark: ModelMark, counter: SharedCounter) -> View {
        View { limit: *limit, now, mark: mark.settle(whole(counter.remaining()), limit.capacity()), counter }
    }

    fn remaining(&self) -> u64 {
        whole(self.counter.remaining())
    }

    fn reset_at(&self) -> u64 {
        self.counter.reset_at().map_or(self.now, moment)
    }

    fn after(&self, counter: SharedCounter) -> View {
        View::new(&self.limit, self.now, self.mark, counter)
    }

    /// How much of `cost` is charged if the request is admitted.
    fn amount(&self, cost: u64, fit: ModelFit) -> u64 {
        match fit {
            ModelFit::Whole => cost,
            ModelFit::Overdraw | ModelFit::Forced => cost.min(whole(self.counter.available_with_debt())),
        }
    }

    fn answer(&self, cost: u64, fit: ModelFit) -> ModelAnswer {
        let capacity = self.limit.capacity();
        let needed = if fit == ModelFit::Whole { cost.max(1) } else { 1 };
        let allowed = fit == ModelFit::Forced || self.counter.admits(needed.into());
        let never_fits = !allowed && needed > capacity;
        let denied_for_now = !allowed && !never_fits;
        let queue = self.counter.queue(self.amount(cost, fit).max(1).into()).filter(|_| allowed);
        ModelAnswer {
            allowed,
            capacity,
            remaining: self.remaining(),
            reset_at: self.reset_at(),
            retry_at: denied_for_now.then(|| moment(self.counter.retry_at(needed.into()))),
            never_fits,
            mark: if denied_for_now { ModelMark::Throttled } else { self.mark },
            delay: queue.map(|(delay, _)| moment(delay)),
            queue_position: queue.map(|(_, position)| whole(position)),
            uncharged: 0,
        }
    }
}

impl ModelKey {
    /// A key that has never been charged.
    #[must_use]
    pub fn new() -> ModelKey {
        ModelKey::default()
    }

    /// Charges `cost` if it is available. Otherwise changes nothing, except that a count from more
    /// than one window ahead of `now` is moved to `now`.
    pub fn take(&mut self, now: u64, cost: u64, limit: &ModelLimit) -> ModelAnswer {
        self.take_as(now, cost, ModelFit::Whole, limit)
    }

    /// The same for a charge that may run into debt. What exceeds the maximum debt is not charged.
    pub fn take_as(&mut self, now: u64, cost: u64, fit: ModelFit, limit: &ModelLimit) -> ModelAnswer {
        self.correct(now, limit);
        let before = self.view(now, limit);
        let mut answer = before.answer(cost, fit);
        if !answer.allowed {
            return answer;
        }
        let amount = before.amount(cost, fit);
        answer.uncharged = cost - amount;
        if amount == 0 {
            return answer;
        }
        let after = before.after(before.counter.charged(amount.into()));
        let answer = ModelAnswer {
            remaining: after.remaining(),
            reset_at: after.reset_at(),
            mark: after.mark,
            ..answer
        };
        self.write(after);
        answer
    }

    /// Returns what a take of `cost` would return, without charging anything.
    #[must_use]
    pub fn peek(&self, now: u64, cost: u64, limit: &ModelLimit) -> ModelAnswer {
        self.peek_as(now, cost, ModelFit::Whole, limit)
    }

    /// The same for a charge that may run into debt.
    #[must_use]
    pub fn peek_as(&self, now: u64, cost: u64, fit: ModelFit, limit: &ModelLimit) -> ModelAnswer {
        self.view(now, limit).answer(cost, fit)
    }

    /// Refunds up to `cost`, then returns the same as a peek of cost one.
    pub fn refund(&mut self, now: u64, cost: u64, taken_at: Option<u64>, limit: &ModelLimit) -> ModelAnswer {
        self.correct(now, limit);
        let before = self.view(now, limit);
        let taken_at = taken_at.map(|time| time.min(MODEL_LAST_MOMENT).into());
        if let Some(counter) = before.counter.refunded(cost.into(), taken_at) {
            self.write(before.after(counter));
        }
        self.peek(now, 1, limit)
    }

    /// Resets the key.
    pub fn reset(&mut self) {
        self.written = None;
    }

    /// Moves the count to `now` if the clock was set back by more than a window.
    pub(super) fn correct(&mut self, now: u64, limit: &ModelLimit) {
        self.written = self.written.take().map(|written| written.corrected(now, limit));
    }

    fn view(&self, now: u64, limit: &ModelLimit) -> View {
        let now = now.min(MODEL_LAST_MOMENT);
        match self.written.clone().filter(|written| written.counts_for(limit)) {
            Some(written) => {
                let counter = written.corrected(now, limit).counter.at(limit, now.into());
                View::new(limit, now, written.mark, counter)
            }
            None => View::new(limit, now, ModelMark::Normal, fresh(limit, now.into())),
        }
    }

    fn write(&mut self, view: View) {
        self.written = Some(Written { limit: view.limit, mark: view.mark, counter: view.counter });
    }
}

fn fresh(limit: &ModelLimit, now: i128) -> SharedCounter {
    match limit.algorithm {
        ModelAlgorithm::TokenBucket | ModelAlgorithm::LeakyBucket => Arc::new(Bucket::fresh(limit, now)),
        ModelAlgorithm::Gcra => Arc::new(Gcra::fresh(limit, now)),
        ModelAlgorithm::FixedWindow => Arc::new(FixedWindow::fresh(limit, now)),
        ModelAlgorithm::SlidingLog => Arc::new(SlidingLog::fresh(limit, now)),
        ModelAlgorithm::SlidingCounter => Arc::new(SlidingCounter::fresh(limit, now)),
    }
}

/// A time or a delay as an answer states it.
fn moment(value: i128) -> u64 {
    whole(value).min(MODEL_LAST_MOMENT)
}

fn whole(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap_or(u64::MAX)
}
