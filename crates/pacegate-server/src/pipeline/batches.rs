//! Large batches are worked on by a thread of their own, with a low priority, so that single checks never wait for them.
//!
//! The thread polls the batches within the service's runtime: connections and tasks that a batch starts belong to that runtime, and
//! are driven by its threads.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::OnceLock;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

/// A batch of at most so many checks is worked on where it arrives.
const SMALL_MAX: usize = 16;
/// How much less of the processor the thread gets than others that want it: the nice value of Unix.
const NICENESS: i32 = 15;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The thread, once there was a large batch.
#[derive(Debug, Default)]
pub(crate) struct Batches(OnceLock<Option<mpsc::UnboundedSender<Work>>>);

impl Batches {
    /// Does the work of a batch of so many checks. It ends with its caller.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        checks: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let runtime = Handle::current();
        // Only the threads of a runtime with several of them go on while another thread polls.
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
        // Whether the thread is there is seen below. Batches of a connection and of all callers are bounded.
        let _ = thread.send(Box::pin(work));
        match answered.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            // The runtime ends, and the connection with it.
            Err(_) => std::future::pending().await,
        }
    }

    fn thread(&self, runtime: Handle) -> Option<&mpsc::UnboundedSender<Work>> {
        let start = || {
            let (sender, receiver) = mpsc::unbounded_channel();
            let thread = std::thread::Builder::new().name("pacegate-batches".to_owned());
            let run = move || {
                // Without it batches get as much of the processor as other work.
                let _ = rustix::process::setpriority_process(None, NICENESS);
                runtime.block_on(poll_all(receiver));
            };
            let started = thread.spawn(run);
            started.inspect_err(|error| tracing::warn!(%error, "no thread for batches")).ok()?;
            Some(sender)
        };
        self.0.get_or_init(start).as_ref()
    }
}

/// Polls what is sent, until there can be nothing more.
async fn poll_all(mut receiver: mpsc::UnboundedReceiver<Work>) {
    let mut running: FuturesUnordered<Work> = FuturesUnordered::new();
    loop {
        tokio::select! {
            work = receiver.recv() => match work {
                Some(work) => running.push(work),
                // What still runs has no caller: it ends when it is polled next.
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
    async fn large_batches_have_a_thread_of_their_own_and_what_they_start_has_not() {
        let batches = Batches::default();
        let own = Some("pacegate-batches");
        let (batch, task) =
            batches.run(100, async { (name(), tokio::spawn(async { name() }).await.unwrap()) }).await;
        assert_eq!(batch.as_deref(), own);
        assert_ne!(task.as_deref(), own);
        assert_ne!(batches.run(SMALL_MAX, async { name() }).await.as_deref(), own);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn batches_wait_at_the_same_time() {
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
    async fn batch_ends_with_its_caller_and_panics_in_its_place() {
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
