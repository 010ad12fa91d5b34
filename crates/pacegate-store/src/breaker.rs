//! A circuit breaker: stops asking a store that keeps failing, and finds out gently when it is back.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures are counted over this long, in steps of a second.
const WINDOW: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_secs(1);
/// Fewer calls than this say nothing about a rate of failures.
const CALLS_MIN: u32 = 20;
/// This many time-outs in a row say enough.
const TIMEOUTS_IN_A_ROW: u32 = 5;
/// How long it stays open at first, and at most.
const OPEN_MIN: Duration = Duration::from_secs(1);
const OPEN_MAX: Duration = Duration::from_secs(30);
/// How many calls must succeed, one after the other or at once, before all are let through again.
const PROBES: u32 = 3;

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// As usual.
    Call,
    /// To find out whether the store is back.
    Probe,
    /// Not now.
    Refused,
}

/// How a permitted call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Succeeded,
    Failed,
    TimedOut,
}

/// What a verdict changed, for whoever logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Opened,
    Closed,
}

/// Whether a server that may fail is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Always.
    Closed,
    /// A few times, to find out whether it is back.
    HalfOpen,
    /// Not for a while.
    Open,
}

/// The state machine. Time and chance come from outside.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: State,
    timeouts_in_a_row: u32,
    /// Calls and failures, per second, oldest first.
    recent: VecDeque<(Instant, u32, u32)>,
    /// How long it stays open the next time.
    open_for: Duration,
}

/// A breaker that all callers of a server share.
#[derive(Debug)]
pub(crate) struct SharedBreaker(Mutex<Breaker>);

impl SharedBreaker {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Breaker::new()))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Breaker> {
        // The breaker is never left half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leave to make one call, unless the server is left alone.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        let permit = self.lock().permit(Instant::now());
        (permit != Permit::Refused).then_some(Turn { breaker: self, permit: Some(permit) })
    }
}

/// A permitted call. A probe's place is free again when its caller goes away before the answer.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    breaker: &'a SharedBreaker,
    permit: Option<Permit>,
}

