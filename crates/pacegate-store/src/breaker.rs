//! A circuit breaker: stops calling a store that keeps failing, and probes it with a few calls
//! until it recovers.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The period over which failures are counted, in steps of a second.
const WINDOW: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_secs(1);
/// Minimum number of calls for a failure rate.
const CALLS_MIN: u32 = 20;
/// Number of consecutive timeouts that opens it.
const TIMEOUTS_IN_A_ROW: u32 = 5;
/// How long it stays open at first, and at most.
const OPEN_MIN: Duration = Duration::from_secs(1);
const OPEN_MAX: Duration = Duration::from_secs(30);
/// Number of calls that must succeed, concurrently or one after another, before it closes.
const PROBES: u32 = 3;

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Yes.
    Call,
    /// Yes, to probe the store.
    Probe,
    /// No.
    Rejected,
}

/// The result of a permitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Succeeded,
    Failed,
    TimedOut,
}

/// The change caused by a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Opened,
    Closed,
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All calls are made.
    Closed,
    /// A few calls are made, to find out whether the server has recovered.
    HalfOpen,
    /// No calls are made.
    Open,
}

/// The state machine. Time and randomness are passed in.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: State,
    timeouts_in_a_row: u32,
    /// Calls and failures per second, oldest first.
    recent: VecDeque<(Instant, u32, u32)>,
    /// How long it will stay open the next time.
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
        // A panic never leaves the breaker half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a permit for one call, unless the breaker is open.
    pub(crate) fn try_call(&self) -> Option<PermittedCall<'_>> {
        let permit = self.lock().permit(Instant::now());
        (permit != Permit::Rejected).then_some(PermittedCall { breaker: self, permit: Some(permit) })
    }
}

/// A permitted call. If its caller is dropped before the response, a probe frees its slot.
#[derive(Debug)]
pub(crate) struct PermittedCall<'a> {
    breaker: &'a SharedBreaker,
    permit: Option<Permit>,
}

impl PermittedCall<'_> {
    /// Records the result of the call.
    pub(crate) fn finish(mut self, verdict: Verdict) -> Change {
        match self.permit.take() {
            Some(permit) => self.breaker.lock().record(permit, verdict, Instant::now(), fastrand::f64()),
            None => Change::None,
        }
    }
}

impl Drop for PermittedCall<'_> {
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
            State::Open { until } if now < *until => Permit::Rejected,
            State::Open { .. } => {
                self.state = State::HalfOpen { out: 1, succeeded: 0 };
                Permit::Probe
            }
            State::HalfOpen { out, succeeded } if *out + *succeeded < PROBES => {
                *out += 1;
                Permit::Probe
            }
            State::HalfOpen { .. } => Permit::Rejected,
        }
    }

    /// Records the result of a call. `chance`, between 0 and 1, spreads the nodes of a fleet.
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
            // A late response to an earlier call is not evidence.
            _ => Change::None,
        }
    }

    /// Frees the slot of a probe whose caller was dropped.
    pub(crate) fn abandon(&mut self, permit: Permit) {
        if let (State::HalfOpen { out, .. }, Permit::Probe) = (&mut self.state, permit) {
            *out = out.saturating_sub(1);
        }
    }

    /// Opens the breaker after background probes failed.
    pub(crate) fn trip(&mut self, now: Instant, chance: f64) -> Change {
        if self.is_closed() { self.open(now, chance) } else { Change::None }
    }

    /// Keeps callers from probing before `at_least`, because background probes do.
    pub(crate) fn stay_open(&mut self, at_least: Instant) {
        if let State::Open { until } = &mut self.state {
            *until = at_least.max(*until);
        }
    }

    /// Lets callers probe at once, after a background probe succeeded.
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
        // Up to a quarter longer, so that the nodes of a fleet do not retry at the same moment.
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
        assert_eq!(breaker.permit(now), Permit::Rejected);
        breaker
    }

    #[tokio::test]
    async fn opens_when_half_of_twenty_calls_fail() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        let verdicts = [Verdict::Failed, Verdict::Succeeded].into_iter().cycle().take(19);
        for verdict in verdicts {
            assert_eq!(breaker.record(Permit::Call, verdict, now, 0.0), Change::None);
        }
        assert_eq!(breaker.record(Permit::Call, Verdict::Failed, now, 0.0), Change::Opened);
    }

    #[tokio::test]
    async fn failures_expire_after_ten_seconds() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        for _ in 0..19 {
            breaker.record(Permit::Call, Verdict::Failed, now, 0.0);
        }
        let later = now + WINDOW;
        assert_eq!(breaker.record(Permit::Call, Verdict::Failed, later, 0.0), Change::None);
    }

    #[tokio::test]
    async fn opens_after_five_consecutive_timeouts() {
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
    async fn open_time_doubles_up_to_thirty_seconds() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let open_for = Duration::from_secs(seconds);
            assert_eq!(
                breaker.permit(now + open_for - Duration::from_millis(1)),
                Permit::Rejected,
                "{seconds}"
            );
            now += open_for;
            assert_eq!(breaker.permit(now), Permit::Probe, "{seconds}");
            breaker.record(Permit::Probe, Verdict::Failed, now, 0.0);
        }
    }

    #[tokio::test]
    async fn closes_after_three_probes_and_allows_no_fourth() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + OPEN_MIN;
        let permits: Vec<Permit> = (0..4).map(|_| breaker.permit(later)).collect();
        assert_eq!(permits, [Permit::Probe, Permit::Probe, Permit::Probe, Permit::Rejected]);
        breaker.abandon(Permit::Probe);
        assert_eq!(breaker.permit(later), Permit::Probe, "an abandoned probe frees its slot");
        let changes: Vec<Change> =
            (0..3).map(|_| breaker.record(Permit::Probe, Verdict::Succeeded, later, 0.0)).collect();
        assert_eq!(changes, [Change::None, Change::None, Change::Closed]);
        assert_eq!(breaker.permit(later), Permit::Call);
    }

    #[tokio::test]
    async fn chance_only_extends_the_open_time() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        for _ in 0..TIMEOUTS_IN_A_ROW {
            breaker.record(Permit::Call, Verdict::TimedOut, now, 1.0);
        }
        assert_eq!(breaker.permit(now + OPEN_MIN), Permit::Rejected);
        assert_eq!(breaker.permit(now + OPEN_MIN.mul_f64(1.25)), Permit::Probe);
    }
}
