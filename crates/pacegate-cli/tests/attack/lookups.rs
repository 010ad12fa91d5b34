//! A flood of new users must not slow down the checks of others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pacegate_testkit::effort;

use crate::callers::{Caller, alone, quantile, timed};
use crate::process::{Service, file};

const ATTACKERS: usize = 4;
/// Number of users in a batch of an attacker.
const BATCH: usize = 100;
/// Enough users that each is checked rarely.
const USERS: usize = 300;

fn check(caller: &mut Caller, user: &str) {
    let status = caller.post("/v1/rate-limit/check", &format!(r#"{{"user_id": "{user}", "endpoint": "/"}}"#));
    assert_eq!(status, 200, "{user}");
}

/// The median latency of checks of known users while attackers check the users that `of` returns,
/// and a user is changed regularly.
fn median(
    service: &Service,
    changes: bool,
    attackers: usize,
    of: impl Fn(usize, usize) -> String + Sync,
) -> (Duration, u64) {
    let (is_over, attacks) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for attacker in 0..attackers {
            let (is_over, attacks, of) = (&is_over, &attacks, &of);
            scope.spawn(move || {
                let mut caller = Caller::connect(service);
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let of = |index| of(attacker, number * BATCH + index);
                    let check = |index| format!(r#"{{"user_id": "{}", "endpoint": "/"}}"#, of(index));
                    let checks: Vec<String> = (0..BATCH).map(check).collect();
                    let body = format!(r#"{{"checks": [{}]}}"#, checks.join(","));
                    assert_eq!(caller.post("/v1/rate-limit/batch-check", &body), 200);
                    attacks.fetch_add(BATCH as u64, Ordering::Relaxed);
                }
            });
        }
        if changes {
            scope.spawn(|| {
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let body = format!(r#"{{"tier": "tier-{number}"}}"#);
                    let (status, _) = service.ask("PUT", "/api/v1/users/changed/tier", &body).unwrap();
                    assert_eq!(status, 200);
                    thread::sleep(effort(Duration::from_millis(200), Duration::from_secs(1)));
                }
            });
        }
        let mut caller = Caller::connect(service);
        let count = effort(USERS, 20 * USERS);
        let mut took: Vec<Duration> = (0..count)
            .map(|number| {
                // The checks are spread over several changes.
                thread::sleep(Duration::from_millis(2));
                timed(|| check(&mut caller, &format!("known-{}", number % USERS))).1
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        let median = quantile(&mut took, 0.5);
        (median, attacks.load(Ordering::Relaxed))
    })
}

#[test]
fn flood_of_new_users_does_not_affect_other_callers() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), "default_limit: none\n");
    let catalog = format!("sqlite://{}", directory.path().join("catalog.db").display());
    let environment = [("PACEGATE_CATALOG__URL", &*catalog), ("PACEGATE_ADMIN_KEY", "secret")];
    let service = Service::start(&["--config", &config], &environment);
    for number in 0..USERS {
        let path = format!("/api/v1/users/known-{number}/tier");
        assert_eq!(service.ask("PUT", &path, r#"{"tier": "gold"}"#).unwrap().0, 200);
    }
    let (quiet, _) = median(&service, false, 0, |_, _| String::new());
    // The same load with a known user shows the cost without lookups.
    let (busy, _) = median(&service, false, ATTACKERS, |_, _| "known-0".to_owned());
    let made_up = |attacker, number| format!("made-up-{attacker}-{number}");
    let (attacked, attacks) = median(&service, true, ATTACKERS, made_up);
    let most = (2 * busy).max(2 * quiet) + Duration::from_millis(effort(50, 5));
    assert!(
        attacked <= most,
        "median {attacked:?}, {busy:?} under load of a known user, {quiet:?} without load"
    );
    let micros = |duration: Duration| duration.as_micros();
    println!(
        "PASS attack_lookups attacks={attacks} p50_quiet_us={} p50_busy_us={} p50_attacked_us={}",
        micros(quiet),
        micros(busy),
        micros(attacked)
    );
}
