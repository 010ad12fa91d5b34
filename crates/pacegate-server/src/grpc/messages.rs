//! Bodies of gRPC requests. The decoder reserves the length that a message announces, so it gets
//! whole messages only.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::BODY_BYTES_MAX;
use crate::peer::Peer;
use crate::respond::ApiError;
use pacegate_http::server::Received;
use pacegate_http::server::{Bodies, Held};

/// Length of the prefix of each message: a flag and the message length.
pub(super) const PREFIX_BYTES: usize = 5;

type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a request, as passed to the decoder.
pub(super) enum RequestBody {
    /// A complete body, until it is taken.
    Whole(Option<Bytes>),
    /// Messages as they arrive.
    Stream(Messages<Received<Incoming>>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Stream(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }
}

/// The error for a message that is too large.
pub(super) fn too_large() -> Status {
    Status::out_of_range(format!("the message must be at most {BODY_BYTES_MAX} bytes"))
}

/// A stream of messages. Each is yielded when it is complete, and must arrive within a timeout.
pub(super) struct Messages<B> {
    body: B,
    bodies: Arc<Bodies>,
    peer: Peer,
    timeout: Duration,
    /// The beginning of a message.
    partial: Vec<u8>,
    held: Option<Held>,
    late: Option<Pin<Box<Sleep>>>,
}

impl<B> Messages<B> {
    pub(super) fn new(body: B, bodies: &Arc<Bodies>, peer: &Peer, timeout: Duration) -> Self {
        let (bodies, peer) = (bodies.clone(), peer.clone());
        Self { body, bodies, peer, timeout, partial: Vec::new(), held: None, late: None }
    }

    /// Adds a piece of the body; returns the messages that are now complete.
    fn take_in(&mut self, data: Bytes) -> Result<Bytes, ApiError> {
        if self.partial.is_empty() {
            let whole = whole(&data);
            self.keep(&data[whole..])?;
            return Ok(data.slice(..whole));
        }
        self.keep(&data)?;
        let whole = whole(&self.partial);
        if whole == 0 {
            return Ok(Bytes::new());
        }
        let messages = Bytes::from(std::mem::take(&mut self.partial));
        self.late = None;
        self.held().charge_stream(0)?;
        self.keep(&messages[whole..])?;
        Ok(messages.slice(..whole))
    }

    fn keep(&mut self, data: &[u8]) -> Result<(), ApiError> {
        let length = self.partial.len() + data.len();
        if length > self.partial.capacity() {
            let capacity = length.max((2 * self.partial.capacity()).min(PREFIX_BYTES + BODY_BYTES_MAX));
            self.held().charge_stream(capacity)?;
            self.partial.reserve_exact(capacity - self.partial.len());
        }
        self.partial.extend_from_slice(data);
        Ok(())
    }

    fn held(&mut self) -> &mut Held {
        self.held.get_or_insert_with(|| Held::new(&self.bodies, Some(self.peer.ip())))
    }

    /// Waits for the rest of a message, with a timeout, or for the next message.
    fn wait(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        if self.held.is_none() {
            self.held().charge_stream(0).map_err(ApiError::from)?;
        }
        self.held().wait(context).map_err(ApiError::from)?;
        if self.partial.is_empty() {
            return Ok(());
        }
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        match late.as_mut().poll(context) {
            Poll::Ready(()) => Err(Status::deadline_exceeded("timed out waiting for the rest of a message")),
            Poll::Pending => Ok(()),
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Messages<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        loop {
            if announced(&this.partial).is_some_and(|length| length > BODY_BYTES_MAX) {
                return Poll::Ready(Some(Err(too_large().into())));
            }
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    return match this.wait(context) {
                        Ok(()) => Poll::Pending,
                        Err(status) => Poll::Ready(Some(Err(status.into()))),
                    };
                }
            };
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None if this.partial.is_empty() => return Poll::Ready(None),
                // The decoder reports the truncated message.
                None => {
                    this.held = None;
                    let rest = std::mem::take(&mut this.partial);
                    return Poll::Ready(Some(Ok(Frame::data(rest.into()))));
                }
            };
            match this.take_in(data) {
                Ok(whole) if whole.is_empty() => {}
                Ok(whole) => {
                    if let Some(held) = &this.held {
                        held.moved();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(whole))));
                }
                Err(error) => return Poll::Ready(Some(Err(Status::from(error).into()))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.partial.is_empty() && self.body.is_end_stream()
    }
}

/// Returns the length that the first message of `data` announces.
fn announced(data: &[u8]) -> Option<usize> {
    let [_, length @ ..] = data.first_chunk::<PREFIX_BYTES>()?;
    Some(u32::from_be_bytes(*length) as usize)
}

