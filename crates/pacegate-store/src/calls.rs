//! A deadline and a circuit breaker around calls to a server that is not a store.

use std::time::Duration;

use tokio::time::timeout;

use crate::breaker::{Change, SharedBreaker, Verdict};
use crate::error::StoreError;

/// Calls to one server, which all end in time and which leave it alone while it fails.
#[derive(Debug)]
pub struct GuardedCalls {
    name: Box<str>,
    deadline: Duration,
    breaker: SharedBreaker,
}

impl GuardedCalls {
    /// Calls to the server that is called `name` in logs, each of which may take as long as `deadline`.
    pub fn new(name: &str, deadline: Duration) -> Self {
        Self { name: name.into(), deadline, breaker: SharedBreaker::new() }
    }

    /// Makes a call, unless too many failed lately.
    ///
    /// # Errors
    /// The call's own, or that it took too long or was not made.
    pub async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let Some(turn) = self.breaker.turn() else {
            return Err(StoreError::unavailable("it failed too often and is left alone for a while"));
        };
        let late = || Err(StoreError::timed_out(format!("no answer within {:?}", self.deadline)));
        let result = timeout(self.deadline, call).await.unwrap_or_else(|_| late());
        let verdict = match &result {
            Err(error) if error.is_timeout() => Verdict::TimedOut,
            Err(error) if error.is_outage() => Verdict::Failed,
            // A server that refuses has answered. If that opened the breaker, a wrong key would soon look like an outage, and be let pass.
            _ => Verdict::Succeeded,
        };
        match turn.finish(verdict) {
            Change::None => {}
            Change::Opened => tracing::error!(server = &*self.name, "fails; it is left alone for a while"),
            Change::Closed => tracing::info!(server = &*self.name, "answers again"),
        }
        result
    }
}
