//! Gathers what concurrent callers ask for into batches, for stores that are won or lost by round trips.
//!
//! A lane takes whatever waits, up to a bound, and works on it while the next batch gathers behind it. There is no timer: when nobody else asks, a
//! batch is one request and starts at once.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::error::StoreError;
use crate::figure::{Figure, Figures};

/// A request and where its answer goes.
pub type Asked<T, R> = (T, oneshot::Sender<R>);

/// What a lane does with a batch: it answers each request, in order, and is then ready for the next.
pub trait Lane<T, R>: Send + 'static {
    /// Works on a batch. Requests without an answer at the end are told that there is none.
    fn work<'a>(
        &'a mut self,
        batch: &'a mut Vec<Asked<T, R>>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// Lanes of work with a queue each. Requests that share something to wait for belong into the same lane.
pub struct Batcher<T, R> {
    lanes: Vec<mpsc::Sender<Asked<T, R>>>,
    tasks: Vec<AbortHandle>,
    counted: Arc<Counted>,
}

/// How many batches there were, and how many requests in them.
#[derive(Default)]
struct Counted {
    batches: AtomicU64,
    requests: AtomicU64,
}

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// Starts a task for each lane, which takes up to `batch_max` requests at once out of a queue of `queue_max`.
    pub fn start<L: Lane<T, R>>(lanes: Vec<L>, batch_max: usize, queue_max: usize) -> Self {
        let mut batcher = Self { lanes: Vec::new(), tasks: Vec::new(), counted: Arc::default() };
        for mut lane in lanes {
            let (sender, mut receiver) = mpsc::channel(queue_max);
            batcher.lanes.push(sender);
            let counted = batcher.counted.clone();
            let task = tokio::spawn(async move {
                let mut batch = Vec::with_capacity(batch_max);
                while receiver.recv_many(&mut batch, batch_max).await > 0 {
                    // Callers who went away need no answer, and must not be charged for waiting in vain.
                    batch.retain(|(_, answer): &Asked<T, R>| !answer.is_closed());
                    if !batch.is_empty() {
                        counted.batches.fetch_add(1, Ordering::Relaxed);
                        counted.requests.fetch_add(batch.len() as u64, Ordering::Relaxed);
                        lane.work(&mut batch).await;
                        batch.clear();
                    }
                }
            });
            batcher.tasks.push(task.abort_handle());
        }
        batcher
    }

    /// Has `request` worked on in the lane that `hash` leads to.
    ///
    /// # Errors
    /// [`StoreError`] when the queue is full, which changes nothing, or the lane gave no answer.
    pub async fn ask(&self, hash: u64, request: T) -> Result<R, StoreError> {
        let lane = &self.lanes[(hash % self.lanes.len() as u64) as usize];
        let (sender, receiver) = oneshot::channel();
        lane.try_send((request, sender))
            .map_err(|_| StoreError::unavailable("too many requests wait for the store"))?;
        receiver.await.map_err(|_| StoreError::unanswered())
    }

    /// How many batches there were, how many requests in them, and how many wait now.
    pub fn figures(&self) -> Figures {
        let waiting: usize = self.lanes.iter().map(|lane| lane.max_capacity() - lane.capacity()).sum();
        vec![
            ("batches", Figure::Count(self.counted.batches.load(Ordering::Relaxed))),
            ("batched", Figure::Count(self.counted.requests.load(Ordering::Relaxed))),
            ("queue_depth", Figure::Level(waiting as u64)),
        ]
    }
}

impl<T, R> Drop for Batcher<T, R> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl<T, R> fmt::Debug for Batcher<T, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Batcher").field("lanes", &self.lanes.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with the size of the batch; waits for a permit first.
    struct Sizes(mpsc::Receiver<()>);

    impl Lane<u32, (u32, usize)> for Sizes {
        fn work<'a>(
            &'a mut self,
            batch: &'a mut Vec<Asked<u32, (u32, usize)>>,
        ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
            Box::pin(async move {
                self.0.recv().await;
                let size = batch.len();
                for (request, answer) in batch.drain(..) {
                    let _ = answer.send((request, size));
                }
            })
        }
    }

    #[tokio::test]
    async fn what_gathers_while_a_batch_is_worked_on_is_the_next_batch() {
        let (go, permits) = mpsc::channel(8);
        let batcher = std::sync::Arc::new(Batcher::start(vec![Sizes(permits)], 3, 16));
        let ask = |request| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.ask(0, request).await.unwrap() })
        };
        let first = ask(0);
        tokio::task::yield_now().await;
        let rest: Vec<_> = (1..=4).map(ask).collect();
        tokio::task::yield_now().await;
        for _ in 0..3 {
            go.send(()).await.unwrap();
        }
        assert_eq!(first.await.unwrap(), (0, 1), "the first one does not wait for company");
        let mut sizes = Vec::new();
        for asked in rest {
            sizes.push(asked.await.unwrap());
        }
        assert_eq!(sizes, [(1, 3), (2, 3), (3, 3), (4, 1)], "the others go together, up to the bound");
        let [batches, batched, waiting] = batcher.figures().try_into().unwrap();
        assert_eq!((batches, batched), (("batches", Figure::Count(3)), ("batched", Figure::Count(5))));
        assert_eq!(waiting, ("queue_depth", Figure::Level(0)));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once() {
        let (_go, permits) = mpsc::channel(8);
        let batcher = std::sync::Arc::new(Batcher::start(vec![Sizes(permits)], 1, 1));
        // One is worked on, one waits; between them the lane gets its turn.
        let mut waiting = Vec::new();
        for request in 0..2 {
            let batcher = batcher.clone();
            waiting.push(tokio::spawn(async move { batcher.ask(0, request).await }));
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
        }
        assert!(batcher.ask(0, 9).await.unwrap_err().is_retryable());
        assert_eq!(batcher.figures()[2], ("queue_depth", Figure::Level(1)));
        drop(waiting);
    }
}
