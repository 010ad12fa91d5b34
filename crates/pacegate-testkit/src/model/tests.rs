//! Hand-computed histories of each algorithm, of marks and of chains.

use super::{
    MODEL_LAST_MOMENT, Model, ModelAlgorithm, ModelAnswer, ModelCharge, ModelFit, ModelKey, ModelLimit,
    ModelMark,
};

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

fn limit(algorithm: ModelAlgorithm, quota: u64, burst: u64, window: u64) -> ModelLimit {
    ModelLimit { algorithm, quota, burst, window }
}

fn expect(answer: &ModelAnswer, remaining: u64, reset_at: u64, retry_at: Option<u64>) {
    let found = (answer.remaining, answer.reset_at, answer.retry_at);
    assert_eq!(found, (remaining, reset_at, retry_at), "{answer:?}");
}

/// Time, cost, remaining, reset time, and the retry time of a denied take.
type Row = (u64, u64, u64, u64, Option<u64>);

fn play(limit: &ModelLimit, rows: &[Row]) -> ModelKey {
    let mut key = ModelKey::new();
    for &(now, cost, remaining, reset_at, retry_at) in rows {
        let answer = key.take(now, cost, limit);
        expect(&answer, remaining, reset_at, retry_at);
        assert_eq!(answer.allowed, retry_at.is_none());
    }
    key
}

#[test]
fn token_bucket_rows() {
    let ten = limit(ModelAlgorithm::TokenBucket, 10, 10, SECOND);
    let mut key = play(
        &ten,
        &[
            (0, 4, 6, 400_000, None),
            (0, 7, 6, 400_000, Some(100_000)),
            (100_000, 7, 0, 1_100_000, None),
            (50_000, 1, 0, 1_100_000, Some(200_000)),
        ],
    );
    expect(&key.refund(200_000, 4, None, &ten), 5, 700_000, None);
    let impossible = key.take(200_000, 11, &ten);
    assert!(impossible.never_fits && !impossible.allowed);
    expect(&impossible, 5, 700_000, None);
}

#[test]
fn token_bucket_with_a_coarse_tick() {
    // The tick is 10 ms: 10^9 tokens times 8_640_000 ticks is just below 2^53.
    let coarse = limit(ModelAlgorithm::TokenBucket, 1, 1_000_000_000, DAY);
    play(
        &coarse,
        &[
            (25_000, 3, 999_999_997, 259_200_020_000, None),
            (25_000, 1_000_000_000, 999_999_997, 259_200_020_000, Some(259_200_020_000)),
            (29_999, 999_999_997, 0, MODEL_LAST_MOMENT, None),
            (29_999, 1, 0, MODEL_LAST_MOMENT, Some(86_400_020_000)),
        ],
    );
}

#[test]
fn token_bucket_under_a_changed_quota() {
    let ten = limit(ModelAlgorithm::TokenBucket, 10, 10, SECOND);
    let five = limit(ModelAlgorithm::TokenBucket, 5, 5, SECOND);
    let mut key = play(&ten, &[(0, 7, 3, 700_000, None)]);
    // 6.5 tokens are in use, which count as 7 under the new limit.
    expect(&key.take(50_000, 1, &five), 0, 1_450_000, Some(650_000));
    // The denied take wrote nothing, so the old limit still has its fractions.
    expect(&key.peek(50_000, 1, &ten), 3, 700_000, None);
    // A quarter of a second later 4.5 tokens count as 5; the refund of 2 is written.
    expect(&key.refund(250_000, 2, None, &five), 2, 850_000, None);
    expect(&key.take(250_000, 2, &five), 0, 1_250_000, None);
    let other_window = limit(ModelAlgorithm::TokenBucket, 5, 5, 2 * SECOND);
    expect(&key.peek(250_000, 1, &other_window), 5, 250_000, None);
}

#[test]
fn leaky_bucket_rows() {
    let two = limit(ModelAlgorithm::LeakyBucket, 2, 4, SECOND);
    let mut key = play(
        &two,
        &[(0, 1, 3, 500_000, None), (0, 3, 0, 2_000_000, None), (250_000, 1, 0, 2_000_000, Some(500_000))],
    );
    let queue = |answer: ModelAnswer| (answer.delay, answer.queue_position);
    assert_eq!(queue(key.peek(250_000, 1, &two)), (None, None));
    assert_eq!(queue(key.take(500_000, 1, &two)), (Some(1_500_000), Some(4)));
    // 2.5 tokens are in use.
    assert_eq!(queue(key.peek(1_250_000, 1, &two)), (Some(1_250_000), Some(4)));
}

