//! The task of a connection runs in turns: it answers everything that has arrived, then writes all
//! responses that are ready at once.
//!
//! On its own, the HTTP library writes each response before it looks at the next request: it hands
//! requests over HTTP/2 to tasks of their own, and flushes after each request over HTTP/1.

use std::error::Error;
use std::io;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::{StreamExt, stream::FuturesUnordered};
use hyper::rt::{Executor, Read, ReadBufCursor, Write};
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::Mutex;
use pin_project_lite::pin_project;

/// Number of bytes that are written without waiting for the end of the turn.
const OUTPUT_MAX: usize = 64 * 1024;
/// Maximum size of the buffer that an idle connection keeps.
const OUTPUT_KEPT: usize = 4 * 1024;

/// A request over HTTP/2, from its head to the end of its response.
type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Receives the requests of an HTTP/2 connection from the HTTP library.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        self.0.lock().push(Box::pin(stream));
    }
}

/// The socket of a connection, with output that waits for the end of the turn.
pub(super) struct Output<S>(Arc<Mutex<Buffered<S>>>);

struct Buffered<S> {
    socket: S,
    /// Unwritten output starts at `written`.
    output: Vec<u8>,
    written: usize,
    /// Whether output is written at once.
    direct: bool,
}

impl<S> Clone for Output<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Write + Unpin> Output<S> {
    pub(super) fn new(socket: S) -> Self {
        Self(Arc::new(Mutex::new(Buffered { socket, output: Vec::new(), written: 0, direct: false })))
    }
}

impl<S: Write + Unpin> Buffered<S> {
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.output.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.output.len() {
            let unwritten = &self.output[self.written..];
            match ready!(Pin::new(&mut self.socket).poll_write(context, unwritten))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.written = 0;
        self.output.clear();
        self.output.shrink_to(OUTPUT_KEPT);
        Pin::new(&mut self.socket).poll_flush(context)
    }
}

impl<S: Read + Unpin> Read for Output<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().socket).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Output<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut this = self.0.lock();
        if this.direct || this.output.len() >= OUTPUT_MAX {
            ready!(this.poll_drain(context))?;
        }
        if this.direct {
            return Pin::new(&mut this.socket).poll_write(context, bytes);
        }
        this.output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    /// Does nothing during a turn, because the output leaves at its end.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.0.lock();
        if !this.direct {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_drain(context))?;
        Pin::new(&mut this.socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.0.lock();
        ready!(this.poll_drain(context))?;
        Pin::new(&mut this.socket).poll_shutdown(context)
    }
}

pin_project! {
    /// A connection that runs in turns.
    pub(super) struct Turns<C, S> {
        #[pin]
        connection: C,
        started: Streams,
        running: FuturesUnordered<Stream>,
        output: Output<S>,
        // The result of the connection, while output remains.
        ended: Option<Result<(), Box<dyn Error + Send + Sync>>>,
    }
}

impl<C, S> Turns<C, S> {
    /// Runs `connection`, which was given `streams` as its executor and `output` as its socket.
    pub(super) fn new(connection: C, streams: Streams, output: Output<S>) -> Self {
        Self { connection, started: streams, running: FuturesUnordered::new(), output, ended: None }
    }
}

impl<C: GracefulConnection<Error = Box<dyn Error + Send + Sync>>, S> Turns<C, S> {
    pub(super) fn graceful_shutdown(self: Pin<&mut Self>) {
        self.project().connection.graceful_shutdown();
    }

    fn poll_turn(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        let mut this = self.project();
        let mut polled = this.connection.as_mut().poll(context);
        if polled.is_pending() && answer(this.started, this.running, context) {
            // The HTTP library encodes the responses.
            polled = this.connection.as_mut().poll(context);
            // Requests that it read meanwhile have the next turn, after those of other connections.
            if !this.started.0.lock().is_empty() {
                context.waker().wake_by_ref();
            }
        }
        polled
    }
}

