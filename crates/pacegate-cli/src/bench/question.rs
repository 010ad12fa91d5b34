//! What is asked: the same check for one key after another.

use std::net::Ipv4Addr;

use anyhow::Context;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use pacegate::identity;
use pacegate_proto::v1::CheckRequest;
use serde_json::Value;
use tonic::metadata::AsciiMetadataValue;

/// A check whose identifier is still open.
#[derive(Debug)]
pub(super) struct Question {
    dimension: String,
    prefix: String,
    endpoint: String,
    cost: u32,
    /// Whether identifiers are addresses.
    is_address: bool,
    /// The body of a request, before and after the number of its key.
    body: (String, String),
    pub(super) api_key: Option<HeaderValue>,
}

impl Question {
    pub(super) fn new(
        dimension: &str,
        prefix: &str,
        endpoint: &str,
        cost: u32,
        api_key: Option<&str>,
    ) -> anyhow::Result<Self> {
        let text = |text: &str| Value::from(text).to_string();
        let is_address = identity::dimension(dimension) == Ok(identity::IP);
        let prefix = if is_address { "" } else { prefix };
        let quoted = text(prefix);
        let before = format!(
            r#"{{"dimension":{},"identifier":{}"#,
            text(dimension),
            quoted.strip_suffix('"').unwrap_or(&quoted)
        );
        let after = format!(r#"","endpoint":{},"cost":{cost}}}"#, text(endpoint));
        let mut api_key = api_key
            .map(HeaderValue::from_str)
            .transpose()
            .ok()
            .context("--api-key: has characters that no header can have")?;
        if let Some(secret) = &mut api_key {
            secret.set_sensitive(true);
        }
        Ok(Self {
            dimension: dimension.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: endpoint.to_owned(),
            cost,
            is_address,
            body: (before, after),
            api_key,
        })
    }

    /// What tells a key from the others.
    fn number(&self, key: u64) -> String {
        if self.is_address { Ipv4Addr::from_bits(key as u32).to_string() } else { key.to_string() }
    }

    /// As the body of a REST request.
    pub(super) fn body(&self, key: u64) -> Bytes {
        let (before, after) = &self.body;
        format!("{before}{}{after}", self.number(key)).into()
    }

    /// As a gRPC message.
    pub(super) fn message(&self, key: u64) -> CheckRequest {
        CheckRequest {
            identifier: format!("{}{}", self.prefix, self.number(key)),
            custom_dimension: self.dimension.clone(),
            endpoint: self.endpoint.clone(),
            cost: self.cost,
            ..CheckRequest::default()
        }
    }

    /// A gRPC request with the API key.
    pub(super) fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        let secret = self.api_key.as_ref().and_then(|key| AsciiMetadataValue::try_from(key.as_bytes()).ok());
        if let Some(secret) = secret {
            request.metadata_mut().insert("x-api-key", secret);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn both_forms_say_the_same_whatever_the_characters() {
        let question = Question::new("us\"er", "a\\\"b-", "/x?\"", 3, None).unwrap();
        let body: Value = serde_json::from_slice(&question.body(7)).unwrap();
        let message = question.message(7);
        assert_eq!(body["identifier"], "a\\\"b-7");
        assert_eq!(body["identifier"], message.identifier);
        assert_eq!(body["dimension"], message.custom_dimension);
        assert_eq!(body["endpoint"], message.endpoint);
        assert_eq!(body["cost"], message.cost);
    }
}
