//! A connection over HTTP/2 that several callers share, and that is made anew when it is lost.

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
use crate::client::Place;

/// A part of a connection.
pub(super) struct SharedConnection<B> {
    common: Arc<Common<B>>,
    /// What this caller knows of the connection, so that it need not ask the others each time.
    own: Option<SendRequest<B>>,
}

struct Common<B> {
    place: Arc<Place>,
    /// Locked while it is made, so that one caller makes it and the others wait.
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
    pub(super) async fn connect(place: Arc<Place>) -> anyhow::Result<Self> {
        let sender = Mutex::new(place.http2().await?);
        Ok(Self { common: Arc::new(Common { place, sender }), own: None })
    }

    /// Sends requests on the connection as it is now, or on a new one if it is gone.
    pub(super) async fn sender(&mut self) -> Result<SendRequest<B>, Fault> {
        if let Some(own) = self.own.as_ref().filter(|own| !own.is_closed()) {
            return Ok(own.clone());
        }
        let mut sender = self.common.sender.lock().await;
        if sender.is_closed() {
            *sender = self.common.place.http2().await.map_err(unreachable)?;
        }
        Ok(self.own.insert(sender.clone()).clone())
    }
}

/// A connection as generated clients want it.
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
