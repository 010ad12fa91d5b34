//! Bodies on their way through: never gathered, and given up when nothing moves any more.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use pacegate_http::server::RequestBody as ClientBody;
use pacegate_tower::ResponseBody;
use tokio::time::{Instant, Sleep};

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whether anything has moved lately, in either direction of one exchange.
#[derive(Clone, Debug, Default)]
pub(super) struct Movement(Arc<AtomicBool>);

impl Movement {
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether something has moved since the last time this was asked.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// What a client sends.
#[derive(Debug)]
pub(super) struct RequestBody {
    inner: ClientBody,
    movement: Movement,
}

impl RequestBody {
    pub(super) fn new(inner: ClientBody, movement: Movement) -> Self {
        Self { inner, movement }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if polled.is_ready() {
            self.movement.note();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// What a client gets: the upstream's body, or one of the proxy's own.
#[derive(Debug)]
pub(super) enum AnswerBody {
    Upstream {
        inner: Incoming,
        movement: Movement,
        timeout: Duration,
        /// Set when the upstream is waited for the first time.
        silence: Option<Pin<Box<Sleep>>>,
    },
    Own(Full<Bytes>),
}

impl AnswerBody {
    pub(super) fn upstream(inner: Incoming, movement: Movement, timeout: Duration) -> Self {
        Self::Upstream { inner, movement, timeout, silence: None }
    }
}

impl ResponseBody for AnswerBody {
    fn from_bytes(bytes: Bytes) -> Self {
        Self::Own(Full::new(bytes))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let (inner, movement, timeout, silence) = match &mut *self {
            Self::Own(body) => {
                return Pin::new(body).poll_frame(context).map_err(|never| match never {});
            }
            Self::Upstream { inner, movement, timeout, silence } => (inner, movement, *timeout, silence),
        };
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(context) {
            movement.note();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let silence = silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        while silence.as_mut().poll(context).is_ready() {
            if !movement.take() {
                tracing::debug!("an answer is cut off: nothing moved for too long");
                return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
            }
            silence.as_mut().reset(Instant::now() + timeout);
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream { inner, .. } => inner.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream { inner, .. } => inner.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
