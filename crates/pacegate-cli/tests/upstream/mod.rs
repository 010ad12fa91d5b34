//! An upstream that records its requests, and a proxy in front of it.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "one test file uses it")]

use std::convert::Infallible;
use std::fs::File;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderMap, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::sync::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::{StreamExt, once, pending};

use super::process::{file, pacegate, started};

/// A client with a connection pool.
pub fn client<B>(http2: bool) -> Client<HttpConnector, B>
where
    B: Body<Data: Send> + Send,
{
    Client::builder(TokioExecutor::new()).http2_only(http2).build_http()
}

/// A running proxy, killed when the test ends.
pub struct Proxy {
    pub process: Child,
    pub url: String,
    /// The admin address, if it has one.
    pub admin: Option<String>,
    pub directory: TempDir,
}

impl Proxy {
    pub fn start(upstream: &str, config: &str, arguments: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let (process, _output, line) = started(
            pacegate()
                .args(["proxy", "--http", "127.0.0.1:0", "--upstream", upstream])
                .args(["--config", &file(directory.path(), config)])
                .args(arguments)
                .stderr(Stdio::from(File::create(directory.path().join("log")).unwrap())),
        );
        let shown = line.trim().strip_prefix("pacegate proxy listening on ").unwrap();
        let (url, rest) = shown.split_once(&format!(", forwarding to {upstream}")).unwrap();
        let admin = rest.strip_prefix("; health and metrics on ").map(str::to_owned);
        Self { process, url: url.to_owned(), admin, directory }
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub uri: String,
    pub version: Version,
    pub headers: HeaderMap,
}

struct Shared {
    seen: Mutex<Vec<Seen>>,
    held: Semaphore,
    chunks: mpsc::UnboundedSender<Bytes>,
}

/// The program behind the proxy.
pub struct Upstream {
    pub url: String,
    shared: Arc<Shared>,
    chunks: mpsc::UnboundedReceiver<Bytes>,
}

type Reply = Response<UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>>;

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, chunks) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { seen: Mutex::default(), held: Semaphore::new(0), chunks: sender });
        let server = shared.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = server.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let server = server.clone();
                        async move { Ok::<_, Infallible>(respond(&server, request).await) }
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { url, shared, chunks }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Waits until `count` requests have arrived.
    pub async fn until_seen(&self, count: usize) {
        let seen = async {
            while self.seen().len() < count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), seen).await.unwrap();
    }

    /// Responds to one request for `/held`.
    pub fn release(&self) {
        self.shared.held.add_permits(1);
    }

    /// Returns the next piece of a body that was sent to `/echo`.
    pub async fn chunk(&mut self) -> Bytes {
        timeout(Duration::from_secs(10), self.chunks.recv()).await.unwrap().unwrap()
    }
}

async fn respond(shared: &Arc<Shared>, mut request: Request<Incoming>) -> Reply {
    let seen = Seen {
        uri: request.uri().path_and_query().unwrap().to_string(),
        version: request.version(),
        headers: request.headers().clone(),
    };
    shared.seen.lock().unwrap().push(seen);
    match request.uri().path() {
        "/echo" => {
            let shared = shared.clone();
            let body = request.into_body().map_frame(move |frame| {
                if let Some(data) = frame.data_ref() {
                    let _ = shared.chunks.send(data.clone());
                }
                frame
            });
            Response::new(body.map_err(Into::into).boxed_unsync())
        }
        "/count" => {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            text(bytes.len().to_string())
        }
        "/held" => {
            shared.held.acquire().await.unwrap().forget();
            text("held")
        }
        // The body never ends.
        "/half" => {
            let frames = once(Ok(hyper::body::Frame::data("half".into()))).chain(pending());
            Response::new(BodyExt::boxed_unsync(http_body_util::StreamBody::new(frames)))
        }
        "/trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let body = Full::from("x").with_trailers(async { Some(Ok(trailers)) });
            Response::new(body.map_err(Into::into).boxed_unsync())
        }
        "/socket" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
            let mut response = text("");
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = [
                (CONNECTION.as_str(), "Upgrade"),
                (UPGRADE.as_str(), "websocket"),
                ("sec-websocket-accept", "eQ=="),
            ];
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
        _ => text("hello"),
    }
}

fn text(text: impl Into<String>) -> Reply {
    let text = text.into();
    let is_empty = text.is_empty();
    let mut response =
        Response::new(Full::from(text).map_err(|never: Infallible| match never {}).boxed_unsync());
    for (name, value) in [("x-upstream", "yes"), ("proxy-authenticate", "Basic"), ("x-hop", "1")] {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    if !is_empty {
        response.headers_mut().insert(CONNECTION, "x-hop".parse().unwrap());
    }
    response
}
