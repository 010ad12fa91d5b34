//! Rate limits for axum, tonic and hyper services: a tower layer over a [`Limiter`](pacegate::Limiter), and resolvers that find whom a request is counted for.
//!
//! ```
//! use axum::{Router, routing::get};
//! use pacegate::{Limit, Limiter};
//! use pacegate_tower::{PacegateLayer, resolve::address};
//!
//! let limiter = Limiter::builder().plan("public", [Limit::per_second(10).burst(20)]).build()?;
//! let layer = PacegateLayer::builder(limiter).by(address()).plan("public").build()?;
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! // axum::serve(listener, app.into_make_service_with_connect_info::<std::net::SocketAddr>())
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Requests that pass get `X-RateLimit-*`, `RateLimit-Policy` and `RateLimit` in their responses. Others get 429 with `Retry-After` and a JSON body, and the
//! service is not called; a gRPC request gets `RESOURCE_EXHAUSTED` instead. Nothing is charged for a request that is refused.
//!
//! # Whom, and by what
//!
//! [`by`](LayerBuilder::by) and [`and_by`](LayerBuilder::and_by) say whom requests are counted for; several resolvers are checked in one atomic step. The [`resolve`] module
//! has addresses, headers, users, routes, functions, and compositions of them. What happens to a request without a key is
//! [`on_missing_key`](LayerBuilder::on_missing_key): it is refused unless the layer says otherwise.
//!
//! The limits are those of [plans](LayerBuilder::plan), an [ad-hoc limit](LayerBuilder::limit), or the limiter's [rules](LayerBuilder::rules), which apply if none of the others is named.
//!
//! # Bodies
//!
//! Responses of the service keep their type: see [`ResponseBody`]. Nothing is boxed for a request that passes at once; only one that waits for a store outside the process, or in
//! a queue, has its future on the heap.
//!
//! # Features
//!
//! - `axum`: finds the peer's address, the matched route and the original URI where axum leaves them, and knows axum's body.
//! - `tonic`: finds the peer's address where tonic leaves it, and knows tonic's body.
//!
//! # What it does not do
//!
//! It does not authenticate anybody: it counts by what an outer layer found out. It does not limit concurrency, nor bytes. It believes no header that a client can write, unless it
//! is told whom to trust.

mod body;
mod error;
mod future;
mod gate;
mod layer;
mod noise;
mod question;
pub mod resolve;
mod response;
mod service;
mod shape;

/// The guide's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/middleware.md")]
struct Guide;

pub use body::ResponseBody;
pub use error::{InvalidLayer, Unresolved};
pub use future::ResponseFuture;
pub use gate::{MissingKey, OnError};
pub use layer::{LayerBuilder, PacegateLayer};
pub use response::{Cause, Denial, Format};
pub use service::Pacegate;

pub use ipnet::IpNet;
pub use pacegate_http::{HeaderFamily, headers};
