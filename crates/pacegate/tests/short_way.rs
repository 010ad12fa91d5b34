//! `check_now` has a short way for one known identity under one plan of one limit: it decides as the long way does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{Algorithm, Check, Cost, Decision, Limit, Limiter, MemoryOptions, MemoryStore};
use pacegate_testkit::SimulatedClock;

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::Gcra,
];

fn limiter(algorithm: Algorithm, clock: &Arc<SimulatedClock>) -> Limiter {
    let store = MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
    let limit = Limit::try_new(algorithm, 10, Duration::from_secs(7)).unwrap();
    Limiter::builder().memory(Arc::new(store)).plan("gold", [limit]).build().unwrap()
}

/// Everything that can be seen of a decision.
fn seen(decision: &Decision) -> (pacegate_core::Decision, Vec<&str>) {
    ((**decision).clone(), decision.limits().iter().map(|limit| &*limit.name).collect())
}

#[tokio::test]
async fn both_ways_decide_alike() {
    for algorithm in ALGORITHMS {
        let clock = Arc::new(SimulatedClock::default());
        let (short, long) = (limiter(algorithm, &clock), limiter(algorithm, &clock));
        let (mut allowed, mut denied) = (0, 0);
        for step in 0_u64..2_000 {
            // Costs and pauses of no regular pattern, at which each limit has room about half of the time.
            clock.advance(Duration::from_micros(step * 7_919 % 900_001));
            let cost = Cost::try_new(1 + step * step % 3).unwrap();
            let user = if step % 5 == 0 { "b" } else { "a" };
            let check = Check::new("apikey", user).plan("gold").cost(cost);
            let (now, later) = (short.check_now(&check).unwrap(), long.check(&check).await.unwrap());
            assert_eq!(seen(&now), seen(&later), "{algorithm} at step {step}");
            if now.allowed { allowed += 1 } else { denied += 1 }
        }
        assert!(allowed > 200 && denied > 200, "{algorithm}: {allowed} allowed, {denied} denied");
    }
}

#[test]
fn the_short_way_knows_new_rules_and_missing_plans() {
    let clock = Arc::new(SimulatedClock::default());
    let limiter = limiter(Algorithm::TokenBucket, &clock);
    let check = Check::key("a").plan("gold");
    assert_eq!(limiter.check_now(&check).unwrap().remaining(), Some(9));
    assert_eq!(limiter.check_now(&check).unwrap().remaining(), Some(8));
    let larger = Limit::try_new(Algorithm::TokenBucket, 20, Duration::from_secs(7)).unwrap();
    limiter.replace(Limiter::builder().plan("gold", [larger])).unwrap();
    assert_eq!(limiter.check_now(&check).unwrap().remaining(), Some(17));
    limiter.replace(Limiter::builder()).unwrap();
    assert_eq!(limiter.check_now(&check).unwrap_err().to_string(), "there is no plan `gold`");
}
