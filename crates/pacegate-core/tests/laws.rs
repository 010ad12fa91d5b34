//! The laws of the six algorithms, each checked on ten thousand generated histories.
//!
//! Seeds that failed in the past are in `laws.regressions` and run first.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use pacegate_core::{
    Algorithm, Answer, Cost, Demand, Evaluation, Fit, Limit, State, States, Timestamp, chain, refund,
};
use pacegate_testkit::history::{self, Act, History};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// One key, decided by the core alone.
#[derive(Clone, Default)]
struct Counter {
    state: Option<State>,
}

impl Counter {
    fn look(&self, limit: &Limit, now: u64, cost: u64) -> Answer {
        let state = self.state.as_ref();
        Evaluation::new(limit, state, Timestamp::from_micros(now), price(cost)).answer(state)
    }

    fn take(&mut self, limit: &Limit, now: u64, cost: u64) -> Answer {
        self.take_as(limit, now, cost, Fit::Whole)
    }

    fn take_as(&mut self, limit: &Limit, now: u64, cost: u64, fit: Fit) -> Answer {
        let demand = Demand { fit, ..Demand::new(limit, price(cost)) };
        chain::take(&[demand], self, Timestamp::from_micros(now)).answers[0]
    }

    fn refund(&mut self, limit: &Limit, now: u64, cost: u64) {
        let _ = refund(limit, self.state.as_mut(), Timestamp::from_micros(now), price(cost), None);
    }

    /// The same counter after a denied take, which corrects a time that is more than one window
    /// ahead of `now`.
    fn corrected(&self, limit: &Limit, now: u64) -> Self {
        let mut counter = self.clone();
        counter.take(limit, now, (u64::from(limit.capacity()) + 1).min(Limit::QUOTA_MAX));
        counter
    }

    fn encoded(&self) -> Option<Vec<u8>> {
        self.state.as_ref().map(State::encode)
    }
}

impl States for Counter {
    fn state(&self, _: usize) -> Option<&State> {
        self.state.as_ref()
    }

    fn update<T>(
        &mut self,
        _: usize,
        change: impl FnOnce(&mut State) -> (T, Option<Timestamp>),
    ) -> Option<T> {
        self.state.as_mut().map(|state| change(state).0)
    }

    fn insert(&mut self, _: usize, state: State, _: Option<Timestamp>) {
        assert!(self.state.replace(state).is_none(), "a state is inserted only for a key without one");
    }
}

fn price(cost: u64) -> Cost {
    Cost::try_new(cost).unwrap()
}

fn micros(limit: &Limit) -> u64 {
    limit.window().as_micros() as u64
}

/// An admitted take: its time and cost.
type Admission = (u64, u64);

/// Runs the takes, peeks, refunds and resets of a one-key history, calling `check` with the counter
/// before each.
fn run(
    history: &History,
    mut check: impl FnMut(&Counter, &Limit, u64, u64) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut counter = Counter::default();
    let (mut now, mut retry_at) = (history.start, None);
    for operation in &history.operations {
        let limit = &history.keys[0][operation.charges[0].limit];
        now = operation.step.apply(now, micros(limit), retry_at);
        let cost = operation.charges[0].amount.cost(u64::from(limit.capacity())).max(1);
        check(&counter, limit, now, cost)?;
        match operation.act {
            Act::Take => {
                let answer = counter.take_as(limit, now, cost, operation.charges[0].fit);
                retry_at = answer.retry_at.map(Timestamp::as_micros).or(retry_at);
            }
            Act::Peek => {}
            Act::Reset => counter = Counter::default(),
            Act::Refund | Act::RefundLatest => counter.refund(limit, now, cost),
        }
    }
    Ok(())
}

/// Runs all takes of a history on a clock that never goes back, and returns those admitted.
fn admissions(history: &History) -> Vec<Admission> {
    let limit = &history.keys[0][0];
    let mut counter = Counter::default();
    let (mut now, mut retry_at) = (history.start, None);
    let mut admitted = Vec::new();
    for operation in &history.operations {
        now = operation.step.apply(now, micros(limit), retry_at).max(now);
        let cost = operation.charges[0].amount.cost(u64::from(limit.capacity())).max(1);
        let answer = counter.take(limit, now, cost);
        retry_at = answer.retry_at.map(Timestamp::as_micros).or(retry_at);
        if answer.allowed {
            admitted.push((now, cost));
        }
    }
    admitted
}

