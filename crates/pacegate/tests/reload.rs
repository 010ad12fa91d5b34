//! Rule sets are swapped as a whole: a concurrent check uses one revision or the other, never a
//! mixture.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use pacegate::{Algorithm, Check, Limit, Limiter, LimiterBuilder, MemoryOptions, MemoryStore, Pattern, Rule};
use pacegate_testkit::SimulatedClock;

const THREADS: usize = 4;
const REPLACEMENTS: u32 = 1_000;
const FIRST: u32 = 100_000_000;
const SECOND: u32 = 200_000_000;

fn rule(name: &str, quota: u32) -> Rule {
    let limit = Limit::try_new(Algorithm::FixedWindow, quota.into(), Duration::from_secs(3_600)).unwrap();
    Rule::new(name, "user", limit)
}

/// Two rules that stack and identify their revision, and the default limit, which identifies it at
/// other endpoints.
fn revision(number: u32) -> LimiterBuilder {
    let second = Rule { endpoint: Pattern::parse("/a/{*rest}").unwrap(), ..rule("b", SECOND + number) };
    let first = Rule { endpoint: Pattern::parse("/{first}/b").unwrap(), ..rule("a", FIRST + number) };
    // The order in the list changes too, and with it the order of the answers.
    let rules = if number.is_multiple_of(2) { [first, second] } else { [second, first] };
    rules.into_iter().fold(Limiter::builder(), LimiterBuilder::rule).default_limit(rule("", number + 1).limit)
}

/// Rules that must be rejected, and whose numbers must never be observed.
fn conflicting_rules(number: u32) -> LimiterBuilder {
    let builder = revision(500_000 + number);
    match number % 3 {
        0 => builder.rule(rule("c", 1)).rule(rule("c", 2)),
        1 => builder.rule(Rule { store: Some("nowhere".into()), ..rule("c", 1) }),
        _ => builder.plan("p", [rule("", 1).limit, rule("", 2).limit]),
    }
}

/// Signals the other threads to stop.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The revision that decided on one check.
fn seen(limiter: &Limiter, endpoint: &str) -> u32 {
    let decision = limiter.check_now(Check::new("user", "u").endpoint(endpoint)).unwrap();
    let mut quotas: Vec<u32> = decision.limits().iter().map(|limit| limit.limit.quota()).collect();
    quotas.sort_unstable();
    match *quotas {
        [first, second] => {
            assert_eq!(first - FIRST, second - SECOND, "a mixture of two revisions");
            assert!(first - FIRST <= REPLACEMENTS, "rejected rules were observed");
            first - FIRST
        }
        [default] => default - 1,
        _ => panic!("{quotas:?} are not the limits of any revision"),
    }
}

#[test]
fn every_decision_uses_one_revision_and_revisions_never_go_back() {
    // No window ends during the test.
    let store = MemoryStore::with_clock(MemoryOptions::default(), Arc::new(SimulatedClock::default()));
    let limiter = revision(0).memory(Arc::new(store)).build().unwrap();
    let started = Barrier::new(THREADS + 1);
    // The number of checks of all threads. The reloader waits for it, so that every revision
    // decides on some checks.
    let checks = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    let watch = || {
        let limiter = limiter.clone();
        started.wait();
        let (mut last, mut distinct) = (0, 1);
        while !done.load(Ordering::SeqCst) {
            let stacked = seen(&limiter, "/a/b");
            assert!(stacked >= last, "revision {stacked} after {last}");
            let by_default = seen(&limiter, "/by_default");
            assert!(by_default >= stacked, "revision {by_default} after {stacked}");
            distinct += u32::from(stacked != last) + u32::from(by_default != stacked);
            last = by_default;
            checks.fetch_add(2, Ordering::SeqCst);
        }
        assert_eq!(seen(&limiter, "/a/b"), REPLACEMENTS, "the last revision is in force at the end");
        distinct
    };
    let (mut good, mut rejected) = (0, 0);
    let distinct: Vec<u32> = thread::scope(|scope| {
        let watchers: Vec<_> = (0..THREADS).map(|_| scope.spawn(watch)).collect();
        // Also if an assertion fails, because the scope waits for the other threads.
        let stop = Stop(&done);
        started.wait();
        for number in 1..=REPLACEMENTS {
            limiter.replace(revision(number)).unwrap();
            good += 1;
            assert_eq!(seen(&limiter, "/a/b"), number, "a change is in force immediately");
            if number.is_multiple_of(2) {
                limiter.replace(conflicting_rules(number)).unwrap_err();
                rejected += 1;
                assert_eq!(seen(&limiter, "/a/b"), number, "rejected rules change nothing");
            }
            let before = checks.load(Ordering::SeqCst);
            while checks.load(Ordering::SeqCst) < before + 2
                && !watchers.iter().any(|watcher| watcher.is_finished())
            {
                thread::yield_now();
            }
        }
        drop(stop);
        watchers.into_iter().map(|watcher| watcher.join().unwrap()).collect()
    });
    let checks = checks.into_inner();
    // The charge of every check is counted, whichever revision decided on it.
    let decision = limiter.check_now(Check::new("user", "u").endpoint("/a/b")).unwrap();
    let taken = checks / 2 + THREADS as u32 + good + rejected + 1;
    for (limit, answer) in decision.limits().iter().zip(decision.answers()) {
        assert_eq!(answer.remaining, Some(limit.limit.quota() - taken), "{}", limit.name);
    }
    assert!(distinct.iter().sum::<u32>() > REPLACEMENTS, "too few revisions were observed: {distinct:?}");
    println!(
        "PASS reload seed=none replacements={good} rejected={rejected} threads={THREADS} checks={checks} revisions_seen={distinct:?}"
    );
}
