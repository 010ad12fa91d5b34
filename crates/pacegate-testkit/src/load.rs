//! Callers that keep a store busy during a fault, and the outcome of each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pacegate_core::{Counter, Key, Limit};
use pacegate_store::{Action, Charge, Command, FailureMode, Idempotency, Outcome, Store};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Time within which an available store must report its usage, and the polling interval.
const USAGE_KNOWN_WITHIN: Duration = Duration::from_secs(10);
const USAGE_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum delay of a response beyond the deadline.
const GRACE: Duration = Duration::from_millis(5);

/// The load: callers and their requests.
#[derive(Clone, Debug)]
pub struct Load {
    /// Number of concurrent callers.
    pub callers: usize,
    /// Pause of each caller between two requests.
    pub pause: Duration,
    /// The identifiers of the requests, in rotation.
    pub identifiers: Vec<String>,
    /// The limits of each request, all of one identity.
    pub limits: Vec<(Counter, Limit)>,
    /// The failure mode of the limits.
    pub on_store_error: FailureMode,
    /// Whether each request has its own idempotency key.
    pub idempotent: bool,
}

impl Load {
    /// A few callers of one identifier under one limit that fails closed, so that the store itself
    /// made every admission.
    pub fn new(limit: Limit) -> Self {
        Self {
            callers: 16,
            pause: Duration::from_millis(2),
            identifiers: vec!["user-1".into()],
            limits: vec![(Counter::new("load", "user", ""), limit)],
            on_store_error: FailureMode::Closed,
            idempotent: false,
        }
    }

    /// Starts the callers.
    pub fn start(self, store: Arc<dyn Store>) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let load = Arc::new(self);
        let callers = (0..load.callers)
            .map(|caller| tokio::spawn(call(load.clone(), store.clone(), caller, stop.clone())))
            .collect();
        let lateness = tokio::spawn(measure_lateness(stop.clone()));
        Running { callers, lateness, stop, load, store }
    }

    /// Usage of the first limit, summed over all identifiers. Retried while the store is becoming
    /// available.
    pub async fn used(&self, store: &dyn Store) -> u64 {
        let mut used = 0;
        for identifier in &self.identifiers {
            let (counter, limit) = &self.limits[0];
            let charges = [Charge::new(Key::new(counter, identifier, ""), limit)];
            let command = Command::peek(&charges);
            let known = async {
                loop {
                    let outcome = store.apply(&command, None).await.expect("the store responds");
                    let Outcome::Decided(decision) = outcome else { return limit.capacity() };
                    if let Some(remaining) = decision.remaining() {
                        return remaining;
                    }
                    sleep(USAGE_POLL_INTERVAL).await;
                }
            };
            let remaining =
                timeout(USAGE_KNOWN_WITHIN, known).await.expect("the store reports its usage in time");
            used += u64::from(limit.capacity() - remaining);
        }
        used
    }
}

/// Running callers.
pub struct Running {
    callers: Vec<JoinHandle<Vec<Record>>>,
    lateness: JoinHandle<Duration>,
    stop: Arc<AtomicBool>,
    load: Arc<Load>,
    store: Arc<dyn Store>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// When it was sent.
    pub sent: Instant,
    /// How long the response took.
    pub took: Duration,
    /// The outcome.
    pub fate: Fate,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The store admitted it.
    Admitted,
    /// The store denied it.
    Denied,
    /// The failure mode decided.
    Degraded,
    /// The call returned an error.
    Failed,
}

/// The outcomes of all requests.
#[derive(Debug)]
pub struct Report {
    /// Every request, in the order of sending.
    pub records: Vec<Record>,
    /// Maximum lateness of timers in this process; no response can be more punctual.
    pub lateness: Duration,
}

impl Running {
    /// Waits up to `within` until the store decides for every identifier again, then stops the
    /// callers.
    pub async fn stop_when_healthy(self, since: Instant, within: Duration) -> Report {
        while since.elapsed() < within {
            sleep(Duration::from_millis(10)).await;
            if self.is_healthy().await {
                // A little longer, so that callers use the store again.
                sleep(Duration::from_millis(300)).await;
                break;
            }
        }
        self.stop().await
    }

    /// Whether the store counts every identifier again.
    async fn is_healthy(&self) -> bool {
        let (counter, limit) = &self.load.limits[0];
        for identifier in &self.load.identifiers {
            let charge = Charge::new(Key::new(counter, identifier, ""), limit);
            let charges = [Charge { on_store_error: FailureMode::Closed, ..charge }];
            let outcome = self.store.apply(&Command::peek(&charges), None).await;
            if !matches!(&outcome, Ok(Outcome::Decided(decision)) if !decision.degraded()) {
                return false;
            }
        }
        true
    }

