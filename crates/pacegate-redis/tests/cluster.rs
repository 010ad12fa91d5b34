//! The test suite on a real Redis Cluster of three nodes, and chains whose keys are spread over its
//! slots.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, ChainDecision, Counter, Identity, Key, Limit, Timestamp};
use pacegate_redis::{RedisOptions, RedisStore};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, Store};
use pacegate_testkit::server::{RedisCluster, Served};

async fn cluster() -> Arc<dyn Store> {
    let cluster = RedisCluster::start(3, 0);
    let options = RedisOptions::new(cluster.url().parse().unwrap());
    Arc::new(Served::new(RedisStore::connect(options).await.unwrap(), cluster))
}

pacegate_testkit::store_suite!(cluster(), histories = pacegate_testkit::effort(100, 1_000));

const START: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

const HOME: Option<Identity<'static>> = Some(Identity { dimension: "user", identifier: "u" });

/// A chain over a user, an address and a key, which are in different slots.
struct Chain {
    counters: [Counter; 3],
    limits: [Limit; 3],
}

impl Chain {
    fn new(quotas: [u64; 3]) -> Self {
        let counter = |dimension| Counter::new("spread", dimension, "");
        let limit = |algorithm, quota| Limit::try_new(algorithm, quota, Duration::from_secs(3_600)).unwrap();
        Self {
            counters: [counter("user"), counter("ip"), counter("apikey")],
            limits: [
                limit(Algorithm::SlidingLog, quotas[0]),
                limit(Algorithm::TokenBucket, quotas[1]),
                limit(Algorithm::FixedWindow, quotas[2]),
            ],
        }
    }

    async fn apply(&self, store: &dyn Store, action: Action<'_>, identifiers: [&str; 3]) -> Outcome {
        let keys = self
            .counters
            .iter()
            .zip(identifiers)
            .map(|(counter, identifier)| Key::new(counter, identifier, ""));
        let charges: Vec<Charge<'_>> =
            keys.zip(&self.limits).map(|(key, limit)| Charge::new(key, limit)).collect();
        let command = Command { action, charges: &charges };
        store.apply(&command, Some(START)).await.unwrap()
    }

    async fn decide(&self, store: &dyn Store, action: Action<'_>, identifiers: [&str; 3]) -> ChainDecision {
        match self.apply(store, action, identifiers).await {
            Outcome::Decided(decision) => decision,
            other => panic!("{other:?}"),
        }
    }
}

fn remaining(decision: &ChainDecision) -> Vec<u32> {
    decision.answers.iter().map(|answer| answer.remaining.unwrap()).collect()
}

#[tokio::test]
async fn chain_over_slots_charges_all_or_refunds_exactly() {
    let store = cluster().await;
    // Each of the three limits denies in turn, whichever slot comes last.
    for tight in 0..3 {
        let mut quotas = [10, 10, 10];
        quotas[tight] = 1;
        let chain = Chain::new(quotas);
        let names: Vec<String> = ["user", "ip", "key"].iter().map(|name| format!("{name}-{tight}")).collect();
        let identifiers = [names[0].as_str(), names[1].as_str(), names[2].as_str()];
        let first = chain.decide(&*store, Action::take(), identifiers).await;
        assert!(first.allowed);
        let second = chain.decide(&*store, Action::take(), identifiers).await;
        assert!(!second.allowed);
        assert_eq!(second.binding_index(), tight);
        let mut expected = vec![9, 9, 9];
        expected[tight] = 0;
        assert_eq!(remaining(&second), expected, "a denied chain charges nothing");
        assert_eq!(remaining(&chain.decide(&*store, Action::peek(), identifiers).await), expected);
        // After a reset, everything is available again.
        assert!(matches!(chain.apply(&*store, Action::Reset, identifiers).await, Outcome::Reset { .. }));
        assert!(chain.decide(&*store, Action::take(), identifiers).await.allowed);
    }
}