impl Turn<'_> {
    /// Takes note of how the call went.
    pub(crate) fn finish(mut self, verdict: Verdict) -> Change {
        match self.permit.take() {
            Some(permit) => self.breaker.lock().record(permit, verdict, Instant::now(), fastrand::f64()),
            None => Change::None,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit {
            self.breaker.lock().abandon(permit);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    Open { until: Instant },
    HalfOpen { out: u32, succeeded: u32 },
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self { state: State::Closed, timeouts_in_a_row: 0, recent: VecDeque::new(), open_for: OPEN_MIN }
    }

    pub(crate) fn permit(&mut self, now: Instant) -> Permit {
        match &mut self.state {
            State::Closed => Permit::Call,
            State::Open { until } if now < *until => Permit::Refused,
            State::Open { .. } => {
                self.state = State::HalfOpen { out: 1, succeeded: 0 };
                Permit::Probe
            }
            State::HalfOpen { out, succeeded } if *out + *succeeded < PROBES => {
                *out += 1;
                Permit::Probe
            }
            State::HalfOpen { .. } => Permit::Refused,
        }
    }

    /// Takes note of how a call went. `chance`, between 0 and 1, spreads the nodes of a fleet.
    pub(crate) fn record(&mut self, permit: Permit, verdict: Verdict, now: Instant, chance: f64) -> Change {
        match (&mut self.state, permit) {
            (State::HalfOpen { out, succeeded }, Permit::Probe) => {
                if verdict != Verdict::Succeeded {
                    return self.open(now, chance);
                }
                *out = out.saturating_sub(1);
                *succeeded += 1;
                if *succeeded < PROBES {
                    return Change::None;
                }
                *self = Self::new();
                Change::Closed
            }
            (State::Closed, Permit::Call) => self.record_call(verdict, now, chance),
            // A late answer to a call from before says nothing about now.
            _ => Change::None,
        }
    }

    /// A probe whose caller went away: its place is free again.
    pub(crate) fn abandon(&mut self, permit: Permit) {
        if let (State::HalfOpen { out, .. }, Permit::Probe) = (&mut self.state, permit) {
            *out = out.saturating_sub(1);
        }
    }

    /// The store was found to fail without a caller: callers stop waiting for it.
    pub(crate) fn trip(&mut self, now: Instant, chance: f64) -> Change {
        if self.is_closed() { self.open(now, chance) } else { Change::None }
    }

    /// Whether the store is back is being found out without callers: none of them probes before `at_least`.
    pub(crate) fn stay_open(&mut self, at_least: Instant) {
        if let State::Open { until } = &mut self.state {
            *until = at_least.max(*until);
        }
    }

    /// The store answers again, as somebody found out who is not a caller: callers may probe at once.
    pub(crate) fn half_open(&mut self) {
        if let State::Open { .. } = self.state {
            self.state = State::HalfOpen { out: 0, succeeded: 0 };
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
            State::Open { .. } => BreakerState::Open,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state() == BreakerState::Closed
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state() == BreakerState::Open
    }

    fn record_call(&mut self, verdict: Verdict, now: Instant, chance: f64) -> Change {
        self.timeouts_in_a_row = if verdict == Verdict::TimedOut { self.timeouts_in_a_row + 1 } else { 0 };
        while self.recent.front().is_some_and(|(since, ..)| now.duration_since(*since) >= WINDOW) {
            self.recent.pop_front();
        }
        if self.recent.back().is_none_or(|(since, ..)| now.duration_since(*since) >= STEP) {
            self.recent.push_back((now, 0, 0));
        }
        if let Some((_, calls, failures)) = self.recent.back_mut() {
            *calls = calls.saturating_add(1);
            *failures = failures.saturating_add(u32::from(verdict != Verdict::Succeeded));
        }
        if verdict == Verdict::Succeeded {
            return Change::None;
        }
        let (calls, failures) = self.recent.iter().fold((0u64, 0u64), |(calls, failures), step| {
            (calls + u64::from(step.1), failures + u64::from(step.2))
        });
        let often = calls >= u64::from(CALLS_MIN) && failures * 2 >= calls;
        if often || self.timeouts_in_a_row >= TIMEOUTS_IN_A_ROW {
            return self.open(now, chance);
        }
        Change::None
    }

    fn open(&mut self, now: Instant, chance: f64) -> Change {
        let was_closed = self.is_closed();
        // Up to a quarter longer, so that the nodes of a fleet do not come back at one moment.
        let until = now + self.open_for.mul_f64(1.0 + chance.clamp(0.0, 1.0) / 4.0);
        let open_for = (self.open_for * 2).min(OPEN_MAX);
        *self = Self { state: State::Open { until }, open_for, ..Self::new() };
        if was_closed { Change::Opened } else { Change::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..TIMEOUTS_IN_A_ROW {
            breaker.record(Permit::Call, Verdict::TimedOut, now, 0.0);
        }
        assert_eq!(breaker.permit(now), Permit::Refused);
        breaker
    }

    #[tokio::test]
    async fn opens_at_half_of_twenty_calls_and_not_before() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        let verdicts = [Verdict::Failed, Verdict::Succeeded].into_iter().cycle().take(19);
        for verdict in verdicts {
            assert_eq!(breaker.record(Permit::Call, verdict, now, 0.0), Change::None);
        }
        assert_eq!(breaker.record(Permit::Call, Verdict::Failed, now, 0.0), Change::Opened);
    }

    #[tokio::test]
    async fn forgets_failures_after_ten_seconds() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        for _ in 0..19 {
            breaker.record(Permit::Call, Verdict::Failed, now, 0.0);
        }
        let later = now + WINDOW;
        assert_eq!(breaker.record(Permit::Call, Verdict::Failed, later, 0.0), Change::None);
    }

    #[tokio::test]
    async fn opens_after_five_timeouts_in_a_row_only() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        for verdict in
            [Verdict::TimedOut, Verdict::TimedOut, Verdict::TimedOut, Verdict::TimedOut, Verdict::Succeeded]
        {
            assert_eq!(breaker.record(Permit::Call, verdict, now, 0.0), Change::None);
        }
        for _ in 0..4 {
            assert_eq!(breaker.record(Permit::Call, Verdict::TimedOut, now, 0.0), Change::None);
        }
        assert_eq!(breaker.record(Permit::Call, Verdict::TimedOut, now, 0.0), Change::Opened);
    }

    #[tokio::test]
    async fn stays_open_twice_as_long_each_time_up_to_thirty_seconds() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let open_for = Duration::from_secs(seconds);
            assert_eq!(
                breaker.permit(now + open_for - Duration::from_millis(1)),
                Permit::Refused,
                "{seconds}"
            );
            now += open_for;
            assert_eq!(breaker.permit(now), Permit::Probe, "{seconds}");
            breaker.record(Permit::Probe, Verdict::Failed, now, 0.0);
        }
    }

    #[tokio::test]
    async fn three_probes_close_it_and_no_fourth_is_let_through() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + OPEN_MIN;
        let permits: Vec<Permit> = (0..4).map(|_| breaker.permit(later)).collect();
        assert_eq!(permits, [Permit::Probe, Permit::Probe, Permit::Probe, Permit::Refused]);
        breaker.abandon(Permit::Probe);
        assert_eq!(breaker.permit(later), Permit::Probe, "an abandoned probe leaves its place");
        let changes: Vec<Change> =
            (0..3).map(|_| breaker.record(Permit::Probe, Verdict::Succeeded, later, 0.0)).collect();
        assert_eq!(changes, [Change::None, Change::None, Change::Closed]);
        assert_eq!(breaker.permit(later), Permit::Call);
    }

    #[tokio::test]
    async fn chance_only_makes_it_stay_open_longer() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        for _ in 0..TIMEOUTS_IN_A_ROW {
            breaker.record(Permit::Call, Verdict::TimedOut, now, 1.0);
        }
        assert_eq!(breaker.permit(now + OPEN_MIN), Permit::Refused);
        assert_eq!(breaker.permit(now + OPEN_MIN.mul_f64(1.25)), Permit::Probe);
    }
}
