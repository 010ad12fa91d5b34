//! The gRPC services: which there are, and what all their requests pass through.

mod convert;
mod envoy;
mod health;
mod limiter;
mod stream;

use std::convert::Infallible;
use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
use crate::activity::Received;
use crate::app::{Shared, panic_message};
use crate::peer::Peer;
use crate::request_id::{REQUEST_ID, as_text};

/// The services that clients can ask about the health of; the empty name stands for all of them.
const NAMES: [&str; 3] = ["", LIMITER, ENVOY];
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

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
    ///
    /// The service is chosen at once and not in the future, which is moved about until it is first polled and had better be small.
    pub(crate) fn respond(
        &self,
        shared: &Arc<Shared>,
        mut request: Request<Received<Incoming>>,
        peer: Peer,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let id = shared.request_ids.take_or_make(request.headers().get(&REQUEST_ID));
        request.headers_mut().insert(REQUEST_ID, id.clone());
        request.extensions_mut().insert(peer);
        let timeout = timeout_of(request.headers()).map(|timeout| {
            let own = timeout.unwrap_or(shared.request_timeout);
            if is_long(request.uri().path()) { timeout } else { Some(own.min(shared.request_timeout)) }
        });
        let answer = timeout.map(|timeout| (timeout, self.dispatch(shared, request)));
        async move {
            let mut response = match answer {
                Ok((timeout, answer)) => answered(answer, timeout, &id).await,
                Err(status) => status.into_http(),
            };
            response.headers_mut().insert(REQUEST_ID, id);
            response
        }
    }

    fn dispatch(&self, shared: &Arc<Shared>, request: Request<Received<Incoming>>) -> Answering {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        match service {
            LIMITER => self.limiter.clone().call(request),
            ENVOY => self.envoy.clone().call(request),
            HEALTH => self.health.clone().call(request),
            other => match self.rare.iter().find(|(name, _)| *name == other) {
                Some((_, service)) => {
                    Box::pin(service.clone().oneshot(request.map(|body| while_used(shared, body))))
                }
                None => Box::pin(ready(Ok(Status::unimplemented("there is no such service").into_http()))),
            },
        }
    }
}

/// The answer of a service, or what became of the request without one.
async fn answered(answer: Answering, timeout: Option<Duration>, id: &HeaderValue) -> Response<Body> {
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

/// A service at work.
type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Completes when the service ends.
async fn stopped(shared: Arc<Shared>) {
    // The sender is in there, so that it is not gone before.
    let _ = shared.stopping.subscribe().wait_for(|stopping| *stopping).await;
}

/// A body that goes on for as long as the client uses it, but not longer than the service.
fn while_used(shared: &Arc<Shared>, body: Received<Incoming>) -> Body {
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
