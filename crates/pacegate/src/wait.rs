//! Waiting until a check is allowed, mainly for clients that limit themselves.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Mutex as Queue;
use tokio::time::{Instant, sleep, timeout_at};

use crate::check::Check;
use crate::decision::Decision;
use crate::error::CheckError;
use crate::into_check::IntoCheck;
use crate::limiter::Limiter;

/// Maximum number of waiting checks. Beyond it, a check is decided without waiting.
const WAITING_MAX: usize = 10_000;

/// The waiting checks, by identity. Within this process, waiters on one identity are served first
/// come, first served.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    /// For each identity, the number of waiters and the lock that the current one holds.
    queues: HashMap<String, (usize, Arc<Queue<()>>)>,
}

/// A position in a queue, released when it is dropped.
struct QueuePosition<'a> {
    waiters: &'a Waiters,
    identity: String,
    queue: Arc<Queue<()>>,
}

impl Waiters {
    fn has_waiters(&self, identity: &str) -> bool {
        self.waiting.lock().queues.contains_key(identity)
    }

    fn join(&self, identity: String) -> Option<QueuePosition<'_>> {
        let mut waiting = self.waiting.lock();
        if waiting.all >= WAITING_MAX {
            return None;
        }
        waiting.all += 1;
        let (count, queue) = waiting.queues.entry(identity.clone()).or_default();
        *count += 1;
        let queue = queue.clone();
        Some(QueuePosition { waiters: self, identity, queue })
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting.lock();
        waiting.all -= 1;
        if let Some((count, _)) = waiting.queues.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                waiting.queues.remove(&self.identity);
            }
        }
    }
}

impl Limiter {
    /// Waits until the check is allowed, for at most `at_most`, and then charges it.
    ///
    /// Returns a denial as soon as it is certain that the wait would be too long. The decision
    /// contains the time to wait.
    ///
    /// The `delay` of a leaky bucket is waited for as well, so requests leave at its rate. Within
    /// this process, waiters on the same identities are served first come, first served; other
    /// processes compete for the same quota in no particular order. Dropping the future charges
    /// nothing, unless a leaky bucket has already admitted the check.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::{Check, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::builder().plan("partner-api", [Limit::per_second(1_000).burst(1)]).build()?;
    /// for _ in 0..3 {
    ///     let decision = limiter.wait(&Check::key("partner").plan("partner-api"), Duration::from_secs(5)).await?;
    ///     assert!(decision.allowed());
    ///     // … call the partner's API
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CheckError`] if no decision could be made. A denial is a decision, not an error.
    pub fn wait<'s, 'a: 's>(
        &'s self,
        check: impl IntoCheck<'s, 'a>,
        at_most: Duration,
    ) -> impl Future<Output = Result<Decision, CheckError>> + Send {
        let check = check.into_check();
        async move { self.wait_for(check.borrow(), at_most).await }
    }

    async fn wait_for(&self, check: &Check<'_>, at_most: Duration) -> Result<Decision, CheckError> {
        let start = Instant::now();
        // A deadline beyond the range of `Instant` is effectively infinite.
        let deadline = start.checked_add(at_most).unwrap_or(start + Duration::from_secs(3_600 * 24 * 366));
        let check = &*self.canonical(check)?;
        let identity = check.identity();
        if !self.waiters.has_waiters(&identity) {
            let decision = self.check(check).await?;
            if decision.allowed() || too_long(&decision, deadline) {
                return self.delayed(check, decision, deadline).await;
            }
        }
        let Some(position) = self.waiters.join(identity) else { return self.check(check).await };
        let Ok(_turn) = timeout_at(deadline, position.queue.lock()).await else {
            return self.peek(check).await;
        };
        loop {
            let decision = self.check(check).await?;
            if decision.allowed() || too_long(&decision, deadline) {
                return self.delayed(check, decision, deadline).await;
            }
            sleep(decision.retry_after().unwrap_or_default()).await;
        }
    }

    /// Waits for the delay of a leaky bucket. If the deadline is too soon, refunds the charge and
    /// denies.
    async fn delayed(
        &self,
        check: &Check<'_>,
        decision: Decision,
        deadline: Instant,
    ) -> Result<Decision, CheckError> {
        let delay = decision.allowed().then(|| decision.delay()).flatten().unwrap_or_default();
        if delay.is_zero() {
            return Ok(decision);
        }
        if Instant::now() + delay <= deadline {
            sleep(delay).await;
            return Ok(decision);
        }
        self.refund(check, &decision).await?;
        Ok(decision.into_denial(delay.saturating_sub(deadline.saturating_duration_since(Instant::now()))))
    }
}

/// Whether a denied check cannot be allowed before the deadline.
fn too_long(decision: &Decision, deadline: Instant) -> bool {
    decision.retry_after().is_none_or(|wait| Instant::now() + wait > deadline)
}
