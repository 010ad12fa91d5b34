//! Forwards requests to the upstream, and its responses to the client.

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

use super::body::{Activity, ProxyBody, RequestBody};
use super::{headers, trace, tunnel};

/// Time after which an idle connection to the upstream is closed. It is shorter than the usual 5 s
/// of servers, so that they do not close it just when a request is sent.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum number of idle connections.
const POOL_IDLE_MAX: usize = 1_024;

/// The program behind the proxy, and its timeouts.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    pub(super) authority: Authority,
    /// Whether it uses HTTP/2 with prior knowledge.
    pub(super) http2: bool,
    /// Until the head of a response.
    pub(super) timeout: Duration,
    /// For idle bodies and WebSockets.
    pub(super) stream_timeout: Duration,
}

/// Forwards requests. Clones share their connections.
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

/// Why a request was not forwarded. Clients see no details of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// CONNECT, which a reverse proxy does not support.
    Connect,
    BadTarget,
    Hosts,
    Unreachable,
    Broken,
    Timeout,
}

impl Fault {
    fn response(self) -> (Code, &'static str) {
        match self {
            Self::Connect => (Code::MethodNotAllowed, "CONNECT is not supported"),
            Self::BadTarget => (Code::InvalidInput, "the target of the request cannot be forwarded"),
            Self::Hosts => (Code::InvalidInput, "the request must have one Host header"),
            Self::Unreachable => (Code::BadGateway, "the upstream cannot be reached"),
            Self::Broken => (Code::BadGateway, "the upstream sent an invalid HTTP response"),
            Self::Timeout => (Code::GatewayTimeout, "the upstream did not respond in time"),
        }
    }
}

/// An error response of the proxy itself.
pub(super) fn respond(
    code: Code,
    message: &str,
    details: Details<'_>,
    request_id: &str,
) -> Response<ProxyBody> {
    let body = serde_json::to_vec(&Envelope::new(code, message, details, request_id));
    // These types always serialize.
    let mut response = Response::new(ProxyBody::from_bytes(body.unwrap_or_default().into()));
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
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let shared = self.shared.clone();
        Box::pin(async move {
            let id = request.headers().get(&REQUEST_ID).cloned();
            let response = shared.exchange(request).await;
            Ok(response.unwrap_or_else(|fault| {
                let (code, message) = fault.response();
                respond(code, message, Details::default(), id.as_ref().map(as_text).unwrap_or_default())
            }))
        })
    }
}

impl Shared {
    async fn exchange(&self, mut request: Request<ClientBody>) -> Result<Response<ProxyBody>, Fault> {
        if request.method() == Method::CONNECT {
            return Err(Fault::Connect);
        }
        // With two, the upstream could use another one than a proxy in front of this one did.
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            return Err(Fault::Hosts);
        }
        let wants_websocket = !self.upstream.http2
            && request.version() == Version::HTTP_11
            && headers::is_websocket(request.headers());
        let client = wants_websocket.then(|| hyper::upgrade::on(&mut request));
        let slot = request.extensions_mut().remove::<Arc<Slot>>();
        let activity = Activity::default();
        let request = self.outgoing(request, wants_websocket, activity.clone())?;
        let mut response = self.send(request, &activity).await?;
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = client.filter(|_| headers::is_websocket(response.headers())) else {
                tracing::warn!("the upstream switched protocols without a request to do so");
                return Err(Fault::Broken);
            };
            let upstream = hyper::upgrade::on(&mut response);
            headers::remove_hop_by_hop(response.headers_mut());
            headers::upgrade_to_websocket(response.headers_mut());
            tokio::spawn(tunnel::join(client, upstream, self.upstream.stream_timeout, slot));
            return Ok(response.map(|_| ProxyBody::from_bytes(Bytes::new())));
        }
        headers::remove_hop_by_hop(response.headers_mut());
        Ok(response.map(|body| ProxyBody::upstream(body, activity, self.upstream.stream_timeout)))
    }

    /// Returns the request for the upstream.
    fn outgoing(
        &self,
        request: Request<ClientBody>,
        wants_websocket: bool,
        activity: Activity,
    ) -> Result<Request<RequestBody>, Fault> {
        let (mut parts, body) = request.into_parts();
        // Every connection sets it.
        let peer =
            parts.extensions.get::<SocketAddr>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), SocketAddr::ip);
        let peer = peer.to_canonical();
        // The target takes precedence over the header, and HTTP/2 has only the target.
        if let Some(authority) = parts.uri.authority() {
            let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Fault::BadTarget)?;
            parts.headers.insert(HOST, host);
        }
        let accepts_trailers = headers::accepts_trailers(&parts.headers);
        headers::remove_hop_by_hop(&mut parts.headers);
        headers::forward(&mut parts.headers, peer, headers::is_trusted(&self.trusted, peer));
        trace::inject(&mut parts.headers);
        if wants_websocket {
            headers::upgrade_to_websocket(&mut parts.headers);
        }
        if self.upstream.http2 {
            // HTTP/2 has the host in the target, which is that of the upstream.
            parts.headers.remove(HOST);
            if accepts_trailers {
                headers::accept_trailers(&mut parts.headers);
            }
        }
        let mut target = parts.uri.into_parts();
        target.scheme = Some(Scheme::HTTP);
        target.authority = Some(self.upstream.authority.clone());
        target.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        let mut request = Request::new(RequestBody::new(body, activity));
        *request.method_mut() = parts.method;
        *request.uri_mut() = Uri::from_parts(target).map_err(|_| Fault::BadTarget)?;
        *request.headers_mut() = parts.headers;
        Ok(request)
    }

    /// Waits for the head of the response. The timeout restarts while the body of the request is
    /// sent.
    async fn send(
        &self,
        request: Request<RequestBody>,
        activity: &Activity,
    ) -> Result<Response<Incoming>, Fault> {
        let mut response = pin!(self.client.request(request));
        loop {
            match timeout(self.upstream.timeout, response.as_mut()).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => return Err(fault(&error)),
                Err(_) if activity.take() => {}
                Err(_) => return Err(Fault::Timeout),
            }
        }
    }
}

fn fault(error: &Error) -> Fault {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let timed_out = cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut);
    tracing::debug!(%error, %cause, "request to the upstream failed");
    match error.is_connect() {
        true if timed_out => Fault::Timeout,
        true => Fault::Unreachable,
        false => Fault::Broken,
    }
}
