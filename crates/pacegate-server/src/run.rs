//! Listening: connections are accepted up to a bound, and finished in peace when the service stops.
//!
//! A service that is told to stop goes through two phases. At first it still accepts, but says that it is not ready and asks clients to leave: HTTP/1
//! by `Connection: close` on the next answer, HTTP/2 by GOAWAY. Then nobody listens any more, and what runs is finished. Nothing that was accepted is lost.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, join3};
use pacegate::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::connection::{Connection, Phase, Protocol};
use crate::tls::Tls;

/// How long requests in flight may take once the service is told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it can take until connections that the operating system has let in are heard of.
const LAST_CONNECTIONS: Duration = Duration::from_millis(10);
/// How long to wait when the operating system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where the service is reached.
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
    tls: Option<Arc<Tls>>,
}

impl From<TcpListener> for Listeners {
    /// The REST API alone.
    fn from(http: TcpListener) -> Self {
        Self { http, grpc: None, tls: None }
    }
}

impl Listeners {
    /// The gRPC services as well.
    #[must_use]
    pub fn grpc(mut self, listener: TcpListener) -> Self {
        self.grpc = Some(listener);
        self
    }

    /// Encrypted connections only, to all of them.
    #[must_use]
    pub fn tls(mut self, tls: Arc<Tls>) -> Self {
        self.tls = Some(tls);
        self
    }
}

/// Serves `listeners` until `shutdown` completes; then requests in flight are answered, and it returns.
pub async fn run(
    listeners: impl Into<Listeners>,
    app: App,
    config: &ServerConfig,
    shutdown: impl Future<Output = ()>,
) {
    let Listeners { http, grpc, tls } = listeners.into();
    let (phase, phases) = watch::channel(Phase::Serving);
    let door = |listener, protocol| Door {
        listener,
        protocol,
        app: app.clone(),
        config: Arc::new(config.clone()),
        tls: tls.clone(),
        phases: phases.clone(),
    };
    let http = door(http, Protocol::Http).serve();
    let grpc = OptionFuture::from(grpc.map(|listener| door(listener, Protocol::Grpc).serve()));
    let stop = async {
        shutdown.await;
        app.start_draining();
        phase.send_replace(Phase::Draining);
        tracing::info!(delay = ?config.drain_delay, "stopping; clients are asked to leave");
        tokio::time::sleep(config.drain_delay).await;
        app.shared.stopping.send_replace(true);
        phase.send_replace(Phase::Stopping);
    };
    join3(stop, http, grpc).await;
}

/// One listener, and what those who come through it get.
struct Door {
    listener: TcpListener,
    protocol: Protocol,
    app: App,
    config: Arc<ServerConfig>,
    tls: Option<Arc<Tls>>,
    phases: watch::Receiver<Phase>,
}

impl Door {
    async fn serve(self) {
        let places = Arc::new(Semaphore::new(self.config.max_connections));
        let mut connections = JoinSet::new();
        let mut phases = self.phases.clone();
        let mut stopping = pin!(phases.wait_for(|phase| *phase == Phase::Stopping));
        loop {
            tokio::select! {
                biased;
                _ = &mut stopping => break,
                (stream, peer, place) = accept(&self.listener, &places) => {
                    connections.spawn(self.connection(peer, place).serve(stream));
                }
                // Finished connections are forgotten as they finish.
                Some(_) = connections.join_next() => {}
            }
        }
        // The operating system has let these in already, and they may have sent a request.
        let last = Instant::now() + LAST_CONNECTIONS;
        while Instant::now() < last
            && let Ok(Ok((stream, peer))) = timeout_at(last, self.listener.accept()).await
        {
            connections.spawn(self.connection(peer, None).serve(stream));
        }
        drop(self.listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("some requests were still running and are cut off");
        }
    }

    fn connection(&self, address: SocketAddr, place: Option<OwnedSemaphorePermit>) -> Connection {
        Connection {
            protocol: self.protocol,
            app: self.app.clone(),
            config: self.config.clone(),
            tls: self.tls.clone(),
            phases: self.phases.clone(),
            address,
            _place: place,
        }
    }
}

/// Waits for a place first, so that clients beyond the bound queue in the operating system instead of in memory.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let place = places.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, place),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
