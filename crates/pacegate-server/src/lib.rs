//! The Pacegate service: REST and gRPC APIs over a [`Limiter`](pacegate::Limiter).
//!
//! [`App`] holds the shared state and turns one request into one response. [`run`] accepts
//! connections on [`Listeners`] until shutdown, then completes the requests in flight.
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
//! # Invariants
//!
//! - Internal details of an error must never reach a client. They are logged with the request id.
//! - It must never depend on a store or on the layout of keys.
//! - Wire types must never leave `rest/` and `grpc/`.
//! - A change must never be made without an audit record of its actor.
//! - A check must never wait for the decision log, for usage or for a metric.
//! - Input of callers must never become a metric label, and identifiers never part of a trace.
//!
//! # The pipeline
//!
//! Every protocol is an adapter around `pipeline`. The adapter admits the caller and parses its
//! message (a `CheckMessage`). The pipeline builds the `Check`, looks up the user's profile, has
//! the limiter decide, and passes the decision to `observe` (metrics, spans, log lines, decision
//! log, usage). The adapter renders the decision. Envoy's descriptors are decided by
//! `check_descriptors` and observed in the same way.
//!
//! Checks bypass the router (`App::dispatch`), and `rest/answer/json.rs` writes their response
//! without searching field names for characters to escape; a test compares it with serde. A future
//! is moved several times before it is first polled, so the futures of checks hold only what a
//! check in this process needs; rarer paths are boxed. `bench/grpc_instructions` and
//! `bench/telemetry_instructions` measure the cost of a change.
//!
//! Batches of more than 16 checks run on a separate low-priority thread (`pipeline/batches.rs`). At
//! most four batches of a connection are decided concurrently, and batches have their own queue.
//! Over gRPC, callers are admitted by the request head alone, and the decoder, which reserves
//! announced lengths, gets whole messages only (`grpc/messages.rs`).
//!
//! # Envoy
//!
//! Envoy does not wait. `Limiter::within` gives its requests the same rules and counters behind
//! their own guards: 12 ms for all steps of a request, and a separate circuit breaker. A profile
//! that is not available within 3 ms is looked up for the next request. Envoy allows a request on
//! errors, so invalid input is counted instead of rejected wherever possible.
//!
//! # REST
//!
//! - `rest/routes.rs` lists every route once. The router and the OpenAPI document are both built
//!   from it; the documentation of handlers and wire types becomes the descriptions in the
//!   document.
//! - A handler of `rest/manage/` takes the admitted caller first, then path, query and body
//!   (`rest/extract.rs`). Every write goes through `Managed::change`, which has the catalog record
//!   it with its actor and then applies it.
//! - `rest/decode.rs` parses bodies and queries. Only after an error is the input parsed again, to
//!   find the path of the invalid field.
//! - A rule has one type for requests and responses (`rest/manage/rule_wire.rs`). A new field of a
//!   rule is added there, to `Rule`, to `pacegate-catalog/src/rule_row.rs` with a migration, and to
//!   the configuration file's types.
//! - `rest/throttlex/` is the API of ThrottleX.
//! - `respond.rs` maps errors to HTTP and gRPC, in two formats. An `ApiError` passes through the
//!   router as an extension of the response and is rendered where the request id is known.
//!
//! # Access, caches and logs
//!
//! `auth::Gate` admits every management request, and checks if configured, by the role of the key,
//! the address, and rate limits of its own. Invalid keys are counted by address before the catalog
//! is queried.
//!
//! `profiles` caches up to 100,000 users. An entry is used until its user changes or, if the
//! catalog cannot tell which users changed, for one second. Users without a profile are cached
//! separately by hash, so that a flood of made-up users evicts no real one. Lookups of one user are
//! shared; up to 64 users go into one query, and two queries run concurrently. Users that were
//! known before go first. A lookup outlives the check that started it.
//!
//! `observe::journal` counts every decision and queues a sample; when the queue is full, decisions
//! are dropped and counted. `observe::usage` counts 1,024 identifiers individually in each of 16
//! shards. A full shard keeps the heavier half, and the others are counted by dimension. The rows
//! of a minute and of an hour are bounded: half of them are available immediately, the rest as the
//! period passes.
//!
//! # Metrics and traces
//!
//! Checks only add to existing counters: `observe/telemetry/rules.rs` finds those of a rule without
//! a lock, and `histogram.rs` has fixed buckets. Names and labels are built when `/metrics` is
//! scraped (`export.rs`). Labels are names that operators chose, at most 1,000 rules. The events of
//! `GET /api/v1/live` are differences of the same counters. [`App::operations`] shows the same
//! metrics for a limiter that another part of the process uses, such as the proxy.
//!
//! Spans have their own target (`TRACES`), which the log excludes, so that a span that is not
//! collected costs one comparison. `observe/trace.rs` creates the span of a check under the
//! caller's W3C context.
//!
//! # The dashboard
//!
//! The files in `src/dashboard/` are compiled in, without a build step. The page is static and
//! calls the REST API with the key that the operator entered, which it keeps in a module variable.
//! Text from the API is set only as text, and the content security policy blocks everything else.
//!
//! # Where to go next
//!
//! `src/pipeline.rs` is the path of a check, `src/rest/routes.rs` the list of routes, and
//! `src/grpc.rs` the entry point of gRPC. `pacegate-http` has the listeners, `pacegate-catalog` the
//! stored rules and users, and `pacegate` the limiter.

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

/// Maximum size of a request body in bytes, over REST and gRPC.
pub const BODY_BYTES_MAX: usize = pacegate_proto::REQUEST_BYTES_MAX;