#[tokio::test]
async fn spread_chain_is_idempotent() {
    let store = cluster().await;
    let chain = Chain::new([1, 5, 5]);
    let identifiers = ["u", "10.0.0.1", "k"];
    let take = |body| Action::Take {
        idempotency: Some(Idempotency {
            caller: "caller",
            key: "once",
            fingerprint: [body; 16],
            home: HOME,
            sender: None,
        }),
    };
    let first = chain.decide(&*store, take(1), identifiers).await;
    assert!(first.allowed && !first.replayed);
    let again = chain.decide(&*store, take(1), identifiers).await;
    assert!(again.allowed && again.replayed, "a repetition is admitted although the first part is exhausted");
    assert!(matches!(chain.apply(&*store, take(2), identifiers).await, Outcome::Mismatch));
    let peek = chain.decide(&*store, Action::peek(), identifiers).await;
    assert_eq!(remaining(&peek), [0, 4, 4], "three takes under one key charge once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_spread_chains_admit_exactly_the_tightest_limit() {
    let store = cluster().await;
    let chain = Arc::new(Chain::new([1_000, 50, 1_000]));
    let mut callers = Vec::new();
    for _ in 0..32 {
        let (store, chain) = (store.clone(), chain.clone());
        callers.push(tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..10 {
                let decision = chain.decide(&*store, Action::take(), ["u", "10.0.0.1", "k"]).await;
                admitted += u32::from(decision.allowed);
            }
            admitted
        }));
    }
    let mut admitted = 0;
    for caller in callers {
        admitted += caller.await.unwrap();
    }
    assert_eq!(admitted, 50);
    let peek = chain.decide(&*store, Action::peek(), ["u", "10.0.0.1", "k"]).await;
    assert_eq!(remaining(&peek), [950, 0, 950], "denied chains charge nothing");
}

#[tokio::test]
async fn admission_is_replayed_whichever_slots_its_limits_are_in() {
    let store = cluster().await;
    let chain = Chain::new([5, 5, 5]);
    let identifiers = ["u", "10.0.0.1", "k"];
    let keys: Vec<Key<'_>> = chain
        .counters
        .iter()
        .zip(identifiers)
        .map(|(counter, identifier)| Key::new(counter, identifier, ""))
        .collect();
    let charges: Vec<Charge<'_>> =
        keys.iter().zip(&chain.limits).map(|(key, limit)| Charge::new(*key, limit)).collect();
    let take = async |key: &str, charges: &[Charge<'_>]| {
        let idempotency =
            Some(Idempotency { caller: "caller", key, fingerprint: [1; 16], home: HOME, sender: None });
        let command = Command { action: Action::Take { idempotency }, charges };
        match store.apply(&command, Some(START)).await.unwrap() {
            Outcome::Decided(decision) => decision,
            other => panic!("{other:?}"),
        }
    };
    // Any combination of limits at first and afterwards, including none.
    for before in 0..8_usize {
        let some = |mask: usize| -> Vec<Charge<'_>> {
            (0..3).filter(|index| mask & (1 << index) != 0).map(|index| charges[index]).collect()
        };
        let key = before.to_string();
        chain.apply(&*store, Action::Reset, identifiers).await;
        assert!(!take(&key, &some(before)).await.replayed);
        for after in 0..8 {
            let again = take(&key, &some(after)).await;
            assert!(again.allowed && again.replayed, "{before} {after}");
            assert_eq!(again.answers.len(), some(after).len());
        }
        let left = remaining(&chain.decide(&*store, Action::peek(), identifiers).await);
        let expected: Vec<u32> = (0..3).map(|index| if before & (1 << index) != 0 { 4 } else { 5 }).collect();
        assert_eq!(left, expected, "{before}: a repetition is not charged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_duplicates_of_spread_chains_are_charged_once() {
    let store = cluster().await;
    for algorithm in Algorithm::ALL {
        let limit = Limit::try_new(algorithm, 1_000, Duration::from_secs(366 * 86_400)).unwrap();
        let counters =
            Arc::new(["user", "ip"].map(|dimension| Counter::new(algorithm.name(), dimension, "")));
        let mut callers = Vec::new();
        for number in 0..400 {
            let (store, counters) = (store.clone(), counters.clone());
            callers.push(tokio::spawn(async move {
                let charges =
                    counters.each_ref().map(|counter| Charge::new(Key::new(counter, "u", ""), &limit));
                // Four callers of each key.
                let key = (number / 4).to_string();
                let idempotency = Some(Idempotency {
                    caller: algorithm.name(),
                    key: &key,
                    fingerprint: [1; 16],
                    home: HOME,
                    sender: None,
                });
                let command = Command { action: Action::Take { idempotency }, charges: &charges };
                match store.apply(&command, None).await.unwrap() {
                    Outcome::Decided(decision) => u32::from(decision.allowed && !decision.replayed),
                    other => panic!("{other:?}"),
                }
            }));
        }
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.unwrap();
        }
        assert_eq!(admitted, 100, "{algorithm}");
        let charges = counters.each_ref().map(|counter| Charge::new(Key::new(counter, "u", ""), &limit));
        let command = Command::peek(&charges);
        let Outcome::Decided(peek) = store.apply(&command, None).await.unwrap() else {
            panic!("a peek is decided");
        };
        assert_eq!(remaining(&peek), [900, 900], "{algorithm}: 100 requests are charged");
    }
}
