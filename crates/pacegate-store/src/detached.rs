//! Work that is completed even if its caller stops waiting, because of a deadline or a disconnect.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a call in progress may still take after its caller is gone.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// How long the work may then take to refund what it took.
const REFUND_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of tasks that run without a caller. Beyond that, work is dropped and what it took
/// stays charged.
const DETACHED_MAX: usize = 10_000;

static DETACHED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    CallerWaits,
    CallerGone,
    /// The call in progress when the caller left did not end in time.
    CallLost,
}

/// What detachable work knows about its caller.
#[derive(Clone, Debug)]
pub struct Caller {
    stage: watch::Receiver<Stage>,
}

impl Caller {
    /// Whether the caller stopped waiting.
    pub fn is_gone(&self) -> bool {
        *self.stage.borrow() != Stage::CallerWaits
    }

    /// Waits for `call`, for a bounded time once the caller is gone; `None` when that time is over.
    pub(crate) async fn wait_for<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let mut stage = self.stage.clone();
        let mut lost = pin!(stage.wait_for(|stage| *stage == Stage::CallLost));
        let mut call = pin!(call);
        poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => lost.as_mut().poll(context).map(|_| None),
        })
        .await
    }
}

/// A future whose work continues in a task of its own, for a bounded time, if it is dropped before
/// it ends. Created by [`detachable`].
#[must_use = "futures do nothing unless polled"]
pub struct Detachable<T: 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    stage: watch::Sender<Stage>,
    /// Work that was never polled has nothing to finish.
    started: bool,
}

/// Makes work detachable that may charge and must not end before it has refunded what it may not
/// keep. The work owns its data and checks the [`Caller`] between its steps.
pub fn detachable<W>(work: impl FnOnce(Caller) -> W) -> Detachable<W::Output>
where
    W: Future<Output: 'static> + Send + 'static,
{
    let (stage, receiver) = watch::channel(Stage::CallerWaits);
    Detachable { work: Some(Box::pin(work(Caller { stage: receiver }))), stage, started: false }
}

impl<T> Future for Detachable<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out while it is polled: work that panicked is not polled again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        self.started = true;
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T> Drop for Detachable<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take().filter(|_| self.started) else { return };
        self.stage.send_replace(Stage::CallerGone);
        let Ok(runtime) = Handle::try_current() else { return };
        let Some(slot) = Slot::acquire() else { return };
        let stage = std::mem::replace(&mut self.stage, watch::Sender::new(Stage::CallerGone));
        let work = async move { drop(work.await) };
        runtime.spawn(finish(Box::pin(work), stage, slot));
    }
}

async fn finish(
    mut work: Pin<Box<dyn Future<Output = ()> + Send>>,
    stage: watch::Sender<Stage>,
    _slot: Slot,
) {
    if timeout(ANSWER_WAIT, &mut work).await.is_err() {
        stage.send_replace(Stage::CallLost);
        let _ = timeout(REFUND_WAIT, work).await;
    }
}

/// A slot for work without a caller.
struct Slot;

impl Slot {
    fn acquire() -> Option<Self> {
        let slot = Self;
        (DETACHED.fetch_add(1, Ordering::Relaxed) < DETACHED_MAX).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        DETACHED.fetch_sub(1, Ordering::Relaxed);
    }
}
