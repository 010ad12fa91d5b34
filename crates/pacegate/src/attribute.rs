//! Support for the attribute `#[rate_limit]`: the functions it calls, and the error of a denied
//! call.

use std::sync::OnceLock;
use std::time::Duration;

use pacegate_core::{Cost, Reason};
use thiserror::Error;

use crate::check::Check;
use crate::decision::Decision;
use crate::error::CheckError;
use crate::limiter::Limiter;

static INSTALLED: OnceLock<Limiter> = OnceLock::new();

/// The error of a denied call of a function with `#[rate_limit]`, converted to the error type of
/// the function.
///
/// ```
/// use pacegate::{Limit, Limiter, RateLimited};
///
/// let limiter = Limiter::new(Limit::per_hour(1))?;
/// limiter.check_now("user-1")?;
/// let denied = RateLimited::Denied(Box::new(limiter.check_now("user-1")?));
/// assert!(denied.to_string().contains("default"), "{denied}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RateLimited {
    /// A limit denied the call.
    #[error("{}", explain(.0))]
    Denied(Box<Decision>),
    /// No decision could be made.
    #[error("rate limit check failed: {0}")]
    Failed(#[from] CheckError),
}

impl RateLimited {
    /// Returns the time after which the same call is allowed, if waiting helps.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied(decision) => decision.retry_after(),
            Self::Failed(_) => None,
        }
    }

    /// Returns the decision, if there is one.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Denied(decision) => Some(decision),
            Self::Failed(_) => None,
        }
    }
}

fn explain(decision: &Decision) -> String {
    let name = decision.binding_limit().map(|limit| format!(" `{}`", limit.name)).unwrap_or_default();
    if decision.failed_closed() {
        return format!("store unavailable; rate limit{name} fails closed");
    }
    match (decision.retry_after(), decision.binding().and_then(|answer| answer.reason)) {
        (Some(wait), _) => format!("rate limit{name} exceeded; retry in {:.3} s", wait.as_secs_f64()),
        (None, Some(Reason::CostExceedsLimit)) => {
            format!("the cost exceeds the capacity of rate limit{name}")
        }
        (None, _) => format!("rate limit{name} exceeded"),
    }
}

impl Limiter {
    /// Makes this the default limiter of `#[rate_limit]`, for the lifetime of the process.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::builder().plan("gold", [Limit::per_second(10)]).build()?;
    /// assert!(limiter.install().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns this limiter if one is already installed.
    pub fn install(self) -> Result<(), Self> {
        INSTALLED.set(self)
    }
}

fn limiter(given: Option<&Limiter>) -> Result<&Limiter, CheckError> {
    given.or_else(|| INSTALLED.get()).ok_or(CheckError::NotInstalled)
}

fn check<'a>(key: &'a str, plans: &[&'a str], cost: u64) -> Result<Check<'a>, CheckError> {
    let cost = Cost::try_new(cost).map_err(CheckError::InvalidCost)?;
    Ok(plans.iter().fold(Check::key(key).cost(cost), |check, plan| check.plan(plan)))
}

fn judged(decision: Decision) -> Result<(), RateLimited> {
    if decision.allowed() { Ok(()) } else { Err(RateLimited::Denied(Box::new(decision))) }
}

/// Converts a cost of any integer type. The check rejects numbers that are not valid costs.
#[doc(hidden)]
pub fn cost(cost: impl TryInto<u64>) -> u64 {
    cost.try_into().unwrap_or(u64::MAX)
}

#[doc(hidden)]
pub async fn admit(given: Option<&Limiter>, key: &str, plans: &[&str], cost: u64) -> Result<(), RateLimited> {
    judged(limiter(given)?.check(&check(key, plans, cost)?).await?)
}

#[doc(hidden)]
pub fn admit_now(given: Option<&Limiter>, key: &str, plans: &[&str], cost: u64) -> Result<(), RateLimited> {
    judged(limiter(given)?.check_now(&check(key, plans, cost)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_reason_of_a_denial() {
        let limiter = Limiter::builder().plan("gold", [pacegate_core::Limit::per_minute(3)]).build().unwrap();
        let message =
            |cost: u32| explain(&limiter.check_now(Check::key("k").plan("gold").cost(cost)).unwrap());
        assert_eq!(message(4), "the cost exceeds the capacity of rate limit `gold`");
        assert!(limiter.check_now(Check::key("k").plan("gold").cost(3)).unwrap().allowed());
        assert!(message(1).starts_with("rate limit `gold` exceeded; retry in "), "{}", message(1));
        let failed = Decision::without_service(false, Reason::FailClosed);
        assert_eq!(explain(&failed), "store unavailable; rate limit fails closed");
    }
}
