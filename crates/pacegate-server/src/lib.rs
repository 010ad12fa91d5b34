//! The service: REST and gRPC over a [`Limiter`](pacegate::Limiter).
//!
//! [`App`] holds what all requests share and turns one request into one response; [`run`] accepts connections on [`Listeners`] until it is told to
//! stop, then lets requests in flight finish.
//!
//! ```no_run
//! use pacegate_config::Config;
//! use pacegate_server::{AdminKey, App, run};
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::parse("")?;
//! let listener = tokio::net::TcpListener::bind(config.server.http).await?;
//! let app = App::new(&config, config.limiter()?, AdminKey::new("secret"));
//! run(listener, app, &config.server, std::future::pending()).await;
//! # Ok(())
//! # }
//! ```
//!
//! It knows no store and no key layout, and it never lets an error's inside reach a client.

mod ad_hoc;
mod app;
mod auth;
mod catalog_health;
mod clock;
mod dashboard;
mod deprecation;
mod forgery;
mod grpc;
mod keys;
mod live;
mod observe;
mod openapi;
mod overload;
mod peer;
mod pipeline;
mod profiles;
mod respond;
mod rest;
mod run;

pub use app::App;
pub use auth::AdminKey;
pub use live::Live;
pub use observe::library_lines::admits_line;
pub use openapi::openapi;
pub use pacegate_http::server::{Tls, TlsError};
pub use peer::Peer;
pub use run::{Listeners, run};

/// The largest request body, in bytes; the same over REST and gRPC.
pub const BODY_BYTES_MAX: usize = pacegate_proto::REQUEST_BYTES_MAX;
