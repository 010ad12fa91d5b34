//! A stream of checks, answered in order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::stream::StreamExt;
use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::{CheckRequest, CheckResult};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::convert::error;
use super::limiter::{Sender, decide_one};
use super::stopped;
use crate::app::Shared;
use crate::auth::Need;
use crate::pipeline::IDEMPOTENCY_HEADERS;
use pacegate_http::request_id::request_id;
use pacegate_http::server::Activity;

/// Maximum number of checks of one stream in flight, and of responses that the client has not
/// taken. Beyond that, the stream is not read.
const PENDING_MAX: usize = 64;
/// Number of polls per idle timeout.
const POLLS: u32 = 4;

/// The responses of a stream.
pub(super) type Answers = ReceiverStream<Result<CheckResult, Status>>;

/// Responds to `messages` until the client ends the stream, is idle, is no longer admitted or does
/// not take its responses, or the service shuts down.
pub(super) fn answer(
    shared: Arc<Shared>,
    mut from: Sender,
    messages: Streaming<CheckRequest>,
    connection: Option<Arc<Activity>>,
) -> Answers {
    // One key cannot apply to many checks; each can have its own.
    for name in IDEMPOTENCY_HEADERS {
        from.headers.remove(name);
    }
    let (sender, receiver) = mpsc::channel(PENDING_MAX);
    tokio::spawn(async move {
        let (received, end) = (AtomicU64::new(0), OnceLock::new());
        let ended = async {
            let status = tokio::select! {
                () = stopped(shared.clone()) => {
                    Status::unavailable("the service is shutting down; reopen the stream")
                }
                () = idle(&shared, &received) => {
                    Status::unavailable("the stream was idle for server.idle_timeout; reopen it")
                }
                error = shared.gate.until_rejected(&from.headers, from.peer.as_ref(), Need::Check) => error.into(),
            };
            let _ = end.set(status);
        };
        let decided = messages
            .take_until(Box::pin(ended))
            .map(|message| {
                received.fetch_add(1, Ordering::Relaxed);
                let (shared, from) = (&shared, &from);
                async move {
                    let result = match decide_one(shared, from.caller(), message?).await {
                        Ok(response) => Outcome::Response(response),
                        Err(wrong) => Outcome::Error(error(wrong.logged(request_id(&from.headers)))),
                    };
                    Ok(CheckResult { result: Some(result) })
                }
            })
            .buffered(PENDING_MAX);
        let mut decided = std::pin::pin!(decided);
        while let Some(result) = decided.next().await {
            match sender.send_timeout(result, shared.request_timeout).await {
                Ok(()) => {}
                // A client that takes no responses must not hold resources.
                Err(SendTimeoutError::Timeout(_)) => {
                    return connection.iter().for_each(|connection| connection.presence().cut_off());
                }
                Err(SendTimeoutError::Closed(_)) => return,
            }
        }
        if let Some(status) = end.get() {
            let _ = sender.send_timeout(Err(status.clone()), shared.request_timeout).await;
        }
    });
    ReceiverStream::new(receiver)
}

/// Completes when no message was received for the idle timeout.
pub(super) async fn idle(shared: &Shared, received: &AtomicU64) {
    let (mut seen, mut quiet) = (0, 0);
    while quiet < POLLS {
        tokio::time::sleep(shared.idle_timeout / POLLS).await;
        let received = received.load(Ordering::Relaxed);
        quiet = if received == seen { quiet + 1 } else { 0 };
        seen = received;
    }
}
