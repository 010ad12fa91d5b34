//! Fault injection: real servers, real signals, real failovers.
//!
//! Each test reports what was admitted, what was lost, and how long it took. `scripts/reliability`
//! runs them for longer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit, Reason};
use pacegate_memory::MemoryStore;
use pacegate_redis::{RedisOptions, RedisStore};
use pacegate_store::{Charge, Command, FailureMode, GuardedStore, Outcome, Store, StoreHealth};
use pacegate_testkit::effort;
use pacegate_testkit::load::{Fate, Load, Report};
use pacegate_testkit::server::{Fault, FaultProxy, RedisCluster, RedisSentinels, RedisServer};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};

const DEADLINE: Duration = GuardedStore::DEADLINE;
/// For tests in which the store has to decide every request, even if the machine stalls for a
/// moment.
const NO_HURRY: Duration = Duration::from_secs(2);
const SEED: u64 = 20_261_116;

/// One fault at a time: they are measured, and the machine is small.
static TURN: Mutex<()> = Mutex::const_new(());

async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

async fn connect(url: &str) -> (Arc<GuardedStore>, Arc<RedisStore>) {
    connect_with(url, DEADLINE).await
}

async fn connect_with(url: &str, deadline: Duration) -> (Arc<GuardedStore>, Arc<RedisStore>) {
    let redis = Arc::new(RedisStore::connect(RedisOptions::new(url.parse().unwrap())).await.unwrap());
    (GuardedStore::new("default", redis.clone(), Arc::new(MemoryStore::default()), deadline), redis)
}

/// A limit that is never exceeded, in one window that no test outlives.
fn plenty() -> Limit {
    Limit::try_new(Algorithm::FixedWindow, 100_000_000, Duration::from_secs(366 * 86_400)).unwrap()
}

fn figure(store: &dyn Store, name: &str) -> u64 {
    store.figures().into_iter().find(|(other, _)| *other == name).unwrap().1.value()
}

