//! What all requests share, and the one place every request passes through.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
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

/// The service without its sockets: one request in, one response out.
#[derive(Clone)]
pub struct App {
    pub(crate) shared: Arc<Shared>,
    pub(crate) grpc: Services,
    router: Router,
    /// Whether requests are checked here, and not only watched.
    checks: bool,
}

/// What handlers work with.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limiter: Limiter,
    /// The same for Envoy, which does not wait for long.
    pub(crate) envoy: Limiter,
    /// What happens when nothing can be decided at all.
    pub(crate) failure_mode: FailureMode,
    /// Where rules can be changed, and what is known about users.
    pub(crate) live: Option<Arc<Live>>,
    pub(crate) gate: Gate,
    pub(crate) families: Families,
    /// The same for answers to Envoy.
    pub(crate) envoy_families: Families,
    pub(crate) observer: observe::Observer,
    pub(crate) overload: Overload,
    /// The memory of request bodies under way.
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) batches: Batches,
    /// What limits requests may bring along.
    pub(crate) ad_hoc: AdHocConfig,
    pub(crate) started: Instant,
    pub(crate) deprecations: Vec<Deprecation>,
    /// The document, once somebody wanted it.
    pub(crate) openapi: OnceLock<Result<Bytes, String>>,
    pub(crate) request_ids: RequestIds,
    pub(crate) request_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// Places for those who watch.
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) feed: rest::Feed,
    pub(crate) history: rest::History,
    draining: AtomicBool,
    /// Whether the service ends: whatever goes on for ever ends then.
    pub(crate) stopping: watch::Sender<bool>,
}

impl App {
    /// The service over `limiter`, without a catalog: rules cannot be changed. `key` opens its admin operations.
    pub fn new(config: &Config, limiter: Limiter, key: AdminKey) -> Self {
        Self::build(config, limiter, None, Some(key), deprecations())
    }

    /// The service over rules that can be changed. `key` opens its admin operations, beside the keys in the catalog.
    pub fn managed(config: &Config, live: Arc<Live>, key: Option<AdminKey>) -> Self {
        Self::build(config, live.limiter.clone(), Some(live), key, deprecations())
    }

    /// Only what a proxy or a program around `limiter` shows of its own: `/metrics`, `/healthz` and `/readyz`. What it decides is
    /// [told](Observer) to it.
    pub fn operations(config: &Config, limiter: Limiter) -> Self {
        let app = Self::build(config, limiter, None, None, Vec::new());
        let router = rest::operations(app.shared.clone());
        Self { router, checks: false, ..app }
    }

    /// The figures that the connections of a proxy are counted in, as those of HTTP.
    pub fn connections(&self) -> Arc<Figures> {
        self.shared.observer.telemetry.connections(Protocol::Http).clone()
    }

    /// Counts a response that was given elsewhere in this process.
    pub fn count_response(&self, status: StatusCode) {
        self.shared.observer.telemetry.count_http(status);
    }

    /// The id of a request: the caller's if it is 1 to 128 visible ASCII characters, a new one otherwise.
    pub fn request_id(&self, given: Option<&HeaderValue>) -> HeaderValue {
        self.shared.request_ids.take_or_make(given)
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

    /// Answers a request that came from `peer`. Whatever happens inside, there is an answer, and errors have the error model's body.
    pub async fn respond<B>(&self, mut request: Request<B>, peer: impl Into<Peer>) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let id = self.shared.request_ids.take_or_make(request.headers().get(&REQUEST_ID));
        request.headers_mut().insert(REQUEST_ID, id.clone());
        let rendering = Rendering::of(request.uri().path());
        // In a box, because what follows moves it before it is first polled.
        let answer = AssertUnwindSafe(Box::pin(self.dispatch(request, peer.into()))).catch_unwind();
        let mut response = match tokio::time::timeout(self.shared.request_timeout, answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(panic)) => {
                tracing::error!(
                    request_id = as_text(&id),
                    panic = panic_message(&*panic),
                    "a request panicked"
                );
                ApiError::new(Code::InternalError, "an internal error occurred")
                    .render(as_text(&id), rendering)
            }
            Err(_) => {
                let message = "the request took too long; send its body faster, or try again";
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

    /// Checks are almost all there is, so they do not look their way up in the router, which has the same route for every other method.
    async fn dispatch<B>(&self, request: Request<B>, peer: Peer) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // A proxy before the service may have gone by the other one.
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            return ApiError::new(Code::InvalidInput, "the request must have one Host header")
                .into_response();
        }
        if self.checks && request.method() == Method::POST && rest::is_check(request.uri().path()) {
            return rest::check_from(&self.shared, request, Some(&peer)).await.into_response();
        }
        if forgery::is_possible(&request, &peer) {
            return forgery::refusal().into_response();
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        let Ok(response) = Box::pin(self.router.clone().oneshot(request)).await;
        response
    }

    /// The other end of a connection.
    pub(crate) fn peer(&self, client: &Client) -> Peer {
        Peer::connected(client, |certificate| self.shared.gate.identify(certificate))
    }

    /// From now on the service says that it is not ready, so that load balancers turn away before it stops.
    pub(crate) fn start_draining(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Says why the service is not ready for traffic, if it is not.
    pub(crate) async fn readiness(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("the service is stopping".to_owned());
        }
        let mut failing: Vec<String> = Vec::new();
        // Of the callers that can wait: a store that is too slow for Envoy serves all others.
        for (name, health) in self.limiter.stores().health() {
            match health {
                StoreHealth::Up => {}
                StoreHealth::Rejected => failing.push(format!("store `{name}` rejects this service")),
                _ => failing.push(format!("store `{name}` does not answer")),
            }
        }
        if let Some(live) = &self.live
            && let Err(reason) = live.catalog_health.found().await
        {
            failing.push(reason.to_owned());
        }
        if failing.is_empty() { Ok(()) } else { Err(failing.join("; ")) }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// Measures and logs decisions that were made elsewhere in this process, as if they had been made here.
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
    // The path is the client's own; it is shortened, and JSON escapes what should not be seen raw.
    let path: String = uri.path().chars().take(200).collect();
    ApiError::new(Code::NotFound, format!("there is nothing at {path}"))
}

pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    ApiError::new(Code::MethodNotAllowed, format!("{method} is not allowed at {path}"))
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}
