//! Calls to a server that hangs, fails, refuses or comes back, on simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::{pending, ready};
use std::time::Duration;

use pacegate_store::{GuardedCalls, StoreError};
use tokio::time::{Instant, sleep, timeout};

const DEADLINE: Duration = Duration::from_millis(50);

fn calls() -> GuardedCalls {
    GuardedCalls::new("service", DEADLINE)
}

async fn answered(calls: &GuardedCalls) -> bool {
    calls.call(ready(Ok(7))).await.is_ok_and(|answer| answer == 7)
}

async fn time_out(calls: &GuardedCalls) {
    let start = Instant::now();
    let error = calls.call(pending::<Result<(), _>>()).await.unwrap_err();
    assert!(error.is_timeout() && start.elapsed() == DEADLINE, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_left_alone_and_three_probes_bring_it_back() {
    let calls = calls();
    assert!(answered(&calls).await);
    for _ in 0..5 {
        time_out(&calls).await;
    }
    let start = Instant::now();
    let error = calls.call(ready(Ok(7))).await.unwrap_err();
    assert!(
        error.is_outage() && start.elapsed().is_zero(),
        "it is not called, and that is known at once: {error}"
    );
    sleep(Duration::from_secs(2)).await;
    // A probe whose caller goes away leaves its place to another.
    assert!(timeout(Duration::from_millis(1), calls.call(pending::<Result<(), _>>())).await.is_err());
    for _ in 0..3 {
        assert!(answered(&calls).await);
    }
    for _ in 0..4 {
        time_out(&calls).await;
    }
    assert!(answered(&calls).await, "four in a row say nothing");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_left_alone_and_one_that_refuses_is_not() {
    let failing = calls();
    for _ in 0..20 {
        failing.call(ready(Err::<(), _>(StoreError::unavailable("gone")))).await.unwrap_err();
    }
    assert!(!answered(&failing).await);
    let refusing = calls();
    for _ in 0..100 {
        let error = refusing.call(ready(Err::<(), _>(StoreError::rejected("wrong key")))).await.unwrap_err();
        assert!(error.is_rejection() && !error.is_outage(), "it never turns into an outage: {error}");
    }
    assert!(answered(&refusing).await);
}
