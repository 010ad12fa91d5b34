//! Clients that balance their requests over two nodes, never retry, and count the outcome of each
//! request.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep, timeout};

/// Time between two readiness probes of a node.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time for which a probe is valid.
const BELIEVED_FOR: Duration = Duration::from_millis(50);
/// Time after which a request is lost.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Outcomes of the requests.
#[derive(Debug, Default)]
pub struct Counts {
    pub completed: AtomicU64,
    /// Sent, without the expected response.
    pub lost: AtomicU64,
    /// Sent, and returned by the protocol as not processed.
    pub unprocessed: AtomicU64,
    /// Not sent, because the connection was closed before.
    pub unsent: AtomicU64,
    /// Failed connections.
    pub refused: AtomicU64,
    /// Responses with `Connection: close`.
    pub asked_to_leave: AtomicU64,
    /// Why requests were lost.
    pub reasons: Mutex<Vec<String>>,
}

impl Counts {
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note(&self, kind: &str, outcome: Result<(), Lost>) {
        match outcome {
            Ok(()) => Self::add(&self.completed),
            Err(Lost::Unsent) => Self::add(&self.unsent),
            Err(Lost::Unprocessed) => Self::add(&self.unprocessed),
            Err(Lost::NoResponse(reason)) => {
                Self::add(&self.lost);
                self.reasons.lock().unwrap().push(format!("{kind}: {reason}"));
            }
        }
    }
}

/// Why there is no response.
#[derive(Clone, Debug)]
pub enum Lost {
    Unsent,
    Unprocessed,
    NoResponse(String),
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

impl Error for Lost {}

impl Lost {
    fn no_response(reason: impl fmt::Debug) -> Self {
        Self::NoResponse(format!("{reason:?}"))
    }
}

/// A node, as clients see it.
#[derive(Debug)]
pub struct Node {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    /// The time of the last successful probe.
    ready: Mutex<Option<Instant>>,
}

impl Node {
    pub fn new(http: SocketAddr, grpc: SocketAddr) -> Arc<Self> {
        Arc::new(Self { http, grpc, ready: Mutex::default() })
    }

    /// Whether the node is ready, by the last probe.
    pub fn is_ready(&self) -> bool {
        self.ready.lock().unwrap().is_some_and(|at| at.elapsed() < BELIEVED_FOR)
    }

    /// Probes the node until the task is aborted.
    pub async fn follow(self: Arc<Self>) {
        let mut sender = None;
        loop {
            let ready = timeout(BELIEVED_FOR, self.probe(&mut sender)).await.ok().flatten();
            if ready.is_none() {
                sender = None;
            }
            *self.ready.lock().unwrap() = ready.filter(|ready| *ready).map(|_| Instant::now());
            sleep(LOOK_EVERY).await;
        }
    }

    async fn probe(&self, sender: &mut Option<http1::SendRequest<Full<Bytes>>>) -> Option<bool> {
        if sender.as_ref().is_none_or(http1::SendRequest::is_closed) {
            *sender = Some(open_http1(self.http).await?);
        }
        let sender = sender.as_mut()?;
        sender.ready().await.ok()?;
        let request = Request::get("/readyz").header("host", "x").body(Full::default()).ok()?;
        let response = sender.send_request(request).await.ok()?;
        let ready = response.status() == 200;
        response.into_body().collect().await.ok()?;
        Some(ready)
    }
}

/// The load balancer: the nodes, and the outcomes so far.
#[derive(Clone, Debug)]
pub struct Balancer {
    pub nodes: [Arc<Node>; 2],
    pub counts: Arc<Counts>,
    pub stop: Arc<AtomicBool>,
}

impl Balancer {
    /// Returns the next ready node, in turn. `None` at the end of the test.
    pub async fn next(&self, turn: usize) -> Option<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let chosen = [turn % 2, (turn + 1) % 2].into_iter().find(|node| self.nodes[*node].is_ready());
            if chosen.is_some() {
                return chosen;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

pub async fn open_http1(address: SocketAddr) -> Option<http1::SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(connect(address).await?)).await.ok()?;
    tokio::spawn(connection);
    Some(sender)
}

async fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).await.ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// A connection over HTTP/1.1 or HTTP/2, for one request at a time.
pub enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(Http2),
}

impl Connection {
    /// Whether requests can still be sent on it.
    pub async fn is_usable(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(connection) => connection.is_usable().await,
        }
    }

    /// Sends a request and reads the whole response.
    pub async fn ask(&mut self, request: Request<String>) -> Result<Response<Bytes>, Lost> {
        let (parts, body) = request.into_parts();
        let sender = match self {
            Self::Http1(sender) => sender,
            Self::Http2(connection) => {
                let response = connection.ask(Request::from_parts(parts, ()), body.into());
                return Ok(in_time(response).await??.0);
            }
        };
        let request = Request::from_parts(parts, Full::from(body));
        let response = in_time(sender.try_send_request(request)).await?.map_err(|failure| {
            if failure.message().is_some() { Lost::Unsent } else { Lost::no_response(failure.into_error()) }
        });
        let (parts, body) = response?.into_parts();
        let body = in_time(body.collect()).await?.map_err(Lost::no_response)?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }
}

