//! The gRPC services, and the entry point of all their requests.

mod convert;
mod envoy;
mod health;
mod limiter;
mod messages;
mod stream;
mod unary;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, Response};
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitServiceServer, SERVICE_NAME as ENVOY,
};
use pacegate_proto::v1::rate_limiter_server::{RateLimiterServer, SERVICE_NAME as LIMITER};
use tonic::Status;
use tonic::body::Body;
use tonic_health::pb::health_server::{HealthServer, SERVICE_NAME as HEALTH};
use tonic_reflection::server::Builder as Reflection;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use crate::BODY_BYTES_MAX;
use crate::app::{Shared, panic_message};
use crate::auth::Need;
use crate::peer::Peer;
use crate::pipeline::Caller;
use crate::respond::{ApiError, Code};
use messages::{Messages, PREFIX_BYTES, RequestBody, too_large};
use pacegate_http::request_id::{REQUEST_ID, as_text, request_id};
use pacegate_http::server::Received;
use pacegate_http::server::{Held, Incomplete, discard, gather};
pub(crate) use unary::ResponseBody;

/// The services with a health status; the empty name means all of them.
const NAMES: [&str; 3] = ["", LIMITER, ENVOY];
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// The usual calls.
const CHECK: &str = "/pacegate.v1.RateLimiter/CheckRateLimit";
const ENVOY_CHECK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const SERVICES: [&str; 5] = [LIMITER, ENVOY, HEALTH, REFLECTION, REFLECTION_ALPHA];

/// A rarely used service, with its type erased.
type Rare = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// All services. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Services {
    limiter: RateLimiterServer<limiter::Limiter>,
    envoy: RateLimitServiceServer<envoy::Envoy>,
    /// The same service as `envoy`, for calls that do not need the framework.
    envoy_unary: Arc<envoy::Envoy>,
    health: HealthServer<health::Health>,
    /// Keyed by name.
    rare: Arc<Vec<(&'static str, Rare)>>,
}

