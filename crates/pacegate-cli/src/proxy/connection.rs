//! The requests of one connection: each gets an id, its counted path and a span, then goes through
//! the limits to the upstream.

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

use super::body::AnswerBody;
use super::forward::Forward;
use super::{path, trace};

/// How much a client may send before the upstream takes it.
pub(super) const SIZES: Sizes =
    Sizes { head: 64 * 1024, headers: 16 * 1024, stream_window: 256 * 1024, connection_window: 512 * 1024 };

/// What answers requests, whichever connection they come on.
#[derive(Clone)]
pub(super) struct Proxied {
    /// The upstream behind its limits.
    pub(super) service: Pacegate<Forward>,
    /// What is measured, and the ids of requests.
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
    type Body = AnswerBody;

    const UPGRADES: bool = true;

    /// The upstream decides how long an answer takes, within the proxy's own timeouts.
    fn is_long(&self, _: &str) -> bool {
        true
    }

    fn respond(
        self: Arc<Self>,
        request: Request<Received<Incoming>>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send {
        let Proxied { service, app, paths, .. } = &self.proxied;
        let version = request.version();
        let (unread, mut request) = Unread::watch(request);
        request.extensions_mut().insert(self.client.address);
        request.extensions_mut().insert(self.client.slot.clone());
        // Layer, upstream, logs and client know the request by one id.
        let id = app.request_id(request.headers().get(&REQUEST_ID));
        request.headers_mut().insert(REQUEST_ID, id.clone());
        let span = trace::request(request.headers());
        let answer = path::to_counted(&mut request, *paths)
            .map(|()| span.in_scope(|| service.clone().call(request)).instrument(span));
        async move {
            let mut response = match answer {
                Ok(answer) => {
                    let Ok(response) = answer.await;
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
