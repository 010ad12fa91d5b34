//! Runs an example as a process, and sends requests to it.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its own part, and fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// An example, without the PACEGATE variables of the environment of the tests.
pub(crate) fn command(binary: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PACEGATE_")) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// An example that serves requests, stopped when the test ends.
pub(crate) struct Example {
    process: Child,
    pub(crate) url: String,
}

impl Example {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim_end().strip_prefix("listening on ").unwrap_or_default().to_owned();
        let example = Self { process, url };
        assert!(example.url.starts_with("http://127.0.0.1:"), "{line}");
        example
    }

    /// Sends a request without a body.
    pub(crate) async fn send(&self, method: &str, path: &str, key: &str) -> Answer {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        let request = request.header("x-api-key", key).body(Body::empty()).unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8(body.into()).unwrap(),
        }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A response with its body read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    /// A header, or the empty string.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The number in a header.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.header(name).parse().unwrap()
    }
}
