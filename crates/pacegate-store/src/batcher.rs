//! Collects the requests of concurrent callers into batches, for stores in which round trips are
//! expensive.
//!
//! A lane takes the requests in its queue, up to a bound, and processes them while the next batch
//! queues. There is no timer: without concurrent requests, a batch is one request and starts at
//! once.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::error::StoreError;
use crate::figure::{Figure, Figures};

/// A request and the sender of its result.
pub type Submitted<T, R> = (T, oneshot::Sender<R>);

/// Processes batches: answers each request, in order, before it gets the next batch.
pub trait Lane<T, R>: Send + 'static {
    /// Processes a batch. Requests without a result at the end fail.
    fn work<'a>(
        &'a mut self,
        batch: &'a mut Vec<Submitted<T, R>>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// Lanes, each with a queue. Requests that wait for the same thing belong in the same lane.
pub struct Batcher<T, R> {
    lanes: Vec<Queue<T, R>>,
    tasks: Vec<AbortHandle>,
    counted: Arc<Counted>,
}

/// The queue of a lane.
struct Queue<T, R> {
    sender: mpsc::Sender<Weighed<T, R>>,
    /// The total weight of the queued requests.
    weight: Arc<AtomicUsize>,
    weight_max: usize,
}

/// A request and its weight.
struct Weighed<T, R> {
    submitted: Submitted<T, R>,
    weight: usize,
}

/// The number of batches and their total weight.
#[derive(Default)]
struct Counted {
    batches: AtomicU64,
    weight: AtomicU64,
}

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// Starts a task for each lane. A batch weighs at most `batch_max`, unless a single request
    /// weighs more; a queue weighs at most `queue_max`.
    pub fn start<L: Lane<T, R>>(lanes: Vec<L>, batch_max: usize, queue_max: usize) -> Self {
        let mut batcher = Self { lanes: Vec::new(), tasks: Vec::new(), counted: Arc::default() };
        for mut lane in lanes {
            // Every request weighs at least 1, so there are never more of them than this.
            let (sender, receiver) = mpsc::channel(queue_max);
            let weight = Arc::new(AtomicUsize::new(0));
            batcher.lanes.push(Queue { sender, weight: weight.clone(), weight_max: queue_max });
            let counted = batcher.counted.clone();
            let mut waiting = Waiting { receiver, weight, next: None };
            let task = tokio::spawn(async move {
                let mut batch = Vec::new();
                while let Some(weight) = waiting.fill(&mut batch, batch_max).await {
                    counted.batches.fetch_add(1, Ordering::Relaxed);
                    counted.weight.fetch_add(weight as u64, Ordering::Relaxed);
                    lane.work(&mut batch).await;
                    batch.clear();
                }
            });
            batcher.tasks.push(task.abort_handle());
        }
        batcher
    }

    /// Processes `request`, which weighs at least 1, in a lane; lane numbers wrap around.
    ///
    /// # Errors
    /// [`StoreError`] if the queue is full, which changes nothing, or the lane returned no result.
    pub async fn submit(&self, lane: usize, request: T, weight: usize) -> Result<R, StoreError> {
        let lane = &self.lanes[lane % self.lanes.len()];
        let weight = weight.max(1);
        let (sender, receiver) = oneshot::channel();
        let waiting = lane.weight.fetch_add(weight, Ordering::Relaxed);
        let request = Weighed { submitted: (request, sender), weight };
        if waiting + weight > lane.weight_max || lane.sender.try_send(request).is_err() {
            lane.weight.fetch_sub(weight, Ordering::Relaxed);
            return Err(StoreError::unavailable("too many requests queued for the store"));
        }
        receiver.await.map_err(|_| StoreError::missing_outcome())
    }

    /// The number of batches, their total weight, and the weight of the queues.
    pub fn figures(&self) -> Figures {
        let waiting: usize = self.lanes.iter().map(|lane| lane.weight.load(Ordering::Relaxed)).sum();
        vec![
            ("batches", Figure::Count(self.counted.batches.load(Ordering::Relaxed))),
            ("batched", Figure::Count(self.counted.weight.load(Ordering::Relaxed))),
            ("queue_depth", Figure::Level(waiting as u64)),
        ]
    }
}

/// The receiving end of a lane's queue.
struct Waiting<T, R> {
    receiver: mpsc::Receiver<Weighed<T, R>>,
    weight: Arc<AtomicUsize>,
    /// The request that did not fit the last batch.
    next: Option<Weighed<T, R>>,
}

