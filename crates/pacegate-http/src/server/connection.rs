//! One connection: encrypted or not, HTTP/1 or HTTP/2, monitored until it ends.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use super::activity::{Activity, Received, Tracked, Verdict};
use super::listener::Slot;
use super::rarely::Rarely;
use super::tls::{CERTIFICATE_CHECK_EVERY, ClientCertificate, Tls};
use super::turn::{Output, Streams, Turns};
use super::unread::Lingering;
use crate::Bounds;

/// Time for a connection that was accepted just before shutdown to send its request.
const LAST_REQUEST: Duration = Duration::from_millis(250);
/// Time for a client without requests to close its connection after shutdown starts.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// Time for a client to respond to a ping.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The phase of a program's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections are accepted and served.
    Serving,
    /// Still serving, but clients are asked to close their connections: HTTP/2 by GOAWAY, HTTP/1 by
    /// the responses.
    Draining,
    /// No connection is accepted any more, and requests in flight complete.
    Stopping,
}

/// Runs both phases of a graceful shutdown; load balancers have `delay` to notice the first one.
pub async fn stop(phase: &watch::Sender<Phase>, delay: Duration) {
    phase.send_replace(Phase::Draining);
    tokio::time::sleep(delay).await;
    phase.send_replace(Phase::Stopping);
}

/// Responds to the requests of one connection.
pub trait Requests: Send + Sync + 'static {
    /// The body of a response.
    type Body: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// Whether a connection can switch to another protocol, as WebSockets do.
    const UPGRADES: bool = false;

    /// Returns whether a request to `path` stays open for as long as the client wants. Others are
    /// expected to end.
    fn is_long(&self, _path: &str) -> bool {
        false
    }

    /// Responds to a request. Called before the returned future is first polled, so that a request
    /// counts even if the client cancels it immediately.
    fn respond(
        self: Arc<Self>,
        request: Request<Received<Incoming>>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// The client of a connection.
#[derive(Debug)]
pub struct Client {
    /// The address of the client.
    pub address: SocketAddr,
    /// The certificate that it presented, if any.
    pub certificate: Option<Arc<ClientCertificate>>,
    /// The activity of the connection.
    pub activity: Arc<Activity>,
    /// Whether a closed connection continues to read; see [`Unread`](super::Unread).
    pub lingering: Lingering,
    /// The slot of the connection, which is freed when the last reference is dropped.
    pub slot: Arc<Slot>,
}

/// Buffer and window sizes, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Maximum size of the head of an HTTP/1 request; the connection's buffer has this size.
    pub head: usize,
    /// Maximum size of the header list of an HTTP/2 request.
    pub headers: u32,
    /// The window of one HTTP/2 request.
    pub stream_window: u32,
    /// The window of all requests of an HTTP/2 connection.
    pub connection_window: u32,
}

/// The settings of a listener's connections.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum numbers and timeouts.
    pub bounds: Arc<Bounds>,
    /// Whether HTTP/2 is the only protocol, as for gRPC.
    pub http2_only: bool,
    /// Buffer and window sizes.
    pub sizes: Sizes,
    /// Encrypts connections, if set.
    pub tls: Option<Arc<Tls>>,
    /// The phase of the program's shutdown.
    pub phases: watch::Receiver<Phase>,
}

/// An accepted connection.
pub(super) struct Connection {
    pub(super) settings: Settings,
    pub(super) address: SocketAddr,
    pub(super) slot: Arc<Slot>,
}

impl Connection {
    pub(super) async fn serve<R: Requests>(self, stream: TcpStream, connect: impl Fn(Client) -> R) {
        // A response is one small write; waiting to fill a packet would only delay it.
        let _ = stream.set_nodelay(true);
        // Otherwise a client that reads no responses would hold its slot forever.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.settings.bounds.request_timeout));
        let lingering = Lingering::default();
        let stream = lingering.stream(Box::pin(stream));
        let Some(tls) = self.settings.tls.clone() else {
            return self.speak(TokioIo::new(stream), None, lingering, connect).await;
        };
        let loaded = tls.loaded();
        let config = if self.settings.http2_only { &loaded.http2 } else { &loaded.http };
        let accept = TlsAcceptor::from(config.clone()).accept(stream);
        let handshake = timeout(self.settings.bounds.idle_timeout, accept);
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let handshake = tokio::select! {
            handshake = handshake => handshake.unwrap_or_else(|_| Err(late())),
            () = self.slot.presence().is_cut_off() => Err(late()),
        };
        let stream = match handshake {
            Ok(stream) => stream,
            Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
        };
        let chain = stream.get_ref().1.peer_certificates();
        let certificate = chain.map(|chain| Arc::new(ClientCertificate::new(tls, loaded, chain)));
        self.speak(TokioIo::new(stream), certificate, lingering, connect).await;
    }

