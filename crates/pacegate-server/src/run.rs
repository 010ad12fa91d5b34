//! Serving: REST, gRPC and the operators' address, until the service is told to stop.
//!
//! A service that is told to stop goes through two phases. At first it still accepts, but says that it is not ready and asks clients to leave: HTTP/1
//! by `Connection: close` on the next answer, HTTP/2 by GOAWAY. Then nobody listens any more, and what runs is finished. Nothing that was accepted is lost.

use std::sync::Arc;

use futures_util::future::{OptionFuture, join4};
use pacegate_config::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::App;
use crate::connection::{Connection, Phase, Protocol};
use crate::door::Door;
use crate::tls::Tls;

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
    admin: Option<TcpListener>,
    tls: Option<Arc<Tls>>,
}

impl From<TcpListener> for Listeners {
    /// The REST API alone.
    fn from(http: TcpListener) -> Self {
        Self { http, grpc: None, admin: None, tls: None }
    }
}

impl Listeners {
    /// The gRPC services as well.
    #[must_use]
    pub fn grpc(mut self, listener: TcpListener) -> Self {
        self.grpc = Some(listener);
        self
    }

    /// The REST API once more, for health checks and operators: its connections have places of their own.
    #[must_use]
    pub fn admin(mut self, listener: TcpListener) -> Self {
        self.admin = Some(listener);
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
    let Listeners { http, grpc, admin, tls } = listeners.into();
    let (phase, phases) = watch::channel(Phase::Serving);
    let settings = Arc::new(config.clone());
    let doors = 1 + usize::from(grpc.is_some()) + usize::from(admin.is_some());
    let serve = |listener, protocol| {
        let (app, config, tls) = (app.clone(), settings.clone(), tls.clone());
        let (phases, mut stopping) = (phases.clone(), phases.clone());
        let door = Door::of(listener, protocol, &config, doors, &app);
        async move {
            // The sender outlives all doors.
            let stopping = async { drop(stopping.wait_for(|phase| *phase == Phase::Stopping).await) };
            let connection = |stream, address, place| {
                let (app, config, tls) = (app.clone(), config.clone(), tls.clone());
                Connection { protocol, app, config, tls, phases: phases.clone(), address, place }
                    .serve(stream)
            };
            door.serve(stopping, connection).await;
        }
    };
    let http = serve(http, Protocol::Http);
    let grpc = OptionFuture::from(grpc.map(|listener| serve(listener, Protocol::Grpc)));
    let admin = OptionFuture::from(admin.map(|listener| serve(listener, Protocol::Admin)));
    let stop = async {
        shutdown.await;
        app.start_draining();
        phase.send_replace(Phase::Draining);
        tracing::info!(delay = ?config.drain_delay, "stopping; clients are asked to leave");
        tokio::time::sleep(config.drain_delay).await;
        app.shared.stopping.send_replace(true);
        phase.send_replace(Phase::Stopping);
    };
    join4(stop, http, grpc, admin).await;
}
