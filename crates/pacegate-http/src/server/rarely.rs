//! A future beside one that is polled often.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use pin_project_lite::pin_project;

pin_project! {
    /// Polls a future only when it was woken, not whenever the task is.
    pub(super) struct Rarely<F> {
        #[pin]
        future: F,
        alarm: Arc<Alarm>,
        waker: Waker,
    }
}

/// Remembers that the future was woken.
struct Alarm {
    rang: AtomicBool,
    task: AtomicWaker,
}

impl<F> Rarely<F> {
    pub(super) fn new(future: F) -> Self {
        // The first poll has to happen.
        let alarm = Arc::new(Alarm { rang: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { future, waker: alarm.clone().into(), alarm }
    }
}

impl<F: Future> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Registered first: otherwise an alarm in between would be lost.
        this.alarm.task.register(context.waker());
        if !this.alarm.rang.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rang.store(true, Ordering::Release);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn future_is_polled_only_when_it_was_woken() {
        let (sender, mut receiver) = oneshot::channel();
        let mut polls = 0;
        let rare = poll_fn(|context| {
            polls += 1;
            Pin::new(&mut receiver).poll(context)
        });
        let mut rare = Box::pin(Rarely::new(rare));
        for _ in 0..10 {
            assert!(poll_fn(|context| Poll::Ready(rare.as_mut().poll(context))).await.is_pending());
        }
        tokio::spawn(async move { sender.send(7) });
        assert_eq!(rare.await, Ok(7));
        assert_eq!(polls, 2);
    }
}