/// The tick of a bucket: the smallest power of ten for which the capacity in units stays below
/// 2^53.
fn tick(limit: &Limit) -> u64 {
    let (quota, burst) = (u64::from(limit.quota()), u128::from(limit.capacity()));
    let common = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut tick = 1;
    loop {
        let window = micros(limit).div_ceil(tick);
        if burst * u128::from(window / common(quota, window)) < 1 << 53 {
            return tick;
        }
        tick *= 10;
    }
}

/// In no interval between two admissions is more admitted than the law of the algorithm allows.
fn check_bound(limit: &Limit, admitted: &[Admission]) -> Result<(), TestCaseError> {
    let (quota, window) = (u128::from(limit.quota()), micros(limit));
    for first in 0..admitted.len() {
        let mut sum = 0u128;
        for &(time, cost) in &admitted[first..] {
            sum += u128::from(cost);
            let since = admitted[first].0;
            let within_window = time - since < window;
            match limit.algorithm() {
                Algorithm::SlidingLog => prop_assert!(!within_window || sum <= quota, "{sum} in one window"),
                Algorithm::FixedWindow => {
                    prop_assert!(
                        since / window != time / window || sum <= quota,
                        "{sum} in one aligned window"
                    );
                }
                Algorithm::SlidingCounter => {
                    prop_assert!(!within_window || sum <= 2 * quota, "{sum} in one window");
                    prop_assert!(
                        since / window != time / window || sum <= quota,
                        "{sum} in one aligned window"
                    );
                }
                _ => {
                    let tick = tick(limit);
                    let ticks = u128::from(time / tick - since / tick);
                    let refilled = quota * ticks / u128::from(window.div_ceil(tick));
                    prop_assert!(sum <= u128::from(limit.capacity()) + refilled, "{sum} in {ticks} ticks");
                }
            }
        }
    }
    Ok(())
}

/// The sliding counter's own law: previous × overlap + current never exceeds the quota at an
/// admission.
fn check_weighted(limit: &Limit, admitted: &[Admission]) -> Result<(), TestCaseError> {
    let window = micros(limit);
    for (index, &(time, _)) in admitted.iter().enumerate() {
        let in_window = |number: u64| -> u128 {
            let until_now = &admitted[..=index];
            until_now.iter().filter(|(at, _)| at / window == number).map(|(_, cost)| u128::from(*cost)).sum()
        };
        let number = time / window;
        let previous = if number == 0 { 0 } else { in_window(number - 1) };
        let overlap = u128::from(window - time % window);
        let weighted = previous * overlap + in_window(number) * u128::from(window);
        prop_assert!(weighted <= u128::from(limit.quota()) * u128::from(window));
    }
    Ok(())
}

/// The request is denied one microsecond before the announced time and allowed at it.
fn check_retry(counter: &Counter, limit: &Limit, now: u64, cost: u64) -> Result<(), TestCaseError> {
    let counter = counter.corrected(limit, now);
    let answer = counter.look(limit, now, cost);
    match answer.retry_at {
        None => prop_assert!(answer.allowed || cost > u64::from(limit.capacity())),
        // A saturated time is the end of time, not an announcement.
        Some(Timestamp::MAX) => {}
        Some(at) => {
            let at = at.as_micros();
            prop_assert!(!answer.allowed && at > now, "retry at {at}, now {now}");
            prop_assert!(!counter.look(limit, at - 1, cost).allowed, "allowed before {at}");
            prop_assert!(counter.look(limit, at, cost).allowed, "denied at {at}");
        }
    }
    Ok(())
}

/// The full capacity is available at `reset_at`, and not one microsecond earlier.
fn check_reset(counter: &Counter, limit: &Limit, now: u64) -> Result<(), TestCaseError> {
    let counter = counter.corrected(limit, now);
    let reset_at = counter.look(limit, now, 1).reset_at.unwrap().as_micros();
    let whole = u64::from(limit.capacity());
    if reset_at == Timestamp::MAX.as_micros() {
        return Ok(());
    }
    prop_assert!(counter.look(limit, reset_at, whole).allowed, "capacity not restored at {reset_at}");
    if reset_at > now {
        let just_before = counter.look(limit, reset_at - 1, 1);
        prop_assert!(
            just_before.reset_at.unwrap().as_micros() == reset_at,
            "capacity restored before {reset_at}"
        );
    }
    Ok(())
}

