//! Traffic shaping: a request that a leaky bucket allows waits for its turn, within bounds.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use pacegate::{Answer, Decision};

use crate::check_parts::CheckParts;
use crate::gate::Gate;

/// Default maximum number of waiting requests; each holds its connection and memory.
pub(crate) const WAITERS_MAX: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Shaping {
    pub(crate) wait_max: Duration,
    pub(crate) waiters_max: usize,
    waiting: AtomicUsize,
}

impl Shaping {
    pub(crate) fn new(wait_max: Duration, waiters_max: usize) -> Self {
        Self { wait_max, waiters_max, waiting: AtomicUsize::new(0) }
    }

    fn enter(&self) -> bool {
        let increment = |waiting| (waiting < self.waiters_max).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment).is_ok()
    }
}

/// Returns how long an allowed request must wait to leave at a constant rate; zero for all but
/// leaky buckets.
#[inline]
pub(crate) fn delay(decision: &Decision) -> Duration {
    let enforced = decision.answers().iter().filter(|answer| !answer.shadow);
    enforced.filter_map(Answer::delay).max().unwrap_or_default()
}

/// A position in the queue. A request that leaves before its turn, for example because its client
/// disconnects, is refunded.
#[derive(Debug)]
pub(crate) struct QueuePosition {
    gate: Arc<Gate>,
    waiter: Option<(CheckParts<'static>, Decision)>,
}

/// A request that may not wait. Its charge still has to be refunded.
#[derive(Debug)]
pub(crate) struct QueueRejection {
    pub(crate) parts: CheckParts<'static>,
    pub(crate) decision: Decision,
    /// The time after which a retry helps.
    pub(crate) retry_after: Duration,
}

impl QueuePosition {
    /// Joins the queue for `delay`.
    pub(crate) fn take(
        gate: &Arc<Gate>,
        parts: CheckParts<'static>,
        decision: Decision,
        delay: Duration,
    ) -> Result<Self, Box<QueueRejection>> {
        let shaping = gate.shaping.as_ref();
        let wait_max = shaping.map_or(Duration::ZERO, |shaping| shaping.wait_max);
        if delay > wait_max {
            // The queue drains over time, so after this wait the same request would wait no longer
            // than allowed.
            return Err(Box::new(QueueRejection { parts, decision, retry_after: delay - wait_max }));
        }
        if !shaping.is_some_and(Shaping::enter) {
            return Err(Box::new(QueueRejection { parts, decision, retry_after: delay }));
        }
        Ok(Self { gate: gate.clone(), waiter: Some((parts, decision)) })
    }

    /// Leaves the queue because it is the turn of this request.
    pub(crate) fn leave(mut self) -> Option<Decision> {
        self.waiter.take().map(|(_, decision)| decision)
    }
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        if let Some(shaping) = &self.gate.shaping {
            shaping.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let Some((parts, decision)) = self.waiter.take() else { return };
        let gate = self.gate.clone();
        let in_process = gate.in_process;
        let refund = async move {
            if let Err(error) = gate.refund(&parts, &decision).await
                && let Some(suppressed) = gate.log_throttle.allow()
            {
                tracing::warn!(%error, suppressed, "refund of a cancelled request failed");
            }
        };
        if in_process {
            // The future completes immediately.
            let _ = pin!(refund).poll(&mut Context::from_waker(Waker::noop()));
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(refund);
        }
    }
}
