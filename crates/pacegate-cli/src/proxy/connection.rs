//! The requests of one connection. Each gets an id, its counted path and a span, and is then
//! checked and forwarded.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response, Version};
use pacegate::PathOptions;
use pacegate_http::request_id::{REQUEST_ID, as_text};
use pacegate_http::server::{Client, Phase, Received, Requests, Sizes, Unread};
use pacegate_server::App;
use pacegate_tower::Pacegate;
use tokio::sync::watch;
use tower_service::Service;
use tracing::Instrument;

use super::body::ProxyBody;
use super::forward::Forward;
use super::{path, trace};

/// Maximum sizes of heads and flow-control windows.
pub(super) const SIZES: Sizes =
    Sizes { head: 64 * 1024, headers: 16 * 1024, stream_window: 256 * 1024, connection_window: 512 * 1024 };

/// What all connections share.
#[derive(Clone)]
pub(super) struct Proxied {
    /// The upstream with its limits.
    pub(super) service: Pacegate<Forward>,
    /// Metrics and request ids.
    pub(super) app: App,
    pub(super) paths: PathOptions,
    pub(super) phases: watch::Receiver<Phase>,
}

/// The requests of one client.
pub(super) struct Connection {
    pub(super) proxied: Proxied,
    pub(super) client: Client,
}

impl Requests for Connection {
    type Body = ProxyBody;

    const UPGRADES: bool = true;

    /// The proxy has its own timeouts for responses.
    fn is_long(&self, _: &str) -> bool {
        true
    }

    fn respond(
        self: Arc<Self>,
        request: Request<Received<Incoming>>,
    ) -> impl Future<Output = Response<ProxyBody>> + Send {
        let Proxied { service, app, paths, .. } = &self.proxied;
        let version = request.version();
        let (unread, mut request) = Unread::watch(request);
        request.extensions_mut().insert(self.client.address);
        request.extensions_mut().insert(self.client.slot.clone());
        // The layer, the upstream, the logs and the client see the same id.
        let id = app.request_id(request.headers().get(&REQUEST_ID));
        request.headers_mut().insert(REQUEST_ID, id.clone());
        let span = trace::request(request.headers());
        let responding = path::to_counted(&mut request, *paths)
            .map(|()| span.in_scope(|| service.clone().call(request)).instrument(span));
        async move {
            let mut response = match responding {
                Ok(responding) => {
                    let Ok(response) = responding.await;
                    response
                }
                Err(invalid) => invalid.respond(as_text(&id)),
            };
            response.headers_mut().insert(REQUEST_ID, id);
            self.proxied.app.count_response(response.status());
            unread.settle(&mut response, &self.client.lingering).await;
            if version != Version::HTTP_2 && *self.proxied.phases.borrow() != Phase::Serving {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}
