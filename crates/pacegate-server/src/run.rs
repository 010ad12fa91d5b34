//! Serving REST, gRPC and the admin address until shutdown.
//!
//! A graceful shutdown has two phases. First, the service still accepts connections but reports
//! that it is not ready, and asks clients to close theirs: HTTP/1 by `Connection: close` on the
//! next response, HTTP/2 by GOAWAY. Then it stops listening and completes the requests in flight.
//! No accepted request is lost.

use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::body::Body;
use futures_util::future::{OptionFuture, join4};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response, Version};
use pacegate_config::ServerConfig;
use pacegate_http::server::{
    Activity, Client, Lingering, Listener, Phase, Received, Requests, Settings, Sizes, Tls, Unread, stop,
};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::App;
use crate::grpc::{ResponseBody, is_long};
use crate::peer::Peer;
use crate::rest::record_history;

/// HTTP/2 window sizes. The HTTP/2 library also derives from the last one how many small frames may
/// wait before it closes the connection. A window of the smallest messages, 11 bytes each and
/// counted with 245 more, must fit, because they arrive faster than they are decided.
const SIZES: Sizes =
    Sizes { head: 16 * 1024, headers: 16 * 1024, stream_window: 32 * 1024, connection_window: 1536 * 1024 };

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
    /// HTTP at the admin address.
    Admin,
}

impl Protocol {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Admin];

    /// Returns its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Admin => "admin",
        }
    }
}

/// The listening sockets of the service.
///
/// ```no_run
/// # async fn listen() -> std::io::Result<()> {
/// use tokio::net::TcpListener;
/// use pacegate_server::Listeners;
///
/// let http = TcpListener::bind("127.0.0.1:8080").await?;
/// let listeners = Listeners::from(http).grpc(TcpListener::bind("127.0.0.1:8081").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listeners {
    http: TcpListener,
    grpc: Option<TcpListener>,
    admin: Option<TcpListener>,
    tls: Option<Arc<Tls>>,
}

impl From<TcpListener> for Listeners {
    /// Serves the REST API alone.
    fn from(http: TcpListener) -> Self {
        Self { http, grpc: None, admin: None, tls: None }
    }
}

impl Listeners {
    /// Adds a listener for the gRPC services.
    #[must_use]
    pub fn grpc(mut self, listener: TcpListener) -> Self {
        self.grpc = Some(listener);
        self
    }

    /// Adds a second listener for the REST API, for health checks and operators, with its own
    /// connection slots.
    #[must_use]
    pub fn admin(mut self, listener: TcpListener) -> Self {
        self.admin = Some(listener);
        self
    }

    /// Requires TLS on all listeners.
    #[must_use]
    pub fn tls(mut self, tls: Arc<Tls>) -> Self {
        self.tls = Some(tls);
        self
    }
}

/// Serves `listeners` until `shutdown` completes, then completes the requests in flight and
/// returns.
pub async fn run(
    listeners: impl Into<Listeners>,
    app: App,
    config: &ServerConfig,
    shutdown: impl Future<Output = ()> + Send,
) {
    run_boxed(listeners.into(), app, config, pin!(shutdown)).await;
}

/// [`run`] without type parameters and behind a pointer, so that the HTTP stack is compiled once,
/// in this crate, instead of in every program and test that runs a service.
fn run_boxed<'a>(
    listeners: Listeners,
    app: App,
    config: &'a ServerConfig,
    shutdown: Pin<&'a mut (dyn Future<Output = ()> + Send)>,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(serve_all(listeners, app, config, shutdown))
}

async fn serve_all(
    Listeners { http, grpc, admin, tls }: Listeners,
    app: App,
    config: &ServerConfig,
    shutdown: Pin<&mut (dyn Future<Output = ()> + Send)>,
) {
    let (phase, phases) = watch::channel(Phase::Serving);
    let bounds = Arc::new(config.bounds());
    let users = 1 + usize::from(grpc.is_some()) + usize::from(admin.is_some());
    let listener = |socket, protocol| {
        let figures = app.shared.observer.telemetry.connections(protocol).clone();
        let settings = Settings {
            bounds: bounds.clone(),
            http2_only: protocol == Protocol::Grpc,
            sizes: SIZES,
            tls: tls.clone(),
            phases: phases.clone(),
        };
        (Listener::new(socket, &bounds, users, figures), settings)
    };
    let rest = |socket, protocol| {
        let (listener, settings) = listener(socket, protocol);
        let app = app.clone();
        listener.serve(settings, move |client| Rest::new(&app, client))
    };
    let http = rest(http, Protocol::Http);
    let admin = OptionFuture::from(admin.map(|socket| rest(socket, Protocol::Admin)));
    let grpc = OptionFuture::from(grpc.map(|socket| {
        let (listener, settings) = listener(socket, Protocol::Grpc);
        let app = app.clone();
        listener.serve(settings, move |client| Grpc::new(&app, client))
    }));
    let stop = async {
        shutdown.await;
        app.start_draining();
        tracing::info!(delay = ?config.drain_delay, "graceful shutdown started; draining connections");
        stop(&phase, config.drain_delay).await;
        app.shared.stopping.send_replace(true);
    };
    tokio::select! {
        _ = join4(stop, http, grpc, admin) => {}
        () = record_history(app.shared.clone()) => {}
    }
}

/// The REST API on one connection.
struct Rest {
    app: App,
    peer: Peer,
    lingering: Lingering,
}

impl Rest {
    fn new(app: &App, client: Client) -> Self {
        Self { peer: app.peer(&client), app: app.clone(), lingering: client.lingering }
    }
}

impl Requests for Rest {
    type Body = Body;

    fn respond(
        self: Arc<Self>,
        request: Request<Received<Incoming>>,
    ) -> impl Future<Output = Response<Body>> + Send {
        let version = request.version();
        let (unread, request) = Unread::watch(request);
        async move {
            let mut response = self.app.respond(request, self.peer.clone()).await;
            unread.settle(&mut response, &self.lingering).await;
            self.app.shared.observer.telemetry.count_http(response.status());
            if version != Version::HTTP_2 && self.app.shared.is_draining() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

/// The gRPC services on one connection.
struct Grpc {
    app: App,
    peer: Peer,
    activity: Arc<Activity>,
}

impl Grpc {
    fn new(app: &App, client: Client) -> Self {
        Self { peer: app.peer(&client), app: app.clone(), activity: client.activity }
    }
}

impl Requests for Grpc {
    type Body = ResponseBody;

    fn is_long(&self, path: &str) -> bool {
        is_long(path)
    }

    async fn respond(self: Arc<Self>, mut request: Request<Received<Incoming>>) -> Response<ResponseBody> {
        if is_long(request.uri().path()) {
            request.extensions_mut().insert(self.activity.clone());
        }
        let response = self.app.grpc.respond(&self.app.shared, request, &self.peer).await;
        let status = response.headers().get("grpc-status");
        self.app.shared.observer.telemetry.count_grpc(status.map(HeaderValue::as_bytes));
        response
    }
}
