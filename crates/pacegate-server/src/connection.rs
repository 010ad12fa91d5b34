//! One connection: encrypted or not, HTTP/1 or HTTP/2, REST or gRPC; watched while it lasts.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use pacegate_config::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::activity::{Activity, Tracked, Verdict};
use crate::app::App;
use crate::auth::ADMIT_EVERY;
use crate::door::Place;
use crate::grpc::is_long;
use crate::peer::Peer;
use crate::tls::{ClientCertificate, Tls};
use crate::unread::{Lingering, Unread};

/// The largest head of a request, in bytes. Over HTTP/1 it is the size of the connection's buffer as well.
const HEAD_BYTES_MAX: u32 = 16 * 1024;
/// How many bytes of one body, and of all on a connection, the client may send before they are read (HTTP/2).
const STREAM_WINDOW: u32 = 32 * 1024;
/// The HTTP/2 library also derives from it how many small pieces may wait before it ends the connection. A window of the smallest
/// messages, 11 bytes each and counted with 245 more, must fit: they are sent faster than they are decided.
const CONNECTION_WINDOW: u32 = 1536 * 1024;
/// How long a connection that came just before the end may take to send its request.
const LAST_REQUEST: Duration = Duration::from_millis(250);
/// How long a client without requests may take to leave once the service ends.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
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

/// What is spoken on a connection, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
    /// HTTP at the operators' address.
    Admin,
}

impl Protocol {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Admin];

    /// What it is called in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Admin => "admin",
        }
    }
}

/// A connection to be served.
pub(crate) struct Connection {
    pub(crate) protocol: Protocol,
    pub(crate) app: App,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) phases: watch::Receiver<Phase>,
    pub(crate) address: SocketAddr,
    pub(crate) place: Place,
}

/// What the requests of one connection share.
struct Requests {
    app: App,
    peer: Peer,
    activity: Arc<Activity>,
    lingering: Lingering,
}

impl Connection {
    pub(crate) async fn serve(self, stream: TcpStream) {
        // An answer is one small write; waiting to fill a packet would only delay it.
        let _ = stream.set_nodelay(true);
        // A client that reads no answers would otherwise hold its place for ever.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.config.request_timeout));
        let lingering = Lingering::default();
        let stream = lingering.stream(Box::pin(stream));
        let Some(tls) = self.tls.clone() else {
            let peer = Peer::connected(self.address);
            return self.speak(TokioIo::new(stream), peer, lingering).await;
        };
        let loaded = tls.loaded();
        let config = if self.protocol == Protocol::Grpc { &loaded.grpc } else { &loaded.http };
        let handshake = timeout(self.config.idle_timeout, TlsAcceptor::from(config.clone()).accept(stream));
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let handshake = tokio::select! {
            handshake = handshake => handshake.unwrap_or_else(|_| Err(late())),
            () = self.place.presence().is_cut_off() => Err(late()),
        };
        let stream = match handshake {
            Ok(stream) => stream,
            Err(error) => return tracing::debug!(%error, "a connection could not be encrypted"),
        };
        let chain = stream.get_ref().1.peer_certificates();
        let own = chain.and_then(<[_]>::first);
        let identity = own.and_then(|certificate| tls.identify(certificate)).map(Arc::new);
        let certificate = chain.map(|chain| Arc::new(ClientCertificate::new(tls, loaded, chain)));
        let peer = Peer { identity, certificate, ..Peer::connected(self.address) };
        self.speak(TokioIo::new(stream), peer, lingering).await;
    }

    /// Serves one protocol or the other: each has futures of its own, so that none is larger than it has to be.
    async fn speak(self, io: impl Read + Write + Unpin + Send + 'static, peer: Peer, lingering: Lingering) {
        let activity = Arc::new(Activity::new(self.place.presence().clone()));
        let certificate = peer.certificate.clone();
        let requests =
            Arc::new(Requests { app: self.app.clone(), peer, activity: activity.clone(), lingering });
        match self.protocol {
            Protocol::Http | Protocol::Admin => {
                let service = service_fn(move |request| requests.clone().http(request));
                self.watch(io, certificate, activity, service).await;
            }
            Protocol::Grpc => {
                let service = service_fn(move |request| requests.clone().grpc(request));
                self.watch(io, certificate, activity, service).await;
            }
        }
    }

