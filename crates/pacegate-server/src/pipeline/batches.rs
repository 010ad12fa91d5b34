//! Large batches run on a separate thread with a low priority, so that single checks never wait for
//! them.
//!
//! The thread polls the batches within the service's runtime: connections and tasks that a batch
//! starts belong to that runtime and are driven by its threads.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::OnceLock;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

/// Maximum number of checks of a batch that runs on the thread where it arrives.
const SMALL_MAX: usize = 16;
/// The Unix nice value of the thread.
const NICENESS: i32 = 15;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The thread, started with the first large batch.
#[derive(Debug, Default)]
pub(crate) struct Batches(OnceLock<Option<mpsc::UnboundedSender<Work>>>);

impl Batches {
    /// Runs a batch of this number of checks. It is cancelled with its caller.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        checks: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let runtime = Handle::current();
        // Only a multi-threaded runtime makes progress while another thread polls.
        let is_shared = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let thread = if checks <= SMALL_MAX || is_shared { None } else { self.thread(runtime) };
        let Some(thread) = thread else { return Box::pin(work).await };
        let (mut answer, answered) = oneshot::channel();
        let work = AssertUnwindSafe(work.in_current_span()).catch_unwind();
        let work = async move {
            tokio::select! {
                result = work => drop(answer.send(result)),
                () = answer.closed() => {}
            }
        };
        // A dead thread is detected below. Batches per connection and in total are bounded.
        let _ = thread.send(Box::pin(work));
        match answered.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            // The runtime is shutting down, and the connection with it.
            Err(_) => std::future::pending().await,
        }
    }

    fn thread(&self, runtime: Handle) -> Option<&mpsc::UnboundedSender<Work>> {
        let start = || {
            let (sender, receiver) = mpsc::unbounded_channel();
            let thread = std::thread::Builder::new().name("pacegate-batches".to_owned());
            let run = move || {
                // If this fails, batches get as much CPU time as other work.
                let _ = rustix::process::setpriority_process(None, NICENESS);
                runtime.block_on(poll_all(receiver));
            };
            let started = thread.spawn(run);
            started
                .inspect_err(|error| tracing::warn!(%error, "thread for batches could not be started"))
                .ok()?;
            Some(sender)
        };
        self.0.get_or_init(start).as_ref()
    }
}

/// Polls the received work until the channel is closed.
async fn poll_all(mut receiver: mpsc::UnboundedReceiver<Work>) {
    let mut running: FuturesUnordered<Work> = FuturesUnordered::new();
    loop {
        tokio::select! {
            work = receiver.recv() => match work {
                Some(work) => running.push(work),
                // Remaining work has no caller, and ends when it is polled next.
                None => break,
            },
            Some(()) = running.next(), if !running.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;
    use std::thread::current;
    use std::time::Duration;

    use tokio::sync::Semaphore;

    use super::*;

    fn name() -> Option<String> {
        current().name().map(str::to_owned)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_batches_run_on_a_separate_thread_but_their_tasks_do_not() {
        let batches = Batches::default();
        let own = Some("pacegate-batches");
        let (batch, task) =
            batches.run(100, async { (name(), tokio::spawn(async { name() }).await.unwrap()) }).await;
        assert_eq!(batch.as_deref(), own);
        assert_ne!(task.as_deref(), own);
        assert_ne!(batches.run(SMALL_MAX, async { name() }).await.as_deref(), own);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn batches_wait_concurrently() {
        let batches = Arc::new(Batches::default());
        let together = Arc::new(tokio::sync::Barrier::new(3));
        let wait = |_| {
            let (batches, together) = (batches.clone(), together.clone());
            tokio::spawn(async move {
                batches
                    .run(100, async move {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        together.wait().await;
                    })
                    .await;
            })
        };
        for batch in (0..3).map(wait).collect::<Vec<_>>() {
            batch.await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn batch_is_cancelled_with_its_caller_and_panics_propagate() {
        let batches = Batches::default();
        let held = Arc::new(Semaphore::new(1));
        let permit = held.clone().acquire_owned().await.unwrap();
        let endless = batches.run(100, async move {
            let _permit = permit;
            std::future::pending::<()>().await;
        });
        assert!(tokio::time::timeout(Duration::from_millis(1), endless).await.is_err());
        let _ = held.acquire().await.unwrap();
        let panicked =
            AssertUnwindSafe(batches.run(100, async { std::panic::panic_any("here") })).catch_unwind();
        assert_eq!(panicked.await.unwrap_err().downcast_ref(), Some(&"here"));
    }
}