impl<C, S> Future for Turns<C, S>
where
    C: GracefulConnection<Error = Box<dyn Error + Send + Sync>>,
    S: Write + Unpin,
{
    type Output = Result<(), C::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.ended.is_none()
            && let Poll::Ready(ended) = self.as_mut().poll_turn(context)
        {
            *self.as_mut().project().ended = Some(ended);
        }
        let this = self.project();
        let mut output = this.output.0.lock();
        // An upgraded connection goes on without turns.
        output.direct = this.ended.is_some();
        let drained = output.poll_drain(context)?;
        match this.ended.take() {
            Some(ended) if drained.is_ready() => Poll::Ready(ended),
            unfinished => {
                *this.ended = unfinished;
                Poll::Pending
            }
        }
    }
}

/// Polls new requests and those that can continue. Returns whether there were any.
fn answer(started: &Streams, running: &mut FuturesUnordered<Stream>, context: &mut Context<'_>) -> bool {
    let new = take(&mut *started.0.lock());
    let mut progress = !new.is_empty();
    for mut stream in new {
        // Most requests end here, without the cost of waiting among the others.
        if stream.as_mut().poll(context).is_pending() {
            running.push(stream);
        }
    }
    while let Poll::Ready(Some(())) = running.poll_next_unpin(context) {
        progress = true;
    }
    progress
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use http_body_util::{BodyExt, Empty, Full};
    use hyper::body::{Bytes, Incoming};
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// A socket that counts the writes to it.
    struct Counted {
        socket: TokioIo<DuplexStream>,
        writes: Arc<AtomicUsize>,
    }

    impl Read for Counted {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: ReadBufCursor<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.socket).poll_read(context, buffer)
        }
    }

    impl Write for Counted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.socket).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.socket).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.socket).poll_shutdown(context)
        }
    }

    /// Serves `size` bytes to every request of a connection. Returns the client's end, and the
    /// number of the server's writes.
    fn serve(size: usize) -> (DuplexStream, Arc<AtomicUsize>) {
        let (client, server) = duplex(16 * 1024);
        let writes = Arc::new(AtomicUsize::new(0));
        let output = Output::new(Counted { socket: TokioIo::new(server), writes: writes.clone() });
        tokio::spawn(async move {
            let service = service_fn(move |_: Request<Incoming>| async move {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'x'; size]))))
            });
            let streams = Streams::default();
            let builder = auto::Builder::new(streams.clone());
            let connection = builder.serve_connection(output.clone(), service);
            Turns::new(connection, streams, output).await
        });
        (client, writes)
    }

    async fn read(client: &mut DuplexStream, responses: usize) {
        let mut text = Vec::new();
        while text.windows(4).filter(|bytes| bytes == b"\r\n\r\n").count() < responses {
            assert_ne!(client.read_buf(&mut text).await.unwrap(), 0, "closed by the server");
        }
    }

    #[tokio::test]
    async fn pipelined_responses_leave_in_one_write() {
        let (mut client, writes) = serve(0);
        client.write_all("GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(5).as_bytes()).await.unwrap();
        read(&mut client, 5).await;
        assert_eq!(writes.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn response_does_not_wait_for_the_rest_of_the_next_request() {
        let (mut client, _) = serve(0);
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HT").await.unwrap();
        read(&mut client, 1).await;
        client.write_all(b"TP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        read(&mut client, 1).await;
    }

    /// On one worker thread, where a task that is spawned runs before others that are ready.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn responses_over_http2_leave_in_one_write() {
        let test = async {
            let (client, writes) = serve(10);
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client));
            let (mut requests, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            let request = || Request::new(Empty::<Bytes>::new());
            requests.send_request(request()).await.unwrap();
            let before = writes.load(Ordering::Relaxed);
            for response in join_all((0..50).map(|_| requests.send_request(request()))).await {
                assert_eq!(response.unwrap().collect().await.unwrap().to_bytes().len(), 10);
            }
            // The client may send the requests in two parts.
            assert!(writes.load(Ordering::Relaxed) - before <= 2, "{writes:?} from {before}");
        };
        tokio::spawn(test).await.unwrap();
    }

    #[tokio::test]
    async fn response_larger_than_the_buffers_is_complete() {
        let (client, _) = serve(3 * OUTPUT_MAX);
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(client));
        let (mut requests, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        for _ in 0..2 {
            requests.ready().await.unwrap();
            let response = requests.send_request(Request::new(Empty::<Bytes>::new())).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 3 * OUTPUT_MAX);
        }
    }
}
