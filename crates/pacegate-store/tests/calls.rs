//! Calls to a server that hangs, fails, rejects or recovers, on simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::{pending, ready};
use std::time::Duration;

use pacegate_store::{GuardedCalls, StoreError};
use tokio::time::{Instant, sleep, timeout};

const DEADLINE: Duration = Duration::from_millis(50);

fn calls() -> GuardedCalls {
    GuardedCalls::new("service", DEADLINE)
}

async fn succeeds(calls: &GuardedCalls) -> bool {
    calls.call(ready(Ok(7))).await.is_ok_and(|answer| answer == 7)
}

async fn time_out(calls: &GuardedCalls) {
    let start = Instant::now();
    let error = calls.call(pending::<Result<(), _>>()).await.unwrap_err();
    assert!(error.is_timeout() && start.elapsed() == DEADLINE, "{error}");
}

#[tokio::test(start_paused = true)]
async fn timeouts_open_the_breaker_and_three_probes_close_it() {
    let calls = calls();
    assert!(succeeds(&calls).await);
    for _ in 0..5 {
        time_out(&calls).await;
    }
    let start = Instant::now();
    let error = calls.call(ready(Ok(7))).await.unwrap_err();
    assert!(error.is_outage() && start.elapsed().is_zero(), "an open breaker fails at once: {error}");
    sleep(Duration::from_secs(2)).await;
    // A probe whose caller is dropped frees its slot.
    assert!(timeout(Duration::from_millis(1), calls.call(pending::<Result<(), _>>())).await.is_err());
    for _ in 0..3 {
        assert!(succeeds(&calls).await);
    }
    for _ in 0..4 {
        time_out(&calls).await;
    }
    assert!(succeeds(&calls).await, "four consecutive timeouts do not open the breaker");
}

#[tokio::test(start_paused = true)]
async fn failures_open_the_breaker_and_rejections_do_not() {
    let failing = calls();
    for _ in 0..20 {
        failing.call(ready(Err::<(), _>(StoreError::unavailable("gone")))).await.unwrap_err();
    }
    assert!(!succeeds(&failing).await);
    let rejecting = calls();
    for _ in 0..100 {
        let error = rejecting.call(ready(Err::<(), _>(StoreError::rejected("wrong key")))).await.unwrap_err();
        assert!(error.is_rejection() && !error.is_outage(), "a rejection never becomes an outage: {error}");
    }
    assert!(succeeds(&rejecting).await);
}
