//! A service on real sockets, with tonic's gRPC client and the tests' REST client.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pacegate_config::Config;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_server::{Listeners, run};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tower::util::BoxCloneSyncService;

use crate::client::Client;

/// Maximum time that a test waits for an expected event.
pub const SOON: Duration = Duration::from_secs(20);

/// A running service.
pub struct Service {
    /// The same service over REST, and its clock.
    pub rest: Client,
    pub grpc: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Service {
    /// Starts a service on simulated time.
    pub async fn start(yaml: &str) -> Self {
        Self::serve(Client::new(yaml), yaml).await
    }

    /// Serves the service of `rest` with the settings of `yaml`.
    pub async fn serve(rest: Client, yaml: &str) -> Self {
        let config = Config::parse(yaml).unwrap();
        let [http, grpc] = [bind().await, bind().await];
        let address = grpc.local_addr().unwrap();
        let app = rest.app();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let listeners = Listeners::from(http).grpc(grpc);
            run(listeners, app, &config.server, async { stopped.await.unwrap_or_default() }).await;
        });
        Self { rest, grpc: address, stop, running }
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap()
    }

    /// Returns a new channel, which connects with the first request.
    pub fn channel(&self) -> Channel {
        self.endpoint().connect_lazy()
    }

    pub fn limiter(&self) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel())
    }

    pub fn envoy(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel())
    }

    /// Starts the shutdown; the returned handle completes when the service has stopped.
    pub fn stop(self) -> (Client, JoinHandle<()>) {
        self.stop.send(()).unwrap();
        (self.rest, self.running)
    }

    /// Returns a channel without client-side timeouts: tonic's own channel enforces `grpc-timeout`
    /// itself, this one waits for the response.
    pub async fn without_timeout(&self) -> NoTimeoutChannel {
        let stream = TcpStream::connect(self.grpc).await.unwrap();
        // Like gRPC clients, send head and message together.
        stream.set_nodelay(true).unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        NoTimeoutChannel::new(tower::service_fn(move |request: Request<Body>| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        }))
    }

    pub fn origin(&self) -> hyper::Uri {
        format!("http://{}", self.grpc).parse().unwrap()
    }
}

/// A channel without client-side timeouts.
pub type NoTimeoutChannel = BoxCloneSyncService<Request<Body>, Response<Incoming>, hyper::Error>;

async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Returns a message with metadata.
pub fn with<T>(message: T, metadata: &[(&'static str, &str)]) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, MetadataValue::try_from(*value).unwrap());
    }
    request
}

/// Waits for a future that must complete soon.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("timed out")
}