impl<T, R> Waiting<T, R> {
    /// Fills `batch` with queued requests and returns their weight; `None` when the queue is
    /// closed.
    async fn fill(&mut self, batch: &mut Vec<Submitted<T, R>>, weight_max: usize) -> Option<usize> {
        let mut filled = 0;
        loop {
            let next = match self.next.take() {
                Some(next) => next,
                None if batch.is_empty() => self.receiver.recv().await?,
                None => match self.receiver.try_recv() {
                    Ok(next) => next,
                    Err(_) => return Some(filled),
                },
            };
            // A caller that stopped waiting needs no response and must not be charged.
            if next.submitted.1.is_closed() {
                self.weight.fetch_sub(next.weight, Ordering::Relaxed);
            } else if !batch.is_empty() && filled + next.weight > weight_max {
                self.next = Some(next);
                return Some(filled);
            } else {
                self.weight.fetch_sub(next.weight, Ordering::Relaxed);
                filled += next.weight;
                batch.push(next.submitted);
            }
        }
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

    /// Returns the size of the batch; waits for a permit first.
    struct Sizes(mpsc::Receiver<()>);

    impl Lane<u32, (u32, usize)> for Sizes {
        fn work<'a>(
            &'a mut self,
            batch: &'a mut Vec<Submitted<u32, (u32, usize)>>,
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
    async fn requests_queued_during_a_batch_form_the_next_batch() {
        let (go, permits) = mpsc::channel(8);
        let batcher = std::sync::Arc::new(Batcher::start(vec![Sizes(permits)], 3, 16));
        let submit = |request| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.submit(0, request, 1).await.unwrap() })
        };
        let first = submit(0);
        tokio::task::yield_now().await;
        let rest: Vec<_> = (1..=4).map(submit).collect();
        tokio::task::yield_now().await;
        for _ in 0..3 {
            go.send(()).await.unwrap();
        }
        assert_eq!(first.await.unwrap(), (0, 1), "the first request does not wait");
        let mut sizes = Vec::new();
        for submitted in rest {
            sizes.push(submitted.await.unwrap());
        }
        assert_eq!(sizes, [(1, 3), (2, 3), (3, 3), (4, 1)], "the others form batches up to the bound");
        let [batches, batched, waiting] = batcher.figures().try_into().unwrap();
        assert_eq!((batches, batched), (("batches", Figure::Count(3)), ("batched", Figure::Count(5))));
        assert_eq!(waiting, ("queue_depth", Figure::Level(0)));
    }

    #[tokio::test]
    async fn full_queue_rejects_at_once() {
        let (_go, permits) = mpsc::channel(8);
        let batcher = std::sync::Arc::new(Batcher::start(vec![Sizes(permits)], 1, 1));
        // One is processed, one waits; between them the lane gets to run.
        let mut waiting = Vec::new();
        for request in 0..2 {
            let batcher = batcher.clone();
            waiting.push(tokio::spawn(async move { batcher.submit(0, request, 1).await }));
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
        }
        assert!(batcher.submit(0, 9, 1).await.unwrap_err().is_retryable());
        assert_eq!(batcher.figures()[2], ("queue_depth", Figure::Level(1)));
        drop(waiting);
    }

    #[tokio::test]
    async fn batches_and_the_queue_are_bounded_by_weight() {
        let (go, permits) = mpsc::channel(8);
        let batcher = std::sync::Arc::new(Batcher::start(vec![Sizes(permits)], 10, 100));
        let submit = |request, weight| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.submit(0, request, weight).await.unwrap() })
        };
        let mut submitted = vec![submit(0, 1)];
        tokio::task::yield_now().await;
        // A request that weighs more than a batch is processed alone, and those behind it together.
        submitted.extend(
            [(1, 4), (2, 6), (3, 50), (4, 9), (5, 1), (6, 1)]
                .map(|(request, weight)| submit(request, weight)),
        );
        tokio::task::yield_now().await;
        assert_eq!(batcher.figures()[2], ("queue_depth", Figure::Level(71)));
        assert!(batcher.submit(0, 7, 30).await.unwrap_err().is_retryable(), "101 is above the bound");
        for _ in 0..5 {
            go.send(()).await.unwrap();
        }
        let mut sizes = Vec::new();
        for submitted in submitted {
            sizes.push(submitted.await.unwrap());
        }
        assert_eq!(sizes, [(0, 1), (1, 2), (2, 2), (3, 1), (4, 2), (5, 2), (6, 1)]);
        let [batches, batched, waiting] = batcher.figures().try_into().unwrap();
        assert_eq!((batches, batched), (("batches", Figure::Count(5)), ("batched", Figure::Count(72))));
        assert_eq!(waiting, ("queue_depth", Figure::Level(0)));
    }
}
