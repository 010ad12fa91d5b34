//! Observers receive every decision of a check once, and `metrics` has the names of the service.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use pacegate::observe::{MetricsObserver, Observed};
use pacegate::{Check, Limit, Limiter, Rule};

#[tokio::test]
async fn every_kind_of_check_is_observed_once() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let limiter = Limiter::builder()
        .default_limit(Limit::per_hour(3))
        .observer(move |observed: &Observed<'_, '_>| {
            note.lock().unwrap().push(observed.decided.map(|decision| decision.allowed()).ok());
        })
        .build()
        .unwrap();
    let take = || std::mem::take(&mut *seen.lock().unwrap());
    let checks = [Check::key("a"), Check::key("b")];

    limiter.check_now("a").unwrap();
    assert_eq!(take(), [Some(true)], "a key");
    limiter.check_now(&checks[0]).unwrap();
    assert_eq!(take(), [Some(true)], "a check");
    limiter.check("a").await.unwrap();
    assert_eq!(take(), [Some(true)], "a future");
    limiter.check_each(&checks).await;
    assert_eq!(take(), [Some(false), Some(true)], "a batch of independent checks");
    limiter.check_all(&checks).await.unwrap();
    assert_eq!(take(), [Some(false)], "a chain");
    limiter.check_now("").unwrap_err();
    assert_eq!(take(), [None], "an error");
    limiter.peek("a").await.unwrap();
    assert_eq!(take(), [], "a peek is not reported");
}

/// Counters by name and labels.
#[derive(Default)]
struct Counters(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Counter::from_arc(self.0.lock().unwrap().entry(name).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn metrics_have_the_names_of_the_service() {
    let limiter = Limiter::builder()
        .rule(Rule::builder("per-user", "user", Limit::per_hour(1).fixed_window()))
        .rule(Rule::builder("trial", "user", Limit::per_hour(1)).shadow())
        .observer(MetricsObserver)
        .build()
        .unwrap();
    let counters = Counters::default();
    metrics::with_local_recorder(&counters, || {
        for _ in 0..2 {
            limiter.check_now(Check::new("user", "u1").endpoint("/")).unwrap();
        }
    });
    let counted: Vec<(String, u64)> = counters
        .0
        .into_inner()
        .unwrap()
        .into_iter()
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
        .collect();
    let expected = [
        ("pacegate_allowed_total{rule=per-user,algorithm=fixed_window,reason=none}", 1),
        ("pacegate_blocked_total{rule=per-user,algorithm=fixed_window,reason=LIMIT_EXCEEDED}", 1),
        ("pacegate_shadow_blocked_total{rule=trial,algorithm=token_bucket}", 1),
    ];
    assert_eq!(counted, expected.map(|(name, count)| (name.to_owned(), count)));
}
