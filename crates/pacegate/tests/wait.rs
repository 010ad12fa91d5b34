//! `Limiter::wait` and chains of checks, on paused time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{Algorithm, Check, CheckError, Cost, Limit, Limiter, MemoryStore, Timestamp, store::Clock};
use tokio::time::Instant;

/// The clock of the paused runtime.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_000_000_000 + self.0.elapsed().as_micros() as u64)
    }
}

fn limiter() -> Limiter {
    let leaky =
        Limit::try_new(Algorithm::LeakyBucket, 1, Duration::from_secs(1)).unwrap().with_burst(3).unwrap();
    Limiter::builder()
        .memory(Arc::new(MemoryStore::with_clock(Default::default(), Arc::new(Paused(Instant::now())))))
        .plan("one", [Limit::per_second(1)])
        .plan("ten", [Limit::per_minute(10)])
        .plan("leaky", [leaky])
        .build()
        .unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn wait_ends_as_soon_as_the_check_is_allowed() {
    let limiter = limiter();
    let start = Instant::now();
    let check = Check::key("k").plan("one");
    for seconds in 0..5 {
        assert!(limiter.wait(&check, MINUTE).await.unwrap().allowed());
        let waited = start.elapsed();
        let due = Duration::from_secs(seconds);
        assert!(waited >= due && waited < due + Duration::from_millis(5), "{waited:?}");
    }
    // A wait that is too long is denied immediately, and nothing is charged.
    let before = start.elapsed();
    let decision = limiter.wait(&check, Duration::from_millis(500)).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(start.elapsed(), before, "a hopeless check does not wait");
    assert!(decision.retry_after().unwrap() > Duration::from_millis(900));
    let never = limiter.wait(&check.clone().cost(Cost::try_new(2).unwrap()), MINUTE).await.unwrap();
    assert!(!never.allowed() && never.retry_after().is_none(), "a cost above the capacity does not wait");
    assert!(matches!(
        limiter.wait(&Check::key("k").plan("no"), MINUTE).await,
        Err(CheckError::UnknownPlan { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_first_come_first_served_and_cancelled_ones_are_skipped() {
    let limiter = Arc::new(limiter());
    let done = Arc::new(list::List::default());
    let check = Check::key("k").plan("one");
    assert!(limiter.check(&check).await.unwrap().allowed());
    let mut tasks = Vec::new();
    for number in 0..6_u32 {
        let (limiter, done) = (limiter.clone(), done.clone());
        tasks.push(tokio::spawn(async move {
            let decision = limiter.wait(&Check::key("k").plan("one"), MINUTE).await.unwrap();
            assert!(decision.allowed());
            done.add(number);
        }));
        // Each waiter joins the queue before the next one starts.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    tasks[2].abort();
    let other = limiter.wait(&Check::key("other").plan("one"), MINUTE).await.unwrap();
    assert!(other.allowed(), "other keys do not wait");
    let start = Instant::now();
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.is_ok(), number != 2);
    }
    assert_eq!(done.take(), [0, 1, 3, 4, 5]);
    let waited = start.elapsed();
    assert!(waited < Duration::from_millis(5_100), "a cancelled waiter takes no turn: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn leaky_bucket_paces_and_refunds_what_would_take_too_long() {
    let limiter = limiter();
    let check = Check::key("k").plan("leaky");
    let start = Instant::now();
    assert!(limiter.wait(&check, MINUTE).await.unwrap().allowed());
    assert!(limiter.wait(&check, MINUTE).await.unwrap().allowed());
    let paced = start.elapsed();
    assert!(paced >= Duration::from_secs(1) && paced < Duration::from_millis(1_010), "{paced:?}");
    let remaining = limiter.peek(&check).await.unwrap().remaining();
    let hurried = limiter.wait(&check, Duration::from_millis(10)).await.unwrap();
    assert!(!hurried.allowed());
    let wait = hurried.retry_after().unwrap();
    assert!(wait > Duration::from_millis(900) && wait < Duration::from_millis(1_000), "{wait:?}");
    assert_eq!(limiter.peek(&check).await.unwrap().remaining(), remaining, "the charge was refunded");
}

#[tokio::test(start_paused = true)]
async fn chains_are_charged_all_or_nothing() {
    let limiter = limiter();
    let (tenant, user) = (Check::key("tenant").plan("ten"), Check::key("user").plan("one"));
    let decision = limiter.check_all(&[tenant.clone(), user.clone()]).await.unwrap();
    assert!(decision.allowed());
    assert_eq!(decision.limits().iter().map(|limit| &*limit.name).collect::<Vec<_>>(), ["ten", "one"]);
    let denied = limiter.check_all(&[tenant.clone(), user.clone()]).await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(&*denied.binding_limit().unwrap().name, "one");
    assert_eq!(limiter.peek(&tenant).await.unwrap().remaining(), Some(9), "the other limit is not charged");
    // Different costs are refunded when a later check is denied.
    let costly = tenant.clone().cost(Cost::try_new(5).unwrap());
    assert!(!limiter.check_all(&[costly.clone(), user.clone()]).await.unwrap().allowed());
    assert_eq!(limiter.peek(&tenant).await.unwrap().remaining(), Some(9));
    // A counter that occurs twice is charged twice.
    assert!(limiter.check_all(&[tenant.clone(), costly]).await.unwrap().allowed());
    assert_eq!(limiter.peek(&tenant).await.unwrap().remaining(), Some(3));
    assert!(limiter.check_all(&[]).await.unwrap().allowed());
    let keyed = [user.idempotency("me", "key"), tenant];
    assert!(matches!(limiter.check_all(&keyed).await, Err(CheckError::IdempotencyInChain)));
}

/// A list that tasks append to.
mod list {
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    pub(super) struct List(Mutex<Vec<u32>>);

    impl List {
        pub(super) fn add(&self, number: u32) {
            self.0.lock().unwrap().push(number);
        }

        pub(super) fn take(&self) -> Vec<u32> {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }
}
