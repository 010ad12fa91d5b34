//! Clients that spread their requests over two nodes as a load balancer does, try nothing twice, and count what becomes of each request.

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

/// How often a node is asked whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long its answer is believed.
const BELIEVED_FOR: Duration = Duration::from_millis(50);
/// Whatever takes longer is not answered.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What became of the requests.
#[derive(Debug, Default)]
pub struct Counts {
    pub answered: AtomicU64,
    /// Sent, and not answered as it should be.
    pub lost: AtomicU64,
    /// Sent, and returned by the protocol itself: the node says that it did not begin with them.
    pub unprocessed: AtomicU64,
    /// Not sent, since the connection was closed before.
    pub unsent: AtomicU64,
    /// Connections that could not be made.
    pub refused: AtomicU64,
    /// Answers that asked the client to leave.
    pub asked_to_leave: AtomicU64,
    /// Why requests were lost.
    pub reasons: Mutex<Vec<String>>,
}

impl Counts {
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note(&self, kind: &str, outcome: Result<(), Lost>) {
        match outcome {
            Ok(()) => Self::add(&self.answered),
            Err(Lost::Unsent) => Self::add(&self.unsent),
            Err(Lost::Unprocessed) => Self::add(&self.unprocessed),
            Err(Lost::Unanswered(reason)) => {
                Self::add(&self.lost);
                self.reasons.lock().unwrap().push(format!("{kind}: {reason}"));
            }
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum Lost {
    Unsent,
    Unprocessed,
    Unanswered(String),
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

impl Error for Lost {}

impl Lost {
    fn unanswered(reason: impl fmt::Debug) -> Self {
        Self::Unanswered(format!("{reason:?}"))
    }
}

/// One of the nodes, as clients see it.
#[derive(Debug)]
pub struct Node {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    /// When it said last that it is ready.
    ready: Mutex<Option<Instant>>,
}

impl Node {
    pub fn new(http: SocketAddr, grpc: SocketAddr) -> Arc<Self> {
        Arc::new(Self { http, grpc, ready: Mutex::default() })
    }

    /// Whether it takes requests, as far as is known.
    pub fn is_ready(&self) -> bool {
        self.ready.lock().unwrap().is_some_and(|at| at.elapsed() < BELIEVED_FOR)
    }

    /// Keeps asking whether it is ready, until the task is aborted.
    pub async fn follow(self: Arc<Self>) {
        let mut sender = None;
        loop {
            let said = timeout(BELIEVED_FOR, self.asked(&mut sender)).await.ok().flatten();
            if said.is_none() {
                sender = None;
            }
            *self.ready.lock().unwrap() = said.filter(|said| *said).map(|_| Instant::now());
            sleep(LOOK_EVERY).await;
        }
    }

    async fn asked(&self, sender: &mut Option<http1::SendRequest<Full<Bytes>>>) -> Option<bool> {
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

/// Whoever spreads requests: the nodes, and what has become of the requests so far.
#[derive(Clone, Debug)]
pub struct Balancer {
    pub nodes: [Arc<Node>; 2],
    pub counts: Arc<Counts>,
    pub stop: Arc<AtomicBool>,
}

impl Balancer {
    /// The next node that is ready, in turn; nothing when all is over.
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

    /// Sends a request, and takes its whole answer.
    pub async fn ask(&mut self, request: Request<String>) -> Result<Response<Bytes>, Lost> {
        let (parts, body) = request.into_parts();
        let sender = match self {
            Self::Http1(sender) => sender,
            Self::Http2(connection) => {
                let answer = connection.ask(Request::from_parts(parts, ()), body.into());
                return Ok(in_time(answer).await??.0);
            }
        };
        let request = Request::from_parts(parts, Full::from(body));
        let answer = in_time(sender.try_send_request(request)).await?.map_err(|failure| {
            if failure.message().is_some() { Lost::Unsent } else { Lost::unanswered(failure.into_error()) }
        });
        let (parts, body) = answer?.into_parts();
        let body = in_time(body.collect()).await?.map_err(Lost::unanswered)?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }
}

async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, Lost> {
    timeout(ANSWER_WITHIN, answer).await.map_err(|_| Lost::Unanswered("no answer in time".to_owned()))
}

/// A connection over HTTP/2 on which everything happens in turn. Clients that open streams in one task and read in another give up streams by themselves
/// when a GOAWAY comes in between, which says nothing about the node.
pub struct Http2 {
    sender: h2::client::SendRequest<Bytes>,
    connection: Pin<Box<h2::client::Connection<TcpStream>>>,
}

impl Http2 {
    pub async fn open(address: SocketAddr) -> Option<Self> {
        let (sender, connection) = h2::client::handshake(connect(address).await?).await.ok()?;
        Some(Self { sender, connection: Box::pin(connection) })
    }

    /// Takes note of what the node has said meanwhile.
    async fn is_usable(&mut self) -> bool {
        poll_fn(|context| {
            let ended = self.connection.as_mut().poll(context).is_ready();
            Poll::Ready(!ended && matches!(self.sender.poll_ready(context), Poll::Ready(Ok(()))))
        })
        .await
    }

    /// Sends a request, and takes its whole answer with its trailers.
    async fn ask(&mut self, request: Request<()>, body: Bytes) -> Result<(Response<Bytes>, HeaderMap), Lost> {
        let (response, mut stream) = self.sender.send_request(request, false).map_err(|_| Lost::Unsent)?;
        let answer = async {
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
        let mut answer = pin!(answer);
        let returned = |error: &h2::Error| {
            error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
        };
        poll_fn(|context| {
            let ended = self.connection.as_mut().poll(context).is_ready();
            match answer.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(answer.map_err(|error| {
                    if returned(&error) { Lost::Unprocessed } else { Lost::unanswered(error) }
                })),
                Poll::Pending if ended => Poll::Ready(Err(Lost::unanswered("the connection ended"))),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// What tonic's clients send requests through: one connection, which is not made again.
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
            let body = body.collect().await.map_err(Lost::unanswered)?.to_bytes();
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

/// What tonic's clients send streams through.
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

/// What became of a call: an answer, or what the connection said about it.
pub async fn outcome<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, Lost> {
    in_time(call).await?.map_err(|status| {
        let lost = status.source().and_then(|source| source.downcast_ref::<Lost>());
        lost.cloned().unwrap_or_else(|| Lost::unanswered(status))
    })
}
