//! The body of a denial, in the body type of the service.

use bytes::Bytes;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};

/// A response body that can be created from bytes.
///
/// The layer does not wrap or box the bodies of the service, so its own responses must have the
/// same body type. Implemented for axum's body (cargo feature `axum`), tonic's (feature `tonic`),
/// `Full<Bytes>`, the boxed bodies of `http-body-util`, [`Bytes`], [`String`] and `Vec<u8>`. To use
/// another crate's body, map the responses of the service to one of these types.
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
    /// Returns a body with these bytes, which may be empty.
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
