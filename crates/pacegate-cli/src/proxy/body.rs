//! Streamed bodies. They are never buffered as a whole, and time out when idle.

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

/// Whether there was activity in either direction of an exchange.
#[derive(Clone, Debug, Default)]
pub(super) struct Activity(Arc<AtomicBool>);

impl Activity {
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether there was activity since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct RequestBody {
    inner: ClientBody,
    activity: Activity,
}

impl RequestBody {
    pub(super) fn new(inner: ClientBody, activity: Activity) -> Self {
        Self { inner, activity }
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
            self.activity.note();
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

/// The body of a response, from the upstream or from the proxy itself.
#[derive(Debug)]
pub(super) enum ProxyBody {
    Upstream {
        inner: Incoming,
        activity: Activity,
        timeout: Duration,
        /// Set at the first wait for the upstream.
        silence: Option<Pin<Box<Sleep>>>,
    },
    Own(Full<Bytes>),
}

impl ProxyBody {
    pub(super) fn upstream(inner: Incoming, activity: Activity, timeout: Duration) -> Self {
        Self::Upstream { inner, activity, timeout, silence: None }
    }
}

impl ResponseBody for ProxyBody {
    fn from_bytes(bytes: Bytes) -> Self {
        Self::Own(Full::new(bytes))
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let (inner, activity, timeout, silence) = match &mut *self {
            Self::Own(body) => {
                return Pin::new(body).poll_frame(context).map_err(|never| match never {});
            }
            Self::Upstream { inner, activity, timeout, silence } => (inner, activity, *timeout, silence),
        };
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(context) {
            activity.note();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let silence = silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        while silence.as_mut().poll(context).is_ready() {
            if !activity.take() {
                tracing::debug!("response aborted: idle for too long");
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
