//! Histories: timed operations on a few keys.
//!
//! Times and costs are drawn in relation to the limits (a fraction of the window, one above the
//! capacity, one microsecond before the announced retry), because errors hide there.

use std::time::Duration;

use pacegate_core::{Algorithm, Fit, Limit};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A sequence of operations on a few keys.
#[derive(Clone, Debug)]
pub struct History {
    /// The limits of each key; the operations switch between them.
    pub keys: Vec<Vec<Limit>>,
    /// The time of the first operation, in microseconds.
    pub start: u64,
    /// The operations.
    pub operations: Vec<Operation>,
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The time, relative to the previous operation.
    pub step: Step,
    /// The action.
    pub act: Act,
    /// The keys, each at most once, with their limits and costs.
    pub charges: Vec<Charged>,
}

/// A key of the history, the limit in force for it, and its charge.
#[derive(Clone, Copy, Debug)]
pub struct Charged {
    /// Index into [`History::keys`].
    pub key: usize,
    /// Index into that key's limits.
    pub limit: usize,
    /// The cost.
    pub amount: Amount,
    /// How much of the cost must be available.
    pub fit: Fit,
    /// Whether the limit is in shadow mode.
    pub shadow: bool,
}

/// The action of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Charges if every limit allows it.
    Take,
    /// Charges nothing.
    Peek,
    /// Resets the counters.
    Reset,
    /// Refunds without the time of the charge.
    Refund,
    /// Refunds the latest admission.
    RefundLatest,
}

/// How time moves between two operations.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Not at all.
    Stay,
    /// By a few microseconds.
    Micros(u64),
    /// By thousandths of the first limit's window.
    Windows(u64),
    /// Back by thousandths of the first limit's window.
    Back(u64),
    /// To the retry time last announced, or one microsecond before or after it.
    Retry(i8),
    /// To an absolute time.
    Jump(u64),
}

/// The cost of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// An absolute number.
    Exactly(u64),
    /// Thousandths of the limit's capacity.
    OfCapacity(u64),
    /// Zero, which checks whether 1 would be allowed.
    Nothing,
    /// The capacity plus one, which is never allowed.
    TooMuch,
}

impl Step {
    /// The time of this operation, from the previous time, the window and the last announced retry.
    pub fn apply(self, now: u64, window: u64, retry_at: Option<u64>) -> u64 {
        let time = match self {
            Self::Stay => now,
            Self::Micros(micros) => now.saturating_add(micros),
            Self::Windows(thousandths) => now.saturating_add(part(window, thousandths)),
            Self::Back(thousandths) => now.saturating_sub(part(window, thousandths)),
            Self::Retry(offset) => retry_at.unwrap_or(now).saturating_add_signed(i64::from(offset)),
            Self::Jump(time) => time,
        };
        time.min(LATEST)
    }
}

impl Amount {
    /// The cost for a limit of `capacity`.
    pub fn cost(self, capacity: u64) -> u64 {
        let cost = match self {
            Self::Exactly(cost) => cost,
            Self::OfCapacity(thousandths) => part(capacity, thousandths),
            Self::TooMuch => capacity + 1,
            Self::Nothing => return 0,
        };
        cost.clamp(1, 1_000_000_000)
    }
}

const LATEST: u64 = (1 << 53) - 1;

fn part(whole: u64, thousandths: u64) -> u64 {
    (u128::from(whole) * u128::from(thousandths) / 1_000) as u64
}

/// Histories of one key under one limit of `algorithm`.
pub fn of(algorithm: Algorithm) -> impl Strategy<Value = History> {
    (limit(algorithm), start(), vec(operation(1, 1), 1..40)).prop_map(|(limit, start, operations)| History {
        keys: vec![vec![limit]],
        start,
        operations,
    })
}

/// Histories of one key with a limit that changes between a few variants.
pub fn of_changing(algorithm: Algorithm) -> impl Strategy<Value = History> {
    (variants(algorithm), start(), vec(operation(1, 4), 1..40))
        .prop_map(|(variants, start, operations)| History { keys: vec![variants], start, operations })
}

/// Histories of chains: one to five keys of any algorithm, each with its own cost, some in shadow
/// mode.
pub fn of_chains() -> impl Strategy<Value = History> {
    let keys = vec(algorithm().prop_flat_map(variants), 5);
    (keys, start(), vec(operation(5, 4), 1..30)).prop_map(|(keys, start, operations)| History {
        keys,
        start,
        operations,
    })
}

/// Any of the six algorithms.
pub fn algorithm() -> impl Strategy<Value = Algorithm> {
    select(&Algorithm::ALL[..])
}