/// On a clock that went back, nothing is allowed that the latest time would not allow.
fn check_backwards(
    counter: &Counter,
    limit: &Limit,
    now: u64,
    cost: u64,
    back: u64,
) -> Result<(), TestCaseError> {
    let mut charged = counter.clone();
    charged.take(limit, now, cost.min(u64::from(limit.capacity())));
    let latest = charged.look(limit, now, cost);
    let earlier = charged.look(limit, now.saturating_sub(back), cost);
    prop_assert!(!earlier.allowed || latest.allowed);
    prop_assert!(earlier.remaining <= latest.remaining);
    Ok(())
}

/// A cost of n equals n costs of 1 at the same instant: same answer, same state.
fn check_additivity(counter: &Counter, limit: &Limit, now: u64, cost: u64) -> Result<(), TestCaseError> {
    let cost = cost.clamp(1, 40);
    let (mut at_once, mut one_by_one) = (counter.clone(), counter.clone());
    let answer = at_once.take(limit, now, cost);
    let singles: Vec<Answer> = (0..cost).map(|_| one_by_one.take(limit, now, 1)).collect();
    prop_assert_eq!(answer.allowed, singles.iter().all(|single| single.allowed));
    if answer.allowed {
        let last = singles[singles.len() - 1];
        prop_assert_eq!((answer.remaining, answer.reset_at), (last.remaining, last.reset_at));
        // The standing may differ: n steps can pass through a warning that one step jumps over.
        let after = |counter: &Counter| counter.look(limit, now, 1);
        prop_assert_eq!(after(&at_once).remaining, after(&one_by_one).remaining);
        prop_assert_eq!(after(&at_once).reset_at, after(&one_by_one).reset_at);
    }
    Ok(())
}

/// A denied take does not change a single byte of the state, once a time more than one window ahead
/// is corrected. The answer is the same either way.
fn check_denial(counter: &Counter, limit: &Limit, now: u64, cost: u64) -> Result<(), TestCaseError> {
    let corrected = counter.corrected(limit, now);
    let mut after = corrected.clone();
    let answer = after.take(limit, now, cost);
    if !answer.allowed {
        prop_assert_eq!(after.encoded(), corrected.encoded());
        if cost <= u64::from(limit.capacity()) && limit.capacity() < Limit::QUOTA_MAX as u32 {
            prop_assert_eq!(counter.look(limit, now, cost), answer);
        }
    }
    Ok(())
}

/// Runs the takes of a history on a clock that is set back once, and returns those admitted, by
/// real time.
fn admissions_over_a_step_back(history: &History, step_at: usize, back: u64) -> Vec<Admission> {
    let limit = &history.keys[0][0];
    // Whole ticks, so that ticks of the clock and of real time coincide.
    let back = back - back % tick(limit);
    let mut counter = Counter::default();
    let (mut real, mut retry_at) = (history.start.max(back), None);
    let mut admitted = Vec::new();
    for (index, operation) in history.operations.iter().enumerate() {
        let lag = if index < step_at { 0 } else { back };
        real = operation.step.apply(real, micros(limit), retry_at).max(real);
        let cost = operation.charges[0].amount.cost(u64::from(limit.capacity())).max(1);
        let answer = counter.take(limit, real - lag, cost);
        retry_at = answer.retry_at.map(|at| at.as_micros() + lag).or(retry_at);
        if answer.allowed {
            admitted.push((real, cost));
        }
    }
    admitted
}

/// At most twice the capacity is ever in use.
fn check_debt(counter: &Counter, limit: &Limit, now: u64, cost: u64) -> Result<(), TestCaseError> {
    let before = counter.look(limit, now, 1);
    let mut overdrawn = counter.clone();
    let answer = overdrawn.take_as(limit, now, cost, Fit::Overdraw);
    // It is allowed while 1 remains, and then charges its whole cost or reaches the debt bound.
    prop_assert_eq!(answer.allowed, before.remaining > Some(0));
    let mut forced = counter.clone();
    let forced_answer = forced.take_as(limit, now, cost, Fit::Forced);
    prop_assert!(forced_answer.allowed && u64::from(forced_answer.uncharged) <= cost);
    if answer.allowed {
        prop_assert_eq!((answer.uncharged, overdrawn.encoded()), (forced_answer.uncharged, forced.encoded()));
    }
    // A cost that fits is charged as usual.
    let mut ordinary = counter.clone();
    if ordinary.take(limit, now, cost).allowed {
        prop_assert_eq!(forced_answer.uncharged, 0);
        prop_assert_eq!(forced.encoded(), ordinary.encoded());
    }
    // Once twice the capacity is in use, further forced charges take nothing.
    let mut taken = cost - u64::from(forced_answer.uncharged);
    for _ in 0..4 {
        taken += 1_000_000_000 - u64::from(forced.take_as(limit, now, 1_000_000_000, Fit::Forced).uncharged);
    }
    prop_assert!(taken <= 2 * u64::from(limit.capacity()), "{taken} at once");
    prop_assert_eq!(forced.look(limit, now, 1).remaining, Some(0).filter(|_| taken > 0).or(before.remaining));
    check_debt_drains(&forced, limit, now)
}