    async fn speak<R: Requests>(
        self,
        io: impl Read + Write + Unpin + Send + 'static,
        certificate: Option<Arc<ClientCertificate>>,
        lingering: Lingering,
        connect: impl Fn(Client) -> R,
    ) {
        let activity = Arc::new(Activity::new(self.slot.presence().clone(), self.settings.http2_only));
        let requests = Arc::new(connect(Client {
            address: self.address,
            certificate: certificate.clone(),
            activity: activity.clone(),
            lingering,
            slot: self.slot.clone(),
        }));
        let begin = activity.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let long = requests.is_long(request.uri().path());
            let (in_flight, request) = begin.begin(request, long);
            // Boxed: the future of a request can be large, and the HTTP library moves it several
            // times.
            let answer = Box::pin(requests.clone().respond(request));
            async move {
                Ok::<Response<Tracked<R::Body>>, Infallible>(answer.await.map(|body| in_flight.track(body)))
            }
        });
        let (streams, output) = (Streams::default(), Output::new(io));
        let builder = self.builder(streams.clone());
        if R::UPGRADES {
            let connection = builder.serve_connection_with_upgrades(output.clone(), service);
            self.watch(pin!(Turns::new(connection, streams, output)), certificate, activity).await;
        } else {
            let connection = builder.serve_connection(output.clone(), service);
            self.watch(pin!(Turns::new(connection, streams, output)), certificate, activity).await;
        }
    }

    fn builder(&self, streams: Streams) -> auto::Builder<Streams> {
        let Settings { bounds, sizes, http2_only, .. } = &self.settings;
        let mut builder = auto::Builder::new(streams);
        // `Activity` bounds the time for a head; the library would set a timer for each request.
        builder.http1().header_read_timeout(None).max_buf_size(sizes.head);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(u32::try_from(bounds.max_streams).unwrap_or(u32::MAX))
            .max_header_list_size(sizes.headers)
            .initial_stream_window_size(sizes.stream_window)
            .initial_connection_window_size(sizes.connection_window)
            .keep_alive_interval(bounds.idle_timeout)
            .keep_alive_timeout(ALIVE_TIMEOUT.min(bounds.idle_timeout));
        if *http2_only { builder.http2_only() } else { builder }
    }

    /// Serves requests until the client disconnects, misbehaves or is idle, or the program shuts
    /// down.
    async fn watch<C, S>(
        self,
        mut connection: Pin<&mut Turns<C, S>>,
        certificate: Option<Arc<ClientCertificate>>,
        activity: Arc<Activity>,
    ) where
        C: GracefulConnection<Error = Box<dyn Error + Send + Sync>>,
        S: Write + Unpin,
    {
        let Settings { bounds, phases, .. } = self.settings;
        let mut monitor = Monitor::new(phases, certificate, activity.clone(), &bounds);
        let result = loop {
            // Its futures are polled when they are woken, not for every request.
            let mut event = pin!(Rarely::new(monitor.next()));
            let event = tokio::select! {
                biased;
                result = connection.as_mut() => break result,
                event = event.as_mut() => event,
            };
            match event {
                Event::Phase(phase) => {
                    // A connection that was just accepted is about to send a request.
                    if phase == Phase::Stopping
                        && !activity.has_begun()
                        && let Ok(result) = timeout(LAST_REQUEST, connection.as_mut()).await
                    {
                        break result;
                    }
                    if phase == Phase::Stopping || activity.is_http2() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                Event::Leave => {
                    if !activity.presence().is_active() {
                        return tracing::debug!(
                            "connection closed: client did not disconnect during shutdown"
                        );
                    }
                }
                Event::CutOff => {
                    return tracing::debug!("connection closed: client misbehaved or was evicted");
                }
                Event::CertificateInvalid => {
                    connection.as_mut().graceful_shutdown();
                    // Streams detect it as well, and return an error with the reason.
                    match timeout(CERTIFICATE_CHECK_EVERY * 2, connection.as_mut()).await {
                        Ok(result) => break result,
                        Err(_) => {
                            return tracing::debug!("connection closed: client certificate no longer valid");
                        }
                    }
                }
                Event::Due => match activity.poll(&bounds) {
                    Verdict::Alive => {}
                    Verdict::Idle => connection.as_mut().graceful_shutdown(),
                    Verdict::Stuck => return tracing::debug!("connection closed: client made no progress"),
                },
            }
        };
        if let Err(error) = result {
            tracing::debug!(error, "connection ended with an error");
        }
    }
}

/// What can happen to a connection besides requests.
enum Event {
    /// The program shuts down.
    Phase(Phase),
    /// Clients without requests should be gone.
    Leave,
    /// The client misbehaved, or its slot is needed.
    CutOff,
    CertificateInvalid,
    /// The activity is due to be evaluated.
    Due,
}

/// Waits for the events of a connection.
struct Monitor {
    phases: watch::Receiver<Phase>,
    certificate_invalid: OptionFuture<Pin<Box<dyn Future<Output = ()> + Send>>>,
    has_certificate: bool,
    activity: Arc<Activity>,
    polls: Interval,
    leave: Interval,
    ending: bool,
}

impl Monitor {
    fn new(
        phases: watch::Receiver<Phase>,
        certificate: Option<Arc<ClientCertificate>>,
        activity: Arc<Activity>,
        bounds: &Bounds,
    ) -> Self {
        let mut polls = interval(Activity::poll_every(bounds));
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        polls.reset();
        Self {
            phases,
            has_certificate: certificate.is_some(),
            certificate_invalid: OptionFuture::from(certificate.map(|certificate| {
                Box::pin(async move { certificate.until_invalid().await })
                    as Pin<Box<dyn Future<Output = ()> + Send>>
            })),
            activity,
            polls,
            leave: interval_at(Instant::now() + LEAVE_WITHIN, LEAVE_WITHIN),
            ending: false,
        }
    }

    async fn next(&mut self) -> Event {
        tokio::select! {
            biased;
            // The sender outlives all connections.
            _ = self.phases.changed(), if !self.ending => {
                let phase = *self.phases.borrow_and_update();
                self.ending = phase == Phase::Stopping;
                self.leave.reset();
                Event::Phase(phase)
            }
            // HTTP/2 ends when the client acknowledges, which not all clients do.
            _ = self.leave.tick(), if self.ending => Event::Leave,
            () = self.activity.presence().is_cut_off() => Event::CutOff,
            _ = &mut self.certificate_invalid, if self.has_certificate => Event::CertificateInvalid,
            _ = self.polls.tick() => Event::Due,
        }
    }
}
