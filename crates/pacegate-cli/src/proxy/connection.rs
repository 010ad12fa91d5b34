//! One connection of a client: HTTP/1.1 or HTTP/2, ended when it has been idle for too long or the proxy stops.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use pacegate::PathOptions;
use pacegate_config::ServerConfig;
use pacegate_server::App;
use pacegate_server::door;
use pacegate_server::unread::{Lingering, Unread};
use pacegate_tower::Pacegate;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_io_timeout::TimeoutStream;
use tower_service::Service;
use tracing::Instrument;

use super::forward::{Forward, REQUEST_ID};
use super::{path, trace};

/// The upstream behind its limits.
pub(super) type Limited = Pacegate<Forward>;

/// A place among the connections, shared with the WebSocket that a connection may become.
pub(super) type Place = Arc<door::Place>;

/// The most memory a request's head can take, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The same where heads are compressed, per request.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// How many bytes of one body, and of all on a connection, the client may send before the upstream takes them (HTTP/2).
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 512 * 1024;
/// How long a client may take to say that it is still there.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection that came just before the end may take to send its request.
const LAST_REQUEST: Duration = Duration::from_millis(250);
/// How long a client without requests may take to leave once it is asked to.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A connection to be served.
pub(super) struct Connection {
    pub(super) service: Limited,
    /// What is measured, and the ids of requests.
    pub(super) app: App,
    pub(super) config: Arc<ServerConfig>,
    pub(super) paths: PathOptions,
    pub(super) peer: SocketAddr,
    pub(super) stopping: watch::Receiver<()>,
    pub(super) place: Place,
}

impl Connection {
    pub(super) async fn serve(self, stream: TcpStream) {
        let Self { service, app, config, paths, peer, mut stopping, place } = self;
        // Small answers are not held back to fill a packet.
        let _ = stream.set_nodelay(true);
        // A client that reads no answers would otherwise hold its place for ever.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(config.request_timeout));
        let lingering = Lingering::default();
        let stream = lingering.stream(Box::pin(stream));

        let presence = place.presence().clone();
        // How many requests there have been.
        let begun = Arc::new(AtomicUsize::new(0));
        let requests = service_fn({
            let (presence, begun) = (presence.clone(), begun.clone());
            move |request: Request<Incoming>| {
                begun.fetch_add(1, Ordering::Relaxed);
                let busy = presence.begin();
                let (unread, mut request) = Unread::watch(request);
                let lingering = lingering.clone();
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(place.clone());
                // Layer, upstream, logs and client know the request by one id.
                let id = app.request_id(request.headers().get(&REQUEST_ID));
                request.headers_mut().insert(REQUEST_ID, id.clone());
                let app = app.clone();
                let span = trace::request(request.headers());
                let answer = path::to_counted(&mut request, paths)
                    .map(|()| span.in_scope(|| service.clone().call(request)).instrument(span));
                async move {
                    let mut response = match answer {
                        Ok(answer) => answer.await?,
                        Err(invalid) => invalid.respond(&id),
                    };
                    response.headers_mut().insert(REQUEST_ID, id);
                    app.count_response(response.status());
                    unread.settle(&mut response, &lingering).await;
                    Ok::<_, Infallible>(response.map(|body| body.until_the_end(busy)))
                }
            }
        });
        let builder = builder(&config);
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), requests));

        let mut looks = interval(config.idle_timeout);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        let (mut ending, mut seen) = (false, 0);
        let result = loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => break result,
                // The sender outlives all connections.
                _ = stopping.changed(), if !ending => {
                    // Whoever came just now has a request on its way.
                    if begun.load(Ordering::Relaxed) == 0
                        && let Ok(result) = timeout(LAST_REQUEST, connection.as_mut()).await
                    {
                        break result;
                    }
                }
                () = presence.is_cut_off() => {
                    return tracing::debug!("a client without a request has to leave for another one");
                }
                _ = looks.tick() => {
                    let begun = begun.load(Ordering::Relaxed);
                    if presence.is_active() || begun != std::mem::replace(&mut seen, begun) {
                        continue;
                    }
                    if ending {
                        return tracing::debug!("a client does not leave and is cut off");
                    }
                }
            }
            ending = true;
            connection.as_mut().graceful_shutdown();
            looks = interval(LEAVE_WITHIN);
            looks.reset();
        };
        if let Err(error) = result {
            tracing::debug!(error, "a connection ended early");
        }
    }
}

fn builder(config: &ServerConfig) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.idle_timeout)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(u32::try_from(config.max_streams).unwrap_or(u32::MAX))
        .max_header_list_size(HEADERS_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(config.idle_timeout)
        .keep_alive_timeout(ALIVE_TIMEOUT.min(config.idle_timeout));
    builder
}