    /// Serves requests until the client leaves, misbehaves or has nothing to say, or the service ends.
    async fn watch<S, B>(
        mut self,
        io: impl Read + Write + Unpin + Send + 'static,
        certificate: Option<Arc<ClientCertificate>>,
        activity: Arc<Activity>,
        service: S,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send + 'static>
            + Send,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.config.idle_timeout)
            .max_buf_size(HEAD_BYTES_MAX as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(u32::try_from(self.config.max_streams).unwrap_or(u32::MAX))
            .max_header_list_size(HEAD_BYTES_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(self.config.idle_timeout)
            .keep_alive_timeout(ALIVE_TIMEOUT.min(self.config.idle_timeout));
        if self.protocol == Protocol::Grpc {
            builder = builder.http2_only();
        }
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut looks = interval(Activity::look_every(&self.config));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        let has_certificate = certificate.is_some();
        let mut refused =
            OptionFuture::from(certificate.map(|certificate| Box::pin(certificate.until_invalid())));
        let mut ending = false;
        let mut left = interval_at(Instant::now() + LEAVE_WITHIN, LEAVE_WITHIN);
        let result = loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => break result,
                // The sender outlives all connections.
                _ = self.phases.changed(), if !ending => {
                    let phase = *self.phases.borrow_and_update();
                    // Whoever came just now has a request on its way.
                    if phase == Phase::Stopping
                        && !activity.has_begun()
                        && let Ok(result) = timeout(LAST_REQUEST, connection.as_mut()).await
                    {
                        break result;
                    }
                    ending = phase == Phase::Stopping;
                    left.reset();
                    if ending || activity.is_http2() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                // HTTP/2 ends when the client has answered, which not all do.
                _ = left.tick(), if ending => if !activity.presence().is_active() {
                    return tracing::debug!("a client does not leave and is cut off");
                },
                () = activity.presence().is_cut_off() => {
                    return tracing::debug!("a client misbehaves, or has to leave for another one, and is cut off");
                }
                _ = &mut refused, if has_certificate => {
                    connection.as_mut().graceful_shutdown();
                    // Streams find it out as well, and say why they end.
                    match timeout(ADMIT_EVERY * 2, connection.as_mut()).await {
                        Ok(result) => break result,
                        Err(_) => return tracing::debug!("a client without a valid certificate is cut off"),
                    }
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

impl Requests {
    fn http(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Tracked<axum::body::Body>>, Infallible>> {
        let version = request.version();
        // Made before the first poll, so that a request is noticed even if it is given up at once.
        let (unread, request) = Unread::watch(request);
        let (begun, request) = self.activity.begin(request, false);
        async move {
            let mut response = self.app.respond(request, self.peer.clone()).await;
            unread.settle(&mut response, &self.lingering).await;
            self.app.shared.telemetry.count_http(response.status());
            if version != Version::HTTP_2 && self.app.shared.is_draining() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| begun.track(body)))
        }
    }

    fn grpc(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Tracked<tonic::body::Body>>, Infallible>> {
        let long = is_long(request.uri().path());
        let (begun, mut request) = self.activity.begin(request, long);
        if long {
            request.extensions_mut().insert(self.activity.clone());
        }
        async move {
            let response = self.app.grpc.respond(&self.app.shared, request, &self.peer).await;
            let status = response.headers().get("grpc-status");
            self.app.shared.telemetry.count_grpc(status.map(HeaderValue::as_bytes));
            Ok(response.map(|body| begun.track(body)))
        }
    }
}
