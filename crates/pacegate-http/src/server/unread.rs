//! Unread request bodies, which are discarded within bounds, so that the connection stays usable
//! and the response arrives.
//!
//! A server that closes a connection with unread data resets it, and the reset may overtake the
//! response.

use std::io;
use std::mem::replace;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::{HeaderMap, Request, Response, Version};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::activity::Received;

/// Maximum number of bytes that are discarded before the response, so that the connection can be
/// reused.
pub const DISCARD_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Maximum time for discarding them.
pub const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum number of bytes that are discarded after the response, on a connection that is closed or
/// a stream that is reset.
const LINGER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum time for discarding them.
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

type Slot = Arc<Mutex<Remainder>>;

/// What remains of a request body.
#[derive(Debug, Default)]
enum Remainder {
    /// It is still being read, or was read to its end.
    #[default]
    Unknown,
    /// It was dropped before its end.
    Dropped(Received<Incoming>),
    /// The response is known.
    Settled,
}

/// The body of a request; if it is dropped before its end, it can still be discarded.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` only during drop.
    inner: Option<Received<Incoming>>,
    slot: Option<Slot>,
}

/// Handles the unread body of a request after its response is known.
#[derive(Debug)]
pub struct Unread {
    /// `None` for a request without a body.
    slot: Option<Slot>,
    version: Version,
    /// Whether the client waits for `100 Continue` before it sends its body.
    expects: bool,
}

impl Unread {
    /// Tracks the body of a request.
    pub fn watch(request: Request<Received<Incoming>>) -> (Self, Request<RequestBody>) {
        let slot = (!request.body().is_end_stream()).then(Slot::default);
        let expects = request.headers().contains_key(EXPECT);
        let unread = Self { slot: slot.clone(), version: request.version(), expects };
        (unread, request.map(|body| RequestBody { inner: Some(body), slot }))
    }

    /// Discards the unread body, within bounds. If it is too large, the response closes the
    /// connection (HTTP/1), and further data is discarded for a while after it.
    #[inline]
    pub async fn settle<B>(self, response: &mut Response<B>, lingering: &Lingering) {
        let Some(slot) = &self.slot else { return };
        let Remainder::Dropped(body) = replace(&mut *slot.lock(), Remainder::Settled) else { return };
        // Boxed, because it is rare and would make the future of every request larger.
        Box::pin(self.discard(body, response.headers_mut(), lingering)).await;
    }

    async fn discard(self, mut body: Received<Incoming>, headers: &mut HeaderMap, lingering: &Lingering) {
        let http2 = self.version == Version::HTTP_2;
        // Reading would send `100 Continue` and request the body, which the response must prevent.
        // HTTP/2 has no such handshake.
        let wanted = http2 || !self.expects;
        let announced = body.size_hint().lower();
        if wanted
            && announced <= DISCARD_BYTES_MAX
            && let Ok(true) = timeout(DISCARD_TIME_MAX, read_to_end(&mut body, DISCARD_BYTES_MAX)).await
        {
            return;
        }
        if http2 {
            tokio::spawn(async move {
                let _ = timeout(LINGER_TIME_MAX, read_to_end(&mut body, LINGER_BYTES_MAX)).await;
            });
            return;
        }
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        lingering.start();
    }
}

/// Returns whether the body ended within `bytes_max`. A truncated body has no end.
async fn read_to_end(body: &mut Received<Incoming>, bytes_max: u64) -> bool {
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
        if read > bytes_max {
            return false;
        }
        // After the response, the HTTP library may not announce the end any more.
        if body.is_end_stream() {
            return true;
        }
    }
    true
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let polled = ready!(Pin::new(inner).poll_frame(context));
        // After the end or an error, nothing remains to discard.
        if !matches!(polled, Some(Ok(_))) {
            self.slot = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let (Some(mut inner), Some(slot)) = (self.inner.take(), &self.slot) else { return };
        if inner.is_end_stream() {
            return;
        }
        let mut slot = slot.lock();
        if !matches!(*slot, Remainder::Settled) {
            *slot = Remainder::Dropped(inner);
        } else if let Ok(runtime) = Handle::try_current() {
            // An upstream responded and then gave up reading. If the body was dropped here, the
            // HTTP library would close the connection, which the response has not announced.
            runtime.spawn(async move {
                let _ = timeout(DISCARD_TIME_MAX, read_to_end(&mut inner, DISCARD_BYTES_MAX)).await;
            });
        }
    }
}

/// Whether a closed connection continues to read for a while.
#[derive(Clone, Debug, Default)]
pub struct Lingering(Arc<AtomicBool>);

impl Lingering {
    fn start(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns a stream that lingers on close, if enabled: it shuts down its writing side, discards
    /// what still arrives, and then closes.
    pub fn stream<S>(&self, stream: S) -> LingeringStream<S> {
        LingeringStream { stream, lingering: self.clone(), closing: None }
    }
}

/// See [`Lingering::stream`].
#[derive(Debug)]
pub struct LingeringStream<S> {
    stream: S,
    lingering: Lingering,
    /// The deadline, and the number of bytes that may still be discarded.
    closing: Option<(Pin<Box<Sleep>>, u64)>,
}

impl<S: AsyncRead + Unpin> LingeringStream<S> {
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let until = || Box::pin(sleep_until(Instant::now() + LINGER_TIME_MAX));
        let (until, left) = self.closing.get_or_insert_with(|| (until(), LINGER_BYTES_MAX));
        let mut memory = [0; 8 * 1024];
        while until.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut memory);
            if ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)).is_err() {
                break;
            }
            let read = buffer.filled().len() as u64;
            *left = left.saturating_sub(read);
            if read == 0 || *left == 0 {
                break;
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        if self.lingering.0.load(Ordering::Relaxed) {
            ready!(self.poll_discard(context));
        }
        Poll::Ready(Ok(()))
    }
}