#[test]
fn gcra_rows() {
    // One token is 333 1/3 ticks.
    let three = limit(ModelAlgorithm::Gcra, 3, 2, 1_000);
    let mut key = play(
        &three,
        &[(0, 1, 1, 334, None), (0, 1, 0, 667, None), (0, 1, 0, 667, Some(334)), (334, 1, 0, 1_000, None)],
    );
    expect(&key.refund(334, 1, None, &three), 1, 667, None);
    // Time does not go back for a key: as much is available as at tick 334.
    expect(&key.peek(0, 1, &three), 1, 667, None);
    // 332 2/3 ticks ahead count as one whole token, which is 1000 ticks under the new quota.
    let one = limit(ModelAlgorithm::Gcra, 1, 2, 1_000);
    expect(&key.peek(333, 1, &one), 1, 1_334, None);
    expect(&key.refund(400, 9, None, &three), 2, 400, None);
}

#[test]
fn fixed_window_rows() {
    let five = limit(ModelAlgorithm::FixedWindow, 5, 5, 1_000);
    let mut key = play(
        &five,
        &[(1_500, 3, 2, 2_000, None), (1_600, 3, 2, 2_000, Some(2_000)), (900, 2, 0, 2_000, None)],
    );
    expect(&key.refund(1_700, 2, Some(900), &five), 0, 2_000, Some(2_000));
    expect(&key.refund(1_700, 2, Some(1_900), &five), 2, 2_000, None);
    let two = limit(ModelAlgorithm::FixedWindow, 2, 2, 1_000);
    expect(&key.peek(1_800, 1, &two), 0, 2_000, Some(2_000));
    expect(&key.take(2_000, 2, &two), 0, 3_000, None);
}

#[test]
fn sliding_log_rows() {
    let three = limit(ModelAlgorithm::SlidingLog, 3, 3, 1_000);
    let mut key = play(
        &three,
        &[
            (0, 1, 2, 1_000, None),
            (400, 2, 0, 1_400, None),
            (500, 2, 0, 1_400, Some(1_400)),
            (500, 1, 0, 1_400, Some(1_000)),
            (1_000, 1, 0, 2_000, None),
            (700, 1, 0, 2_000, Some(1_400)),
        ],
    );
    expect(&key.refund(1_000, 5, Some(401), &three), 0, 2_000, Some(1_400));
    expect(&key.refund(1_000, 5, Some(400), &three), 2, 2_000, None);
    expect(&key.refund(1_000, 5, None, &three), 3, 1_000, None);
}

#[test]
fn sliding_counter_rows() {
    let ten = limit(ModelAlgorithm::SlidingCounter, 10, 10, 1_000);
    let mut key = play(
        &ten,
        &[
            (0, 8, 2, 2_000, None),
            (1_000, 5, 2, 2_000, Some(1_375)),
            (1_375, 5, 0, 3_000, None),
            (1_375, 6, 0, 3_000, Some(2_200)),
            (900, 1, 0, 3_000, Some(1_500)),
        ],
    );
    expect(&key.refund(1_375, 4, Some(1_375), &ten), 4, 3_000, None);
    expect(&key.refund(1_375, 4, Some(999), &ten), 6, 3_000, None);
    expect(&key.refund(1_375, 4, None, &ten), 9, 2_000, None);
}

#[test]
fn sliding_counter_with_a_coarse_tick() {
    let year = 366 * DAY;
    let billion = 1_000_000_000;
    let coarse = limit(ModelAlgorithm::SlidingCounter, billion, billion, year);
    // The tick is 10 s; half of the year's ticks pass until half of the count has expired.
    let rows = [
        (0, billion, 0, 2 * year, None),
        (year + 1, billion / 2, 0, 2 * year, Some(year + year / 2)),
        (year + year / 2, billion / 2, 0, 3 * year, None),
    ];
    play(&coarse, &rows);
}

