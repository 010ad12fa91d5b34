//! Consistency of the answers, over random histories with extreme values.

use super::{MODEL_LAST_MOMENT, ModelAlgorithm, ModelKey, ModelLimit};

const DAY: u64 = 86_400_000_000;

const ALGORITHMS: [ModelAlgorithm; 6] = [
    ModelAlgorithm::TokenBucket,
    ModelAlgorithm::LeakyBucket,
    ModelAlgorithm::Gcra,
    ModelAlgorithm::FixedWindow,
    ModelAlgorithm::SlidingLog,
    ModelAlgorithm::SlidingCounter,
];

/// A small generator, good enough to reach corner cases.
struct Wander(u64);

impl Wander {
    fn pick<Item: Copy>(&mut self, items: &[Item]) -> Item {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        items[(self.0 >> 33) as usize % items.len()]
    }
}

#[test]
fn retry_and_reset_times_are_the_earliest_even_for_extreme_values() {
    let mut wander = Wander(1);
    for round in 0..3_000 {
        let algorithm = ALGORITHMS[round % ALGORITHMS.len()];
        let window = wander.pick(&[1_000, 1_001, 999_983, DAY, 366 * DAY]);
        let mut key = ModelKey::new();
        let mut now = wander.pick(&[0, 12_345, 1 << 40, MODEL_LAST_MOMENT]);
        for _ in 0..10 {
            let tokens = [1, 3, 10, 999_999_937, 1_000_000_000];
            let limit =
                ModelLimit { algorithm, quota: wander.pick(&tokens), burst: wander.pick(&tokens), window };
            let cost = wander.pick(&tokens);
            let answer = key.take(now, cost, &limit);
            assert!(answer.remaining <= answer.capacity);
            // Only a state written under this very limit is exact to the microsecond: a change of
            // limit is rounded again with each read.
            if answer.allowed {
                let denied = key.peek(now, limit.capacity(), &limit);
                if let Some(retry_at) = denied.retry_at.filter(|time| *time < MODEL_LAST_MOMENT) {
                    assert!(key.peek(retry_at, limit.capacity(), &limit).allowed);
                    assert!(!key.peek(retry_at - 1, limit.capacity(), &limit).allowed);
                }
                let reset_at = answer.reset_at;
                if reset_at < MODEL_LAST_MOMENT {
                    assert_eq!(key.peek(reset_at, 1, &limit).reset_at, reset_at);
                    assert!(key.peek(reset_at - 1, 1, &limit).reset_at == reset_at);
                }
            }
            let step = wander.pick(&[0, 1, 999, window / 3, window, 3 * window]);
            now = if wander.pick(&[0, 1, 2]) == 0 {
                now.saturating_sub(step)
            } else {
                now.saturating_add(step)
            };
            let taken_at = wander.pick(&[None, None, Some(now), Some(0)]);
            key.refund(now, wander.pick(&[1, 2, cost]), taken_at, &limit);
        }
    }
}
