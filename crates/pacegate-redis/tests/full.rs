//! A Redis that is out of memory and evicts nothing: it keeps deciding for existing keys, and the
//! failure mode applies only to limits that need a new key.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, ChainDecision, Counter, Identity, Key, Limit, Reason, Timestamp};
use pacegate_memory::MemoryStore;
use pacegate_redis::{RedisOptions, RedisStore};
use pacegate_store::{
    Action, Charge, Command, FailureMode, GuardedStore, Idempotency, Outcome, Store, StoreError, StoreHealth,
};
use pacegate_testkit::effort;
use pacegate_testkit::server::{RedisCluster, RedisServer};

const HOUR: Duration = Duration::from_secs(3_600);

async fn connect(url: &str) -> RedisStore {
    RedisStore::connect(RedisOptions::new(url.parse().unwrap())).await.unwrap()
}

fn guard(redis: &RedisStore) -> Arc<GuardedStore> {
    let local = Arc::new(MemoryStore::default());
    GuardedStore::new("default", Arc::new(redis.clone()), local, Duration::from_secs(5))
}

fn fill(server: &RedisServer) {
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let rejected = server.command(&["SET", "anything", "new"]);
    assert!(rejected.starts_with("OOM") || rejected.starts_with("MOVED"), "{rejected}");
}

fn free_memory(server: &RedisServer) {
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
}

fn limit(algorithm: Algorithm, quota: u64) -> Limit {
    Limit::try_new(algorithm, quota, HOUR).unwrap()
}

/// Limits by identity, charged in one command.
struct Chain(Vec<(Counter, String, Limit, FailureMode)>);

impl Chain {
    fn one(identifier: &str, limit: Limit) -> Self {
        Self(Vec::new()).and("user", identifier, limit)
    }

    fn and(mut self, dimension: &str, identifier: &str, limit: Limit) -> Self {
        let counter = Counter::new("full", dimension, "");
        self.0.push((counter, identifier.to_owned(), limit, FailureMode::Open));
        self
    }

    /// Sets the failure mode of the limit that was added last.
    fn failing(mut self, mode: FailureMode) -> Self {
        self.0.last_mut().unwrap().3 = mode;
        self
    }

    async fn apply(
        &self,
        store: &dyn Store,
        action: Action<'_>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        let charges: Vec<Charge<'_>> = self
            .0
            .iter()
            .map(|(counter, identifier, limit, mode)| Charge {
                on_store_error: *mode,
                ..Charge::new(Key::new(counter, identifier, ""), limit)
            })
            .collect();
        let command = Command { action, charges: &charges };
        store.apply(&command, now).await
    }

    async fn decide(&self, store: &dyn Store, action: Action<'_>) -> ChainDecision {
        decision(self.apply(store, action, None).await)
    }

    async fn take(&self, store: &dyn Store) -> ChainDecision {
        self.decide(store, Action::take()).await
    }

    async fn remaining(&self, store: &dyn Store) -> Vec<u32> {
        let decision = self.decide(store, Action::peek()).await;
        decision.answers.iter().map(|answer| answer.remaining.unwrap()).collect()
    }
}

