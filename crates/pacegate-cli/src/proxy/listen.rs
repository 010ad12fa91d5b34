//! Serves connections until the proxy stops, and lets them finish then.

use std::sync::Arc;

use pacegate::PathOptions;
use pacegate_config::ServerConfig;
use pacegate_server::App;
use pacegate_server::door::Door;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::connection::{Connection, Limited};

/// Serves `listener` until `shutdown` completes; then requests in flight are answered, and it returns. WebSockets are cut off by the end of the process.
pub(super) async fn run(
    listener: TcpListener,
    service: Limited,
    app: App,
    config: &ServerConfig,
    paths: PathOptions,
    shutdown: impl Future<Output = ()>,
) {
    let door = Door::new(listener, config, &app);
    let config = Arc::new(config.clone());
    let (stop, stopping) = watch::channel(());
    let shutdown = async {
        shutdown.await;
        stop.send_replace(());
    };
    let connection = |stream, peer, place| {
        let (service, app) = (service.clone(), app.clone());
        let (config, stopping) = (config.clone(), stopping.clone());
        Connection { service, app, config, paths, peer, stopping, place: Arc::new(place) }.serve(stream)
    };
    door.serve(shutdown, connection).await;
}