/// Returns the number of bytes of `data` that are complete messages.
fn whole(data: &[u8]) -> usize {
    let mut whole = 0;
    while let Some(length) = announced(&data[whole..])
        && let Some(end) = (whole + PREFIX_BYTES).checked_add(length)
        && end <= data.len()
        && length <= BODY_BYTES_MAX
    {
        whole = end;
    }
    whole
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::SocketAddr;

    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    type Pieces = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

    fn messages(
        bodies: &Arc<Bodies>,
    ) -> (Pieces, Messages<impl Body<Data = Bytes, Error = BoxError> + Unpin>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let body = StreamBody::new(UnboundedReceiverStream::new(receiver));
        let peer = SocketAddr::from(([192, 0, 2, 1], 1)).into();
        (sender, Messages::new(body, bodies, &peer, Duration::from_secs(10)))
    }

    fn message(length: usize) -> Vec<u8> {
        [&[0][..], &u32::try_from(length).unwrap().to_be_bytes(), &vec![b'x'; length]].concat()
    }

    async fn next(
        messages: &mut Messages<impl Body<Data = Bytes, Error = BoxError> + Unpin>,
    ) -> Result<Bytes, Status> {
        let frame = messages.frame().await.unwrap();
        frame.map(|frame| frame.into_data().unwrap()).map_err(|error| *error.downcast::<Status>().unwrap())
    }

    #[tokio::test]
    async fn messages_are_yielded_whole_however_they_are_split() {
        let sent: Vec<u8> = [0, 1, 5, 300, 70_000, 0].into_iter().flat_map(message).collect();
        for size in [1, 2, 3, 5, 6, 7, 100, 16_384, sent.len()] {
            let bodies = Arc::new(Bodies::new(1 << 20));
            let (pieces, mut messages) = messages(&bodies);
            for piece in sent.chunks(size) {
                pieces.send(Ok(Frame::data(Bytes::copy_from_slice(piece)))).unwrap();
            }
            drop(pieces);
            let mut received = Vec::new();
            while let Some(frame) = messages.frame().await {
                let data = frame.unwrap().into_data().unwrap();
                assert_eq!(whole(&data), data.len(), "{size}");
                received.extend_from_slice(&data);
            }
            assert_eq!(received, sent, "{size}");
            drop(messages);
            assert_eq!(bodies.held(), 0, "{size}");
        }
    }

    #[tokio::test]
    async fn announced_length_reserves_nothing_and_too_large_messages_are_rejected() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let (pieces, mut messages) = messages(&bodies);
        let first = [message(3), message(BODY_BYTES_MAX)[..PREFIX_BYTES].to_vec()].concat();
        pieces.send(Ok(Frame::data(first.into()))).unwrap();
        assert_eq!(next(&mut messages).await.unwrap(), message(3));
        assert_eq!(messages.partial.capacity(), PREFIX_BYTES);
        pieces.send(Ok(Frame::data(vec![b'x'; BODY_BYTES_MAX].into()))).unwrap();
        assert_eq!(next(&mut messages).await.unwrap().len(), PREFIX_BYTES + BODY_BYTES_MAX);
        pieces.send(Ok(Frame::data(message(BODY_BYTES_MAX + 1)[..7].to_vec().into()))).unwrap();
        assert_eq!(next(&mut messages).await.unwrap_err().code(), tonic::Code::OutOfRange);
    }

    #[tokio::test(start_paused = true)]
    async fn partial_message_times_out_but_the_next_message_may_take_any_time() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let (pieces, mut messages) = messages(&bodies);
        let later = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            pieces.send(Ok(Frame::data(message(3).into()))).unwrap();
            pieces.send(Ok(Frame::data(message(3)[..6].to_vec().into()))).unwrap();
            pieces
        });
        assert_eq!(next(&mut messages).await.unwrap(), message(3));
        assert_eq!(next(&mut messages).await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
        drop(later.await.unwrap());
    }

    #[tokio::test]
    async fn stream_is_rejected_when_others_need_its_memory() {
        let bodies = Arc::new(Bodies::new(2 << 20));
        let mut streams: Vec<_> = (0..12).map(|_| messages(&bodies)).collect();
        for (pieces, messages) in &mut streams {
            pieces.send(Ok(Frame::data(message(100_000)[..60_000].to_vec().into()))).unwrap();
            let polled = futures_util::poll!(messages.frame());
            assert!(!matches!(polled, Poll::Ready(Some(Ok(_)))));
        }
        let (_pieces, mut oldest) = streams.remove(0);
        assert_eq!(next(&mut oldest).await.unwrap_err().code(), tonic::Code::Unavailable);
        drop(oldest);
        let (pieces, mut newest) = streams.pop().unwrap();
        // The service drops a rejected stream.
        let mut waiting = Vec::new();
        for (pieces, mut messages) in streams {
            if futures_util::poll!(messages.frame()).is_pending() {
                waiting.push((pieces, messages));
            }
        }
        assert!(!waiting.is_empty(), "only as many streams are rejected as necessary");
        pieces.send(Ok(Frame::data(vec![b'x'; 40_005].into()))).unwrap();
        assert_eq!(next(&mut newest).await.unwrap().len(), 100_005);
    }
}
