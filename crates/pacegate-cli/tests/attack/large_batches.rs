//! Large batches must not fail the checks of other callers.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pacegate_testkit::effort;
use pacegate_testkit::server::{Postgres, RedisCluster, RedisServer};

use crate::callers::{Caller, alone, quantile, timed, yield_to_service};
use crate::process::{Service, file};

/// A check of a user that is over its limit before the attack begins.
const LOGIN: &str = r#"{"user_id":"victim","endpoint":"/login"}"#;
/// The reason of a decision without the store.
const FAIL_OPEN: &str = "FAIL_OPEN";

/// A batch of `checks` checks with several identities each, which differ in each `round`.
fn batch(checks: usize, identities: usize, round: usize) -> String {
    let mut body = String::from(r#"{"checks":["#);
    for check in 0..checks {
        let separator = if check == 0 { "" } else { "," };
        write!(body, r#"{separator}{{"endpoint":"/a","keys":{{"#).unwrap();
        for identity in 0..identities {
            let separator = if identity == 0 { "" } else { "," };
            write!(body, r#"{separator}"d{identity}":"{round}.{check}""#).unwrap();
        }
        body.push_str("}}");
    }
    body.push_str("]}");
    body
}

/// The results of single checks.
struct Served {
    p50: Duration,
    p99: Duration,
    fail_open: usize,
    /// Number of checks of the user over its limit that were allowed, and without a decision.
    passed: usize,
    rejected: usize,
}

/// Sends `checks` single checks at a steady pace.
fn single_checks(service: &Service, checks: usize) -> Served {
    let mut caller = Caller::connect(service);
    let mut served =
        Served { p50: Duration::ZERO, p99: Duration::ZERO, fail_open: 0, passed: 0, rejected: 0 };
    let mut took = Vec::new();
    for _ in 0..checks {
        let ((status, body), took_one) = timed(|| caller.ask("/v1/rate-limit/check", LOGIN));
        took.push(took_one);
        served.fail_open += usize::from(body.contains(FAIL_OPEN));
        served.passed += usize::from(status == 200);
        served.rejected += usize::from(status == 503);
        thread::sleep(Duration::from_millis(10));
    }
    (served.p50, served.p99) = (quantile(&mut took, 0.5), quantile(&mut took, 0.99));
    served
}

/// The size of an attack.
struct Attack {
    name: &'static str,
    connections: usize,
    checks: usize,
    identities: usize,
    /// Minimum time between the starts of two batches of a connection.
    pause: Duration,
}

/// Runs the attack next to a caller of single checks, and compares it with the same caller before
/// the attack.
fn run(attack: &Attack, service: &Service) {
    let singles = effort(100, 1_000);
    // The first logins use up the limit.
    single_checks(service, 10);
    let quiet = single_checks(service, singles);
    assert_eq!((quiet.fail_open, quiet.passed, quiet.rejected), (0, 0, 0), "before the attack");

    let over = AtomicBool::new(false);
    let [decided_batches, rejected, fail_open] = [const { AtomicUsize::new(0) }; 3];
    let attacked = thread::scope(|scope| {
        for connection in 0..attack.connections {
            let (over, decided_batches, rejected, fail_open) =
                (&over, &decided_batches, &rejected, &fail_open);
            scope.spawn(move || {
                yield_to_service();
                let mut caller = Caller::connect(service);
                for round in 0.. {
                    let body = batch(attack.checks, attack.identities, connection * 1_000 + round % 4);
                    let ((status, response), took) =
                        timed(|| caller.ask("/v1/rate-limit/batch-check", &body));
                    let decided = usize::from(status == 200);
                    decided_batches.fetch_add(decided, Ordering::Relaxed);
                    rejected.fetch_add(1 - decided, Ordering::Relaxed);
                    fail_open.fetch_add(response.matches(FAIL_OPEN).count(), Ordering::Relaxed);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(attack.pause.saturating_sub(took));
                }
            });
        }
        // Every attacker has its first batch in flight.
        thread::sleep(Duration::from_millis(100));
        let attacked = single_checks(service, singles);
        over.store(true, Ordering::Relaxed);
        attacked
    });
    let [decided_batches, rejected, own] =
        [decided_batches, rejected, fail_open].map(AtomicUsize::into_inner);
    let Attack { name, connections, checks, identities, .. } = attack;
    let figures = format!(
        "connections={connections} checks={checks} identities={identities} batches={decided_batches} batches_rejected={rejected} \
         batches_fail_open={own} single_checks={singles} fail_open={} passed={} rejected={} quiet_p50={:?} quiet_p99={:?} p50={:?} p99={:?}",
        attacked.fail_open,
        attacked.passed,
        attacked.rejected,
        quiet.p50,
        quiet.p99,
        attacked.p50,
        attacked.p99,
    );
    assert_eq!((attacked.fail_open, attacked.passed, attacked.rejected), (0, 0, 0), "{figures}");
    // At full size, the bound is twice the quiet latency and 3 ms, because the service, the store
    // and the attackers share the processors. A debug build next to other tests gets more time.
    let slowest =
        effort(quiet.p99 * 20 + Duration::from_millis(200), quiet.p99 * 2 + Duration::from_millis(3));
    assert!(attacked.p99 <= slowest, "{figures}");
    assert!(decided_batches > 0, "batches are decided too: {figures}");
    // Each check of a batch has the reason up to three times. A debug build on a busy machine can
    // lose a piece of a batch.
    let tolerated = effort(decided_batches * checks / 10, 0);
    assert!(own <= tolerated, "batches on a healthy store: {figures}");
    println!("PASS attack_large_batches_{name} {figures}");
}

/// A service with a limit on logins, and a default limit for the identities of batches.
fn service(store: &str) -> Service {
    let directory = tempfile::tempdir().unwrap();
    let text = "rules:\n  - {name: logins, dimension: user, endpoint: /login, algorithm: gcra, limit: 5, window: 1h}\n\
                default_limit: {algorithm: fixed_window, limit: 100000, window: 1m}\n";
    let config = file(directory.path(), text);
    // The default deadline at full size, or a longer one for debug builds.
    let timeout = [("PACEGATE_FAILURE__TIMEOUT", effort("500ms", "50ms"))];
    Service::start(&["--config", &config, "--store", store], &timeout)
}

#[test]
fn large_batches_on_redis_do_not_affect_single_checks() {
    let _alone = alone();
    let redis = RedisServer::start();
    let attack = Attack {
        name: "redis",
        connections: 3,
        checks: 1_000,
        identities: effort(4, 14),
        pause: Duration::from_millis(166),
    };
    run(&attack, &service(&redis.url()));
}

#[test]
fn large_batches_on_a_cluster_do_not_affect_single_checks() {
    let _alone = alone();
    let cluster = RedisCluster::start(3, 0);
    let pause = Duration::from_millis(100);
    let attack = Attack { name: "cluster", connections: 2, checks: 200, identities: 2, pause };
    run(&attack, &service(&cluster.url()));
}

#[test]
fn large_batches_on_a_database_do_not_affect_single_checks() {
    let _alone = alone();
    let database = Postgres::start();
    let pause = Duration::from_secs(1);
    let attack =
        Attack { name: "postgres", connections: 40, checks: effort(50, 1_000), identities: 1, pause };
    run(&attack, &service(&database.url()));
}
