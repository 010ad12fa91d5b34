//! Checks over REST: one request at a time on each connection with HTTP/1.1, many with HTTP/2.

use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use serde::Deserialize;

use super::load::Caller;
use super::question::Question;
use super::record::{Answer, Fault, Verdict};
use super::shared::SharedConnection;
use crate::client::Place;

const PATH: &str = "/v1/rate-limit/check";
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A connection, or a part of one.
enum Line {
    Own(Option<http1::SendRequest<Full<Bytes>>>),
    Shared(SharedConnection<Full<Bytes>>),
}

/// Asks over REST.
pub(super) struct Rest {
    place: Arc<Place>,
    question: Arc<Question>,
    uri: Uri,
    host: HeaderValue,
    line: Line,
}

impl Rest {
    /// With a connection of its own, over HTTP/1.1.
    pub(super) async fn connect(place: Arc<Place>, question: Arc<Question>) -> anyhow::Result<Self> {
        let line = Line::Own(Some(place.http1().await?));
        Self::on(line, place, question)
    }

    /// On a connection that others use as well, over HTTP/2.
    pub(super) fn sharing(
        connection: SharedConnection<Full<Bytes>>,
        place: Arc<Place>,
        question: Arc<Question>,
    ) -> anyhow::Result<Self> {
        Self::on(Line::Shared(connection), place, question)
    }

    fn on(line: Line, place: Arc<Place>, question: Arc<Question>) -> anyhow::Result<Self> {
        let uri = if matches!(line, Line::Own(_)) { place.path(PATH)? } else { place.whole(PATH)? };
        let host = HeaderValue::from_str(place.authority().as_str())?;
        Ok(Self { place, question, uri, host, line })
    }

    fn request(&self, key: u64) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.question.body(key)));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self.line, Line::Own(_)) {
            headers.insert(HOST, self.host.clone());
        }
        if let Some(secret) = &self.question.api_key {
            headers.insert("x-api-key", secret.clone());
        }
        request
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Fault> {
        let answered = match &mut self.line {
            Line::Shared(connection) => {
                let mut sender: http2::SendRequest<_> = connection.sender().await?;
                sender.send_request(request).await
            }
            Line::Own(own) => {
                // A service closes connections that were idle for long; the next request needs a new one, and that is no error.
                if own.as_mut().is_none_or(|sender| sender.is_closed()) {
                    *own = None;
                }
                let sender = match own {
                    Some(sender) => sender,
                    None => own.insert(self.place.http1().await.map_err(unreachable)?),
                };
                if sender.ready().await.is_err() {
                    *own = None;
                    return Err(Fault::Lost);
                }
                sender.send_request(request).await
            }
        };
        answered.map_err(|_| {
            self.hang_up();
            Fault::Lost
        })
    }
}

pub(super) fn unreachable(error: anyhow::Error) -> Fault {
    Fault::Connect(format!("{error:#}"))
}

impl Caller for Rest {
    async fn ask(&mut self, key: u64) -> Result<Answer, Fault> {
        let request = self.request(key);
        let response = self.send(request).await?;
        let status = response.status();
        let Ok(body) = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await else {
            self.hang_up();
            return Err(Fault::Lost);
        };
        read(status, &body.to_bytes())
    }

    fn hang_up(&mut self) {
        if let Line::Own(own) = &mut self.line {
            *own = None;
        }
    }
}

/// What is read of a decision, or of an error.
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

/// Reads an answer. A 429 or 503 need not be a decision: services refuse strangers and overload with them as well.
fn read(status: StatusCode, body: &[u8]) -> Result<Answer, Fault> {
    let body: Option<Body<'_>> = serde_json::from_slice(body).ok();
    let decided = body.as_ref().and_then(|body| Some((body.allowed?, body.degraded)));
    match (status, decided) {
        (StatusCode::OK, Some((true, degraded))) => Ok(Answer { verdict: Verdict::Allowed, degraded }),
        (StatusCode::TOO_MANY_REQUESTS, Some((false, degraded))) => {
            Ok(Answer { verdict: Verdict::Blocked, degraded })
        }
        (StatusCode::SERVICE_UNAVAILABLE, Some((false, degraded))) => {
            Ok(Answer { verdict: Verdict::FailedClosed, degraded })
        }
        (StatusCode::OK, _) => Err(Fault::Unreadable),
        (status, _) => {
            let message = body.and_then(|body| body.error).map(|error| error.message);
            let message = message.unwrap_or("no reason given".into());
            // A 429 that is no decision means too many wrong keys. Asking again helps only where time ran out.
            if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT {
                Err(Fault::Refused(format!("{status}: {message}")))
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
    fn an_answer_is_told_from_a_refusal() {
        let answer = |verdict, degraded| Ok(Answer { verdict, degraded });
        let refusal = r#"{"error":{"code":"RATE_LIMITED","message":"too many wrong keys"}}"#;
        for (status, body, expected) in [
            (200, r#"{"allowed":true,"degraded":false,"limit":1}"#, answer(Verdict::Allowed, false)),
            (200, r#"{"allowed":true,"degraded":true}"#, answer(Verdict::Allowed, true)),
            (429, r#"{"allowed":false,"degraded":false}"#, answer(Verdict::Blocked, false)),
            (
                503,
                r#"{"allowed":false,"degraded":true,"error":{"message":"x"}}"#,
                answer(Verdict::FailedClosed, true),
            ),
            (429, refusal, Err(Fault::Refused("429 Too Many Requests: too many wrong keys".into()))),
            (408, refusal, Err(Fault::Status("408".into()))),
            (503, refusal, Err(Fault::Status("503".into()))),
            (500, "oops", Err(Fault::Status("500".into()))),
            (200, "<html>", Err(Fault::Unreadable)),
            (200, "{}", Err(Fault::Unreadable)),
            (401, refusal, Err(Fault::Refused("401 Unauthorized: too many wrong keys".into()))),
            (404, "<html>", Err(Fault::Refused("404 Not Found: no reason given".into()))),
        ] {
            let status = StatusCode::from_u16(status).unwrap_or_default();
            assert_eq!(read(status, body.as_bytes()), expected, "{status} {body}");
        }
    }
}
