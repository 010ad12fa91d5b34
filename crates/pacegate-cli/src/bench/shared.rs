//! An HTTP/2 connection that several callers share. It is reopened when it is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response};
use tokio::sync::Mutex;
use tower_service::Service;

use super::record::Fault;
use super::rest::unreachable;
use crate::client::Address;

/// A handle of one caller to the connection.
pub(super) struct SharedConnection<B> {
    common: Arc<Common<B>>,
    /// The last known sender, to avoid the lock.
    own: Option<SendRequest<B>>,
}

struct Common<B> {
    address: Arc<Address>,
    /// Locked while connecting, so that only one caller reconnects.
    sender: Mutex<SendRequest<B>>,
}

impl<B> Clone for SharedConnection<B> {
    fn clone(&self) -> Self {
        Self { common: self.common.clone(), own: self.own.clone() }
    }
}

impl<B> SharedConnection<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    pub(super) async fn connect(address: Arc<Address>) -> anyhow::Result<Self> {
        let sender = Mutex::new(address.http2().await?);
        Ok(Self { common: Arc::new(Common { address, sender }), own: None })
    }

    /// Returns a sender of the connection, which is reopened if it is closed.
    pub(super) async fn sender(&mut self) -> Result<SendRequest<B>, Fault> {
        if let Some(own) = self.own.as_ref().filter(|own| !own.is_closed()) {
            return Ok(own.clone());
        }
        let mut sender = self.common.sender.lock().await;
        if sender.is_closed() {
            *sender = self.common.address.http2().await.map_err(unreachable)?;
        }
        Ok(self.own.insert(sender.clone()).clone())
    }
}

/// A connection as a service for generated clients.
#[derive(Clone)]
pub(super) struct Calls<B>(pub(super) SendRequest<B>);

impl<B: Body + Send + 'static> Service<Request<B>> for Calls<B> {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
