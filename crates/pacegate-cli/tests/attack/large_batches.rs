//! Large batches must not fail the checks of other callers.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pacegate_testkit::effort;
use pacegate_testkit::server::{Postgres, RedisCluster, RedisServer};

use crate::callers::{Caller, alone, quantile, timed, yield_to_service};
use crate::process::{Service, file};

/// A user that is over its limit long before the attack begins.
const LOGIN: &str = r#"{"user_id":"victim","endpoint":"/login"}"#;
/// A decision that the store did not make.
const FAIL_OPEN: &str = "FAIL_OPEN";

/// `checks` checks of as many users, each with further identities, whose names differ from `round` to `round`.
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

/// How the caller of single checks fared.
struct Served {
    p50: Duration,
    p99: Duration,
    fail_open: usize,
    /// Checks of the user over its limit that passed, and that got no decision.
    passed: usize,
    refused: usize,
}

/// Sends `checks` single checks at a steady pace.
fn single_checks(service: &Service, checks: usize) -> Served {
    let mut caller = Caller::connect(service);
    let mut served = Served { p50: Duration::ZERO, p99: Duration::ZERO, fail_open: 0, passed: 0, refused: 0 };
    let mut took = Vec::new();
    for _ in 0..checks {
        let ((status, body), took_one) = timed(|| caller.ask("/v1/rate-limit/check", LOGIN));
        took.push(took_one);
        served.fail_open += usize::from(body.contains(FAIL_OPEN));
        served.passed += usize::from(status == 200);
        served.refused += usize::from(status == 503);
        thread::sleep(Duration::from_millis(10));
    }
    (served.p50, served.p99) = (quantile(&mut took, 0.5), quantile(&mut took, 0.99));
    served
}

/// How large the attack is.
struct Attack {
    name: &'static str,
    connections: usize,
    checks: usize,
    identities: usize,
    /// The least time from the start of one batch of a connection to the next.
    pause: Duration,
}

/// Runs the attack beside a caller of single checks, and compares it with the same caller before the attack.
fn run(attack: &Attack, service: &Service) {
    let innocent = effort(100, 1_000);
    // The first logins use up the limit.
    single_checks(service, 10);
    let quiet = single_checks(service, innocent);
    assert_eq!((quiet.fail_open, quiet.passed, quiet.refused), (0, 0, 0), "before the attack");

    let over = AtomicBool::new(false);
    let [answered, refused, fail_open] = [const { AtomicUsize::new(0) }; 3];
    let attacked = thread::scope(|scope| {
        for connection in 0..attack.connections {
            let (over, answered, refused, fail_open) = (&over, &answered, &refused, &fail_open);
            scope.spawn(move || {
                yield_to_service();
                let mut caller = Caller::connect(service);
                for round in 0.. {
                    let body = batch(attack.checks, attack.identities, connection * 1_000 + round % 4);
                    let ((status, answer), took) = timed(|| caller.ask("/v1/rate-limit/batch-check", &body));
                    let decided = usize::from(status == 200);
                    answered.fetch_add(decided, Ordering::Relaxed);
                    refused.fetch_add(1 - decided, Ordering::Relaxed);
                    fail_open.fetch_add(answer.matches(FAIL_OPEN).count(), Ordering::Relaxed);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(attack.pause.saturating_sub(took));
                }
            });
        }
        // Every attacker has its first batch under way.
        thread::sleep(Duration::from_millis(100));
        let attacked = single_checks(service, innocent);
        over.store(true, Ordering::Relaxed);
        attacked
    });
    let [answered, refused, own] = [answered, refused, fail_open].map(AtomicUsize::into_inner);
    let Attack { name, connections, checks, identities, .. } = attack;
    let figures = format!(
        "connections={connections} checks={checks} identities={identities} batches={answered} batches_refused={refused} \
         batches_fail_open={own} single_checks={innocent} fail_open={} passed={} refused={} quiet_p50={:?} quiet_p99={:?} p50={:?} p99={:?}",
        attacked.fail_open,
        attacked.passed,
        attacked.refused,
        quiet.p50,
        quiet.p99,
        attacked.p50,
        attacked.p99,
    );
    assert_eq!((attacked.fail_open, attacked.passed, attacked.refused), (0, 0, 0), "{figures}");
    // A debug build beside other tests is given more time than the twice that the release build keeps. Service, store and attackers
    // share the processors here, which costs a few milliseconds more.
    let slowest =
        effort(quiet.p99 * 20 + Duration::from_millis(200), quiet.p99 * 2 + Duration::from_millis(3));
    assert!(attacked.p99 <= slowest, "{figures}");
    assert!(answered > 0, "the batches are decided too: {figures}");
    // Each check of a batch says it up to three times. A busy machine may cost a debug build a piece of a batch.
    let tolerated = effort(answered * checks / 10, 0);
    assert!(own <= tolerated, "batches on a healthy store: {figures}");
    println!("PASS attack_large_batches_{name} {figures}");
}

/// A service with a limit on logins and one on whatever a batch counts by.
fn service(store: &str) -> Service {
    let directory = tempfile::tempdir().unwrap();
    let text = "rules:\n  - {name: logins, dimension: user, endpoint: /login, algorithm: gcra, limit: 5, window: 1h}\n\
                default_limit: {algorithm: fixed_window, limit: 100000, window: 1m}\n";
    let config = file(directory.path(), text);
    // The usual deadline, or one that a debug build beside other tests keeps.
    let timeout = [("PACEGATE_FAILURE__TIMEOUT", effort("500ms", "50ms"))];
    Service::start(&["--config", &config, "--store", store], &timeout)
}

#[test]
fn large_batches_on_redis_leave_single_checks_to_the_store() {
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
fn large_batches_on_a_cluster_leave_single_checks_to_the_store() {
    let _alone = alone();
    let cluster = RedisCluster::start(3, 0);
    let pause = Duration::from_millis(100);
    let attack = Attack { name: "cluster", connections: 2, checks: 200, identities: 2, pause };
    run(&attack, &service(&cluster.url()));
}

#[test]
fn large_batches_on_a_database_leave_single_checks_to_the_store() {
    let _alone = alone();
    let database = Postgres::start();
    let pause = Duration::from_secs(1);
    let attack =
        Attack { name: "postgres", connections: 40, checks: effort(50, 1_000), identities: 1, pause };
    run(&attack, &service(&database.url()));
}
