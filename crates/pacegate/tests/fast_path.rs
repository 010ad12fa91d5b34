//! The fast path of `check_now`, for one known identity and one plan with a single limit, decides
//! like the general path.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Algorithm, Answer, Check, Cost, Decision, Limit, Limiter, MemoryOptions, MemoryStore, Timestamp,
};
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

/// Everything observable about a decision.
fn seen(decision: &Decision) -> (bool, Timestamp, &[Answer], Vec<&str>) {
    let names = decision.limits().iter().map(|limit| &*limit.name).collect();
    (decision.allowed(), decision.at(), decision.answers(), names)
}

#[tokio::test]
async fn both_paths_decide_alike() {
    for algorithm in ALGORITHMS {
        let clock = Arc::new(SimulatedClock::default());
        let (short, long) = (limiter(algorithm, &clock), limiter(algorithm, &clock));
        let (mut allowed, mut denied) = (0, 0);
        for step in 0_u64..2_000 {
            // Irregular costs and pauses, so that each limit allows about half of the checks.
            clock.advance(Duration::from_micros(step * 7_919 % 900_001));
            let cost = Cost::try_new(1 + step * step % 3).unwrap();
            let user = if step % 5 == 0 { "b" } else { "a" };
            let check = Check::new("apikey", user).plan("gold").cost(cost);
            let (now, later) = (short.check_now(&check).unwrap(), long.check(&check).await.unwrap());
            assert_eq!(seen(&now), seen(&later), "{algorithm} at step {step}");
            if now.allowed() { allowed += 1 } else { denied += 1 }
        }
        assert!(allowed > 200 && denied > 200, "{algorithm}: {allowed} allowed, {denied} denied");
    }
}

#[tokio::test]
async fn key_is_decided_like_its_check() {
    for algorithm in ALGORITHMS {
        let clock = Arc::new(SimulatedClock::default());
        let limit = Limit::try_new(algorithm, 10, Duration::from_secs(7)).unwrap();
        let limiter = || {
            let store = MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
            Limiter::builder().memory(Arc::new(store)).default_limit(limit).build().unwrap()
        };
        let (short, long) = (limiter(), limiter());
        let (mut allowed, mut denied) = (0, 0);
        for step in 0_u64..1_000 {
            clock.advance(Duration::from_micros(step * 7_919 % 900_001));
            let user = if step % 5 == 0 { "b" } else { "a" };
            for _ in 0..2 {
                let now = short.check_now(user).unwrap();
                assert_eq!(seen(&now), seen(&long.check(Check::key(user)).await.unwrap()), "{algorithm}");
                if now.allowed() { allowed += 1 } else { denied += 1 }
            }
        }
        assert!(allowed > 200 && denied > 200, "{algorithm}: {allowed} allowed, {denied} denied");
    }
}

#[tokio::test]
async fn every_method_accepts_a_key_or_a_check() {
    let limiter = Limiter::new(Limit::per_hour(10)).unwrap();
    let (owned, check) = (String::from("k"), Check::key("k"));
    let left = |decision: Decision| decision.remaining();
    assert_eq!(left(limiter.check_now("k").unwrap()), Some(9));
    assert_eq!(left(limiter.check_now(&owned).unwrap()), Some(8));
    assert_eq!(left(limiter.check_now(Check::key("k").cost(2)).unwrap()), Some(6));
    assert_eq!(left(limiter.check(&check).await.unwrap()), Some(5));
    let taken = limiter.wait(&owned, Duration::ZERO).await.unwrap();
    assert_eq!(left(limiter.peek("k").await.unwrap()), Some(4));
    assert_eq!(left(limiter.refund("k", &taken).await.unwrap()), Some(5));
    limiter.reset(check).await.unwrap();
    assert_eq!(left(limiter.peek(&owned).await.unwrap()), Some(10));
    assert!(limiter.check_now("").is_err(), "a key is validated like an identifier");
    assert!(limiter.plan("gold").is_err());
    assert!(Limiter::new(Limit::per_hour(0)).is_err());
}

#[test]
fn fast_path_uses_new_rules_and_rejects_unknown_plans() {
    let clock = Arc::new(SimulatedClock::default());
    let limiter = limiter(Algorithm::TokenBucket, &clock);
    let check = Check::key("a").plan("gold");
    assert_eq!(limiter.check_now(&check).unwrap().remaining(), Some(9));
    assert_eq!(limiter.check_now(&check).unwrap().remaining(), Some(8));
    let larger = Limit::try_new(Algorithm::TokenBucket, 20, Duration::from_secs(7)).unwrap();
    limiter.replace(Limiter::builder().plan("gold", [larger])).unwrap();
    assert_eq!(limiter.check_now(&check).unwrap().remaining(), Some(17));
    limiter.replace(Limiter::builder()).unwrap();
    assert_eq!(limiter.check_now(&check).unwrap_err().to_string(), "unknown plan `gold`");
    assert_eq!(limiter.check_now("b").unwrap().limits().len(), 0);
    limiter.replace(Limiter::builder().default_limit(Limit::per_hour(2))).unwrap();
    let left = [(); 3].map(|()| limiter.check_now("b").unwrap().remaining());
    assert_eq!(left, [Some(1), Some(0), Some(0)]);
}
