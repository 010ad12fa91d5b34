//! Large batches are worked on by a thread of their own, with a lower priority, so that single checks never wait for them.

use std::panic::resume_unwind;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;
use tracing::Instrument;

/// A batch of at most so many checks is worked on where it arrives.
const SMALL_MAX: usize = 16;
/// How much less of the processor the thread gets than others that want it.
const NICENESS: i32 = 15;

/// The thread, once there was a large batch.
#[derive(Debug, Default)]
pub(crate) struct Batches(OnceLock<Option<Runtime>>);

impl Batches {
    /// Does the work of a batch of so many checks. It ends with its caller.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        checks: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        // A program that has given its runtime one thread gets no further one.
        let shared = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        let runtime = if checks <= SMALL_MAX || shared { None } else { self.runtime() };
        let Some(runtime) = runtime else { return Box::pin(work).await };
        let mut task = AbortOnDrop(runtime.spawn(work.in_current_span()));
        match (&mut task.0).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The service ends, and its connections with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn runtime(&self) -> Option<&Runtime> {
        let start = || {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).thread_name("pacegate-batches").enable_all();
            builder.on_thread_start(|| {
                // Without it batches only get as much of the processor as other work.
                let _ = rustix::process::setpriority_process(None, NICENESS);
            });
            builder.build().inspect_err(|error| tracing::warn!(%error, "no thread for batches")).ok()
        };
        self.0.get_or_init(start).as_ref()
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // A runtime must not wait for its tasks on the thread of another one.
        if let Some(Some(runtime)) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;
    use std::thread::current;

    use futures_util::FutureExt;
    use std::panic::AssertUnwindSafe;
    use tokio::sync::Semaphore;

    use super::*;

    fn name() -> Option<String> {
        current().name().map(str::to_owned)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_batches_have_a_thread_of_their_own() {
        let batches = Batches::default();
        assert_eq!(batches.run(SMALL_MAX + 1, async { name() }).await.as_deref(), Some("pacegate-batches"));
        assert_ne!(batches.run(SMALL_MAX, async { name() }).await.as_deref(), Some("pacegate-batches"));
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
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), endless).await.is_err());
        let _ = held.acquire().await.unwrap();
        let panicked =
            AssertUnwindSafe(batches.run(100, async { std::panic::panic_any("here") })).catch_unwind();
        assert_eq!(panicked.await.unwrap_err().downcast_ref(), Some(&"here"));
    }
}
