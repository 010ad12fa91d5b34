//! Loads on a simulated service, in paused time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::pending;

use tokio::time::sleep_until;

use super::*;
use crate::bench::keys::Distribution;
use crate::bench::record::{Record, Verdict};
use crate::bench::summary::corrected;

const ALLOWED: Decision = Decision { verdict: Verdict::Allowed, degraded: false };

/// Responds within a millisecond, but pauses during the sixth second.
struct Pausing {
    start: Instant,
}

impl Caller for Pausing {
    async fn check(&mut self, _: u64) -> Result<Decision, Fault> {
        let (from, until) = (self.start + Duration::from_secs(5), self.start + Duration::from_secs(6));
        sleep(Duration::from_millis(1)).await;
        if (from..until).contains(&Instant::now()) {
            sleep_until(until).await;
        }
        Ok(ALLOWED)
    }

    fn disconnect(&mut self) {}
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

/// Releases requests in the time of the test.
async fn pace(load: Arc<Load>) {
    while let Some(next) = load.release(Instant::now()) {
        // The timer has a resolution of a millisecond; shorter sleeps would spin.
        sleep_until(next.max(Instant::now() + Duration::from_millis(1))).await;
    }
}

async fn run(plan: Plan, callers: usize) -> (Record, Ended) {
    let load = Load::start(plan).unwrap();
    let start = load.start;
    tokio::spawn(pace(load.clone()));
    let ended = load.run((0..callers).map(|_| Pausing { start }), pending()).await;
    (load.records.total().unwrap(), ended)
}

fn milliseconds(histogram: &hdrhistogram::Histogram<u64>, quantile: f64) -> u64 {
    histogram.value_at_quantile(quantile) / 1_000
}

#[tokio::test(start_paused = true)]
async fn pause_delays_every_request_that_was_due_during_it() {
    let (record, ended) = run(plan(Some(100)), 10).await;
    assert_eq!((record.allowed, ended.unsent), (1_000, 0));
    // 100 of 1,000 requests were due during the pause and waited between none and all of it.
    assert!(milliseconds(&record.latency, 0.90) < 60, "{}", milliseconds(&record.latency, 0.90));
    assert!((400..=600).contains(&milliseconds(&record.latency, 0.95)));
    assert!((880..=1_000).contains(&milliseconds(&record.latency, 0.99)));
    // By service time alone, only the ten requests in flight were delayed.
    assert!(milliseconds(&record.service, 0.985) <= 2);
    let slow = record.service.count_between(500_000, 2_000_000);
    assert_eq!(slow, 10);
    assert!(record.latency.count_between(500_000, 2_000_000) >= 50);
}

#[tokio::test(start_paused = true)]
async fn closed_loop_is_corrected_for_coordinated_omission() {
    let (record, _) = run(plan(None), 4).await;
    assert!(record.allowed > 10_000, "{}", record.allowed);
    assert_eq!(record.service.count_between(500_000, 2_000_000), 4);
    assert!(milliseconds(&record.service, 0.99) <= 2);
    let corrected = corrected(&record.service);
    // Each caller sends a request every 2 ms, so it omitted about 500 in that second.
    assert!(
        corrected.count_between(500_000, 2_000_000) > 500,
        "{}",
        corrected.count_between(500_000, 2_000_000)
    );
    assert!(milliseconds(&corrected, 0.99) > 500);
}

#[tokio::test(start_paused = true)]
async fn requests_due_just_before_the_end_are_sent() {
    let (record, ended) = run(plan(Some(5_000)), 200).await;
    assert_eq!((record.allowed, ended.unsent), (50_000, 0));
}

#[tokio::test(start_paused = true)]
async fn unsent_requests_of_too_few_callers_are_reported() {
    let (record, ended) = run(plan(Some(5_000)), 1).await;
    assert!(record.allowed < 10_000);
    assert!(ended.unsent > 20_000, "{ended:?}");
    assert!(milliseconds(&record.latency, 0.99) > 1_000, "waiting for a caller counts as latency");
}

#[tokio::test(start_paused = true)]
async fn number_of_requests_is_exact_and_excludes_the_warm_up() {
    for rate in [None, Some(1_000)] {
        let (record, _) = run(Plan { requests: Some(777), ..plan(rate) }, 10).await;
        assert_eq!(record.allowed, 777);
    }
    let (record, ended) = run(Plan { warmup: Duration::from_secs(2), ..plan(Some(100)) }, 10).await;
    assert_eq!(record.allowed, 1_000);
    assert!(ended.elapsed < Duration::from_millis(10_100), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn backlog_of_the_warm_up_is_not_measured() {
    let (record, _) = run(Plan { warmup: Duration::from_secs(2), ..plan(Some(5_000)) }, 1).await;
    assert!(record.allowed > 4_000, "ten seconds at about 700 requests per second: {}", record.allowed);
}

#[tokio::test(start_paused = true)]
async fn interrupted_load_reports_its_figures() {
    let load = Load::start(plan(Some(100))).unwrap();
    let start = load.start;
    tokio::spawn(pace(load.clone()));
    let interrupt = sleep(Duration::from_secs(3));
    let ended = load.run([Pausing { start }], interrupt).await;
    assert!(ended.interrupted);
    assert_eq!(load.records.total().unwrap().allowed, 300);
}

/// Never responds.
struct Silent;

impl Caller for Silent {
    async fn check(&mut self, _: u64) -> Result<Decision, Fault> {
        pending().await
    }

    fn disconnect(&mut self) {}
}

#[tokio::test(start_paused = true)]
async fn missing_response_times_out() {
    let load = Load::start(Plan { requests: Some(3), ..plan(None) }).unwrap();
    load.run([Silent], pending()).await;
    let record = load.records.total().unwrap();
    assert_eq!(record.errors["timeout"], 1, "the first timeout takes all ten seconds");
    assert_eq!(milliseconds(&record.latency, 1.0) / 100, 100, "the timeout counts as latency");
}
