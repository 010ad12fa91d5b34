//! Keys that an earlier version wrote are read by this one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use pacegate_core::{Algorithm, ChainDecision, Cost, Counter, Fit, Key, Limit, Timestamp};
use pacegate_redis::{RedisOptions, RedisStore};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, Store};
use pacegate_testkit::server::RedisServer;

/// When the keys were written: 8 of 10 per minute were taken from each counter, and one more from
/// the fixed window under an idempotency key.
const WRITTEN_AT: Timestamp = Timestamp::from_micros(1_790_000_000_123_456);
/// Written by version 0.1.0, before charges had costs of their own. Strings, in hexadecimal digits.
const STRINGS: [(&str, &str); 6] = [
    (
        "rl:{user:u}:token_bucket:",
        "010100000a00000000000000389c8c410000000060e3864100099f68fb6f19430000000000000000",
    ),
    (
        "rl:{user:u}:leaky_bucket:",
        "010200000a00000000000000389c8c410000000060e3864100099f68fb6f19430000000000000000",
    ),
    ("rl:{user:u}:gcra:", "010600000a00000000000000389c8c410000000060e3864100099f68fb6f19430000000000000000"),
    (
        "rl:{user:u}:sliding_counter:",
        "010500000a00000000000000389c8c410000005087737c4100000000000020400000000000000000",
    ),
    (
        "rl:{user:u}:fixed_window:",
        "010301000a00000000000000389c8c410000005087737c4100000000000022400000000000000000",
    ),
    (
        "rl:{idempotency:6:caller:key}:idempotency:6:caller:key",
        "010707070707070707070707070707070766eccbfbfecc35b91100099f68fb6f19430101000100010000000000000000e82072fb6f194\
         3000000000000f0bf0000000000000000",
    ),
];
const WRITE: &str = "redis.call('SET', KEYS[1], (string.gsub(ARGV[1], '..', function(byte) \
                     return string.char(tonumber(byte, 16)) end)), 'PX', 60000)";

async fn store_with_old_keys(server: &RedisServer) -> RedisStore {
    for (key, digits) in STRINGS {
        server.command(&["EVAL", WRITE, "1", key, digits]);
    }
    server.command(&["ZADD", "rl:{user:u}:sliding_log:", "1790000000123456", "8:8:60000000:0"]);
    RedisStore::connect(RedisOptions::new(server.url().parse().unwrap())).await.unwrap()
}

async fn decide(
    store: &RedisStore,
    action: Action<'_>,
    algorithm: Algorithm,
    cost: u64,
    fit: Fit,
) -> ChainDecision {
    let counter = Counter::new(algorithm.name(), "user", "");
    let limit = Limit::try_new(algorithm, 10, Duration::from_secs(60)).unwrap();
    let charge = Charge::new(Key::new(&counter, "u", ""), &limit);
    let charges = [Charge { cost: Cost::try_new(cost).unwrap(), fit, ..charge }];
    match store.apply(&Command { action, charges: &charges }, Some(WRITTEN_AT)).await.unwrap() {
        Outcome::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn counters_of_an_earlier_version_are_used() {
    let server = RedisServer::start();
    let store = store_with_old_keys(&server).await;
    for algorithm in Algorithm::ALL {
        let used = if algorithm == Algorithm::FixedWindow { 9 } else { 8 };
        let left = decide(&store, Action::peek(), algorithm, 1, Fit::Whole).await.remaining();
        assert_eq!(left, Some(10 - used), "{algorithm}");
        assert!(!decide(&store, Action::take(), algorithm, 3, Fit::Whole).await.allowed, "{algorithm}");
        assert!(decide(&store, Action::take(), algorithm, 1, Fit::Whole).await.allowed, "{algorithm}");
        // Debt is stored in the same form.
        let forced = decide(&store, Action::take(), algorithm, 30, Fit::Forced).await;
        assert_eq!(forced.answers[0].uncharged, 30 - (20 - used - 1), "{algorithm}");
    }
}

#[tokio::test]
async fn admission_of_an_earlier_version_is_replayed() {
    let server = RedisServer::start();
    let store = store_with_old_keys(&server).await;
    let idempotency =
        Idempotency { caller: "caller", key: "key", fingerprint: [7; 16], home: None, sender: None };
    let take = Action::Take { idempotency: Some(idempotency) };
    let replayed = decide(&store, take, Algorithm::FixedWindow, 1, Fit::Whole).await;
    assert!(replayed.replayed && replayed.allowed);
    assert_eq!((replayed.remaining(), replayed.at), (Some(1), WRITTEN_AT));
}
