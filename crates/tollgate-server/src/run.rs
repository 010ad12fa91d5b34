//! Connections: accepted up to a bound, timed out when slow, and finished in peace when the service stops.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;
use tollgate::ServerConfig;

use crate::app::App;

/// How long requests in flight may take once the service is told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait when the operating system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The most memory a request's head can take, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves `listener` until `shutdown` completes. Then no connection is accepted, requests in flight are answered, and it returns.
pub async fn run(listener: TcpListener, app: App, config: &ServerConfig, shutdown: impl Future<Output = ()>) {
    let (stop, stopped) = watch::channel(());
    let places = Arc::new(Semaphore::new(config.max_connections));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => {
                let (stream, peer, place) = accepted;
                connections.spawn(serve(stream, peer, app.clone(), config.clone(), stopped.clone(), place));
            }
            // Finished connections are forgotten as they finish.
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    app.start_draining();
    tracing::info!(connections = connections.len(), "stopping; requests in flight are answered");
    drop(stop);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!("some requests were still running and are cut off");
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

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    app: App,
    config: ServerConfig,
    mut stopped: watch::Receiver<()>,
    _place: Option<OwnedSemaphorePermit>,
) {
    // An answer is one small write; waiting to fill a packet would only delay it.
    let _ = stream.set_nodelay(true);
    // A client that reads no answers would otherwise hold its place for ever.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(config.request_timeout));
    let service = service_fn(|request| {
        let app = &app;
        async move { Ok::<_, Infallible>(app.respond(request, peer).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.idle_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        // The sender is dropped when the service stops.
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