#[test]
fn marks_settle_with_hysteresis() {
    let ten = limit(ModelAlgorithm::FixedWindow, 10, 10, 1_000);
    let mut key = ModelKey::new();
    assert_eq!(key.take(0, 8, &ten).mark, ModelMark::Normal);
    assert_eq!(key.take(0, 1, &ten).mark, ModelMark::Warning);
    assert_eq!(key.take(0, 2, &ten).mark, ModelMark::Throttled);
    assert_eq!(key.take(0, 11, &ten).mark, ModelMark::Warning);
    assert_eq!(key.take(0, 1, &ten).mark, ModelMark::Throttled);
    assert_eq!(key.refund(0, 2, None, &ten).mark, ModelMark::Warning);
    assert_eq!(key.refund(0, 2, None, &ten).mark, ModelMark::Normal);
    assert_eq!(key.peek(0, 5, &ten).mark, ModelMark::Throttled);
}

#[test]
fn chains_charge_all_or_none() {
    let charge = |name: &str, quota, shadow| -> ModelCharge {
        let limit = limit(ModelAlgorithm::FixedWindow, quota, quota, 1_000 * quota);
        let (cost, fit, taken_at) = (1, ModelFit::Whole, None);
        ModelCharge { key: name.to_owned(), limit, cost, fit, taken_at, shadow }
    };
    let costing = |cost, charges: &[ModelCharge]| -> Vec<ModelCharge> {
        charges.iter().map(|charge| ModelCharge { cost, ..charge.clone() }).collect()
    };
    let chain = [charge("a", 4, false), charge("b", 8, false), charge("c", 1, true)];
    let mut model = Model::new();
    let first = model.take(0, &costing(2, &chain));
    assert!(first.allowed && first.answers[2].never_fits);
    assert_eq!((first.binding, first.answers[2].remaining), (0, 1));
    let second = model.take(0, &costing(3, &chain));
    assert_eq!((second.allowed, second.binding), (false, 0));
    assert_eq!((second.answers[1].allowed, second.answers[1].remaining), (true, 6));
    assert_eq!(model.take(0, &costing(7, &chain)).binding, 0);
    assert_eq!(model.take(0, &costing(9, &chain)).binding, 0);
    assert_eq!(model.take(0, &costing(7, &chain[1..])).binding, 0);
    assert_eq!(model.refund(0, &chain).answers[0].remaining, 3);
    model.reset(&["a".to_owned()]);
    let last = model.peek(0, &costing(4, &chain));
    assert_eq!((last.allowed, last.binding), (true, 1));
}

#[test]
fn charges_of_a_chain_have_their_own_costs() {
    let charge = |name: &str, cost, fit| {
        let limit = limit(ModelAlgorithm::FixedWindow, 10, 10, 1_000);
        ModelCharge { key: name.to_owned(), limit, cost, fit, taken_at: None, shadow: false }
    };
    let mut model = Model::new();
    let remaining = |decision: super::ModelDecision| -> Vec<u64> {
        decision.answers.iter().map(|answer| answer.remaining).collect()
    };
    let chain =
        [charge("a", 4, ModelFit::Whole), charge("b", 7, ModelFit::Whole), charge("c", 0, ModelFit::Whole)];
    assert_eq!(remaining(model.take(0, &chain)), [6, 3, 10]);
    assert_eq!(remaining(model.take(0, &chain)), [6, 3, 10], "the second limit denies: none is charged");
    // One of seven tokens is available: the rest is debt, up to ten.
    let late = [charge("a", 25, ModelFit::Overdraw), charge("b", 7, ModelFit::Overdraw)];
    let decision = model.take(0, &late);
    assert_eq!(decision.answers.iter().map(|answer| answer.uncharged).collect::<Vec<_>>(), [9, 0]);
    assert_eq!(remaining(decision), [0, 0]);
    assert!(!model.take(0, &late).allowed, "nothing remains");
    let forced = model.take(0, &[charge("a", 5, ModelFit::Forced), charge("b", 5, ModelFit::Forced)]);
    assert!(forced.allowed);
    assert_eq!((forced.answers[0].uncharged, forced.answers[1].uncharged), (5, 0));
    assert_eq!(remaining(model.peek(1_000, &chain)), [10, 10, 10], "debt ends with its window");
}