/// Prints one line of measurements; `scripts/reliability` collects them.
fn pass(name: &str, report: &Report, figures: &str) {
    println!(
        "PASS {name} seed={SEED} requests={} admitted={} degraded={} degraded_ms={} slowest_ms={} noise_ms={} {figures}",
        report.records.len(),
        report.count(Fate::Admitted),
        report.count(Fate::Degraded),
        report.degraded_for().as_millis(),
        report.slowest().as_millis(),
        report.lateness.as_millis(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted() {
    let _turn = turn().await;
    // Every write is on disk before it is acknowledged, so no admission may be lost.
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (store, _) = connect(&server.url()).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    let rounds = effort(1, 10);
    let (mut back_at, mut slowest_return) = (Instant::now(), Duration::ZERO);
    for _ in 0..rounds {
        sleep(Duration::from_millis(400)).await;
        server.kill();
        sleep(Duration::from_millis(effort(700, 3_000))).await;
        server.restart();
        back_at = Instant::now();
        while store.health() != StoreHealth::Up && back_at.elapsed() < Duration::from_secs(5) {
            sleep(Duration::from_millis(5)).await;
        }
        slowest_return = slowest_return.max(back_at.elapsed());
    }
    let report = running.stop_when_healthy(back_at, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    let used = load.used(&*store).await;
    let admitted = report.count(Fate::Admitted);
    assert!(report.count(Fate::Degraded) > 0);
    assert!(used >= admitted, "admissions are never lost: {admitted} admitted, {used} counted");
    // Requests in flight when the server died may have been counted without a response.
    let uncertain = used - admitted;
    let at_most = report.timed_out(DEADLINE).max(load.callers as u64 * rounds);
    assert!(uncertain <= at_most, "at most {at_most} are counted without a response, got {uncertain}");
    let back = report.healthy_after(back_at).unwrap();
    assert!(back.max(slowest_return) <= Duration::from_secs(2), "{back:?} {slowest_return:?}");
    pass(
        "redis-killed",
        &report,
        &format!("lost=0 uncertain={uncertain} back_ms={}", back.max(slowest_return).as_millis()),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen() {
    let _turn = turn().await;
    let server = RedisServer::start();
    let (store, _) = connect(&server.url()).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(300)).await;
    server.freeze();
    sleep(Duration::from_millis(effort(1_500, 30_000))).await;
    server.thaw();
    let thawed_at = Instant::now();
    let report = running.stop_when_healthy(thawed_at, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    let admitted = report.count(Fate::Admitted);
    let used = load.used(&*store).await;
    let back = report.healthy_after(thawed_at).unwrap();
    assert!(figure(&*store, "breaker_openings") >= 1);
    assert!(back <= Duration::from_secs(2), "{back:?}");
    assert!(used >= admitted, "admissions are never lost: {admitted} admitted, {used} counted");
    // Most responses while the breaker is open are immediate.
    let median = report.percentile(Fate::Degraded, 0.5);
    assert!(median <= Duration::from_millis(3) + report.lateness, "{median:?}");
    pass(
        "redis-frozen",
        &report,
        &format!(
            "uncertain={} back_ms={} open_median_us={}",
            used - admitted,
            back.as_millis(),
            median.as_micros()
        ),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_refused_and_cut_off() {
    let _turn = turn().await;
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address().parse().unwrap()).await;
    let (store, _) = connect(&format!("redis://{}", proxy.address())).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(200)).await;
    proxy.set(Fault::Refuse);
    proxy.cut();
    sleep(Duration::from_millis(effort(500, 10_000))).await;
    proxy.set(Fault::None);
    let back_at = Instant::now();
    let report = running.stop_when_healthy(back_at, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    assert!(report.count(Fate::Degraded) > 0);
    let at_most = report.timed_out(DEADLINE).max(load.callers as u64);
    assert!((admitted..=admitted + at_most).contains(&used), "{admitted} {used}");
    let back = report.healthy_after(back_at).unwrap();
    assert!(back <= Duration::from_secs(2), "{back:?}");
    pass("redis-refused", &report, &format!("uncertain={} back_ms={}", used - admitted, back.as_millis()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_dropped_after_execution() {
    let _turn = turn().await;
    let server = RedisServer::start();
    for idempotent in [false, true] {
        server.command(&["FLUSHALL"]);
        let proxy = FaultProxy::start(server.address().parse().unwrap()).await;
        // A command that is sent again needs a new connection first.
        let deadline = if idempotent { NO_HURRY } else { DEADLINE };
        let (store, redis) = connect_with(&format!("redis://{}", proxy.address()), deadline).await;
        let load = Load { idempotent, ..Load::new(plenty()) };
        let running = load.clone().start(store.clone());
        proxy.set(Fault::CutReplies { one_in: 20, seed: SEED });
        sleep(Duration::from_millis(effort(1_500, 30_000))).await;
        // Fewer would show nothing, and a slow machine takes longer to lose them.
        let enough = async {
            while proxy.dropped() <= 10 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(30), enough).await.expect("replies are dropped");
        proxy.set(Fault::None);
        let report = running.stop_when_healthy(Instant::now(), Duration::from_secs(5)).await;
        report.assert_punctual(deadline);
        let dropped = proxy.dropped();
        let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
        let total = report.records.len() as u64;
        assert!(used >= admitted, "every admission is counted: {admitted} admitted, {used} counted");
        assert!(used <= total, "no request is charged twice: {used} charged, {total} sent");
        if idempotent {
            // A command that may have run is sent again under its key, and charged once.
            assert!(figure(&*redis, "resends") > 0);
            assert!(report.count(Fate::Degraded) * 10 < total, "{}", report.count(Fate::Degraded));
        } else {
            assert!(used > admitted, "some commands ran without a reply");
        }
        let name = if idempotent { "redis-dropped-idempotent" } else { "redis-dropped" };
        pass(name, &report, &format!("dropped={dropped} uncertain={} charged_twice=0", used - admitted));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_dropped_without_an_end() {
    let _turn = turn().await;
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address().parse().unwrap()).await;
    let (store, _) = connect(&format!("redis://{}", proxy.address())).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(200)).await;
    proxy.set(Fault::DropReplies);
    sleep(Duration::from_millis(effort(800, 10_000))).await;
    proxy.set(Fault::None);
    let back_at = Instant::now();
    let report = running.stop_when_healthy(back_at, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    assert!(used > admitted && used <= report.records.len() as u64, "{admitted} {used}");
    let back = report.healthy_after(back_at).unwrap();
    assert!(back <= Duration::from_secs(2), "{back:?}");
    pass("redis-black-hole", &report, &format!("uncertain={} back_ms={}", used - admitted, back.as_millis()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flushed_all_the_time() {
    let _turn = turn().await;
    let server = RedisServer::start();
    let (store, redis) = connect_with(&server.url(), NO_HURRY).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    for _ in 0..effort(20, 600) {
        sleep(Duration::from_millis(50)).await;
        server.command(&["SCRIPT", "FLUSH"]);
    }
    let report = running.stop().await;
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    assert_eq!(admitted, report.records.len() as u64, "callers do not notice a flush");
    assert_eq!(used, admitted);
    let loads = figure(&*redis, "script_loads");
    assert!(loads > 10, "{loads}");
    pass("redis-script-flush", &report, &format!("script_loads={loads} errors=0"));
}

async fn take(store: &dyn Store, identifier: &str, mode: FailureMode) -> pacegate_core::ChainDecision {
    let (counter, limit) = (Counter::new("load", "user", ""), plenty());
    let charge = Charge { on_store_error: mode, ..Charge::new(Key::new(&counter, identifier, ""), &limit) };
    match store.apply(&Command::take(&[charge]), None).await.unwrap() {
        Outcome::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_change() {
    let _turn = turn().await;
    let server = RedisServer::start_with(&["--requirepass", "first"]);
    let url = |password: &str| format!("redis://:{password}@{}", server.address());
    let rejected = RedisStore::connect(RedisOptions::new(url("wrong").parse().unwrap())).await.unwrap_err();
    assert!(rejected.is_permanent(), "{rejected}");
    assert!(rejected.to_string().contains("rejected the user name or password"), "{rejected}");
    assert!(!rejected.to_string().contains("wrong"), "{rejected}");

    let (store, _) = connect(&url("first")).await;
    assert!(!take(&*store, "u", FailureMode::Closed).await.degraded());
    let admin = |arguments: &[&str], password: &str| {
        server.command(&[&["-a", password, "--no-auth-warning"], arguments].concat())
    };
    admin(&["CONFIG", "SET", "requirepass", "second"], "first");
    admin(&["CLIENT", "KILL", "TYPE", "normal"], "second");
    // The old connections are gone; new ones use the wrong password.
    let mut decision = take(&*store, "u", FailureMode::Closed).await;
    for _ in 0..50 {
        if store.health() == StoreHealth::Rejected {
            break;
        }
        sleep(Duration::from_millis(10)).await;
        decision = take(&*store, "u", FailureMode::Closed).await;
    }
    assert_eq!(store.health(), StoreHealth::Rejected, "the node is not ready");
    assert!(!decision.allowed);
    assert_eq!(decision.answers[0].reason, Some(Reason::FailClosed), "a rejection does not fail open");
    admin(&["CONFIG", "SET", "requirepass", "first"], "second");
    let since = Instant::now();
    while store.health() != StoreHealth::Up && since.elapsed() < Duration::from_secs(5) {
        sleep(Duration::from_millis(10)).await;
        take(&*store, "u", FailureMode::Closed).await;
    }
    assert_eq!(store.health(), StoreHealth::Up);
    println!("PASS redis-password seed={SEED} back_ms={}", since.elapsed().as_millis());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_values_under_our_keys() {
    let _turn = turn().await;
    let server = RedisServer::start();
    let (store, _) = connect(&server.url()).await;
    let foreign: [(&str, &[&str]); 5] = [
        ("list", &["RPUSH", "rl:{user:list}:load:", "x"]),
        ("text", &["SET", "rl:{user:text}:load:", "hello"]),
        ("hash", &["HSET", "rl:{user:hash}:load:", "a", "b"]),
        ("set", &["ZADD", "rl:{user:set}:load:", "1", "not-ours"]),
        ("forty", &["SET", "rl:{user:forty}:load:", "0123456789012345678901234567890123456789"]),
    ];
    for (identifier, write) in foreign {
        server.command(write);
        let before = server.command(&["DUMP", &format!("rl:{{user:{identifier}}}:load:")]);
        for (mode, reason) in
            [(FailureMode::Closed, Reason::FailClosed), (FailureMode::Open, Reason::FailOpen)]
        {
            let decision = take(&*store, identifier, mode).await;
            assert_eq!(decision.allowed, mode == FailureMode::Open);
            assert!(decision.degraded(), "{identifier}");
            assert_eq!(decision.answers[0].reason, Some(reason));
            assert_eq!(decision.remaining(), None, "no counts are reported");
        }
        let after = server.command(&["DUMP", &format!("rl:{{user:{identifier}}}:load:")]);
        assert_eq!(before, after, "foreign values are not changed");
    }
    for _ in 0..100 {
        take(&*store, "list", FailureMode::Closed).await;
    }
    assert_eq!(store.health(), StoreHealth::Up, "one foreign key is not an outage");
    assert!(!take(&*store, "another-user", FailureMode::Closed).await.degraded());
    println!("PASS redis-foreign seed={SEED} kinds={}", foreign.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover() {
    let _turn = turn().await;
    for _ in 0..effort(1, 5) {
        fail_over("redis-sentinel-failover", RedisServer::kill).await;
    }
    // A frozen primary rejects nothing: only the deadline detects it. Later it wakes up as a
    // replica.
    for _ in 0..effort(1, 5) {
        fail_over("redis-sentinel-frozen", |server| server.freeze()).await;
    }
}

async fn fail_over(name: &str, strike: impl Fn(&mut RedisServer)) {
    let mut sentinels = RedisSentinels::start(2, 3);
    let (store, redis) = connect(&sentinels.url()).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(500)).await;
    let primary = sentinels.primary_port();
    let server = sentinels.servers().iter_mut().find(|server| server.port() == primary).unwrap();
    strike(server);
    let killed_at = Instant::now();
    let report = running.stop_when_healthy(killed_at, Duration::from_secs(15)).await;
    report.assert_punctual(DEADLINE);
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    assert_ne!(sentinels.primary_port(), primary);
    assert_eq!(figure(&*redis, "primary_changes"), 1, "a change of primary is counted once");
    let lost = admitted.saturating_sub(used);
    assert!(lost <= load.callers as u64 * 4, "{lost} admissions were lost");
    assert!(report.degraded_for() <= Duration::from_secs(8), "{:?}", report.degraded_for());
    pass(
        name,
        &report,
        &format!("lost={lost} uncertain={} primary_changes=1", used.saturating_sub(admitted)),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_primary_that_still_responds_is_abandoned() {
    let _turn = turn().await;
    let mut sentinels = RedisSentinels::start(2, 3);
    for server in sentinels.servers() {
        server.command(&["ACL", "SETUSER", "gate", "on", ">secret", "~*", "+@all"]);
    }
    let url = sentinels.url().replacen("://", "://gate:secret@", 1);
    let store = RedisStore::connect(RedisOptions::new(url.parse().unwrap())).await.unwrap();
    take(&store, "before", FailureMode::Closed).await;
    // Sentinels and replicas use other users than we do: they lose the primary, we do not.
    let before = sentinels.primary_port();
    let old = sentinels.servers().iter().find(|server| server.port() == before).unwrap();
    let as_gate =
        |arguments: &[&str]| old.command(&[&["--user", "gate", "--pass", "secret"], arguments].concat());
    as_gate(&["ACL", "SETUSER", "default", "off"]);
    as_gate(&["CLIENT", "KILL", "USER", "default"]);
    let replaced = async {
        while sentinels.primary_port() == before {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(60), replaced).await.expect("the sentinels agree on another primary");
    let since = Instant::now();
    let left = async {
        // The old primary responds all the time.
        while figure(&store, "primary_changes") == 0 {
            take(&store, "during", FailureMode::Closed).await;
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), left).await.expect("the old primary is abandoned");
    let left_after = since.elapsed();
    take(&store, "after", FailureMode::Closed).await;
    let port = sentinels.primary_port();
    let new = sentinels.servers().iter().find(|server| server.port() == port).unwrap();
    assert_eq!(new.command(&["EXISTS", "rl:{user:after}:load:"]), "1", "the new primary decides");
    println!("PASS redis-sentinel-cut-off seed={SEED} left_ms={}", left_after.as_millis());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_primary_is_killed_or_freezes() {
    let _turn = turn().await;
    for _ in 0..effort(1, 5) {
        lose_a_primary("redis-cluster-failover", RedisServer::kill).await;
        lose_a_primary("redis-cluster-frozen", |server| server.freeze()).await;
    }
}

async fn lose_a_primary(name: &str, strike: impl Fn(&mut RedisServer)) {
    let mut cluster = RedisCluster::start(3, 1);
    let (store, redis) = connect(&cluster.url()).await;
    // Enough identifiers to reach every node.
    let load =
        Load { identifiers: (0..30).map(|number| format!("user-{number}")).collect(), ..Load::new(plenty()) };
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(500)).await;
    let owner = cluster.owner_of(0);
    strike(&mut cluster.servers()[owner]);
    let killed_at = Instant::now();
    let mut failed_over = false;
    while !failed_over && killed_at.elapsed() < Duration::from_secs(15) {
        sleep(Duration::from_millis(100)).await;
        failed_over = figure(&*redis, "primary_changes") > 0 && store.health() == StoreHealth::Up;
    }
    let report = running.stop_when_healthy(Instant::now(), Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    let last_degraded = report.records.iter().rfind(|record| record.fate == Fate::Degraded).unwrap();
    let degraded_for = last_degraded.sent.duration_since(killed_at);
    assert!(report.healthy_after(killed_at + degraded_for).is_some(), "the load recovers");
    assert_eq!(figure(&*redis, "primary_changes"), 1, "a change of primary is counted once");
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    let lost = admitted.saturating_sub(used);
    assert!(lost <= load.callers as u64 * 4, "{lost} admissions were lost");
    assert!(degraded_for <= Duration::from_secs(8), "{degraded_for:?}");
    // Two thirds of the keys are on other nodes, which keep deciding.
    let during = report.records.iter().filter(|record| {
        record.sent > killed_at && record.sent < killed_at + degraded_for && record.fate == Fate::Admitted
    });
    let served = during.count();
    assert!(served > 0, "the other nodes keep deciding");
    pass(name, &report, &format!("lost={lost} served_meanwhile={served} primary_changes=1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_migrates_under_load() {
    let _turn = turn().await;
    let cluster = RedisCluster::start(3, 0);
    let (store, redis) = connect_with(&cluster.url(), NO_HURRY).await;
    // Two limits per request: while their slot migrates, their keys are on different nodes.
    let second = (Counter::new("second", "user", ""), plenty());
    let mut load = Load::new(plenty());
    load.limits.push(second);
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(300)).await;
    let slot = crc16::State::<crc16::XMODEM>::calculate(b"user:user-1") % 16_384;
    let moves = effort(2, 20);
    let cluster = tokio::task::spawn_blocking(move || {
        for _ in 0..moves {
            let to = (cluster.owner_of(slot) + 1) % 3;
            cluster.migrate_slot(slot, to, Duration::from_millis(8));
        }
        cluster
    })
    .await
    .unwrap();
    let report = running.stop_when_healthy(Instant::now(), Duration::from_secs(5)).await;
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    let resends = figure(&*redis, "resends");
    assert!(resends > 0, "the migration causes resends");
    assert_eq!(report.count(Fate::Failed), 0, "every request gets a decision");
    assert_eq!(used, admitted, "a migration loses nothing and counts nothing twice");
    assert_eq!(figure(&*redis, "primary_changes"), 0, "a slot migration is not a change of primary");
    pass("redis-slot-moved", &report, &format!("moves={moves} resends={resends} lost=0"));
    drop(cluster);
}
