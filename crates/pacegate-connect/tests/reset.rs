//! A reset clears every counter of an identity at an endpoint, in every kind of store, whichever
//! limiter created it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Algorithm, Check, FailureMode, Limit, Limiter, LimiterBuilder, MemoryStore, Pattern, Profile, Rule,
    Stores,
};
use pacegate_redis::{RedisOptions, RedisStore};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::Store;
use pacegate_testkit::server::{MariaDb, Postgres, RedisCluster, RedisServer};

/// Longer than a busy machine takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One request in a window longer than any test; `shape` distinguishes windows.
fn once(algorithm: Algorithm, shape: u64) -> Limit {
    Limit::try_new(algorithm, 1, Duration::from_secs(366 * 86_400 - shape)).unwrap()
}

fn rule(tier: Option<&str>, shape: u64) -> Rule {
    let mut rule = Rule::new("per-user", "user", once(Algorithm::FixedWindow, shape));
    rule.tier = tier.map(Into::into);
    rule.endpoint = Pattern::parse("/rule/{*rest}").unwrap();
    rule
}

/// The node that creates the counters.
fn maker(stores: Stores) -> Limiter {
    let builder = Limiter::builder().rule(rule(None, 1)).rule(rule(Some("premium"), 2));
    build(
        builder.plan("gold", [once(Algorithm::Gcra, 1_000)]).default_limit(once(Algorithm::Gcra, 1_000)),
        stores,
    )
}

/// The node that resets them. Its rules have other windows, and it has no default limit.
fn resetter(stores: Stores) -> Limiter {
    let builder = Limiter::builder().rule(rule(None, 3));
    build(builder.plan("gold", [once(Algorithm::TokenBucket, 2_000)]), stores)
}

fn build(builder: LimiterBuilder, stores: Stores) -> Limiter {
    // An unavailable store must not look like one that was reset.
    builder.stores(stores).on_store_error(FailureMode::Closed).build().unwrap()
}

async fn allowed(limiter: &Limiter, check: &Check<'_>) -> bool {
    let decision = limiter.check(check).await.unwrap();
    assert!(decision.answers().iter().all(|answer| !answer.degraded), "{decision:?}");
    decision.allowed()
}

async fn resets_are_complete(making: Stores, resetting: Stores) {
    let (maker, resetter) = (maker(making), resetter(resetting));
    let long = format!("/{}", "long/".repeat(200));
    let premium = Profile { tier: Some("premium".into()), ..Profile::default() };
    let ad_hoc = |user: &'static str, endpoint, algorithm, shape| {
        Check::new("user", user).endpoint(endpoint).limit(once(algorithm, shape))
    };
    // Cleared by a reset of user `u` at the endpoint.
    let mut forgotten: Vec<(&str, Check<'_>)> =
        Algorithm::ALL.into_iter().map(|algorithm| ("/x", ad_hoc("u", "/x", algorithm, 2_000))).collect();
    forgotten.extend([
        ("/x", ad_hoc("u", "/x", Algorithm::Gcra, 3_000)),
        (&*long, ad_hoc("u", &long, Algorithm::TokenBucket, 1_000)),
        ("/rule/x", Check::new("user", "u").endpoint("/rule/x")),
        ("/rule/x", Check::new("user", "u").endpoint("/rule/x").profile(&premium)),
        ("/default", Check::new("user", "u").endpoint("/default")),
        ("/plan", Check::new("user", "u").endpoint("/plan").plan("gold")),
    ]);
    // Not cleared by it.
    let kept = [
        ad_hoc("v", "/x", Algorithm::Gcra, 3_000),
        ad_hoc("u:", "/x", Algorithm::Gcra, 3_000),
        ad_hoc("u", "/x/y", Algorithm::Gcra, 3_000),
        ad_hoc("u", "/*", Algorithm::Gcra, 3_000),
        Check::new("tenant", "u").endpoint("/x").limit(once(Algorithm::Gcra, 3_000)),
        Check::new("user", "v").endpoint("/rule/x"),
        Check::new("user", "u").endpoint("/default/other"),
    ];
    for check in forgotten.iter().map(|(_, check)| check).chain(&kept) {
        assert!(allowed(&maker, check).await, "{check:?}");
        assert!(!allowed(&maker, check).await, "{check:?}");
    }
    for endpoint in ["/x", &*long, "/rule/x", "/default", "/plan"] {
        resetter.reset(&Check::new("user", "u").endpoint(endpoint)).await.unwrap();
        for (_, check) in forgotten.iter().filter(|(at, _)| *at == endpoint) {
            assert!(allowed(&maker, check).await, "{endpoint} is reset: {check:?}");
        }
    }
    for check in &kept {
        assert!(!allowed(&maker, check).await, "{check:?}");
    }
    // Wildcards in an identifier are literal.
    let star = ad_hoc("*", "/x", Algorithm::Gcra, 3_000);
    assert!(allowed(&maker, &star).await);
    resetter.reset(&Check::new("user", "*").endpoint("/x")).await.unwrap();
    assert!(allowed(&maker, &star).await);
    assert!(!allowed(&maker, &kept[0]).await);
}

