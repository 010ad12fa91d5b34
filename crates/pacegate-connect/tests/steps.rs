//! A request that one store can hold is one step, whatever its costs: one script call, one
//! transaction.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Check, Cost, Limit, Limiter, Stores,
    descriptor::{Descriptor, DescriptorRule, Hits, PathEntry},
};
use pacegate_redis::{RedisOptions, RedisStore};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::Store;
use pacegate_testkit::server::{MariaDb, RedisServer};

/// Three limits that a request reaches through its descriptors or plans.
fn limiter(store: Arc<dyn Store>) -> Limiter {
    let limit = || Limit::per_hour(100).build().unwrap();
    let mut builder = Limiter::builder().stores(Stores::remote(store, Duration::from_secs(5)));
    for name in ["a", "b", "c"] {
        builder = builder.plan(name, [limit()]);
        builder = builder.descriptor(DescriptorRule::path([PathEntry::any(name)], limit()));
    }
    builder.build().unwrap()
}

fn cost(cost: u64) -> Cost {
    Cost::try_new(cost).unwrap()
}

/// Hits of 1, 2 and 5, as sent by Envoy.
async fn check_descriptors(limiter: &Limiter) {
    let descriptor = |name: &'static str, hits| Descriptor::new([(name, "x")]).hits(Hits::Take(cost(hits)));
    let descriptors = [descriptor("a", 1), descriptor("b", 2), descriptor("c", 5)];
    let decision = limiter.check_descriptors("edge", &descriptors).await.unwrap();
    assert!(decision.allowed && !decision.degraded());
    let left: Vec<Option<u32>> =
        decision.outcomes.iter().map(|outcome| outcome.decision.remaining()).collect();
    assert_eq!(left, [Some(99), Some(98), Some(95)]);
}

/// Checks of one identity with costs of 1, 2 and 5, decided as one.
async fn check_all(limiter: &Limiter) {
    let check = |plan, own| Check::new("user", "u").plan(plan).cost(cost(own));
    let decision = limiter.check_all(&[check("a", 1), check("b", 2), check("c", 5)]).await.unwrap();
    assert!(decision.allowed() && !decision.degraded());
    let left: Vec<Option<u32>> = decision.answers().iter().map(|answer| answer.remaining).collect();
    assert_eq!(left, [Some(99), Some(98), Some(95)]);
}

/// The number of calls of the script.
fn script_calls(server: &RedisServer) -> u64 {
    let statistics = server.command(&["INFO", "commandstats"]);
    let line = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn different_costs_are_one_script_call() {
    let server = RedisServer::start();
    let store = RedisStore::connect(RedisOptions::new(server.url().parse().unwrap())).await.unwrap();
    let limiter = limiter(Arc::new(store));
    // The probe of the store runs the script once a second, so the lower of two counts is used.
    let mut fewest = [u64::MAX; 2];
    for _ in 0..2 {
        server.command(&["FLUSHALL"]);
        let before = script_calls(&server);
        check_descriptors(&limiter).await;
        let between = script_calls(&server);
        check_all(&limiter).await;
        let after = script_calls(&server);
        fewest = [fewest[0].min(between - before), fewest[1].min(after - between)];
    }
    assert_eq!(fewest, [1, 1]);
}

/// The number of committed transactions.
fn commits(server: &MariaDb) -> u64 {
    let status = server.query("SHOW GLOBAL STATUS LIKE 'Com_commit'");
    status.split_whitespace().last().unwrap().parse().unwrap()
}

#[tokio::test]
async fn different_costs_are_one_transaction() {
    let server = MariaDb::start();
    let store = SqlStore::connect(SqlOptions::new(&server.url()).unwrap()).await.unwrap();
    let limiter = limiter(Arc::new(store));
    let before = commits(&server);
    check_descriptors(&limiter).await;
    let between = commits(&server);
    check_all(&limiter).await;
    assert_eq!((between - before, commits(&server) - between), (1, 1));
}
