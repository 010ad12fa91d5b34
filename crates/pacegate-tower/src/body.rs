//! The body of a refusal, in whatever type the service's own bodies have.

use bytes::Bytes;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};

/// A body that a refusal can be written into.
///
/// The layer leaves a service's responses as they are, without wrapping or boxing their bodies; so its refusals must have the same type. It is there for
/// axum's body (cargo feature `axum`), tonic's (feature `tonic`), `Full<Bytes>`, the boxed bodies of `http-body-util`, [`Bytes`], [`String`] and `Vec<u8>`. For a
/// body of one's own it is one line; for somebody else's, map the service's responses to one of these.
///
/// ```
/// use bytes::Bytes;
/// use pacegate_tower::ResponseBody;
///
/// enum Page { Static(&'static str), Written(Bytes) }
/// impl ResponseBody for Page {
///     fn from_bytes(bytes: Bytes) -> Self {
///         Self::Written(bytes)
///     }
/// }
/// ```
pub trait ResponseBody: Sized {
    /// A body of these bytes, which may be none.
    fn from_bytes(bytes: Bytes) -> Self;
}

#[cfg(feature = "axum")]
impl ResponseBody for axum::body::Body {
    fn from_bytes(bytes: Bytes) -> Self {
        bytes.into()
    }
}

#[cfg(feature = "tonic")]
impl ResponseBody for tonic::body::Body {
    fn from_bytes(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::empty() } else { Self::new(Full::new(bytes)) }
    }
}

impl ResponseBody for Full<Bytes> {
    fn from_bytes(bytes: Bytes) -> Self {
        Self::new(bytes)
    }
}

impl<E: 'static> ResponseBody for BoxBody<Bytes, E> {
    fn from_bytes(bytes: Bytes) -> Self {
        Full::new(bytes).map_err(|never| match never {}).boxed()
    }
}

impl<E: 'static> ResponseBody for UnsyncBoxBody<Bytes, E> {
    fn from_bytes(bytes: Bytes) -> Self {
        Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
    }
}

impl ResponseBody for Bytes {
    fn from_bytes(bytes: Bytes) -> Self {
        bytes
    }
}

impl ResponseBody for Vec<u8> {
    fn from_bytes(bytes: Bytes) -> Self {
        bytes.into()
    }
}

impl ResponseBody for String {
    fn from_bytes(bytes: Bytes) -> Self {
        Self::from_utf8_lossy(&bytes).into_owned()
    }
}