fn remote(store: impl Store + 'static) -> Stores {
    Stores::remote(Arc::new(store), TIMEOUT)
}

#[tokio::test]
async fn in_memory() {
    let store = Arc::new(MemoryStore::default());
    resets_are_complete(Stores::memory(store.clone()), Stores::memory(store.clone())).await;
    let before = store.keys();
    let (maker, resetter) = (maker(Stores::memory(store.clone())), resetter(Stores::memory(store.clone())));
    let check = Check::new("user", "counted").endpoint("/x").limit(once(Algorithm::SlidingLog, 5));
    assert!(allowed(&maker, &check).await);
    resetter.reset(&Check::new("user", "counted").endpoint("/x")).await.unwrap();
    assert_eq!(store.keys(), before, "the number of keys is correct");
}

async fn redis(url: &str) -> Stores {
    remote(RedisStore::connect(RedisOptions::new(url.parse().unwrap())).await.unwrap())
}

#[tokio::test]
async fn on_redis() {
    let server = RedisServer::start();
    resets_are_complete(redis(&server.url()).await, redis(&server.url()).await).await;
    assert_eq!(server.command(&["--scan", "--pattern", "rl:{user:u}:ad-hoc:*"]).lines().count(), 10);
}

#[tokio::test]
async fn on_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    resets_are_complete(redis(&cluster.url()).await, redis(&cluster.url()).await).await;
}

async fn sql(url: &str) -> Stores {
    remote(SqlStore::connect(SqlOptions::new(url).unwrap()).await.unwrap())
}

#[tokio::test]
async fn on_postgres() {
    let server = Postgres::start();
    resets_are_complete(sql(&server.url()).await, sql(&server.url()).await).await;
}

#[tokio::test]
async fn on_mariadb() {
    let server = MariaDb::start();
    resets_are_complete(sql(&server.url()).await, sql(&server.url()).await).await;
}

/// More shapes than one step of a search covers, with other keys between them.
#[tokio::test]
async fn of_more_shapes_than_one_step_covers() {
    let (postgres, mariadb, server) = (Postgres::start(), MariaDb::start(), RedisServer::start());
    for stores in [sql(&postgres.url()).await, sql(&mariadb.url()).await, redis(&server.url()).await] {
        let (maker, resetter) = (maker(stores.clone()), resetter(stores));
        let check = |shape, endpoint| {
            Check::new("user", "u").endpoint(endpoint).limit(once(Algorithm::FixedWindow, shape))
        };
        for endpoint in ["/a", "/b"] {
            let checks: Vec<Check<'_>> = (0..700).map(|shape| check(shape, endpoint)).collect();
            assert!(maker.check_each(&checks).await.into_iter().all(|decision| decision.unwrap().allowed()));
        }
        resetter.reset(&Check::new("user", "u").endpoint("/a")).await.unwrap();
        let checks: Vec<Check<'_>> = (0..700).map(|shape| check(shape, "/a")).collect();
        assert!(maker.check_each(&checks).await.into_iter().all(|decision| decision.unwrap().allowed()));
        assert!(!allowed(&maker, &check(1, "/b")).await);
    }
}