/// Debt drains at the limit's rate and leaves no trace.
fn check_debt_drains(counter: &Counter, limit: &Limit, now: u64) -> Result<(), TestCaseError> {
    let counter = counter.corrected(limit, now);
    check_retry(&counter, limit, now, 1)?;
    let reset_at = counter.look(limit, now, 1).reset_at.unwrap().as_micros();
    if reset_at == Timestamp::MAX.as_micros() {
        return Ok(());
    }
    for cost in [1, u64::from(limit.capacity())] {
        let essentials =
            |answer: Answer| (answer.allowed, answer.remaining, answer.reset_at, answer.retry_at);
        let (after, fresh) =
            (counter.look(limit, reset_at, cost), Counter::default().look(limit, reset_at, cost));
        prop_assert_eq!(essentials(after), essentials(fresh));
    }
    Ok(())
}

/// Decoding restores the encoded state. With a byte changed or cut off, it returns some state or an
/// error and never panics.
fn check_encoding(counter: &Counter, damage: usize) -> Result<(), TestCaseError> {
    let Some(state) = &counter.state else { return Ok(()) };
    let bytes = state.encode();
    let decoded = State::decode(&bytes);
    prop_assert_eq!(decoded.as_ref(), Ok(state));
    let mut changed = bytes.clone();
    let at = damage % bytes.len();
    changed[at] = changed[at].wrapping_add((damage >> 8) as u8 | 1);
    for bytes in [&changed[..], &bytes[..at]] {
        if let Ok(state) = State::decode(bytes) {
            prop_assert_eq!(&state.encode()[..], bytes, "two encodings of one state");
        }
    }
    Ok(())
}

/// The fast path of a take decides, answers and writes exactly as the general path; if it does not
/// apply, it changes nothing.
fn check_fast_path(counter: &Counter, limit: &Limit, now: u64, cost: u64) -> Result<(), TestCaseError> {
    let (mut short, mut long) = (counter.clone(), counter.clone());
    let Some(state) = &mut short.state else { return Ok(()) };
    let taken = state.take(limit, Timestamp::from_micros(now), price(cost));
    if let Some(taken) = taken {
        prop_assert_eq!(Answer::charged(&taken), long.take(limit, now, cost));
    }
    prop_assert_eq!(short.encoded(), long.encoded());
    Ok(())
}

macro_rules! laws {
    ($($name:ident $algorithm:ident),+ $(,)?) => {$(
        mod $name {
            use super::*;

            const ALGORITHM: Algorithm = Algorithm::$algorithm;

            proptest! {
                #![proptest_config(ProptestConfig {
                    cases: 10_000,
                    failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/laws.regressions"))),
                    ..ProptestConfig::default()
                })]

                #[test]
                fn never_admits_more_than_the_law(history in history::of(ALGORITHM)) {
                    let limit = &history.keys[0][0];
                    let admitted = admissions(&history);
                    check_bound(limit, &admitted)?;
                    if ALGORITHM == Algorithm::SlidingCounter {
                        check_weighted(limit, &admitted)?;
                    }
                }

                #[test]
                fn announces_retry_and_reset_exactly(history in history::of(ALGORITHM)) {
                    run(&history, |counter, limit, now, cost| {
                        check_retry(counter, limit, now, cost)?;
                        check_reset(counter, limit, now)
                    })?;
                }

                #[test]
                fn denial_does_not_change_the_state(history in history::of_changing(ALGORITHM)) {
                    run(&history, check_denial)?;
                }

                #[test]
                fn fast_path_equals_general_path(history in history::of_changing(ALGORITHM)) {
                    run(&history, check_fast_path)?;
                }

                #[test]
                fn debt_is_at_most_one_capacity_and_drains(history in history::of(ALGORITHM)) {
                    run(&history, check_debt)?;
                }

                #[test]
                fn clock_going_back_never_allows_more(history in history::of(ALGORITHM), back in 0..10_000_000_000u64) {
                    run(&history, |counter, limit, now, cost| check_backwards(counter, limit, now, cost, back))?;
                }

                #[test]
                fn cost_of_n_equals_n_costs_of_1(history in history::of(ALGORITHM)) {
                    run(&history, check_additivity)?;
                }

                #[test]
                fn encoding_round_trips(history in history::of_changing(ALGORITHM), damage in any::<u32>()) {
                    run(&history, |counter, _, _, _| check_encoding(counter, damage as usize))?;
                }
            }
        }
    )+};
}

