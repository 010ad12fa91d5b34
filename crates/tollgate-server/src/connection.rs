//! One connection: encrypted or not, HTTP/1 or HTTP/2, REST or gRPC; watched while it lasts.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tollgate::ServerConfig;

use crate::activity::{Activity, Tracked, Verdict};
use crate::app::App;
use crate::grpc::is_long;
use crate::peer::Peer;
use crate::tls::Tls;

/// The most memory a request's head can take, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The same where heads are compressed, per request.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// How long a connection that came just before the end may take to send its request.
const LAST_REQUEST: Duration = Duration::from_millis(250);
/// How long a client may take to say that it is still there.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How far the service is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// Clients are asked to leave.
    Draining,
    /// What runs is finished.
    Stopping,
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

/// A connection to be served.
pub(crate) struct Connection {
    pub(crate) protocol: Protocol,
    pub(crate) app: App,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) phases: watch::Receiver<Phase>,
    pub(crate) address: SocketAddr,
    /// Free again when the connection ends.
    pub(crate) _place: Option<OwnedSemaphorePermit>,
}

/// What the requests of one connection share.
struct Requests {
    protocol: Protocol,
    app: App,
    peer: Peer,
    activity: Arc<Activity>,
}

impl Connection {
    pub(crate) async fn serve(self, stream: TcpStream) {
        // An answer is one small write; waiting to fill a packet would only delay it.
        let _ = stream.set_nodelay(true);
        // A client that reads no answers would otherwise hold its place for ever.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.config.request_timeout));
        let stream = Box::pin(stream);
        let Some(tls) = self.tls.clone() else {
            let peer = Peer::from(self.address);
            return self.watch(TokioIo::new(stream), peer).await;
        };
        let config = if self.protocol == Protocol::Http { tls.http() } else { tls.grpc() };
        let handshake = TlsAcceptor::from(config).accept(stream);
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let stream = match timeout(self.config.idle_timeout, handshake).await.unwrap_or_else(|_| Err(late()))
        {
            Ok(stream) => stream,
            Err(error) => return tracing::debug!(%error, "a connection could not be encrypted"),
        };
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let identity = certificate.and_then(|certificate| tls.identify(certificate)).map(Arc::new);
        let peer = Peer { address: self.address, identity };
        self.watch(TokioIo::new(stream), peer).await;
    }

    /// Serves requests until the client leaves, misbehaves or has nothing to say, or the service ends.
    async fn watch(mut self, io: impl Read + Write + Unpin + Send + 'static, peer: Peer) {
        let activity = Arc::new(Activity::default());
        let requests =
            Arc::new(Requests { protocol: self.protocol, app: self.app, peer, activity: activity.clone() });
        let service = service_fn(move |request| requests.clone().respond(request));
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.config.idle_timeout)
            .max_buf_size(HEAD_BYTES_MAX);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(u32::try_from(self.config.max_streams).unwrap_or(u32::MAX))
            .max_header_list_size(HEADERS_BYTES_MAX)
            .keep_alive_interval(self.config.idle_timeout)
            .keep_alive_timeout(ALIVE_TIMEOUT.min(self.config.idle_timeout));
        if self.protocol == Protocol::Grpc {
            builder = builder.http2_only();
        }
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut looks = interval(Activity::look_every(&self.config));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        let mut ending = false;
        let result = loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => break result,
                // The sender outlives all connections.
                _ = self.phases.changed(), if !ending => {
                    let phase = *self.phases.borrow_and_update();
                    // Whoever came just now has a request on its way.
                    if phase == Phase::Stopping && !activity.has_begun() {
                        if let Ok(result) = timeout(LAST_REQUEST, connection.as_mut()).await {
                            break result;
                        }
                    }
                    ending = phase == Phase::Stopping;
                    if ending || activity.is_http2() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                () = activity.misbehaved() => {
                    return tracing::debug!("a client gives up requests, or takes no answers, and is cut off");
                }
                _ = looks.tick() => match activity.look(&self.config) {
                    Verdict::Alive => {}
                    Verdict::Idle => connection.as_mut().graceful_shutdown(),
                    Verdict::Stuck => return tracing::debug!("a client does not move on and is cut off"),
                },
            }
        };
        if let Err(error) = result {
            tracing::debug!(error, "a connection ended early");
        }
    }
}

type AnyBody = Either<axum::body::Body, tonic::body::Body>;

impl Requests {
    fn respond(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Tracked<AnyBody>>, Infallible>> {
        let version = request.version();
        // Made before the first poll, so that a request is noticed even if it is given up at once.
        let long = is_long(request.uri().path());
        let begun = self.activity.begin(version == Version::HTTP_2, long);
        if long {
            request.extensions_mut().insert(self.activity.clone());
        }
        async move {
            let peer = self.peer.clone();
            let response = match self.protocol {
                Protocol::Http => {
                    let mut response = self.app.respond(request, peer).await;
                    if version != Version::HTTP_2 && self.app.shared.is_draining() {
                        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    response.map(Either::Left)
                }
                Protocol::Grpc => {
                    self.app.grpc.respond(&self.app.shared, request, peer).await.map(Either::Right)
                }
            };
            Ok(response.map(|body| begun.track(body)))
        }
    }
}
