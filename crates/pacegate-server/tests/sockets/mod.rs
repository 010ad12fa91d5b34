//! A service on real sockets and in real time, with its own catalog, and with TLS if configured.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pacegate::{MemoryStore, Stores};
use pacegate_catalog::Catalog;
use pacegate_config::Config;
use pacegate_server::{AdminKey, App, Listeners, Live, Tls, run};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Maximum time that a test waits for an expected event.
pub const SOON: Duration = Duration::from_secs(20);

/// A running service, which stops when this value is dropped.
pub struct Service {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub admin: SocketAddr,
    pub tls: Option<Arc<Tls>>,
    pub catalog: Catalog,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

impl Service {
    pub async fn start(yaml: &str) -> Self {
        let config = Config::parse(yaml).unwrap();
        let [http, grpc, admin] = [bind().await, bind().await, bind().await];
        let addresses = [&http, &grpc, &admin].map(|listener| listener.local_addr().unwrap());
        let tls = config.server.tls.as_ref().map(|tls| Tls::load(&tls.files).unwrap());
        let catalog = Catalog::open("sqlite::memory:").await.unwrap();
        let stores = Stores::memory(Arc::new(MemoryStore::default()));
        let live = Live::start(config.clone(), stores, catalog.clone()).await.unwrap();
        let app = App::managed(&config, live, Some(AdminKey::new("secret")));
        let mut listeners = Listeners::from(http).grpc(grpc).admin(admin);
        if let Some(tls) = tls.clone() {
            listeners = listeners.tls(tls);
        }
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            run(listeners, app, &config.server, async { stopped.await.unwrap_or_default() }).await;
        });
        let [http, grpc, admin] = addresses;
        Self { http, grpc, admin, tls, catalog, stop: Some(stop), running }
    }

    /// Starts the shutdown.
    pub fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until the service has stopped.
    pub async fn ended(self) {
        soon(self.running).await.unwrap();
    }
}

async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Waits for a future that must complete soon.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("timed out")
}