    /// Stops the callers.
    pub async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut records = Vec::new();
        for caller in self.callers {
            records.extend(caller.await.expect("a caller does not panic"));
        }
        records.sort_by_key(|record| record.sent);
        Report { records, lateness: self.lateness.await.expect("the timer does not panic") }
    }
}

impl Report {
    /// Number of requests with this outcome.
    pub fn count(&self, fate: Fate) -> u64 {
        self.records.iter().filter(|record| record.fate == fate).count() as u64
    }

    /// Number of requests that the store did not decide within the deadline. Each of them may have
    /// been counted.
    pub fn timed_out(&self, deadline: Duration) -> u64 {
        let timed_out = |record: &&Record| record.fate == Fate::Degraded && record.took >= deadline;
        self.records.iter().filter(timed_out).count() as u64
    }

    /// The longest duration of a request.
    pub fn slowest(&self) -> Duration {
        self.records.iter().map(|record| record.took).max().unwrap_or_default()
    }

    /// Panics unless every request got a response in time: 99 % of them, and half of those that
    /// timed out, within five milliseconds of the deadline, and none much later. The lateness of
    /// this machine's timers is deducted, because it may stall for a moment.
    pub fn assert_punctual(&self, deadline: Duration) {
        assert_eq!(self.count(Fate::Failed), 0, "every request gets a response");
        let mut all: Vec<Duration> = self.records.iter().map(|record| record.took).collect();
        let mut timed_out: Vec<Duration> = all.iter().copied().filter(|took| *took >= deadline).collect();
        for (took, at_most) in [
            (percentile(&mut all, 0.99), deadline + GRACE),
            (percentile(&mut timed_out, 0.5), deadline + GRACE),
            (self.slowest(), deadline * 3),
        ] {
            let took = took.saturating_sub(self.lateness);
            assert!(
                took <= at_most,
                "{took:?}, after deducting {:?} of timer lateness, exceeds {at_most:?}",
                self.lateness
            );
        }
    }

    /// Time from `instant` until the store itself decided a request that was sent after it.
    pub fn healthy_after(&self, instant: Instant) -> Option<Duration> {
        let own =
            |record: &&Record| record.sent >= instant && matches!(record.fate, Fate::Admitted | Fate::Denied);
        self.records.iter().find(own).map(|record| (record.sent + record.took).duration_since(instant))
    }

    /// Time from the first degraded request to the end of the last.
    pub fn degraded_for(&self) -> Duration {
        let degraded = || self.records.iter().filter(|record| record.fate == Fate::Degraded);
        match (degraded().next(), degraded().map(|record| record.sent + record.took).max()) {
            (Some(first), Some(end)) => end.duration_since(first.sent),
            _ => Duration::ZERO,
        }
    }

    /// The time within which this share of the requests with one outcome got a response.
    pub fn percentile(&self, fate: Fate, share: f64) -> Duration {
        let mut times: Vec<Duration> =
            self.records.iter().filter(|record| record.fate == fate).map(|record| record.took).collect();
        percentile(&mut times, share)
    }
}

fn percentile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let place = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len().max(1)) - 1;
    times.get(place).copied().unwrap_or_default()
}

async fn call(load: Arc<Load>, store: Arc<dyn Store>, caller: usize, stop: Arc<AtomicBool>) -> Vec<Record> {
    let mut records = Vec::new();
    let mut number = 0usize;
    while !stop.load(Ordering::Relaxed) {
        let identifier = &load.identifiers[(caller + number * load.callers) % load.identifiers.len()];
        let charges: Vec<Charge<'_>> = load
            .limits
            .iter()
            .map(|(counter, limit)| Charge {
                on_store_error: load.on_store_error,
                ..Charge::new(Key::new(counter, identifier, ""), limit)
            })
            .collect();
        let key = format!("{caller}-{number}");
        let home = charges.first().map(|charge| charge.key.identity());
        let idempotency = load.idempotent.then_some(Idempotency {
            caller: identifier,
            key: &key,
            fingerprint: [1; 16],
            home,
            sender: None,
        });
        let command = Command { action: Action::Take { idempotency }, charges: &charges };
        let sent = Instant::now();
        let outcome = store.apply(&command, None).await;
        let fate = match outcome {
            Ok(Outcome::Decided(decision)) if decision.degraded() => Fate::Degraded,
            Ok(Outcome::Decided(decision)) if decision.allowed => Fate::Admitted,
            Ok(Outcome::Decided(_)) => Fate::Denied,
            _ => Fate::Failed,
        };
        records.push(Record { sent, took: sent.elapsed(), fate });
        number += 1;
        sleep(load.pause).await;
    }
    records
}

/// Measures how late a timer is, which is the machine's fault and not the store's.
async fn measure_lateness(stop: Arc<AtomicBool>) -> Duration {
    let nap = Duration::from_millis(5);
    let mut worst = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        sleep(nap).await;
        worst = worst.max(started.elapsed().saturating_sub(nap));
    }
    worst
}
