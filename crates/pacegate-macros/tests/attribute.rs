//! Functions and methods with `#[rate_limit]`, `async` or not, with keys and costs from their
//! arguments.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate::{CheckError, Limit, Limiter, MemoryStore, RateLimited, Timestamp, rate_limit, store::Clock};

/// A clock that only moves when it is advanced. The testkit has one too, but its dependencies would
/// be compiled for the compile-fail programs.
#[derive(Debug, Default)]
struct StoppedClock(AtomicU64);

impl StoppedClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Clock for StoppedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

fn limiter() -> (Limiter, Arc<StoppedClock>) {
    let clock = Arc::new(StoppedClock::default());
    let limiter = Limiter::builder()
        .memory(Arc::new(MemoryStore::with_clock(Default::default(), clock.clone())))
        .plan("gold", [Limit::per_minute(3)])
        .plan("daily", [Limit::per_hour(2)])
        .build()
        .unwrap();
    (limiter, clock)
}

#[derive(Debug)]
enum OrderError {
    Limited(RateLimited),
    SoldOut,
}

impl From<RateLimited> for OrderError {
    fn from(limited: RateLimited) -> Self {
        Self::Limited(limited)
    }
}

#[rate_limit(key = "user:{user_id}", plan = "gold", limiter = limiter)]
async fn order(limiter: &Limiter, user_id: u64, sold_out: bool) -> Result<u64, OrderError> {
    if sold_out {
        return Err(OrderError::SoldOut);
    }
    Ok(user_id)
}

#[tokio::test]
async fn denial_is_converted_to_the_error_of_the_function() {
    let (limiter, clock) = limiter();
    for _ in 0..2 {
        assert_eq!(order(&limiter, 7, false).await.unwrap(), 7);
    }
    // Errors of the body are returned unchanged. The call is charged, because the function ran.
    assert!(matches!(order(&limiter, 7, true).await, Err(OrderError::SoldOut)));
    let Err(OrderError::Limited(limited)) = order(&limiter, 7, false).await else { panic!() };
    assert_eq!(limited.retry_after(), Some(Duration::from_secs(20)));
    assert_eq!(limited.to_string(), "rate limit `gold` exceeded; retry in 20.000 s");
    assert_eq!(order(&limiter, 8, false).await.unwrap(), 8, "another key");
    clock.advance(Duration::from_secs(20));
    assert_eq!(order(&limiter, 7, false).await.unwrap(), 7);
}

struct Shop {
    limiter: Limiter,
}

impl Shop {
    /// The limiter is a field; the key and the cost are expressions.
    #[rate_limit(key = user.to_lowercase(), plan = ["gold", "daily"], cost = items.len(), limiter = self.limiter)]
    fn buy(&self, user: &str, items: &[&str]) -> Result<usize, RateLimited> {
        Ok(items.len())
    }

    #[rate_limit(key = "all", plan = "gold", plan = "daily", limiter = self.limiter)]
    async fn close<T>(&mut self, reason: T) -> Result<T, RateLimited>
    where
        T: Clone + Send,
    {
        Ok(reason.clone())
    }
}

#[tokio::test]
async fn plans_chain_and_costs_are_expressions() {
    let (limiter, _) = limiter();
    let mut shop = Shop { limiter };
    assert_eq!(shop.buy("Ann", &["tea", "cup"]).unwrap(), 2);
    let denied = shop.buy("ann", &["tea"]).unwrap_err();
    assert_eq!(&*denied.decision().unwrap().binding_limit().unwrap().name, "daily");
    let whole = shop.limiter.peek(&pacegate::Check::key("ann").plan("gold")).await.unwrap();
    assert_eq!(whole.remaining(), Some(1), "the denied call is not charged to the other plan");
    assert!(matches!(shop.buy("bob", &[]), Err(RateLimited::Failed(CheckError::InvalidCost(_)))));
    assert_eq!(shop.close("late").await.unwrap(), "late");
}

#[rate_limit(key = "k", plan = "no-such-plan", limiter = limiter)]
fn unknown_plan(limiter: &Limiter) -> Result<(), RateLimited> {
    Ok(())
}

#[rate_limit(key = "k", plan = "gold")]
fn with_installed_limiter() -> Result<(), RateLimited> {
    Ok(())
}

#[test]
fn errors_at_run_time_are_returned() {
    let (limiter, _) = limiter();
    let error = unknown_plan(&limiter).unwrap_err();
    assert_eq!(error.to_string(), "rate limit check failed: unknown plan `no-such-plan`");
    let error = with_installed_limiter().unwrap_err();
    assert!(error.to_string().contains("call `Limiter::install`"), "{error}");
    assert!(error.retry_after().is_none() && error.decision().is_none());
    limiter.clone().install().unwrap();
    assert!(limiter.install().is_err(), "a limiter is already installed");
    for _ in 0..3 {
        with_installed_limiter().unwrap();
    }
    assert!(matches!(with_installed_limiter(), Err(RateLimited::Denied(_))));
}

#[test]
fn invalid_arguments_are_compile_errors() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/rejected/*.rs");
}