fn decision(outcome: Result<Outcome, StoreError>) -> ChainDecision {
    match outcome.unwrap() {
        Outcome::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

fn once(key: &'static str) -> Action<'static> {
    let home = Some(Identity { dimension: "user", identifier: "u" });
    Action::Take {
        idempotency: Some(Idempotency { caller: "caller", key, fingerprint: [7; 16], home, sender: None }),
    }
}

#[tokio::test]
async fn known_key_is_charged_denied_and_refunded_by_every_algorithm() {
    let server = RedisServer::start();
    let redis = connect(&server.url()).await;
    for algorithm in Algorithm::ALL {
        let known = Chain::one(&format!("known-{algorithm}"), limit(algorithm, 3));
        assert!(known.take(&redis).await.allowed);
        fill(&server);
        assert!(known.take(&redis).await.allowed, "{algorithm}");
        assert!(known.take(&redis).await.allowed, "{algorithm}");
        assert!(!known.take(&redis).await.allowed, "{algorithm} denies at its limit");
        assert!(known.decide(&redis, Action::Refund).await.allowed, "{algorithm}");
        assert!(known.take(&redis).await.allowed, "{algorithm} allows what was refunded");
        assert!(!known.take(&redis).await.allowed, "{algorithm}");
        let new = Chain::one(&format!("new-{algorithm}"), limit(algorithm, 3));
        let error = new.apply(&redis, Action::take(), None).await.unwrap_err();
        assert!(error.is_full() && error.is_new_key(0), "{algorithm}: {error}");
        assert!(!error.is_outage() && error.is_retryable(), "{algorithm}: {error}");
        assert_eq!(new.remaining(&redis).await, [3], "{algorithm} can be peeked at");
        free_memory(&server);
        assert!(new.take(&redis).await.allowed, "{algorithm}");
        assert!(!known.take(&redis).await.allowed, "{algorithm} keeps its state");
    }
}

#[tokio::test]
async fn counter_ahead_of_the_clock_is_corrected_on_a_full_redis() {
    let server = RedisServer::start();
    let redis = connect(&server.url()).await;
    let start = Timestamp::from_micros(1_790_000_000_000_000);
    let back = Timestamp::from_micros(start.as_micros() - 10 * 3_600_000_000);
    for algorithm in Algorithm::ALL {
        free_memory(&server);
        let known = Chain::one(&format!("ahead-{algorithm}"), limit(algorithm, 1));
        assert!(decision(known.apply(&redis, Action::take(), Some(start)).await).allowed);
        fill(&server);
        let denied = decision(known.apply(&redis, Action::take(), Some(back)).await);
        assert!(!denied.allowed, "{algorithm}");
        let later = Timestamp::from_micros(back.as_micros() + 2 * 3_600_000_000);
        assert!(decision(known.apply(&redis, Action::take(), Some(later)).await).allowed, "{algorithm}");
    }
}

#[tokio::test]
async fn nothing_is_charged_when_one_of_several_keys_is_new() {
    let server = RedisServer::start();
    let redis = connect(&server.url()).await;
    let five = limit(Algorithm::SlidingLog, 5);
    let known = Chain::one("u", five).and("apikey", "k", limit(Algorithm::FixedWindow, 5));
    assert!(known.take(&redis).await.allowed);
    fill(&server);
    let chain = Chain::one("u", five).and("apikey", "k", limit(Algorithm::FixedWindow, 5)).and(
        "ip",
        "10.0.0.1",
        limit(Algorithm::TokenBucket, 5),
    );
    let error = chain.apply(&redis, Action::take(), None).await.unwrap_err();
    assert!(error.is_full(), "{error}");
    assert_eq!([0, 1, 2].map(|index| error.is_new_key(index)), [false, false, true]);
    let error = known.apply(&redis, once("new"), None).await.unwrap_err();
    assert!(error.is_full(), "a record is a new key as well: {error}");
    assert_eq!([0, 1].map(|index| error.is_new_key(index)), [false, false]);
    assert_eq!(known.remaining(&redis).await, [4, 4]);
    let anchor = Chain(Vec::new()).apply(&redis, once("anchor"), None).await.unwrap_err();
    assert!(anchor.is_full(), "{anchor}");
    free_memory(&server);
    let admitted = known.decide(&redis, once("new")).await;
    assert!(admitted.allowed && !admitted.replayed, "the rejected take left no record");
}

#[tokio::test]
async fn failure_mode_applies_only_to_new_keys_and_the_breaker_stays_closed() {
    let server = RedisServer::start();
    let redis = connect(&server.url()).await;
    let store = guard(&redis);
    let (two, many) = (limit(Algorithm::FixedWindow, 2), limit(Algorithm::FixedWindow, 1_000));
    let limited = Chain::one("limited", two);
    for _ in 0..2 {
        assert!(limited.take(&*store).await.allowed);
    }
    let heavy = Chain::one("heavy", many);
    assert!(heavy.take(&*store).await.allowed);
    fill(&server);
    for number in 0..200 {
        let identifier = format!("made-up-{number}");
        let open = Chain::one(&identifier, two).take(&*store).await;
        assert_eq!(open.answers[0].reason, Some(Reason::FailOpen));
        // An invented identity in the same check affects neither a user over the limit nor one
        // below it.
        let beside = Chain::one("limited", two).and("ip", &identifier, two).take(&*store).await;
        assert!(!beside.allowed && beside.answers[0].reason == Some(Reason::LimitExceeded), "{beside:?}");
        let beside = Chain::one("heavy", many).and("ip", &identifier, two).take(&*store).await;
        assert!(beside.allowed && beside.answers[1].reason == Some(Reason::FailOpen), "{beside:?}");
        assert!(!limited.take(&*store).await.allowed);
    }
    assert_eq!(heavy.remaining(&*store).await, [1_000 - 201], "each check was counted");
    assert_eq!(store.health(), StoreHealth::Up);
    let figure = |name: &str| {
        store.figures().into_iter().find(|(other, _)| *other == name).map(|(_, figure)| figure.value())
    };
    assert_eq!(["full", "errors", "breaker_openings"].map(figure), [Some(400), Some(0), Some(0)]);

    let closed = Chain::one("heavy", many).and("ip", "closed", two).failing(FailureMode::Closed);
    let denied = closed.take(&*store).await;
    assert!(!denied.allowed && denied.answers[1].reason == Some(Reason::FailClosed), "{denied:?}");
    assert_eq!(heavy.remaining(&*store).await, [1_000 - 201], "denied checks charge nothing");
    let local = Chain::one("heavy", many).and("ip", "local", two).failing(FailureMode::Local);
    let decided: Vec<bool> =
        [local.take(&*store).await, local.take(&*store).await, local.take(&*store).await]
            .iter()
            .map(|decision| decision.allowed)
            .collect();
    assert_eq!(decided, [true, true, false], "local counters decide");
    assert_eq!(heavy.remaining(&*store).await, [1_000 - 203]);
    let first = heavy.decide(&*store, once("again")).await;
    let second = heavy.decide(&*store, once("again")).await;
    assert!(first.allowed && second.allowed && second.replayed, "{second:?}");
    assert_eq!(heavy.remaining(&*store).await, [1_000 - 204], "the record is stored in this process");
}

#[tokio::test]
async fn node_starts_on_a_full_redis() {
    let server = RedisServer::start();
    let known = Chain::one("known", limit(Algorithm::Gcra, 2));
    assert!(known.take(&connect(&server.url()).await).await.allowed);
    fill(&server);
    let redis = connect(&server.url()).await;
    assert!(known.take(&redis).await.allowed);
    assert!(!known.take(&redis).await.allowed);
}

#[tokio::test]
async fn full_cluster_still_denies_limited_users() {
    let mut cluster = RedisCluster::start(3, 0);
    let redis = connect(&cluster.url()).await;
    let store = guard(&redis);
    let (two, many) = (limit(Algorithm::FixedWindow, 2), limit(Algorithm::SlidingLog, 1_000));
    let limited = Chain::one("limited", two);
    let heavy = Chain::one("heavy", many);
    for _ in 0..2 {
        assert!(limited.take(&*store).await.allowed);
        assert!(heavy.take(&*store).await.allowed);
    }
    cluster.servers().iter().for_each(fill);
    // The invented addresses and keys are in all slots, so each slot comes first at times.
    for number in 0..50 {
        let identifier = format!("made-up-{number}");
        let beside =
            |user, limit| Chain::one(user, limit).and("ip", &identifier, two).and("apikey", &identifier, two);
        let denied = beside("limited", two).take(&*store).await;
        assert!(!denied.allowed, "{denied:?}");
        let counted = beside("heavy", many).take(&*store).await;
        assert!(counted.allowed && counted.answers[1].reason == Some(Reason::FailOpen), "{counted:?}");
    }
    assert_eq!(heavy.remaining(&*store).await, [1_000 - 52]);
    assert_eq!(store.health(), StoreHealth::Up);
}

#[tokio::test]
async fn flood_evicts_active_limits_under_every_policy_but_noeviction() {
    let policies = [
        "noeviction",
        "volatile-ttl",
        "allkeys-lru",
        "volatile-lru",
        "allkeys-lfu",
        "volatile-lfu",
        "allkeys-random",
        "volatile-random",
    ];
    let policies = &policies[..effort(3, 8)];
    let server = RedisServer::start();
    let redis = connect(&server.url()).await;
    let once_an_hour = limit(Algorithm::FixedWindow, 1);
    let a_day = Limit::try_new(Algorithm::FixedWindow, 1, 24 * HOUR).unwrap();
    for policy in policies {
        server.command(&["FLUSHALL"]);
        let users: Vec<Chain> =
            (0..100).map(|number| Chain::one(&format!("{policy}-{number}"), once_an_hour)).collect();
        for user in &users {
            assert!(user.take(&redis).await.allowed);
        }
        let memory = server.command(&["INFO", "memory"]);
        let used = memory.lines().find_map(|line| line.trim().strip_prefix("used_memory:")).unwrap();
        let maxmemory = used.parse::<u64>().unwrap() + 1_000_000;
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        server.command(&["CONFIG", "SET", "maxmemory", &maxmemory.to_string()]);
        let counter = Counter::new("flood", "user", "");
        let identifiers: Vec<String> =
            (0..12_000).map(|number| format!("{policy}-made-up-{number}")).collect();
        for identifiers in identifiers.chunks(1_000) {
            let charges: Vec<[Charge<'_>; 1]> = identifiers
                .iter()
                .map(|identifier| [Charge::new(Key::new(&counter, identifier, ""), &a_day)])
                .collect();
            let commands: Vec<Command<'_>> = charges.iter().map(|charges| Command::take(charges)).collect();
            redis.apply_batch(&commands, None).await;
        }
        let keys: u32 = server.command(&["DBSIZE"]).parse().unwrap();
        assert!((2_000..10_000).contains(&keys), "{policy}: only a part of the flood fits, {keys} keys");
        let mut freed = 0;
        for user in &users {
            freed += u32::from(user.take(&redis).await.allowed);
        }
        match *policy {
            "noeviction" => assert_eq!(freed, 0),
            "volatile-ttl" => assert!(freed >= 90, "{freed}"),
            _ => assert!(freed >= 10, "{policy}: {freed}"),
        }
        println!("PASS redis-full policy={policy} keys={keys} freed={freed}");
        free_memory(&server);
    }
}

async fn connect_with_budget(server: &RedisServer, new_keys_per_second: u64) -> RedisStore {
    let mut options = RedisOptions::new(server.url().parse().unwrap());
    options.new_keys_per_second = Some(new_keys_per_second);
    RedisStore::connect(options).await.unwrap()
}

#[tokio::test]
async fn new_keys_beyond_the_budget_are_rejected_and_known_keys_decided() {
    let server = RedisServer::start();
    let (per_second, flood) = (5, 2_000);
    let redis = connect_with_budget(&server, per_second).await;
    let known = Chain::one("known", limit(Algorithm::FixedWindow, 1_000_000));
    assert!(known.take(&redis).await.allowed);
    let started = tokio::time::Instant::now();
    let mut made = 0;
    for number in 0..flood {
        let new = Chain::one(&format!("made-up-{number}"), limit(Algorithm::FixedWindow, 3));
        match new.apply(&redis, Action::take(), None).await {
            Ok(_) => made += 1,
            Err(error) => {
                assert!(error.rejects_new_keys() && !error.is_full() && error.is_new_key(0), "{error}");
                // It can be peeked at, and a cost above its limit is denied as usual.
                assert_eq!(new.remaining(&redis).await, [3]);
            }
        }
        assert!(known.take(&redis).await.allowed);
    }
    let seconds = started.elapsed().as_secs() + 2;
    assert!(made <= per_second * seconds, "{made} in {seconds} s");
    assert!(made < flood, "{made}");
    // A short-lived key costs no significant memory.
    let short = Limit::try_new(Algorithm::FixedWindow, 3, Duration::from_secs(1)).unwrap();
    let redis = connect_with_budget(&server, 1).await;
    for number in 0..100 {
        assert!(Chain::one(&format!("short-{number}"), short).take(&redis).await.allowed);
    }
}

#[tokio::test]
async fn local_counters_decide_new_keys_beyond_the_budget() {
    let server = RedisServer::start();
    let redis = connect_with_budget(&server, 1).await;
    let store = guard(&redis);
    let (two, many) = (limit(Algorithm::FixedWindow, 2), limit(Algorithm::FixedWindow, 1_000_000));
    let heavy = Chain::one("heavy", many);
    assert!(heavy.take(&*store).await.allowed);
    let (mut local, mut taken) = (0, 1);
    for number in 0..200 {
        let identifier = format!("made-up-{number}");
        // The failure mode `open` does not apply here; otherwise a caller could disable its own
        // limit.
        let chain = Chain::one("heavy", many).and("ip", &identifier, two);
        let decided = [chain.take(&*store).await, chain.take(&*store).await, chain.take(&*store).await];
        taken += decided.iter().filter(|decision| decision.allowed).count();
        if decided.iter().all(|decision| decision.answers[1].reason == Some(Reason::LocalFallback)) {
            assert_eq!(decided.map(|decision| decision.allowed), [true, true, false]);
            local += 1;
        }
    }
    assert!(local > 0);
    let left = heavy.remaining(&*store).await[0];
    assert_eq!(1_000_000 - usize::try_from(left).unwrap(), taken, "the known key is charged each time");
    assert_eq!(store.health(), StoreHealth::Up);
}
