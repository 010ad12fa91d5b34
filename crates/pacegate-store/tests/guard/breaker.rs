//! When the breaker opens, and how it detects that the store has recovered.

use std::time::Duration;

use pacegate_core::Reason;
use pacegate_store::{Action, Command, FailureMode, StoreError, StoreHealth};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::setup::*;

#[tokio::test(start_paused = true)]
async fn five_timeouts_open_the_breaker_and_calls_return_at_once() {
    let setup = Setup::new(Behaviour::Hang);
    setup.open_breaker().await;
    let start = Instant::now();
    for mode in [FailureMode::Open, FailureMode::Closed, FailureMode::Local] {
        for _ in 0..100 {
            assert!(setup.take(&[&rule(mode)]).await.degraded());
        }
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(setup.store.calls(), 5);
    assert_eq!(setup.figure("breaker_openings"), 1);
}

#[tokio::test(start_paused = true)]
async fn four_timeouts_and_a_success_do_not_open_the_breaker() {
    let setup = Setup::new(Behaviour::Hang);
    for behaviour in [Behaviour::Hang, Behaviour::Answer, Behaviour::Hang] {
        setup.store.set(behaviour);
        for _ in 0..4 {
            setup.take(&[&rule(FailureMode::Open)]).await;
        }
    }
    assert_eq!((setup.store.calls(), setup.guard.health()), (12, StoreHealth::Up));
}

#[tokio::test(start_paused = true)]
async fn half_of_twenty_failed_calls_open_the_breaker_and_nineteen_calls_do_not() {
    for failing in [Behaviour::Unavailable, Behaviour::Silent] {
        let setup = Setup::new(Behaviour::Answer);
        for call in 0..19 {
            setup.store.set(if call % 2 == 0 { failing } else { Behaviour::Answer });
            setup.take(&[&rule(FailureMode::Open)]).await;
        }
        assert_eq!(setup.guard.health(), StoreHealth::Up, "{failing:?}");
        setup.store.set(failing);
        setup.take(&[&rule(FailureMode::Open)]).await;
        assert_eq!(setup.guard.health(), StoreHealth::Down, "{failing:?}");
        setup.take(&[&rule(FailureMode::Open)]).await;
        assert_eq!(setup.store.calls(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn recovered_store_is_used_within_two_seconds_of_a_minute_long_outage() {
    // The breaker's own waits would have grown to half a minute by then. With and without callers
    // in between.
    for (round, pause) in [Duration::from_millis(100), Duration::from_secs(60)].into_iter().enumerate() {
        for failing in [Behaviour::Hang, Behaviour::Unavailable] {
            let setup = Setup::new(failing);
            let outage = Instant::now();
            while outage.elapsed() < Duration::from_secs(60) {
                for _ in 0..20 {
                    take_alone(&setup.guard).await;
                }
                sleep(pause).await;
            }
            assert_eq!(setup.guard.health(), StoreHealth::Down);
            setup.store.set(Behaviour::Answer);
            let back = Instant::now();
            while take_alone(&setup.guard).await.degraded() {
                sleep(Duration::from_millis(10)).await;
            }
            let waited = back.elapsed();
            assert!(waited <= Duration::from_secs(2), "{failing:?} round {round}: {waited:?}");
            let served = setup.take_at_once(50).await;
            assert!(served >= 2, "at least the remaining probes are served");
            assert_eq!(setup.take_at_once(50).await, 50, "then all calls are served");
            assert_eq!(setup.guard.health(), StoreHealth::Up);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn three_successful_probes_close_the_breaker() {
    let setup = Setup::new(Behaviour::Answer);
    setup.half_open_breaker().await;
    setup.store.set(Behaviour::AnswerAfter(Duration::from_millis(10)));
    let before = setup.store.calls();
    assert_eq!(setup.take_at_once(20).await, 3);
    assert_eq!(setup.store.calls() - before, 3);
    assert_eq!(setup.guard.health(), StoreHealth::Up);
    assert_eq!(setup.take_at_once(20).await, 20);
}

#[tokio::test(start_paused = true)]
async fn failed_probe_opens_the_breaker_again() {
    for failing in [Behaviour::Unavailable, Behaviour::Hang] {
        let setup = Setup::new(Behaviour::Answer);
        setup.half_open_breaker().await;
        setup.store.set(failing);
        let before = setup.store.calls();
        for _ in 0..10 {
            assert!(take_alone(&setup.guard).await.degraded());
        }
        assert_eq!(setup.store.calls() - before, 1, "{failing:?}");
        assert_eq!(setup.figure("breaker_openings"), 1, "it is still the same outage");
    }
}

#[tokio::test(start_paused = true)]
async fn abandoned_probes_free_their_slots() {
    let setup = Setup::new(Behaviour::Answer);
    setup.half_open_breaker().await;
    setup.store.set(Behaviour::Hang);
    let mut tasks = JoinSet::new();
    let before = setup.store.calls();
    for _ in 0..3 {
        let guard = setup.guard.clone();
        tasks.spawn(async move { take_alone(&guard).await });
    }
    sleep(DEADLINE / 5).await;
    assert_eq!(setup.store.calls() - before, 3);
    assert!(take_alone(&setup.guard).await.degraded(), "all probe slots are taken");
    tasks.shutdown().await;
    setup.store.set(Behaviour::Answer);
    for _ in 0..3 {
        assert!(!take_alone(&setup.guard).await.degraded());
    }
    assert_eq!(setup.guard.health(), StoreHealth::Up);
}

#[tokio::test(start_paused = true)]
async fn recovery_is_detected_without_callers() {
    // A load balancer sends no requests to an unready node.
    for failing in [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Rejected] {
        let setup = Setup::new(failing);
        for _ in 0..20 {
            take_alone(&setup.guard).await;
        }
        sleep(Duration::from_secs(60)).await;
        assert_ne!(setup.guard.health(), StoreHealth::Up, "{failing:?}");
        setup.store.set(Behaviour::Answer);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(setup.guard.health(), StoreHealth::Up, "{failing:?}");
        assert!(!take_alone(&setup.guard).await.degraded());
    }
}

#[tokio::test(start_paused = true)]
async fn second_outage_is_handled_like_the_first() {
    let setup = Setup::new(Behaviour::Answer);
    for outage in 1..=3 {
        setup.open_breaker().await;
        assert_eq!(setup.figure("breaker_openings"), outage);
        setup.store.set(Behaviour::Answer);
        sleep(Duration::from_secs(4)).await;
        assert!(!take_alone(&setup.guard).await.degraded());
        assert_eq!(setup.guard.health(), StoreHealth::Up);
    }
}

#[tokio::test(start_paused = true)]
async fn probes_end_with_the_guard() {
    let setup = Setup::new(Behaviour::Hang);
    setup.open_breaker().await;
    sleep(Duration::from_secs(5)).await;
    let Setup { guard, store, .. } = setup;
    assert!(store.probes() > 0);
    drop(guard);
    sleep(Duration::from_secs(5)).await;
    let probes = store.probes();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(store.probes(), probes);
}

#[tokio::test(start_paused = true)]
async fn rejecting_store_is_reported_until_it_responds() {
    let setup = Setup::new(Behaviour::Rejected);
    assert_eq!(setup.guard.health(), StoreHealth::Up);
    for (mode, allowed) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        assert_eq!(setup.take(&[&rule(mode)]).await.allowed, allowed);
        assert_eq!(setup.guard.health(), StoreHealth::Rejected, "one rejection is enough");
    }
    setup.store.set(Behaviour::Unavailable);
    setup.take(&[&rule(FailureMode::Open)]).await;
    assert_eq!(setup.guard.health(), StoreHealth::Rejected, "an outage does not change that");
    setup.store.set(Behaviour::Answer);
    assert!(!setup.take(&[&rule(FailureMode::Open)]).await.degraded());
    assert_eq!(setup.guard.health(), StoreHealth::Up);
    assert_eq!(setup.figure("breaker_openings"), 0);
}

#[tokio::test(start_paused = true)]
async fn foreign_value_under_one_key_is_not_an_outage() {
    let setup = Setup::new(Behaviour::Foreign);
    let foreign = Rule { identifier: "foreign", ..rule(FailureMode::Closed) };
    for _ in 0..100 {
        assert_eq!(reasons(&setup.take(&[&foreign]).await), [Some(Reason::FailClosed)]);
        assert_eq!(setup.guard.health(), StoreHealth::Up);
    }
    assert_eq!(setup.store.calls(), 100);
    assert!(!setup.take(&[&rule(FailureMode::Closed)]).await.degraded(), "other keys are not affected");
    let figures = ["errors", "degraded", "breaker_openings"].map(|name| setup.figure(name));
    assert_eq!(figures, [100, 100, 0]);
}

#[tokio::test(start_paused = true)]
async fn full_store_is_not_an_outage() {
    let setup = Setup::new(Behaviour::Overloaded);
    for mode in [FailureMode::Open, FailureMode::Closed, FailureMode::Local] {
        for _ in 0..50 {
            for action in DECIDED {
                let error = setup.apply(action, &[&rule(mode)]).await.unwrap_err();
                assert!(error.is_retryable() && !error.is_outage() && !error.is_permanent());
            }
        }
    }
    assert_eq!((setup.store.calls(), setup.guard.health()), (300, StoreHealth::Up));
    let figures = ["errors", "degraded", "breaker_openings"].map(|name| setup.figure(name));
    assert_eq!(figures, [300, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn resets_and_refunds_fail_with_the_store() {
    for (behaviour, is_right) in [
        (Behaviour::Unavailable, StoreError::is_outage as fn(&StoreError) -> bool),
        (Behaviour::Hang, StoreError::is_timeout),
        (Behaviour::Rejected, StoreError::is_rejection),
        (Behaviour::Foreign, StoreError::is_permanent),
        (Behaviour::Overloaded, StoreError::is_retryable),
    ] {
        let setup = Setup::new(behaviour);
        let rule = Rule { identifier: "foreign", ..rule(FailureMode::Local) };
        for action in [Action::Reset, Action::Refund] {
            let error = setup.apply(action, &[&rule]).await.unwrap_err();
            assert!(is_right(&error), "{behaviour:?}: {error}");
        }
        assert_eq!(setup.figure("degraded"), 0);
    }
    let setup = Setup::new(Behaviour::Hang);
    setup.open_breaker().await;
    let start = Instant::now();
    let error = setup.apply(Action::Reset, &[&rule(FailureMode::Open)]).await.unwrap_err();
    assert!(error.is_outage() && error.is_retryable() && !error.may_have_run(), "{error}");
    assert_eq!((start.elapsed(), setup.store.calls()), (Duration::ZERO, 5));
}

#[tokio::test(start_paused = true)]
async fn metrics_include_errors_degraded_answers_and_openings() {
    let setup = Setup::new(Behaviour::Answer);
    let figures = || ["connects", "errors", "degraded", "breaker_openings"].map(|name| setup.figure(name));
    setup.take(&[&rule(FailureMode::Open)]).await;
    assert_eq!(figures(), [7, 0, 0, 0]);
    setup.store.set(Behaviour::Unavailable);
    assert!(setup.apply(Action::Reset, &[&rule(FailureMode::Open)]).await.is_err());
    assert_eq!(figures(), [7, 1, 0, 0], "a returned error is not a degraded answer");
    setup.open_breaker().await;
    assert_eq!(figures(), [7, 6, 5, 1]);
    setup.take(&[&rule(FailureMode::Open)]).await;
    assert_eq!(figures(), [7, 6, 6, 1], "the store was not called, so it did not fail");
}

#[tokio::test(start_paused = true)]
async fn shorter_deadline_has_a_separate_breaker() {
    let setup = Setup::new(Behaviour::AnswerAfter(Duration::from_millis(20)));
    let impatient = setup.guard.within(Duration::from_millis(10));
    for _ in 0..5 {
        let start = Instant::now();
        assert!(take_alone(&impatient).await.degraded(), "too slow for the shorter deadline");
        assert_eq!(start.elapsed(), Duration::from_millis(10));
        assert!(!take_alone(&setup.guard).await.degraded(), "fast enough for the full deadline");
    }
    assert_eq!((impatient.health(), setup.guard.health()), (StoreHealth::Down, StoreHealth::Up));
    // A deadline cannot exceed that of the parent.
    let generous = Setup::new(Behaviour::Hang);
    let start = Instant::now();
    assert!(take_alone(&generous.guard.within(HOUR)).await.degraded());
    assert_eq!(start.elapsed(), DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn call_can_have_less_time_than_the_deadline() {
    let setup = Setup::new(Behaviour::Hang);
    let rule = rule(FailureMode::Closed);
    let charges = [rule.charge()];
    let command = Command::take(&charges);
    for (given, taken) in [(Duration::from_millis(3), Duration::from_millis(3)), (HOUR, DEADLINE)] {
        let start = Instant::now();
        let outcome = setup.guard.apply_within(&command, None, given).await;
        assert!(!decided(outcome).allowed);
        assert_eq!(start.elapsed(), taken);
    }
}

/// The time in which an outage is noticed.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn outage_is_noticed_without_traffic_and_logged_once() {
    for failing in [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Silent] {
        let setup = Setup::new(Behaviour::Answer);
        let lines = Lines::default();
        let _collected = tracing::subscriber::set_default(lines.clone());
        sleep(Duration::from_secs(30)).await;
        assert_eq!(setup.guard.health(), StoreHealth::Up);
        assert_eq!(lines.errors(), Vec::<String>::new());
        setup.store.set(failing);
        sleep(NOTICED_WITHIN).await;
        assert_eq!(setup.guard.health(), StoreHealth::Down, "{failing:?}");
        let start = Instant::now();
        assert!(take_alone(&setup.guard).await.degraded());
        assert_eq!(start.elapsed(), Duration::ZERO, "{failing:?}: calls return at once");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(lines.errors().len(), 1, "{failing:?}: {:?}", lines.errors());
        assert!(lines.errors()[0].contains("store unavailable"), "{:?}", lines.errors());
        setup.store.set(Behaviour::Answer);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(setup.guard.health(), StoreHealth::Up, "{failing:?}: recovery is noticed as well");
    }
}

#[tokio::test(start_paused = true)]
async fn outage_is_noticed_at_one_check_a_second() {
    let setup = Setup::new(Behaviour::Answer);
    let mut outage = Instant::now();
    for second in 0..10 {
        if second == 4 {
            setup.store.set(Behaviour::Hang);
            outage = Instant::now();
        }
        let start = Instant::now();
        take_alone(&setup.guard).await;
        if second >= 4 && outage.elapsed() > NOTICED_WITHIN + DEADLINE {
            assert_eq!((setup.guard.health(), start.elapsed()), (StoreHealth::Down, Duration::ZERO));
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_is_noticed_without_traffic() {
    let setup = Setup::new(Behaviour::Answer);
    sleep(Duration::from_secs(5)).await;
    setup.store.set(Behaviour::Rejected);
    sleep(NOTICED_WITHIN).await;
    assert_eq!(setup.guard.health(), StoreHealth::Rejected);
    setup.store.set(Behaviour::Answer);
    sleep(NOTICED_WITHIN).await;
    assert_eq!(setup.guard.health(), StoreHealth::Up);
}

#[tokio::test(start_paused = true)]
async fn one_failed_probe_does_not_open_the_breaker() {
    let setup = Setup::new(Behaviour::Answer);
    for _ in 0..20 {
        setup.store.set(Behaviour::Hang);
        let before = setup.store.probes();
        while setup.store.probes() == before {
            sleep(Duration::from_millis(10)).await;
        }
        setup.store.set(Behaviour::Answer);
        let before = setup.store.probes();
        while setup.store.probes() == before {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(setup.guard.health(), StoreHealth::Up);
    }
    assert_eq!(setup.figure("breaker_openings"), 0);
}

#[tokio::test(start_paused = true)]
async fn shorter_deadline_follows_the_parent_breaker_and_is_not_probed() {
    let setup = Setup::new(Behaviour::Answer);
    let impatient = setup.guard.within(Duration::from_millis(10));
    sleep(Duration::from_secs(10)).await;
    let probes = setup.store.probes();
    assert!((10..=14).contains(&probes), "one probe a second for all callers of a store: {probes}");
    setup.store.set(Behaviour::Hang);
    sleep(NOTICED_WITHIN).await;
    let start = Instant::now();
    assert!(take_alone(&impatient).await.degraded());
    assert_eq!(start.elapsed(), Duration::ZERO);
    setup.store.set(Behaviour::Answer);
    sleep(Duration::from_secs(4)).await;
    assert!(!take_alone(&impatient).await.degraded());
}

#[test]
fn guard_created_without_a_runtime_probes_from_its_first_call() {
    let setup = Setup::new(Behaviour::Answer);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        assert!(!take_alone(&setup.guard).await.degraded());
        setup.store.set(Behaviour::Hang);
        sleep(NOTICED_WITHIN).await;
        assert_eq!(setup.guard.health(), StoreHealth::Down);
    });
}
