//! A deadline and a circuit breaker around calls to a server that is not a store.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::breaker::{Breaker, Change, Permit, Verdict};
use crate::error::StoreError;

/// Calls to one server, which all end in time and which leave it alone while it fails.
#[derive(Debug)]
pub struct GuardedCalls {
    name: Box<str>,
    deadline: Duration,
    breaker: Mutex<Breaker>,
}

impl GuardedCalls {
    /// Calls to the server that is called `name` in logs, each of which may take as long as `deadline`.
    pub fn new(name: &str, deadline: Duration) -> Self {
        Self { name: name.into(), deadline, breaker: Mutex::new(Breaker::new()) }
    }

    /// Makes a call, unless too many failed lately.
    ///
    /// # Errors
    /// The call's own, or that it took too long or was not made.
    pub async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let permit = self.breaker().permit(Instant::now());
        if permit == Permit::Refused {
            return Err(StoreError::unavailable("it failed too often and is left alone for a while"));
        }
        let mut pending = Pending { calls: self, permit: Some(permit) };
        let result = timeout(self.deadline, call).await;
        let result = result
            .unwrap_or_else(|_| Err(StoreError::timed_out(format!("no answer within {:?}", self.deadline))));
        pending.permit = None;
        let verdict = match &result {
            Err(error) if error.is_timeout() => Verdict::TimedOut,
            Err(error) if error.is_outage() || error.is_permanent() => Verdict::Failed,
            _ => Verdict::Succeeded,
        };
        match self.breaker().record(permit, verdict, Instant::now(), fastrand::f64()) {
            Change::None => {}
            Change::Opened => tracing::error!(server = &*self.name, "fails; it is left alone for a while"),
            Change::Closed => tracing::info!(server = &*self.name, "answers again"),
        }
        result
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        // The breaker is never left half-changed.
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a probe's place back when its caller goes away before the answer.
struct Pending<'a> {
    calls: &'a GuardedCalls,
    permit: Option<Permit>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit {
            self.calls.breaker().abandon(permit);
        }
    }
}