laws! {
    token_bucket TokenBucket,
    leaky_bucket LeakyBucket,
    fixed_window FixedWindow,
    sliding_log SlidingLog,
    sliding_counter SlidingCounter,
    gcra Gcra,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn clock_set_back_never_admits_more_than_the_law(
        history in history::algorithm()
            .prop_filter("windows are aligned to the clock", |algorithm| {
                algorithm.takes_burst() || *algorithm == Algorithm::SlidingLog
            })
            .prop_flat_map(history::of),
        step_at in 0..40usize,
        windows in 0..5_000u64,
    ) {
        let limit = &history.keys[0][0];
        let back = (u128::from(micros(limit)) * u128::from(windows) / 1_000) as u64;
        check_bound(limit, &admissions_over_a_step_back(&history, step_at, back))?;
    }
}

#[test]
fn clock_set_back_locks_out_for_at_most_one_window() {
    const WINDOW: u64 = 10_000_000;
    const HOUR: u64 = 3_600_000_000;
    for algorithm in Algorithm::ALL {
        let limit = Limit::try_new(algorithm, 10, std::time::Duration::from_micros(WINDOW)).unwrap();
        let start = 1_790_000_000_000_000;
        let mut counter = Counter::default();
        assert!(counter.take(&limit, start, 6).allowed);
        // Earlier usage still counts.
        let set_back = start - HOUR;
        assert_eq!(counter.look(&limit, set_back, 4).remaining, Some(4), "{algorithm}");
        assert!(!counter.look(&limit, set_back, 5).allowed, "{algorithm}");
        assert!(counter.take(&limit, start, 4).allowed);
        // Callers that retry too early do not extend the wait.
        for wait in [0, 1, WINDOW / 20] {
            let denied = counter.take(&limit, set_back + wait, 1);
            let retry_at = denied.retry_at.unwrap().as_micros();
            // A full sliding counter allows one request when a tenth of the next window has passed.
            let longest = if algorithm == Algorithm::SlidingCounter { WINDOW / 10 } else { 0 };
            assert!(retry_at <= set_back + WINDOW + longest, "{algorithm} waits {} µs", retry_at - set_back);
        }
        let retry_at = counter.take(&limit, set_back, 1).retry_at.unwrap().as_micros();
        assert!(!counter.take(&limit, retry_at - 1, 1).allowed, "{algorithm}");
        assert!(counter.take(&limit, retry_at, 1).allowed, "{algorithm}");
    }
}

#[test]
fn time_at_most_one_window_ahead_is_kept() {
    let window = std::time::Duration::from_secs(10);
    for algorithm in Algorithm::ALL {
        let limit = Limit::try_new(algorithm, 10, window).unwrap();
        let mut counter = Counter::default();
        let start = 1_790_000_000_000_000;
        assert!(counter.take(&limit, start, 10).allowed);
        let before = counter.encoded();
        for back in [1, 10_000_000] {
            assert!(!counter.take(&limit, start - back, 1).allowed, "{algorithm}");
            assert_eq!(counter.encoded(), before, "{algorithm} after {back} µs back");
        }
    }
}

#[test]
fn fast_path_is_taken_in_the_common_case() {
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::Gcra]
    {
        let limit = Limit::try_new(algorithm, 10, std::time::Duration::from_secs(60)).unwrap();
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let mut state = Evaluation::new(&limit, None, now, Cost::ONE).into_state();
        let taken = state.take(&limit, now, price(2)).unwrap();
        assert_eq!(Answer::charged(&taken).remaining, Some(7), "{algorithm}");
        assert!(state.take(&limit, now, price(8)).is_none(), "{algorithm} does not allow eight");
        assert!(state.take(&limit, now, price(11)).is_none(), "{algorithm} never allows eleven");
        let set_back = Timestamp::from_micros(now.as_micros() - 121_000_000);
        assert!(state.take(&limit, set_back, Cost::ONE).is_none(), "{algorithm} needs its time corrected");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), algorithm in 0..8u8) {
        let _ = State::decode(&bytes);
        let mut plausible = vec![1, algorithm, 0, 0];
        plausible.extend(bytes);
        if let Ok(state) = State::decode(&plausible) {
            prop_assert_eq!(state.encode(), plausible);
        }
    }
}
