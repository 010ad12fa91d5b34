//! Reads the server-sent events of a service and reconnects after restarts.

use std::time::Duration;

use anyhow::{Context, anyhow};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::ACCEPT;
use hyper::{Request, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::figures::Figures;
use crate::client::Service;

const PATH: &str = "/api/v1/live";
/// Time without an event after which the connection is lost. Figures arrive every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Minimum and maximum time between two attempts to reconnect. It doubles with each attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Maximum size of an event.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An update from the service.
#[derive(Debug)]
pub(super) enum Update {
    Figures(Box<Figures>),
    /// The connection was lost; reconnecting.
    Lost(String),
    /// The service rejects the request.
    Rejected(anyhow::Error),
}

/// The service that events come from.
pub(super) struct Source(pub(super) Service);

/// Why the stream of events ended.
enum Stop {
    Rejected(anyhow::Error),
    Lost(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Lost(error.into())
    }
}

impl Source {
    /// Sends updates until the receiver is dropped or the service rejects the request.
    pub(super) async fn follow(self, updates: mpsc::Sender<Update>) {
        let mut pause = PAUSES.0;
        loop {
            let mut received = false;
            let update = match self.listen(&updates, &mut received).await {
                Ok(()) => return,
                Err(Stop::Rejected(error)) => {
                    let _ = updates.send(Update::Rejected(error)).await;
                    return;
                }
                Err(Stop::Lost(error)) => Update::Lost(format!("{error:#}")),
            };
            if updates.send(update).await.is_err() {
                return;
            }
            if received {
                pause = PAUSES.0;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn listen(&self, updates: &mpsc::Sender<Update>, received: &mut bool) -> Result<(), Stop> {
        let mut body = timeout(SILENCE_MAX, self.open())
            .await
            .map_err(|_| anyhow!("{} did not respond within {SILENCE_MAX:?}", self.0.url()))??;
        let mut events = Events::default();
        loop {
            let frame = timeout(SILENCE_MAX, body.frame())
                .await
                .map_err(|_| anyhow!("{} sent nothing for {SILENCE_MAX:?}", self.0.url()))?;
            let frame = frame.ok_or_else(|| anyhow!("{} closed the stream", self.0.url()))?;
            let Ok(data) = frame.context("the connection was lost")?.into_data() else { continue };
            for event in events.read(&data)? {
                match event.name.as_str() {
                    "figures" => {
                        let figures =
                            serde_json::from_str(&event.data).context("the figures cannot be read")?;
                        *received = true;
                        if updates.send(Update::Figures(figures)).await.is_err() {
                            return Ok(());
                        }
                    }
                    "error" => return Err(anyhow!("{}", event.data).into()),
                    _ => {}
                }
            }
        }
    }

    async fn open(&self) -> Result<Incoming, Stop> {
        let url = self.0.url();
        let request = Request::get(PATH).header(ACCEPT, "text/event-stream").body(Full::<Bytes>::default())?;
        let response = self.0.send(request).await?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response.into_body());
        }
        let body = self.0.read(response.into_body()).await?;
        let message = serde_json::from_slice(&body)
            .map(|body: Value| body["error"]["message"].as_str().unwrap_or("no reason given").to_owned());
        let message = message.unwrap_or_else(|_| "is it a Pacegate service?".to_owned());
        let hint = match status {
            StatusCode::UNAUTHORIZED => " (set --api-key or PACEGATE_API_KEY to a key with the role reader)",
            StatusCode::FORBIDDEN => " (needs a key with the role reader or admin)",
            StatusCode::NOT_FOUND => " (earlier versions have no live figures)",
            _ => "",
        };
        let error = anyhow!("{url} returned {status}: {message}{hint}");
        let is_temporary = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        Err(if status.is_client_error() && !is_temporary { Stop::Rejected(error) } else { Stop::Lost(error) })
    }
}

/// An event.
#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    name: String,
    data: String,
}

/// Parses events incrementally.
#[derive(Debug, Default)]
struct Events {
    /// An incomplete line.
    line: Vec<u8>,
    event: Event,
}

impl Events {
    fn read(&mut self, piece: &[u8]) -> anyhow::Result<Vec<Event>> {
        let mut whole = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + self.event.data.len() + part.len() > EVENT_BYTES_MAX {
                return Err(anyhow!("an event is longer than {EVENT_BYTES_MAX} bytes"));
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(&line);
                whole.extend(self.take(line.trim_end_matches(['\r', '\n'])));
            }
        }
        Ok(whole)
    }

    /// Reads a line. An empty line ends an event; a line that starts with a colon is a comment.
    fn take(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            return Some(std::mem::take(&mut self.event)).filter(|event| !event.data.is_empty());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const TEXT: &str = ": hello\n\nevent: figures\ndata: {\"ready\":true,\ndata:\"connections\":3}\n\nid: 7\r\nevent: error\r\ndata: the key was revoked\r\n\r\nevent: nothing\n\n";

    #[test]
    fn events_are_parsed_from_pieces_of_any_size() {
        let event = |name: &str, data: &str| Event { name: name.into(), data: data.into() };
        let expected =
            [event("figures", "{\"ready\":true,\n\"connections\":3}"), event("error", "the key was revoked")];
        for size in 1..TEXT.len() {
            let mut events = Events::default();
            let pieces = TEXT.as_bytes().chunks(size);
            let found: Vec<Event> = pieces.flat_map(|piece| events.read(piece).unwrap()).collect();
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn endless_event_is_rejected() {
        for line in ["data: x\n", "x"] {
            let mut events = Events::default();
            let piece = line.repeat(1024 * 1024 / line.len());
            let rejected = (0..16).any(|_| events.read(piece.as_bytes()).is_err());
            assert!(rejected, "{line}");
        }
    }
}
