//! Rate limits for axum, tonic and hyper services: a tower layer over a
//! [`Limiter`](pacegate::Limiter), with resolvers that find the identity of each request.
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
//! Allowed requests reach the service, and their responses get the headers `X-RateLimit-*`,
//! `RateLimit-Policy` and `RateLimit`. Denied requests get status 429 with `Retry-After` and a JSON
//! body; a gRPC request gets `RESOURCE_EXHAUSTED` instead. The service is not called, and nothing
//! is charged.
//!
//! # Identities and limits
//!
//! [`by`](LayerBuilder::by) and [`and_by`](LayerBuilder::and_by) set the identities that are
//! charged; several are decided in one atomic step. The [`resolve`] module contains resolvers for
//! addresses, headers, users and routes, custom functions, and combinations of them.
//! [`on_missing_key`](LayerBuilder::on_missing_key) sets what happens to a request without a key;
//! by default it is rejected.
//!
//! The limits are those of [plans](LayerBuilder::plan), an [ad-hoc limit](LayerBuilder::limit), or
//! the [rules](LayerBuilder::rules) of the limiter, which apply if neither of the others is set.
//!
//! # Bodies
//!
//! Responses of the service keep their type: see [`ResponseBody`]. A request that is decided
//! immediately needs no boxed future. Only a request that waits, for a remote store or in a queue,
//! allocates its future on the heap.
//!
//! # Features
//!
//! - `axum`: reads the peer address, the matched route and the original URI from axum's extensions,
//!   and supports axum's body.
//! - `tonic`: reads the peer address from tonic's extensions, and supports tonic's body.
//!
//! # Invariants
//!
//! - A header that a client can set must never be trusted, unless the peer is a proxy named by
//!   [`trust`](resolve::Address::trust).
//! - A denied or rejected request must never reach the service, and must never be charged.
//! - A request that is decided immediately must never allocate a boxed future.
//! - An identifier must never appear in a log: its `Debug` form is a hash.
//!
//! The layer does not authenticate: it counts what an outer layer has authenticated. It does not
//! limit concurrency or bandwidth.
//!
//! # Where to go next
//!
//! - [`PacegateLayer::builder`] and [`LayerBuilder`]: all options.
//! - [`resolve`]: built-in resolvers, and the trait [`Resolve`](resolve::Resolve) for custom ones.
//! - [`LayerBuilder::respond_with`] and [`Denial`]: custom responses.
//! - [`LayerBuilder::shape`]: queueing instead of denying, with a leaky bucket.
//!

mod body;
mod check_parts;
mod error;
mod future;
mod gate;
mod layer;
mod log_throttle;
pub mod resolve;
mod response;
mod service;
mod shape;

/// Compiles the examples of the guide.
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
