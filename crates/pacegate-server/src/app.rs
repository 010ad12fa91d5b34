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
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use pacegate::{Check, CheckError, Decision, FailureMode, Limiter, NamedLimit, Profile, StoreHealth};
use pacegate_catalog::Actor;
use pacegate_config::{AdHocCallers, AdHocConfig, Config};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;
use tracing::Instrument;

use crate::ad_hoc::IgnoredLimits;
use crate::auth::{AdminKey, Gate};
use crate::batches::Batches;
use crate::bodies::Bodies;
use crate::deprecation::{self, Deprecation, deprecations};
use crate::forgery;
use crate::grpc::Services;
use crate::lines::Lines;
use crate::live::Live;
use crate::overload::Overload;
use crate::peer::Peer;
use crate::refunds::Refunds;
use crate::respond::{ApiError, Code, Rendering};
use crate::rest::{self, Watchers};
use crate::run::Protocol;
use crate::skew::Skew;
use crate::telemetry::Telemetry;
use crate::trace;
use crate::transitions::Transitions;
use pacegate_http::headers::Families;
use pacegate_http::request_id::{REQUEST_ID, RequestIds, as_text, request_id};
use pacegate_http::server::{Client, Figures};

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
    pub(crate) transitions: Transitions,
    pub(crate) lines: Lines,
    pub(crate) telemetry: Telemetry,
    pub(crate) overload: Overload,
    /// The memory of request bodies under way.
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) batches: Batches,
    pub(crate) skew: Skew,
    pub(crate) refunds: Refunds,
    /// What limits requests may bring along.
    pub(crate) ad_hoc: AdHocConfig,
    pub(crate) ignored_limits: IgnoredLimits,
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
    /// [told](Self::observe) to it.
    pub fn operations(config: &Config, limiter: Limiter) -> Self {
        let app = Self::build(config, limiter, None, None, Vec::new());
        let router = rest::operations(app.shared.clone());
        Self { router, checks: false, ..app }
    }

    /// Measures and logs a decision that was made elsewhere in this process, as if it had been made here.
    pub fn observe(
        &self,
        check: &Check<'_>,
        request_id: &str,
        decided: Result<&Decision, &CheckError>,
        took: Duration,
    ) {
        match decided {
            Ok(decision) => self.shared.observe(check, request_id, decision, took),
            Err(CheckError::Store(_)) => self.shared.telemetry.observe_error(took),
            // What is wrong with a request says nothing about the service.
            Err(_) => {}
        }
    }

    /// The figures that the connections of a proxy are counted in, as those of HTTP.
    pub fn connections(&self) -> Arc<Figures> {
        self.shared.telemetry.connections(Protocol::Http).clone()
    }

    /// Counts a response that was given elsewhere in this process.
    pub fn count_response(&self, status: StatusCode) {
        self.shared.telemetry.count_http(status);
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
            live,
            families: Families::new(&config.headers),
            envoy_families: Families::new(config.envoy_headers.as_ref().unwrap_or(&config.headers)),
            transitions: Transitions::default(),
            lines: Lines::new(&config.log),
            skew: Skew::default(),
            refunds: Refunds::default(),
            ad_hoc: config.ad_hoc,
            ignored_limits: IgnoredLimits::default(),
            overload: Overload::new(config),
            bodies: Arc::new(Bodies::new(config.server.max_request_memory)),
            batches: Batches::default(),
            telemetry: Telemetry::new(&limiter, config.metrics),
            limiter,
            started: Instant::now(),
            deprecations,
            openapi: OnceLock::new(),
            request_ids: RequestIds::default(),
            request_timeout: config.server.request_timeout,
            idle_timeout: config.server.idle_timeout,
            watchers: Arc::default(),
            feed: rest::Feed::default(),
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
    /// Records who resets the counters of a check. It comes before the reset: none may happen without a record.
    pub(crate) async fn record_reset(&self, actor: &Actor, check: &Check<'_>) -> Result<(), ApiError> {
        let Some(live) = &self.live else {
            tracing::info!(key_id = actor.key_id, "counters reset");
            return Ok(());
        };
        let identities = check.identities().iter().map(|(dimension, identifier)| (*dimension, &**identifier));
        let identities: Vec<(&str, &str)> = identities.collect();
        Ok(live.catalog.record_reset(actor, &identities, check.endpoint).await?)
    }

    /// Refuses a check with a limit of its own from callers that may not send one.
    #[inline]
    pub(crate) async fn permit(
        &self,
        check: &Check<'_>,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<(), ApiError> {
        if check.own_limit().is_none() || self.ad_hoc.allow == AdHocCallers::Always {
            return Ok(());
        }
        // In a box, because it is rare and would make the future of every check larger.
        Box::pin(self.gate.permit_ad_hoc(self.ad_hoc.allow, headers, peer)).await
    }

    /// The same for several checks, of which each that is refused becomes its error.
    pub(crate) async fn permit_each<'a>(
        &self,
        checks: Vec<Result<Check<'a>, ApiError>>,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Vec<Result<Check<'a>, ApiError>> {
        let has_limit =
            |check: &Result<Check<'_>, _>| check.as_ref().is_ok_and(|check| check.own_limit().is_some());
        if self.ad_hoc.allow == AdHocCallers::Always || !checks.iter().any(has_limit) {
            return checks;
        }
        match self.gate.permit_ad_hoc(self.ad_hoc.allow, headers, peer).await {
            Ok(()) => checks,
            Err(error) => {
                let refuse = |check| if has_limit(&check) { Err(error.clone()) } else { check };
                checks.into_iter().map(refuse).collect()
            }
        }
    }

    /// Decides on a check that came with `headers`, and takes note of it.
    pub(crate) async fn decide(
        &self,
        check: &Check<'_>,
        headers: &HeaderMap,
    ) -> Result<Decision, CheckError> {
        let (started, span) = (Instant::now(), trace::check(headers));
        let decided = self.limiter.check(check).instrument(span.clone()).await;
        match &decided {
            Ok(decision) => {
                trace::decided(&span, decision);
                self.observe(check, request_id(headers), decision, started.elapsed());
            }
            Err(CheckError::Store(_)) => self.telemetry.observe_error(started.elapsed()),
            // What is wrong with a request says nothing about the service.
            Err(_) => {}
        }
        decided
    }

    /// Takes note of what was decided about a check, and of how long it took.
    #[inline]
    pub(crate) fn observe(&self, check: &Check<'_>, request_id: &str, decision: &Decision, took: Duration) {
        self.telemetry.observe(decision, took);
        self.lines.note(check, request_id, decision, took);
        let key = |limit: &NamedLimit| self.lines.key(std::slice::from_ref(check), Some(limit));
        self.transitions.observe(decision, request_id, key);
        if let Some(live) = &self.live {
            live.journal.note(check, request_id, decision);
        }
    }

    /// Takes note of one decision about several checks: it is one, whatever it was about, and each of them was used.
    pub(crate) fn observe_together(
        &self,
        checks: &[Check<'_>],
        request_id: &str,
        decision: &Decision,
        took: Duration,
    ) {
        self.telemetry.observe(decision, took);
        self.transitions.observe(decision, request_id, |limit| self.lines.key(checks, Some(limit)));
        for check in checks {
            self.lines.note(check, request_id, decision, took);
            if let Some(live) = &self.live {
                live.journal.note(check, request_id, decision);
            }
        }
    }

    /// What is known about the user of a request, if it has one.
    pub(crate) async fn profile(&self, user_id: Option<&str>) -> Option<Arc<Profile>> {
        let (profiles, user_id) = (&self.live.as_ref()?.profiles, user_id?);
        match profiles.known(user_id) {
            Some(known) => known,
            // In a box, because it is rare and would make the future of every check larger.
            None => Box::pin(profiles.get(user_id)).await,
        }
    }

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
