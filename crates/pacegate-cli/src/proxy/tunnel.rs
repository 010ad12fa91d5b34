//! A WebSocket: copies bytes in both directions until one side ends or neither sends for too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use pacegate_http::server::Slot;
use std::sync::Arc;

use super::body::Activity;

/// Copies between both sides once they are ready. Keeps `slot`, so that the connection is not
/// evicted.
pub(super) async fn join(
    client: OnUpgrade,
    upstream: OnUpgrade,
    idle_max: Duration,
    slot: Option<Arc<Slot>>,
) {
    let _busy = slot.as_ref().map(|slot| slot.presence().begin());
    let (client, upstream) = match tokio::try_join!(client, upstream) {
        Ok(both) => both,
        Err(error) => return tracing::debug!(%error, "WebSocket upgrade failed"),
    };
    let activity = Activity::default();
    let mut client = Watched { inner: TokioIo::new(client), activity: activity.clone() };
    let mut upstream = TokioIo::new(upstream);
    let silence = async {
        loop {
            tokio::time::sleep(idle_max).await;
            if !activity.take() {
                break;
            }
        }
    };
    tokio::select! {
        copied = copy_bidirectional(&mut client, &mut upstream) => if let Err(error) = copied {
            tracing::debug!(%error, "WebSocket closed with an error");
        },
        () = silence => tracing::debug!("WebSocket closed: idle for too long"),
    }
}

/// Records activity on the client's side, which all bytes pass.
struct Watched<T> {
    inner: T,
    activity: Activity,
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if polled.is_ready() {
            self.activity.note();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if polled.is_ready() {
            self.activity.note();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
