//! Passes a request on to the upstream, and its answer back.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use pacegate_http::error::{Code, Details, Envelope};
use pacegate_http::request_id::{REQUEST_ID, as_text};
use pacegate_http::server::{RequestBody as ClientBody, Slot};
use pacegate_tower::{IpNet, ResponseBody};
use tokio::time::timeout;
use tower_service::Service;

use super::body::{AnswerBody, Movement, RequestBody};
use super::{headers, trace, tunnel};

/// How long a connection to the upstream is kept for the next request: less than servers commonly do (5 s), so that it is not they who close it just when a request goes out.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// How many are kept.
const POOL_IDLE_MAX: usize = 1_024;

/// The program behind the proxy, and how long it may take.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    pub(super) authority: Authority,
    /// Whether it speaks HTTP/2 from the start.
    pub(super) http2: bool,
    /// For the head of an answer.
    pub(super) timeout: Duration,
    /// For silence in bodies and WebSockets.
    pub(super) stream_timeout: Duration,
}

/// Passes requests on. Clones share their connections.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client<HttpConnector, RequestBody>,
    upstream: Upstream,
    trusted: Vec<IpNet>,
}

/// What is wrong with an exchange; nothing of it says more to a client than it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The client wants something that a reverse proxy does not do.
    Connect,
    BadTarget,
    Hosts,
    Unreachable,
    Broken,
    Silent,
}

impl Trouble {
    fn answer(self) -> (Code, &'static str) {
        match self {
            Self::Connect => (Code::MethodNotAllowed, "CONNECT is not supported"),
            Self::BadTarget => (Code::InvalidInput, "the request's target cannot be forwarded"),
            Self::Hosts => (Code::InvalidInput, "the request must have one Host header"),
            Self::Unreachable => (Code::BadGateway, "the upstream cannot be reached"),
            Self::Broken => (Code::BadGateway, "the upstream sent an invalid HTTP response"),
            Self::Silent => (Code::GatewayTimeout, "the upstream did not answer in time"),
        }
    }
}

/// An answer of the proxy itself.
pub(super) fn respond(
    code: Code,
    message: &str,
    details: Details<'_>,
    request_id: &str,
) -> Response<AnswerBody> {
    let body = serde_json::to_vec(&Envelope::new(code, message, details, request_id));
    // These types always serialize.
    let mut response = Response::new(AnswerBody::from_bytes(body.unwrap_or_default().into()));
    *response.status_mut() = code.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl Forward {
    pub(super) fn new(upstream: Upstream, trusted: Vec<IpNet>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(upstream.timeout));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_max_idle_per_host(POOL_IDLE_MAX)
            .timer(TokioTimer::new())
            .http2_only(upstream.http2)
            .build(connector);
        Self { shared: Arc::new(Shared { client, upstream, trusted }) }
    }
}

impl Service<Request<ClientBody>> for Forward {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let shared = self.shared.clone();
        Box::pin(async move {
            let id = request.headers().get(&REQUEST_ID).cloned();
            let answer = shared.exchange(request).await;
            Ok(answer.unwrap_or_else(|trouble| {
                let (code, message) = trouble.answer();
                respond(code, message, Details::default(), id.as_ref().map(as_text).unwrap_or_default())
            }))
        })
    }
}

impl Shared {
    async fn exchange(&self, mut request: Request<ClientBody>) -> Result<Response<AnswerBody>, Trouble> {
        if request.method() == Method::CONNECT {
            return Err(Trouble::Connect);
        }
        // With two, the upstream may read another one than a proxy in front of this one did.
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            return Err(Trouble::Hosts);
        }
        let wants_websocket = !self.upstream.http2
            && request.version() == Version::HTTP_11
            && headers::is_websocket(request.headers());
        let client = wants_websocket.then(|| hyper::upgrade::on(&mut request));
        let slot = request.extensions_mut().remove::<Arc<Slot>>();
        let movement = Movement::default();
        let request = self.outgoing(request, wants_websocket, movement.clone())?;
        let mut response = self.ask(request, &movement).await?;
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = client.filter(|_| headers::is_websocket(response.headers())) else {
                tracing::warn!("the upstream changes the protocol though nobody asked for it");
                return Err(Trouble::Broken);
            };
            let upstream = hyper::upgrade::on(&mut response);
            headers::remove_hop_by_hop(response.headers_mut());
            headers::upgrade_to_websocket(response.headers_mut());
            tokio::spawn(tunnel::join(client, upstream, self.upstream.stream_timeout, slot));
            return Ok(response.map(|_| AnswerBody::from_bytes(Bytes::new())));
        }
        headers::remove_hop_by_hop(response.headers_mut());
        Ok(response.map(|body| AnswerBody::upstream(body, movement, self.upstream.stream_timeout)))
    }

    /// The request as the upstream gets it.
    fn outgoing(
        &self,
        request: Request<ClientBody>,
        wants_websocket: bool,
        movement: Movement,
    ) -> Result<Request<RequestBody>, Trouble> {
        let (mut parts, body) = request.into_parts();
        // The connection always says it.
        let peer =
            parts.extensions.get::<SocketAddr>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), SocketAddr::ip);
        let peer = peer.to_canonical();
        // What is in the target goes before the header, and HTTP/2 has nothing else.
        if let Some(authority) = parts.uri.authority() {
            let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Trouble::BadTarget)?;
            parts.headers.insert(HOST, host);
        }
        let takes_trailers = headers::takes_trailers(&parts.headers);
        headers::remove_hop_by_hop(&mut parts.headers);
        headers::forward(&mut parts.headers, peer, headers::is_trusted(&self.trusted, peer));
        trace::tell(&mut parts.headers);
        if wants_websocket {
            headers::upgrade_to_websocket(&mut parts.headers);
        }
        if self.upstream.http2 {
            // HTTP/2 has it in the target, which is the upstream's own.
            parts.headers.remove(HOST);
            if takes_trailers {
                headers::ask_for_trailers(&mut parts.headers);
            }
        }
        let mut target = parts.uri.into_parts();
        target.scheme = Some(Scheme::HTTP);
        target.authority = Some(self.upstream.authority.clone());
        target.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        let mut request = Request::new(RequestBody::new(body, movement));
        *request.method_mut() = parts.method;
        *request.uri_mut() = Uri::from_parts(target).map_err(|_| Trouble::BadTarget)?;
        *request.headers_mut() = parts.headers;
        Ok(request)
    }

    /// Waits for the head of the answer, and longer while the request's body moves.
    async fn ask(
        &self,
        request: Request<RequestBody>,
        movement: &Movement,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut answer = pin!(self.client.request(request));
        loop {
            match timeout(self.upstream.timeout, answer.as_mut()).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => return Err(trouble(&error)),
                Err(_) if movement.take() => {}
                Err(_) => return Err(Trouble::Silent),
            }
        }
    }
}

fn trouble(error: &Error) -> Trouble {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let timed_out = cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut);
    tracing::debug!(%error, %cause, "the upstream failed");
    match error.is_connect() {
        true if timed_out => Trouble::Silent,
        true => Trouble::Unreachable,
        false => Trouble::Broken,
    }
}