async fn in_time<T>(response: impl Future<Output = T>) -> Result<T, Lost> {
    timeout(TIMEOUT, response).await.map_err(|_| Lost::NoResponse("timed out".to_owned()))
}

/// An HTTP/2 connection with one request at a time. Clients that open streams and read in different
/// tasks can drop streams themselves at a GOAWAY, which is no fault of the node.
pub struct Http2 {
    sender: h2::client::SendRequest<Bytes>,
    connection: Pin<Box<h2::client::Connection<TcpStream>>>,
}

impl Http2 {
    pub async fn open(address: SocketAddr) -> Option<Self> {
        let (sender, connection) = h2::client::handshake(connect(address).await?).await.ok()?;
        Some(Self { sender, connection: Box::pin(connection) })
    }

    /// Reads what the node has sent since.
    async fn is_usable(&mut self) -> bool {
        poll_fn(|context| {
            let ended = self.connection.as_mut().poll(context).is_ready();
            Poll::Ready(!ended && matches!(self.sender.poll_ready(context), Poll::Ready(Ok(()))))
        })
        .await
    }

    /// Sends a request and reads the whole response with its trailers.
    async fn ask(&mut self, request: Request<()>, body: Bytes) -> Result<(Response<Bytes>, HeaderMap), Lost> {
        let (response, mut stream) = self.sender.send_request(request, false).map_err(|_| Lost::Unsent)?;
        let response = async {
            stream.send_data(body, true)?;
            let (parts, mut body) = response.await?.into_parts();
            let mut bytes = Vec::new();
            while let Some(chunk) = body.data().await {
                let chunk = chunk?;
                body.flow_control().release_capacity(chunk.len())?;
                bytes.extend_from_slice(&chunk);
            }
            let trailers = body.trailers().await?.unwrap_or_default();
            Ok((Response::from_parts(parts, Bytes::from(bytes)), trailers))
        };
        let mut response = pin!(response);
        let returned = |error: &h2::Error| {
            error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
        };
        poll_fn(|context| {
            let ended = self.connection.as_mut().poll(context).is_ready();
            match response.as_mut().poll(context) {
                Poll::Ready(response) => Poll::Ready(response.map_err(|error| {
                    if returned(&error) { Lost::Unprocessed } else { Lost::no_response(error) }
                })),
                Poll::Pending if ended => Poll::Ready(Err(Lost::no_response("the connection ended"))),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// A connection for tonic's clients. It does not reconnect.
#[derive(Clone)]
pub struct Channel(Arc<AsyncMutex<Http2>>);

impl Channel {
    pub async fn open(address: SocketAddr) -> Option<Self> {
        Some(Self(Arc::new(AsyncMutex::new(Http2::open(address).await?))))
    }

    pub async fn is_usable(&self) -> bool {
        self.0.lock().await.is_usable().await
    }
}

type Frames = StreamBody<tokio_stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

impl tower_service::Service<Request<tonic::body::Body>> for Channel {
    type Response = Response<Frames>;
    type Error = Lost;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Lost>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let connection = self.0.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(Lost::no_response)?.to_bytes();
            let mut connection = connection.lock().await;
            let (response, trailers) = connection.ask(Request::from_parts(parts, ()), body).await?;
            Ok(response.map(|body| {
                StreamBody::new(tokio_stream::iter(vec![
                    Ok(Frame::data(body)),
                    Ok(Frame::trailers(trailers)),
                ]))
            }))
        })
    }
}

/// A connection for streams of tonic's clients.
#[derive(Clone)]
pub struct StreamChannel(http2::SendRequest<tonic::body::Body>);

impl StreamChannel {
    pub async fn open(address: SocketAddr) -> Option<Self> {
        let io = TokioIo::new(connect(address).await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.ok()?;
        tokio::spawn(connection);
        Some(Self(sender))
    }

    pub fn is_usable(&self) -> bool {
        self.0.is_ready()
    }
}

impl tower_service::Service<Request<tonic::body::Body>> for StreamChannel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// The outcome of a call: a response, or the error of the connection.
pub async fn outcome<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, Lost> {
    in_time(call).await?.map_err(|status| {
        let lost = status.source().and_then(|source| source.downcast_ref::<Lost>());
        lost.cloned().unwrap_or_else(|| Lost::no_response(status))
    })
}
