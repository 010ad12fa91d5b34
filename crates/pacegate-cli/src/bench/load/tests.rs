//! Loads on a service that is not there, in a time that does not pass by itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::pending;

use tokio::time::sleep_until;

use super::*;
use crate::bench::keys::Distribution;
use crate::bench::record::{Record, Verdict};
use crate::bench::summary::corrected;

const ALLOWED: Answer = Answer { verdict: Verdict::Allowed, degraded: false };

/// Answers within a millisecond, and stands still for the sixth second.
struct StandsStill {
    start: Instant,
}

impl Caller for StandsStill {
    async fn ask(&mut self, _: u64) -> Result<Answer, Fault> {
        let (from, until) = (self.start + Duration::from_secs(5), self.start + Duration::from_secs(6));
        sleep(Duration::from_millis(1)).await;
        if (from..until).contains(&Instant::now()) {
            sleep_until(until).await;
        }
        Ok(ALLOWED)
    }

    fn hang_up(&mut self) {}
}

fn plan(rate: Option<u64>) -> Plan {
    Plan {
        rate,
        requests: None,
        duration: Duration::from_secs(10),
        warmup: Duration::ZERO,
        timeout: Duration::from_secs(10),
        keys: Keys::new(10, Distribution::Uniform, 1),
    }
}

/// Lets requests go by the time of the test.
async fn pace(load: Arc<Load>) {
    while let Some(next) = load.release(Instant::now()) {
        // The timer counts in milliseconds, and would otherwise be asked again and again for less.
        sleep_until(next.max(Instant::now() + Duration::from_millis(1))).await;
    }
}

async fn run(plan: Plan, callers: usize) -> (Record, Ended) {
    let load = Load::start(plan).unwrap();
    let start = load.start;
    tokio::spawn(pace(load.clone()));
    let ended = load.run((0..callers).map(|_| StandsStill { start }), pending()).await;
    (load.records.total().unwrap(), ended)
}

fn milliseconds(histogram: &hdrhistogram::Histogram<u64>, quantile: f64) -> u64 {
    histogram.value_at_quantile(quantile) / 1_000
}

#[tokio::test(start_paused = true)]
async fn with_a_rate_a_pause_counts_for_every_request_that_was_due_in_it() {
    let (record, ended) = run(plan(Some(100)), 10).await;
    assert_eq!((record.allowed, ended.unsent), (1_000, 0));
    // A hundred of a thousand requests were due in the pause, and waited for all of it down to nothing of it.
    assert!(milliseconds(&record.latency, 0.90) < 60, "{}", milliseconds(&record.latency, 0.90));
    assert!((400..=600).contains(&milliseconds(&record.latency, 0.95)));
    assert!((880..=1_000).contains(&milliseconds(&record.latency, 0.99)));
    // By the time on the wire alone, only the ten that were under way met with it.
    assert!(milliseconds(&record.service, 0.985) <= 2);
    let slow = record.service.count_between(500_000, 2_000_000);
    assert_eq!(slow, 10);
    assert!(record.latency.count_between(500_000, 2_000_000) >= 50);
}

#[tokio::test(start_paused = true)]
async fn without_a_rate_a_pause_is_filled_with_the_requests_it_kept_back() {
    let (record, _) = run(plan(None), 4).await;
    assert!(record.allowed > 10_000, "{}", record.allowed);
    assert_eq!(record.service.count_between(500_000, 2_000_000), 4);
    assert!(milliseconds(&record.service, 0.99) <= 2);
    let corrected = corrected(&record.service);
    // A caller that asks every two milliseconds at most would have asked some 500 times in that second, half of them in its first half.
    assert!(
        corrected.count_between(500_000, 2_000_000) > 500,
        "{}",
        corrected.count_between(500_000, 2_000_000)
    );
    assert!(milliseconds(&corrected, 0.99) > 500);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_just_before_the_end_is_sent() {
    let (record, ended) = run(plan(Some(5_000)), 200).await;
    assert_eq!((record.allowed, ended.unsent), (50_000, 0));
}

#[tokio::test(start_paused = true)]
async fn what_too_few_callers_cannot_send_is_said() {
    let (record, ended) = run(plan(Some(5_000)), 1).await;
    assert!(record.allowed < 10_000);
    assert!(ended.unsent > 20_000, "{ended:?}");
    assert!(milliseconds(&record.latency, 0.99) > 1_000, "who waits for a caller waits");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_requests_is_exact_and_the_warm_up_does_not_count() {
    for rate in [None, Some(1_000)] {
        let (record, _) = run(Plan { requests: Some(777), ..plan(rate) }, 10).await;
        assert_eq!(record.allowed, 777);
    }
    let (record, ended) = run(Plan { warmup: Duration::from_secs(2), ..plan(Some(100)) }, 10).await;
    assert_eq!(record.allowed, 1_000);
    assert!(ended.elapsed < Duration::from_millis(10_100), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_warm_up_that_is_not_done_in_time_leaves_nothing_behind() {
    let (record, _) = run(Plan { warmup: Duration::from_secs(2), ..plan(Some(5_000)) }, 1).await;
    assert!(record.allowed > 4_000, "ten seconds at some 700 a second: {}", record.allowed);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_load_ends_with_what_there_is() {
    let load = Load::start(plan(Some(100))).unwrap();
    let start = load.start;
    tokio::spawn(pace(load.clone()));
    let interrupt = sleep(Duration::from_secs(3));
    let ended = load.run([StandsStill { start }], interrupt).await;
    assert!(ended.interrupted);
    assert_eq!(load.records.total().unwrap().allowed, 300);
}

/// Never answers.
struct Silent;

impl Caller for Silent {
    async fn ask(&mut self, _: u64) -> Result<Answer, Fault> {
        pending().await
    }

    fn hang_up(&mut self) {}
}

#[tokio::test(start_paused = true)]
async fn silence_is_waited_for_no_longer_than_said() {
    let load = Load::start(Plan { requests: Some(3), ..plan(None) }).unwrap();
    load.run([Silent], pending()).await;
    let record = load.records.total().unwrap();
    assert_eq!(record.errors["timeout"], 1, "the plan's ten seconds are over with the first");
    assert_eq!(milliseconds(&record.latency, 1.0) / 100, 100, "it waited at least so long");
}
