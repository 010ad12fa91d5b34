//! The gRPC services: which there are, and what all their requests pass through.

mod convert;
mod envoy;
mod health;
mod limiter;
mod messages;
mod stream;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http_body_util::{BodyStream, Full as Whole, StreamBody};
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
use crate::respond::{ApiError, Code};
use messages::{Messages, PREFIX_BYTES, RequestBody, too_large};
use pacegate_http::request_id::{REQUEST_ID, as_text, request_id};
use pacegate_http::server::Received;
use pacegate_http::server::{Held, Incomplete, discard, gather};

/// The services that clients can ask about the health of; the empty name stands for all of them.
const NAMES: [&str; 3] = ["", LIMITER, ENVOY];
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

const SERVICES: [&str; 5] = [LIMITER, ENVOY, HEALTH, REFLECTION, REFLECTION_ALPHA];

/// A service that is rarely asked, whatever its type.
type Rare = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// All services. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Services {
    limiter: RateLimiterServer<limiter::Limiter>,
    envoy: RateLimitServiceServer<envoy::Envoy>,
    health: HealthServer<health::Health>,
    /// By name.
    rare: Arc<Vec<(&'static str, Rare)>>,
}

impl Services {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let limiter = RateLimiterServer::new(limiter::Limiter::new(shared.clone()));
        let envoy = RateLimitServiceServer::new(envoy::Envoy::new(shared.clone()));
        let reflection = || {
            Reflection::configure()
                .register_encoded_file_descriptor_set(pacegate_proto::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // They are generated together with the code, so that they can be read.
        let rare = [
            reflection().build_v1().ok().map(|service| (REFLECTION, Rare::new(service))),
            reflection().build_v1alpha().ok().map(|service| (REFLECTION_ALPHA, Rare::new(service))),
        ];
        Self {
            limiter: limiter.max_decoding_message_size(BODY_BYTES_MAX),
            envoy: envoy.max_decoding_message_size(BODY_BYTES_MAX),
            health: HealthServer::new(health::Health::new(shared.clone())),
            rare: Arc::new(rare.into_iter().flatten().collect()),
        }
    }

    /// Answers a request that came from `peer`. Whatever happens inside, there is an answer.
    pub(crate) async fn respond(
        &self,
        shared: &Arc<Shared>,
        mut request: Request<Received<Incoming>>,
        peer: &Peer,
    ) -> Response<Body> {
        let id = shared.request_ids.take_or_make(request.headers().get(&REQUEST_ID));
        request.headers_mut().insert(REQUEST_ID, id.clone());
        let timeout = timeout_of(request.headers()).map(|timeout| {
            let own = timeout.unwrap_or(shared.request_timeout);
            if is_long(request.uri().path()) { timeout } else { Some(own.min(shared.request_timeout)) }
        });
        let mut response = match timeout {
            Ok(timeout) => answered(self.dispatch(shared, request, peer), timeout, &id).await,
            Err(status) => status.into_http(),
        };
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// Decides from the head whether the caller may ask, waits for the message, and only then has it decoded.
    async fn dispatch(
        &self,
        shared: &Arc<Shared>,
        mut request: Request<Received<Incoming>>,
        peer: &Peer,
    ) -> Result<Response<Body>, Infallible> {
        if !SERVICES.contains(&service_of(&request)) {
            return Ok(Status::unimplemented("there is no such service").into_http());
        }
        if let Err(error) = admit(shared, &mut request, peer).await {
            let status = Status::from(error.logged(request_id(request.headers())));
            Box::pin(discard(request.into_body(), &shared.bodies, Some(peer.ip()))).await;
            return Ok(status.into_http());
        }
        request.extensions_mut().insert(peer.clone());
        // Charged until there is an answer.
        let (request, _held) = match receive(shared, request, peer).await {
            Ok(received) => received,
            Err(status) => return Ok(status.into_http()),
        };
        match service_of(&request) {
            LIMITER => self.limiter.clone().call(request).await,
            ENVOY => self.envoy.clone().call(request).await,
            HEALTH => self.health.clone().call(request).await,
            other => match self.rare.iter().find(|(name, _)| *name == other) {
                Some((_, service)) => {
                    let request = request.map(|body| while_used(shared, body));
                    Box::pin(service.clone().oneshot(request)).await
                }
                None => Ok(Status::internal("the service could not be made").into_http()),
            },
        }
    }
}

/// The name of the service that a request is for.
fn service_of<B>(request: &Request<B>) -> &str {
    request.uri().path().split('/').nth(1).unwrap_or_default()
}

/// A caller that may manage.
#[derive(Clone, Debug)]
struct Admin {
    key_id: String,
}

impl Admin {
    /// What a management method answers to a caller that was not admitted.
    fn missing() -> ApiError {
        ApiError::new(Code::Unauthenticated, "this operation needs an API key")
    }
}

/// A request whose message was not read, because there is no memory for it.
#[derive(Clone, Copy, Debug)]
struct Unread;

/// Refuses callers that may not do what they ask for, by the head of the request alone.
async fn admit<B>(shared: &Shared, request: &mut Request<B>, peer: &Peer) -> Result<(), ApiError> {
    let (gate, headers, peer) = (&shared.gate, request.headers(), Some(peer));
    let service = service_of(request);
    match request.uri().path().rsplit('/').next().unwrap_or_default() {
        "ResetLimit" if service == LIMITER => {
            let key_id = Box::pin(gate.admit(headers, peer, Need::Write)).await?;
            request.extensions_mut().insert(Admin { key_id });
            Ok(())
        }
        // Giving back has no limit of its own, so that it needs a key even where checks need none.
        "Refund" if service == LIMITER => {
            let admitted = Box::pin(gate.admit_known(headers, peer, Need::Check)).await;
            admitted.inspect_err(|_| shared.observer.refunds.refused_call(request_id(headers)))
        }
        "GetRemainingQuota" if service == LIMITER => gate.admit_check(headers, peer, Need::Look).await,
        _ if service == LIMITER || service == ENVOY => gate.admit_check(headers, peer, Need::Check).await,
        // Health and reflection are for everyone.
        _ => Ok(()),
    }
}

/// The request with its message, or with a body that passes on whole messages if it has several, and the memory that is
/// charged for it.
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
    // What goes on for long has no time of its own, but its message has.
    let gathered = if is_long(path) {
        let late = || Status::deadline_exceeded("the message took too long to arrive");
        tokio::time::timeout(shared.request_timeout, gathering).await.map_err(|_| late())?
    } else {
        gathering.await
    };
    let (bytes, held) = match gathered {
        Ok(gathered) => (gathered.bytes, gathered.held),
        // Not an error: Envoy lets those pass.
        Err(Incomplete::Full(_)) if path.split('/').nth(1) == Some(ENVOY) => {
            parts.extensions.insert(Unread);
            (Bytes::from_static(&[0; PREFIX_BYTES]), None)
        }
        Err(Incomplete::Full(full)) => return Err(ApiError::from(full).into()),
        Err(Incomplete::TooLarge) => return Err(too_large()),
        Err(Incomplete::Broken) => return Err(Status::cancelled("the message could not be read to its end")),
    };
    Ok((Request::from_parts(parts, RequestBody::Whole(Whole::new(bytes))), held))
}

/// The answer of a service, or what became of the request without one.
async fn answered(
    answer: impl Future<Output = Result<Response<Body>, Infallible>>,
    timeout: Option<Duration>,
    id: &HeaderValue,
) -> Response<Body> {
    let answer = AssertUnwindSafe(answer).catch_unwind();
    let answer = match timeout {
        None => answer.await,
        Some(timeout) => match tokio::time::timeout(timeout, answer).await {
            Ok(answer) => answer,
            Err(_) => return Status::deadline_exceeded("the request took too long").into_http(),
        },
    };
    match answer {
        Ok(Ok(response)) => response,
        Err(panic) => {
            let (request_id, panic) = (as_text(id), panic_message(&*panic));
            tracing::error!(request_id, panic, "a request panicked");
            Status::internal("an internal error occurred").into_http()
        }
    }
}

/// Completes when the service ends.
async fn stopped(shared: Arc<Shared>) {
    // The sender is in there, so that it is not gone before.
    let _ = shared.stopping.subscribe().wait_for(|stopping| *stopping).await;
}

/// A body that goes on for as long as the client uses it, but not longer than the service.
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

/// Whether a request at this path goes on for as long as the client likes.
pub(crate) fn is_long(path: &str) -> bool {
    ["/CheckStream", "/Watch", "/ServerReflectionInfo"].iter().any(|method| path.ends_with(method))
}

/// Whether the client sends any number of messages to this path.
fn has_several_messages(path: &str) -> bool {
    ["/CheckStream", "/ServerReflectionInfo"].iter().any(|method| path.ends_with(method))
}

/// How long the client waits: up to eight digits and a unit.
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
    let message = "grpc-timeout: must be up to eight digits and a unit, one of H, M, S, m, u and n";
    timeout.map(Some).ok_or_else(|| Status::invalid_argument(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
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
