//! Checks over REST: one request at a time per HTTP/1.1 connection, many per HTTP/2 connection.

use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use serde::Deserialize;

use super::load::Caller;
use super::record::{Decision, Fault, Verdict};
use super::shared::SharedConnection;
use super::template::CheckTemplate;
use crate::client::Address;

const PATH: &str = "/v1/rate-limit/check";
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;

/// An HTTP/1.1 connection, or a share of an HTTP/2 connection.
enum Connection {
    Own(Option<http1::SendRequest<Full<Bytes>>>),
    Shared(SharedConnection<Full<Bytes>>),
}

/// A caller over REST.
pub(super) struct Rest {
    address: Arc<Address>,
    template: Arc<CheckTemplate>,
    uri: Uri,
    host: HeaderValue,
    connection: Connection,
}

impl Rest {
    /// Opens an HTTP/1.1 connection.
    pub(super) async fn connect(address: Arc<Address>, template: Arc<CheckTemplate>) -> anyhow::Result<Self> {
        let connection = Connection::Own(Some(address.http1().await?));
        Self::on(connection, address, template)
    }

    /// Uses an HTTP/2 connection that is shared with other callers.
    pub(super) fn sharing(
        connection: SharedConnection<Full<Bytes>>,
        address: Arc<Address>,
        template: Arc<CheckTemplate>,
    ) -> anyhow::Result<Self> {
        Self::on(Connection::Shared(connection), address, template)
    }

    fn on(
        connection: Connection,
        address: Arc<Address>,
        template: Arc<CheckTemplate>,
    ) -> anyhow::Result<Self> {
        let uri = if matches!(connection, Connection::Own(_)) {
            address.path(PATH)?
        } else {
            address.whole(PATH)?
        };
        let host = HeaderValue::from_str(address.authority().as_str())?;
        Ok(Self { address, template, uri, host, connection })
    }

    fn request(&self, key: u64) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.template.body(key)));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self.connection, Connection::Own(_)) {
            headers.insert(HOST, self.host.clone());
        }
        if let Some(secret) = &self.template.api_key {
            headers.insert("x-api-key", secret.clone());
        }
        request
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Fault> {
        let response = match &mut self.connection {
            Connection::Shared(connection) => {
                let mut sender: http2::SendRequest<_> = connection.sender().await?;
                sender.send_request(request).await
            }
            Connection::Own(own) => {
                // Reconnecting after the service closed an idle connection is not an error.
                if own.as_mut().is_none_or(|sender| sender.is_closed()) {
                    *own = None;
                }
                let sender = match own {
                    Some(sender) => sender,
                    None => own.insert(self.address.http1().await.map_err(unreachable)?),
                };
                if sender.ready().await.is_err() {
                    *own = None;
                    return Err(Fault::Lost);
                }
                sender.send_request(request).await
            }
        };
        response.map_err(|_| {
            self.disconnect();
            Fault::Lost
        })
    }
}

pub(super) fn unreachable(error: anyhow::Error) -> Fault {
    Fault::Connect(format!("{error:#}"))
}

impl Caller for Rest {
    async fn check(&mut self, key: u64) -> Result<Decision, Fault> {
        let request = self.request(key);
        let response = self.send(request).await?;
        let status = response.status();
        let Ok(body) = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await else {
            self.disconnect();
            return Err(Fault::Lost);
        };
        read(status, &body.to_bytes())
    }

    fn disconnect(&mut self) {
        if let Connection::Own(own) = &mut self.connection {
            *own = None;
        }
    }
}

/// The relevant fields of a decision or an error.
#[derive(Deserialize)]
struct Body<'a> {
    allowed: Option<bool>,
    #[serde(default)]
    degraded: bool,
    #[serde(borrow)]
    error: Option<Message<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    message: std::borrow::Cow<'a, str>,
}

/// Reads a response. A 429 or 503 without a decision is an error: an invalid API key, or overload.
fn read(status: StatusCode, body: &[u8]) -> Result<Decision, Fault> {
    let body: Option<Body<'_>> = serde_json::from_slice(body).ok();
    let decided = body.as_ref().and_then(|body| Some((body.allowed?, body.degraded)));
    match (status, decided) {
        (StatusCode::OK, Some((true, degraded))) => Ok(Decision { verdict: Verdict::Allowed, degraded }),
        (StatusCode::TOO_MANY_REQUESTS, Some((false, degraded))) => {
            Ok(Decision { verdict: Verdict::Blocked, degraded })
        }
        (StatusCode::SERVICE_UNAVAILABLE, Some((false, degraded))) => {
            Ok(Decision { verdict: Verdict::FailedClosed, degraded })
        }
        (StatusCode::OK, _) => Err(Fault::Unreadable),
        (status, _) => {
            let message = body.and_then(|body| body.error).map(|error| error.message);
            let message = message.unwrap_or("no reason given".into());
            // A 429 without a decision means too many invalid keys. Only a timeout can be retried.
            if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT {
                Err(Fault::Rejected(format!("{status}: {message}")))
            } else {
                Err(Fault::Status(status.as_str().to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_and_rejections_are_distinguished() {
        let decided = |verdict, degraded| Ok(Decision { verdict, degraded });
        let rejection = r#"{"error":{"code":"RATE_LIMITED","message":"too many wrong keys"}}"#;
        for (status, body, expected) in [
            (200, r#"{"allowed":true,"degraded":false,"limit":1}"#, decided(Verdict::Allowed, false)),
            (200, r#"{"allowed":true,"degraded":true}"#, decided(Verdict::Allowed, true)),
            (429, r#"{"allowed":false,"degraded":false}"#, decided(Verdict::Blocked, false)),
            (
                503,
                r#"{"allowed":false,"degraded":true,"error":{"message":"x"}}"#,
                decided(Verdict::FailedClosed, true),
            ),
            (429, rejection, Err(Fault::Rejected("429 Too Many Requests: too many wrong keys".into()))),
            (408, rejection, Err(Fault::Status("408".into()))),
            (503, rejection, Err(Fault::Status("503".into()))),
            (500, "oops", Err(Fault::Status("500".into()))),
            (200, "<html>", Err(Fault::Unreadable)),
            (200, "{}", Err(Fault::Unreadable)),
            (401, rejection, Err(Fault::Rejected("401 Unauthorized: too many wrong keys".into()))),
            (404, "<html>", Err(Fault::Rejected("404 Not Found: no reason given".into()))),
        ] {
            let status = StatusCode::from_u16(status).unwrap_or_default();
            assert_eq!(read(status, body.as_bytes()), expected, "{status} {body}");
        }
    }
}
