//! A deadline and a circuit breaker around calls to a server that is not a store.

use std::time::Duration;

use tokio::time::timeout;

use crate::breaker::{Change, SharedBreaker, Verdict};
use crate::error::StoreError;

/// Calls to one server, with a deadline for each and a circuit breaker.
#[derive(Debug)]
pub struct GuardedCalls {
    name: Box<str>,
    deadline: Duration,
    breaker: SharedBreaker,
}

impl GuardedCalls {
    /// Guards the calls to a server that is called `name` in logs; each may take up to `deadline`.
    pub fn new(name: &str, deadline: Duration) -> Self {
        Self { name: name.into(), deadline, breaker: SharedBreaker::new() }
    }

    /// Makes a call, unless the circuit breaker is open.
    ///
    /// # Errors
    /// The call's error, or that it timed out or was not made.
    pub async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let Some(permitted) = self.breaker.try_call() else {
            return Err(StoreError::unavailable("circuit breaker is open after repeated failures"));
        };
        let late = || Err(StoreError::timed_out(format!("no response within {:?}", self.deadline)));
        let result = timeout(self.deadline, call).await.unwrap_or_else(|_| late());
        let verdict = match &result {
            Err(error) if error.is_timeout() => Verdict::TimedOut,
            Err(error) if error.is_outage() => Verdict::Failed,
            // A rejection is a response. If it opened the breaker, a wrong key would soon look like
            // an outage, and requests would fail open.
            _ => Verdict::Succeeded,
        };
        match permitted.finish(verdict) {
            Change::None => {}
            Change::Opened => {
                tracing::error!(server = &*self.name, "server unavailable; circuit breaker opened")
            }
            Change::Closed => tracing::info!(server = &*self.name, "server available again"),
        }
        result
    }
}