impl Services {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let limiter = RateLimiterServer::new(limiter::Limiter::new(shared.clone()));
        let envoy_unary = Arc::new(envoy::Envoy::new(shared.clone()));
        let envoy = RateLimitServiceServer::from_arc(envoy_unary.clone());
        let reflection = || {
            Reflection::configure()
                .register_encoded_file_descriptor_set(pacegate_proto::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // The descriptor sets are generated together with the code, so that they are valid.
        let rare = [
            reflection().build_v1().ok().map(|service| (REFLECTION, Rare::new(service))),
            reflection().build_v1alpha().ok().map(|service| (REFLECTION_ALPHA, Rare::new(service))),
        ];
        Self {
            limiter: limiter.max_decoding_message_size(BODY_BYTES_MAX),
            envoy: envoy.max_decoding_message_size(BODY_BYTES_MAX),
            envoy_unary,
            health: HealthServer::new(health::Health::new(shared.clone())),
            rare: Arc::new(rare.into_iter().flatten().collect()),
        }
    }

    /// Responds to a request from `peer`. There is always a response, even after a panic.
    pub(crate) async fn respond(
        &self,
        shared: &Arc<Shared>,
        mut request: Request<Received<Incoming>>,
        peer: &Peer,
    ) -> Response<ResponseBody> {
        let id = shared.request_ids.accept_or_generate(request.headers().get(&REQUEST_ID));
        request.headers_mut().insert(REQUEST_ID, id.clone());
        let timeout = timeout_of(request.headers()).map(|timeout| {
            let own = timeout.unwrap_or(shared.request_timeout);
            if is_long(request.uri().path()) { timeout } else { Some(own.min(shared.request_timeout)) }
        });
        let mut response = match timeout {
            Ok(timeout) => answered(pin!(self.dispatch(shared, request, peer)), timeout, &id).await,
            Err(status) => unary::error(status),
        };
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// Admits the caller by the request head, then waits for the message, and only then decodes it.
    async fn dispatch(
        &self,
        shared: &Arc<Shared>,
        mut request: Request<Received<Incoming>>,
        peer: &Peer,
    ) -> Response<ResponseBody> {
        if !SERVICES.contains(&service_of(&request)) {
            return unary::error(Status::unimplemented("unknown service"));
        }
        if let Err(error) = admit(shared, &mut request, peer).await {
            let status = Status::from(error.logged(request_id(request.headers())));
            Box::pin(discard(request.into_body(), &shared.bodies, Some(peer.ip()))).await;
            return unary::error(status);
        }
        // The memory is charged until the response is complete.
        let (request, _held) = match receive(shared, request, peer).await {
            Ok(received) => received,
            Err(status) => return unary::error(status),
        };
        if let Some(answered) = self.answer(shared, &request, peer).await {
            return answered
                .unwrap_or_else(|error| unary::error(error.logged(request_id(request.headers())).into()));
        }
        Box::pin(self.serve(shared, request, peer)).await
    }

    /// Answers the usual calls. `None` if a call needs the framework.
    async fn answer(
        &self,
        shared: &Arc<Shared>,
        request: &Request<RequestBody>,
        peer: &Peer,
    ) -> Option<Result<Response<ResponseBody>, ApiError>> {
        let RequestBody::Whole(Some(body)) = request.body() else { return None };
        let headers = request.headers();
        let caller = Caller { headers, peer: Some(peer) };
        match request.uri().path() {
            CHECK => {
                let decided = limiter::decide_one(shared, caller, unary::read(headers, body)?).await;
                Some(decided.map(|answer| unary::response(&answer)))
            }
            ENVOY_CHECK => {
                let read = request.extensions().get::<Unread>().is_none();
                let decided = self.envoy_unary.decide(unary::read(headers, body)?, caller, read).await;
                Some(decided.map(|answer| unary::response(&answer)))
            }
            _ => None,
        }
    }

    /// Answers any call with the framework.
    async fn serve(
        &self,
        shared: &Arc<Shared>,
        mut request: Request<RequestBody>,
        peer: &Peer,
    ) -> Response<ResponseBody> {
        request.extensions_mut().insert(peer.clone());
        let Ok(response) = match service_of(&request) {
            LIMITER => self.limiter.clone().call(request).await,
            ENVOY => self.envoy.clone().call(request).await,
            HEALTH => self.health.clone().call(request).await,
            other => match self.rare.iter().find(|(name, _)| *name == other) {
                Some((_, service)) => {
                    let request = request.map(|body| while_used(shared, body));
                    service.clone().oneshot(request).await
                }
                None => Ok(Status::internal("the service is not available").into_http()),
            },
        };
        response.map(ResponseBody::Framework)
    }
}

/// Returns the name of the service that a request is for.
fn service_of<B>(request: &Request<B>) -> &str {
    request.uri().path().split('/').nth(1).unwrap_or_default()
}

/// A caller that may manage.
#[derive(Clone, Debug)]
struct Admin {
    key_id: String,
}

impl Admin {
    /// The error of a management method for a caller that was not admitted.
    fn missing() -> ApiError {
        ApiError::new(Code::Unauthenticated, "this operation requires an API key")
    }
}

/// Marks a request whose message was not read, because the memory budget is used up.
#[derive(Clone, Copy, Debug)]
struct Unread;

/// Rejects callers without the required access, by the request head alone.
async fn admit<B>(shared: &Shared, request: &mut Request<B>, peer: &Peer) -> Result<(), ApiError> {
    let (gate, headers, peer) = (&shared.gate, request.headers(), Some(peer));
    let service = service_of(request);
    match request.uri().path().rsplit('/').next().unwrap_or_default() {
        "ResetLimit" if service == LIMITER => {
            let key_id = Box::pin(gate.admit(headers, peer, Need::Write)).await?;
            request.extensions_mut().insert(Admin { key_id });
            Ok(())
        }
        // Refunds are not rate limited, so they require a key even where checks require none.
        "Refund" if service == LIMITER => {
            let admitted = Box::pin(gate.admit_known(headers, peer, Need::Check)).await;
            admitted.inspect_err(|_| shared.observer.refunds.rejected_call(request_id(headers)))
        }
        "GetRemainingQuota" if service == LIMITER => gate.admit_check(headers, peer, Need::Look).await,
        _ if service == LIMITER || service == ENVOY => gate.admit_check(headers, peer, Need::Check).await,
        // Health and reflection require no key.
        _ => Ok(()),
    }
}

/// Returns the request with its message, or with a body that yields whole messages if it has
/// several, and the memory that is charged for it.
async fn receive(
    shared: &Shared,
    request: Request<Received<Incoming>>,
    peer: &Peer,
) -> Result<(Request<RequestBody>, Option<Held>), Status> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path();
    if has_several_messages(path) {
        let messages = Messages::new(body, &shared.bodies, peer, shared.request_timeout);
        return Ok((Request::from_parts(parts, RequestBody::Stream(messages)), None));
    }
    let gathering = gather(body, PREFIX_BYTES + BODY_BYTES_MAX, &shared.bodies, Some(peer.ip()));
    // A long-lived request has no deadline, but its message has.
    let gathered = if is_long(path) {
        let late = || Status::deadline_exceeded("timed out waiting for the message");
        tokio::time::timeout(shared.request_timeout, gathering).await.map_err(|_| late())?
    } else {
        gathering.await
    };
    let (bytes, held) = match gathered {
        Ok(gathered) => (gathered.bytes, gathered.held),
        // Not an error: Envoy lets a request pass on errors.
        Err(Incomplete::Full(_)) if path.split('/').nth(1) == Some(ENVOY) => {
            parts.extensions.insert(Unread);
            (Bytes::from_static(&[0; PREFIX_BYTES]), None)
        }
        Err(Incomplete::Full(full)) => return Err(ApiError::from(full).into()),
        Err(Incomplete::TooLarge) => return Err(too_large()),
        Err(Incomplete::Broken) => return Err(Status::cancelled("the message was cut off before its end")),
    };
    Ok((Request::from_parts(parts, RequestBody::Whole(Some(bytes))), held))
}

/// Returns the response of a service, or an error status after a timeout or a panic.
async fn answered(
    answer: Pin<&mut impl Future<Output = Response<ResponseBody>>>,
    timeout: Option<Duration>,
    id: &HeaderValue,
) -> Response<ResponseBody> {
    let answer = AssertUnwindSafe(answer).catch_unwind();
    let answer = match timeout {
        None => answer.await,
        Some(timeout) => match tokio::time::timeout(timeout, answer).await {
            Ok(answer) => answer,
            Err(_) => return unary::error(Status::deadline_exceeded("the request timed out")),
        },
    };
    match answer {
        Ok(response) => response,
        Err(panic) => {
            let (request_id, panic) = (as_text(id), panic_message(&*panic));
            tracing::error!(request_id, panic, "request panicked");
            unary::error(Status::internal("an internal error occurred"))
        }
    }
}

/// Completes when the service shuts down.
async fn stopped(shared: Arc<Shared>) {
    // `shared` owns the sender, so the sender cannot be dropped first.
    let _ = shared.stopping.subscribe().wait_for(|stopping| *stopping).await;
}

/// Returns a body that ends when the client is idle or the service shuts down.
fn while_used(shared: &Arc<Shared>, body: RequestBody) -> Body {
    let received = Arc::new(AtomicU64::new(0));
    let (shared, counted) = (shared.clone(), received.clone());
    let unused = async move {
        tokio::select! {
            () = stopped(shared.clone()) => {}
            () = stream::idle(&shared, &received) => {}
        }
    };
    let count = move |_: &_| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    Body::new(StreamBody::new(BodyStream::new(body).inspect(count).take_until(Box::pin(unused))))
}

/// Returns whether a request to this path stays open for as long as the client wants.
pub(crate) fn is_long(path: &str) -> bool {
    ["/CheckStream", "/Watch", "/ServerReflectionInfo"].iter().any(|method| path.ends_with(method))
}

/// Returns whether the client sends any number of messages to this path.
fn has_several_messages(path: &str) -> bool {
    ["/CheckStream", "/ServerReflectionInfo"].iter().any(|method| path.ends_with(method))
}

/// Parses the client's timeout: up to eight digits and a unit.
fn timeout_of(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let parse = |text: &str| {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let digits =
            (digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(digits)?;
        let number: u64 = digits.parse().ok()?;
        match unit {
            "H" => Some(Duration::from_secs(number * 3_600)),
            "M" => Some(Duration::from_secs(number * 60)),
            "S" => Some(Duration::from_secs(number)),
            "m" => Some(Duration::from_millis(number)),
            "u" => Some(Duration::from_micros(number)),
            "n" => Some(Duration::from_nanos(number)),
            _ => None,
        }
    };
    let timeout = value.to_str().ok().and_then(parse);
    let message = "grpc-timeout: expected up to eight digits and a unit: H, M, S, m, u or n";
    timeout.map(Some).ok_or_else(|| Status::invalid_argument(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts_are_parsed() {
        let read = |text: &str| {
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]);
            timeout_of(&headers).ok().flatten()
        };
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("1S"), Some(Duration::from_secs(1)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        assert_eq!(read("5n"), Some(Duration::from_nanos(5)));
        for wrong in ["", "m", "20", "20x", "-1S", "999999999S", "1.5S"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(timeout_of(&HeaderMap::new()).unwrap(), None);
    }
}
