//! Calls with one message in each direction. The framework's codecs are made for streams, and cost
//! more than a decision.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;
use tonic::Status;

use super::messages::PREFIX_BYTES;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const OK: HeaderValue = HeaderValue::from_static("0");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The body of a response.
pub(crate) enum ResponseBody {
    /// One message.
    Message(Bytes),
    /// The status after the message.
    Status,
    /// Nothing more.
    End,
    /// Anything else, from the framework.
    Framework(tonic::body::Body),
}

/// Returns the message of a request. `None` if it is compressed or invalid: the framework returns
/// the error.
pub(super) fn read<M: Message + Default>(headers: &HeaderMap, body: &Bytes) -> Option<M> {
    let [0, length @ ..] = body.first_chunk::<PREFIX_BYTES>()? else { return None };
    let message = &body[PREFIX_BYTES..];
    let whole = u32::from_be_bytes(*length) as usize == message.len() && !headers.contains_key(ENCODING);
    if whole { M::decode(message).ok() } else { None }
}

/// Returns a response with one message.
pub(super) fn response(message: &impl Message) -> Response<ResponseBody> {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    let mut response = Response::new(ResponseBody::Message(bytes.freeze()));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Returns a response with an error.
pub(super) fn error(status: Status) -> Response<ResponseBody> {
    status.into_http::<tonic::body::Body>().map(ResponseBody::Framework)
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let frame = match this {
            Self::Message(message) => {
                let message = std::mem::take(message);
                *this = Self::Status;
                Frame::data(message)
            }
            Self::Status => {
                *this = Self::End;
                let mut status = HeaderMap::with_capacity(1);
                status.insert(STATUS, OK);
                Frame::trailers(status)
            }
            Self::End => return Poll::Ready(None),
            Self::Framework(body) => return Pin::new(body).poll_frame(context),
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(_) | Self::Status => false,
            Self::End => true,
            Self::Framework(body) => body.is_end_stream(),
        }
    }
}
