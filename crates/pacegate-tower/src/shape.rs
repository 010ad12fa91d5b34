//! Shaping: a request that a leaky bucket admits waits until it is its turn, within bounds.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use pacegate::{Answer, Decision};

use crate::gate::Gate;
use crate::question::Question;

/// How many requests wait at most, unless the layer says otherwise: each holds its connection and its memory meanwhile.
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
        let room = |waiting| (waiting < self.waiters_max).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }
}

/// How long an admitted request has to wait so that it leaves at a constant rate; zero for all but leaky buckets.
#[inline]
pub(crate) fn delay(decision: &Decision) -> Duration {
    let enforced = decision.answers().iter().filter(|answer| !answer.shadow);
    enforced.filter_map(Answer::delay).max().unwrap_or_default()
}

/// A place in the queue. Whoever leaves it before its turn, as a client does that hangs up, gets back what it took.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Arc<Gate>,
    waiter: Option<(Question<'static>, Decision)>,
}

/// A request that may not wait: what it took is still to be given back.
#[derive(Debug)]
pub(crate) struct NoPlace {
    pub(crate) question: Question<'static>,
    pub(crate) decision: Decision,
    /// When it is worth coming back.
    pub(crate) retry_after: Duration,
}

impl Place {
    /// Joins the queue for `delay`.
    pub(crate) fn take(
        gate: &Arc<Gate>,
        question: Question<'static>,
        decision: Decision,
        delay: Duration,
    ) -> Result<Self, Box<NoPlace>> {
        let shaping = gate.shaping.as_ref();
        let wait_max = shaping.map_or(Duration::ZERO, |shaping| shaping.wait_max);
        if delay > wait_max {
            // The queue gets shorter by itself, so by then the same request would wait no longer than it may.
            return Err(Box::new(NoPlace { question, decision, retry_after: delay - wait_max }));
        }
        if !shaping.is_some_and(Shaping::enter) {
            return Err(Box::new(NoPlace { question, decision, retry_after: delay }));
        }
        Ok(Self { gate: gate.clone(), waiter: Some((question, decision)) })
    }

    /// It is this request's turn.
    pub(crate) fn leave(mut self) -> Option<Decision> {
        self.waiter.take().map(|(_, decision)| decision)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shaping) = &self.gate.shaping {
            shaping.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let Some((question, decision)) = self.waiter.take() else { return };
        let gate = self.gate.clone();
        let in_process = gate.in_process;
        let give_back = async move {
            if let Err(error) = gate.give_back(&question, &decision).await
                && let Some(suppressed) = gate.noise.may_speak()
            {
                tracing::warn!(%error, suppressed, "refund of a cancelled request failed");
            }
        };
        if in_process {
            // It is ready at once.
            let _ = pin!(give_back).poll(&mut Context::from_waker(Waker::noop()));
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(give_back);
        }
    }
}