/// A valid limit: usually of a common size, sometimes extreme.
pub fn limit(algorithm: Algorithm) -> impl Strategy<Value = Limit> {
    (number(), number(), window())
        .prop_map(move |(quota, burst, window)| build(algorithm, quota, burst, window))
}

/// The same algorithm and window with other values, and occasionally another window or algorithm.
fn variants(algorithm: Algorithm) -> impl Strategy<Value = Vec<Limit>> {
    let odd = (self::algorithm(), window());
    (window(), vec((number(), number()), 3), odd, number()).prop_map(
        move |(own_window, numbers, (other_algorithm, other_window), quota)| {
            let mut limits: Vec<Limit> = numbers
                .into_iter()
                .map(|(quota, burst)| build(algorithm, quota, burst, own_window))
                .collect();
            limits.push(build(other_algorithm, quota, quota, other_window));
            limits
        },
    )
}

fn build(algorithm: Algorithm, quota: u64, burst: u64, window: u64) -> Limit {
    let quota =
        if algorithm == Algorithm::SlidingLog { quota.min(Limit::SLIDING_LOG_QUOTA_MAX) } else { quota };
    let limit = Limit::try_new(algorithm, quota, Duration::from_micros(window));
    let limit =
        limit.and_then(|limit| if algorithm.takes_burst() { limit.with_burst(burst) } else { Ok(limit) });
    limit.expect("the ranges below give valid limits")
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 1..=12u64,
        3 => 1..=1_000u64,
        1 => 1..=1_000_000_000u64,
        1 => select(vec![1, 2, 3, 999_983, 1_000_000, 999_999_937, 999_999_999, 1_000_000_000]),
    ]
}

fn window() -> impl Strategy<Value = u64> {
    const DAY: u64 = 86_400_000_000;
    prop_oneof![
        3 => select(vec![1_000_000, 10_000_000, 60_000_000, 3_600_000_000, DAY]),
        3 => 1_000..=5_000_000u64,
        1 => 1_000..=366 * DAY,
        1 => select(vec![1_000, 1_001, 999_983, 30 * DAY, 366 * DAY - 1, 366 * DAY]),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1_700_000_000_000_000..1_900_000_000_000_000u64,
        1 => 0..10_000_000_000u64,
        1 => LATEST - 40_000_000_000_000..=LATEST,
    ]
}

fn operation(keys: usize, limits: usize) -> impl Strategy<Value = Operation> {
    let act = prop_oneof![
        20 => Just(Act::Take),
        3 => Just(Act::Peek),
        1 => Just(Act::Reset),
        2 => Just(Act::Refund),
        2 => Just(Act::RefundLatest),
    ];
    let step = prop_oneof![
        6 => Just(Step::Stay),
        3 => (1..5u64).prop_map(Step::Micros),
        6 => (0..300u64).prop_map(Step::Windows),
        2 => (300..2_500u64).prop_map(Step::Windows),
        1 => (0..2_500u64).prop_map(Step::Back),
        6 => (-1..=1i8).prop_map(Step::Retry),
        1 => prop_oneof![9 => start(), 1 => Just(LATEST), 1 => Just(0u64)].prop_map(Step::Jump),
    ];
    (step, act, charges(keys, limits)).prop_map(|(step, act, charges)| Operation { step, act, charges })
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        12 => (1..=3u64).prop_map(Amount::Exactly),
        10 => (1..=1_000u64).prop_map(Amount::OfCapacity),
        2 => Just(Amount::TooMuch),
        2 => (1..=1_000_000_000u64).prop_map(Amount::Exactly),
        1 => Just(Amount::Nothing),
    ]
}

fn charges(keys: usize, limits: usize) -> impl Strategy<Value = Vec<Charged>> {
    let order = Just((0..keys).collect::<Vec<_>>()).prop_shuffle();
    // The first variant most of the time, so that limits change occasionally and not at every step.
    let variant = prop_oneof![4 => Just(0), 1 => 0..limits];
    let fit = prop_oneof![10 => Just(Fit::Whole), 2 => Just(Fit::Overdraw), 1 => Just(Fit::Forced)];
    let each = vec((variant, amount(), fit, prop::bool::weighted(0.15)), keys);
    (order, each, 1..=keys).prop_map(move |(order, each, count)| {
        let shadow_allowed = keys > 1;
        order
            .into_iter()
            .zip(each)
            .take(count)
            .map(|(key, (limit, amount, fit, shadow))| Charged {
                key,
                limit,
                amount,
                fit,
                shadow: shadow && shadow_allowed,
            })
            .collect()
    })
}
