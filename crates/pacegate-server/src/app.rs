//! The state that all requests share, and the entry point of every request.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use hyper::header::{ALLOW, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use pacegate::observe::{Observed, Observer};
use pacegate::{FailureMode, Limiter, store::StoreHealth};
use pacegate_config::{AdHocConfig, Config};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::auth::{AdminKey, Gate};
use crate::deprecation::{self, Deprecation, deprecations};
use crate::forgery;
use crate::grpc::Services;
use crate::live::Live;
use crate::observe;
use crate::overload::Overload;
use crate::peer::Peer;
use crate::pipeline::batches::Batches;
use crate::respond::{ApiError, Code, Rendering};
use crate::rest::{self, Watchers};
use crate::run::Protocol;
use pacegate_http::headers::Families;
use pacegate_http::request_id::{REQUEST_ID, RequestIds, as_text};
use pacegate_http::server::{Bodies, Client, Figures};

/// The service without sockets: one request in, one response out.
#[derive(Clone)]
pub struct App {
    pub(crate) shared: Arc<Shared>,
    pub(crate) grpc: Services,
    router: Router,
    /// Whether this service decides checks; `false` for operations only.
    checks: bool,
}

/// The state that handlers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limiter: Limiter,
    /// The same limiter with the shorter deadline of Envoy's requests.
    pub(crate) envoy: Limiter,
    /// The failure mode for requests that cannot be decided at all.
    pub(crate) failure_mode: FailureMode,
    /// The catalog and its caches, if the service has a catalog.
    pub(crate) live: Option<Arc<Live>>,
    pub(crate) gate: Gate,
    pub(crate) families: Families,
    /// The header families of responses to Envoy.
    pub(crate) envoy_families: Families,
    pub(crate) observer: observe::Observer,
    pub(crate) overload: Overload,
    /// The memory budget of request bodies in flight.
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) batches: Batches,
    /// Bounds of ad-hoc limits.
    pub(crate) ad_hoc: AdHocConfig,
    pub(crate) started: Instant,
    pub(crate) deprecations: Vec<Deprecation>,
    /// The OpenAPI document, built on first use.
    pub(crate) openapi: OnceLock<Result<Bytes, String>>,
    pub(crate) request_ids: RequestIds,
    pub(crate) request_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// The open live streams.
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) feed: rest::Feed,
    pub(crate) history: rest::History,
    draining: AtomicBool,
    /// Set on shutdown, to end streams.
    pub(crate) stopping: watch::Sender<bool>,
}

impl App {
    /// Creates the service over `limiter`, without a catalog: rules cannot be changed. `key`
    /// authenticates admin operations.
    pub fn new(config: &Config, limiter: Limiter, key: AdminKey) -> Self {
        Self::build(config, limiter, None, Some(key), deprecations())
    }

    /// Creates the service over rules that can be changed. `key` authenticates admin operations, in
    /// addition to the keys in the catalog.
    pub fn managed(config: &Config, live: Arc<Live>, key: Option<AdminKey>) -> Self {
        Self::build(config, live.limiter.clone(), Some(live), key, deprecations())
    }

    /// Creates the operational endpoints alone, for a proxy or another program around `limiter`:
    /// `/metrics`, `/healthz` and `/readyz`. The program reports its decisions as an [`Observer`].
    pub fn operations(config: &Config, limiter: Limiter) -> Self {
        let app = Self::build(config, limiter, None, None, Vec::new());
        let router = rest::operations(app.shared.clone());
        Self { router, checks: false, ..app }
    }

    /// Returns the connection metrics, in which a proxy counts its connections as HTTP.
    pub fn connections(&self) -> Arc<Figures> {
        self.shared.observer.telemetry.connections(Protocol::Http).clone()
    }

    /// Counts a response sent by another part of this process.
    pub fn count_response(&self, status: StatusCode) {
        self.shared.observer.telemetry.count_http(status);
    }

    /// Returns the id of a request: the caller's if it is 1 to 128 visible ASCII characters, a new
    /// one otherwise.
    pub fn request_id(&self, given: Option<&HeaderValue>) -> HeaderValue {
        self.shared.request_ids.accept_or_generate(given)
    }

    pub(crate) fn build(
        config: &Config,
        limiter: Limiter,
        live: Option<Arc<Live>>,
        key: Option<AdminKey>,
        deprecations: Vec<Deprecation>,
    ) -> Self {
        let shared = Arc::new(Shared {
            envoy: limiter.within(config.envoy_store_timeout),
            failure_mode: config.failure_mode,
            gate: Gate::new(config, live.clone(), key),
            observer: observe::Observer::new(config, &limiter, live.clone()),
            live,
            families: Families::new(&config.headers),
            envoy_families: Families::new(config.envoy_headers.as_ref().unwrap_or(&config.headers)),
            ad_hoc: config.ad_hoc,
            overload: Overload::new(config),
            bodies: Arc::new(Bodies::new(config.server.max_request_memory)),
            batches: Batches::default(),
            limiter,
            started: Instant::now(),
            deprecations,
            openapi: OnceLock::new(),
            request_ids: RequestIds::default(),
            request_timeout: config.server.request_timeout,
            idle_timeout: config.server.idle_timeout,
            watchers: Arc::default(),
            feed: rest::Feed::default(),
            history: rest::History::default(),
            draining: AtomicBool::new(false),
            stopping: watch::Sender::new(false),
        });
        let router = rest::router(shared.clone(), &shared.deprecations);
        Self { grpc: Services::new(&shared), shared, router, checks: true }
    }

