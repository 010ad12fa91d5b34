//! Accepts connections up to a bound, and lets them finish when the proxy stops.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pacegate::ServerConfig;
use pacegate_server::App;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{Connection, Limited};

/// How long requests in flight may take once the proxy is told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it can take until connections that the operating system has let in are heard of.
const LAST_CONNECTIONS: Duration = Duration::from_millis(10);
/// How long to wait when the operating system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `listener` until `shutdown` completes; then requests in flight are answered, and it returns. WebSockets are cut off by the end of the process.
pub(super) async fn run(
    listener: TcpListener,
    service: Limited,
    app: App,
    config: &ServerConfig,
    shutdown: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(config.max_connections));
    let config = Arc::new(config.clone());
    let (stop, stopping) = watch::channel(());
    let serve = |(stream, peer), place| {
        let (service, app) = (service.clone(), app.clone());
        let (config, stopping) = (config.clone(), stopping.clone());
        Connection { service, app, config, peer, stopping, place: Arc::new(place) }.serve(stream)
    };
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // A place first, so that clients beyond the bound queue in the operating system instead of in memory. The semaphore is never closed.
        let accept = async { (places.clone().acquire_owned().await.ok(), listener.accept().await) };
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            (place, accepted) = accept => match accepted {
                Ok(accepted) => {
                    connections.spawn(serve(accepted, place));
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            // Finished connections are forgotten as they finish.
            Some(_) = connections.join_next() => {}
        }
    }
    // The operating system has let these in already, and they may have sent a request.
    let last = Instant::now() + LAST_CONNECTIONS;
    while Instant::now() < last
        && let Ok(Ok(accepted)) = timeout_at(last, listener.accept()).await
    {
        connections.spawn(serve(accepted, None));
    }
    drop(listener);
    stop.send_replace(());
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!("some requests were still running and are cut off");
    }
}
