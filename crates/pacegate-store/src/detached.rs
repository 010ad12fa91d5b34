//! Work that ends properly although its caller stops waiting: a caller with a deadline, or one that disconnects.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a call that was under way may still take after its caller is gone.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// How long the work may take after that to give back what it took.
const GIVE_BACK_WAIT: Duration = Duration::from_secs(5);
/// At most this many run without a caller at the same time. Beyond that the work is dropped, and what it took stays charged.
const DETACHED_MAX: usize = 10_000;

static DETACHED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    CallerWaits,
    CallerGone,
    /// The call that was under way when the caller left did not end in time.
    CallLost,
}

/// What detachable work knows about its caller.
#[derive(Clone, Debug)]
pub struct Caller {
    stage: watch::Receiver<Stage>,
}

impl Caller {
    /// Whether the answer has no receiver any more.
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

/// Work that goes on in a task of its own, for a bounded time, when this future is dropped before its end. Made by [`detachable`].
#[must_use = "futures do nothing unless polled"]
pub struct Detachable<T: 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    stage: watch::Sender<Stage>,
    /// What was never polled has nothing to finish.
    started: bool,
}

/// Work that may take something and must not be cut off before it has given back what it may not keep. It owns its data, and asks the
/// [`Caller`] between its steps whether to go on.
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
        let Some(place) = Place::free() else { return };
        let stage = std::mem::replace(&mut self.stage, watch::Sender::new(Stage::CallerGone));
        let work = async move { drop(work.await) };
        runtime.spawn(finish(Box::pin(work), stage, place));
    }
}

async fn finish(
    mut work: Pin<Box<dyn Future<Output = ()> + Send>>,
    stage: watch::Sender<Stage>,
    _place: Place,
) {
    if timeout(ANSWER_WAIT, &mut work).await.is_err() {
        stage.send_replace(Stage::CallLost);
        let _ = timeout(GIVE_BACK_WAIT, work).await;
    }
}

/// One of the places for work without a caller.
struct Place;

impl Place {
    fn free() -> Option<Self> {
        let place = Self;
        (DETACHED.fetch_add(1, Ordering::Relaxed) < DETACHED_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        DETACHED.fetch_sub(1, Ordering::Relaxed);
    }
}
