//! Waiting for one's turn, for whoever would rather be late than be denied: mostly clients that limit themselves.

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

/// How many can wait at once; whoever comes then is answered as by a check.
const WAITING_MAX: usize = 10_000;

/// Who waits, by identity. Those of one identity in this process come in the order in which they began to wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    /// How many wait for each, and the lock whose holder's turn it is.
    queues: HashMap<String, (usize, Arc<Queue<()>>)>,
}

/// A place among those who wait; given up when it is dropped, whatever the reason.
struct Place<'a> {
    waiters: &'a Waiters,
    identity: String,
    queue: Arc<Queue<()>>,
}

impl Waiters {
    fn is_waited_for(&self, identity: &str) -> bool {
        self.waiting.lock().queues.contains_key(identity)
    }

    fn join(&self, identity: String) -> Option<Place<'_>> {
        let mut waiting = self.waiting.lock();
        if waiting.all >= WAITING_MAX {
            return None;
        }
        waiting.all += 1;
        let (count, queue) = waiting.queues.entry(identity.clone()).or_default();
        *count += 1;
        let queue = queue.clone();
        Some(Place { waiters: self, identity, queue })
    }
}

impl Drop for Place<'_> {
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
    /// Waits until the check is allowed, for at most as long as said, and charges it then. Where that is not long enough it is denied at once, as soon as
    /// that is known: the decision says how long it would take.
    ///
    /// A leaky bucket's `delay` is waited for too, so that requests leave at its rate. Whoever waits for the same identities in this process comes in
    /// order; other processes take part by chance. Dropping the future charges nothing, except where a leaky bucket has given it its turn already.
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
    /// [`CheckError`] when no decision could be made; a denial is a decision.
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
        // A time too far to be told is as good as for ever.
        let deadline = start.checked_add(at_most).unwrap_or(start + Duration::from_secs(3_600 * 24 * 366));
        let check = &*self.canonical(check)?;
        let identity = check.identity();
        if !self.waiters.is_waited_for(&identity) {
            let decision = self.check(check).await?;
            if decision.allowed() || too_long(&decision, deadline) {
                return self.delayed(check, decision, deadline).await;
            }
        }
        let Some(place) = self.waiters.join(identity) else { return self.check(check).await };
        let Ok(_turn) = timeout_at(deadline, place.queue.lock()).await else { return self.peek(check).await };
        loop {
            let decision = self.check(check).await?;
            if decision.allowed() || too_long(&decision, deadline) {
                return self.delayed(check, decision, deadline).await;
            }
            sleep(decision.retry_after().unwrap_or_default()).await;
        }
    }

    /// Waits for a leaky bucket's delay; gives the turn back if there is not enough time for that.
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
        Ok(decision.denied_for(delay.saturating_sub(deadline.saturating_duration_since(Instant::now()))))
    }
}

/// Whether waiting for a denied check does not help in time.
fn too_long(decision: &Decision, deadline: Instant) -> bool {
    decision.retry_after().is_none_or(|wait| Instant::now() + wait > deadline)
}