    /// Responds to a request from `peer`. There is always a response, even after a panic, and
    /// errors have the body of the error model.
    pub async fn respond<B>(&self, mut request: Request<B>, peer: impl Into<Peer>) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let id = self.shared.request_ids.accept_or_generate(request.headers().get(&REQUEST_ID));
        request.headers_mut().insert(REQUEST_ID, id.clone());
        let rendering = Rendering::of(request.uri().path());
        // Pinned here, because the future is large and would be moved before it is first polled.
        let answer = pin!(self.dispatch(request, peer.into()));
        let answer = AssertUnwindSafe(answer).catch_unwind();
        let mut response = match tokio::time::timeout(self.shared.request_timeout, answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(panic)) => {
                tracing::error!(
                    request_id = as_text(&id),
                    panic = panic_message(&*panic),
                    "request panicked"
                );
                ApiError::new(Code::InternalError, "an internal error occurred")
                    .render(as_text(&id), rendering)
            }
            Err(_) => {
                let message = "the request timed out; send its body faster or retry";
                ApiError::new(Code::RequestTimeout, message).render(as_text(&id), rendering)
            }
        };
        if let Some(error) = response.extensions_mut().remove::<ApiError>() {
            let error = error.logged(as_text(&id));
            let mut rendered = error.render(as_text(&id), rendering);
            if let Some(allow) = response.headers_mut().remove(ALLOW) {
                rendered.headers_mut().insert(ALLOW, allow);
            }
            deprecation::carry(&response, &mut rendered);
            response = rendered;
        }
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// Dispatches a request. Checks are almost all of the traffic, so they bypass the router, which
    /// has the same route for the other methods.
    async fn dispatch<B>(&self, request: Request<B>, peer: Peer) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // A proxy in front of the service may have used the other one.
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            return ApiError::new(Code::InvalidInput, "the request must have one Host header")
                .into_response();
        }
        if self.checks && request.method() == Method::POST && rest::is_check(request.uri().path()) {
            return rest::check_from(&self.shared, request, Some(&peer)).await.into_response();
        }
        if forgery::is_possible(&request, &peer) {
            return forgery::rejection().into_response();
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        let Ok(response) = Box::pin(self.router.clone().oneshot(request)).await;
        response
    }

    /// Returns the peer of a connection.
    pub(crate) fn peer(&self, client: &Client) -> Peer {
        Peer::connected(client, |certificate| self.shared.gate.identify(certificate))
    }

    /// Reports the service as not ready from now on, so that load balancers stop sending requests
    /// before it shuts down.
    pub(crate) fn start_draining(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Returns an error with the reason if the service is not ready for traffic.
    pub(crate) async fn readiness(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("the service is shutting down".to_owned());
        }
        let mut failing: Vec<String> = Vec::new();
        // The health with the ordinary deadline: a store that is too slow for Envoy serves others.
        for (name, health) in self.limiter.stores().health() {
            match health {
                StoreHealth::Up => {}
                StoreHealth::Rejected => failing.push(format!("store `{name}` rejects this service")),
                _ => failing.push(format!("store `{name}` unavailable")),
            }
        }
        if let Some(live) = &self.live
            && let Err(reason) = live.catalog_health.check().await
        {
            failing.push(reason.to_owned());
        }
        if failing.is_empty() { Ok(()) } else { Err(failing.join("; ")) }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// Measures and logs decisions of another part of this process like its own.
impl Observer for App {
    fn observe(&self, observed: &Observed<'_, '_>) {
        let observer = &self.shared.observer;
        match observed.decided {
            Ok(decision) => {
                let check = std::slice::from_ref(observed.check);
                observer.note(check, observed.request_id, decision, observed.took);
            }
            Err(error) => observer.note_error(error, observed.took),
        }
    }
}

impl fmt::Debug for App {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("App").finish_non_exhaustive()
    }
}

pub(crate) async fn not_found(uri: Uri) -> ApiError {
    // The path comes from the client: it is truncated here and escaped by JSON.
    let path: String = uri.path().chars().take(200).collect();
    ApiError::new(Code::NotFound, format!("unknown path {path}"))
}

pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    ApiError::new(Code::MethodNotAllowed, format!("method {method} is not allowed for {path}"))
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}
