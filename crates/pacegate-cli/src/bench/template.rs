//! The check that is sent, with a different key each time.

use std::net::Ipv4Addr;

use anyhow::Context;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use pacegate::identity;
use pacegate_proto::v1::CheckRequest;
use serde_json::Value;
use tonic::metadata::AsciiMetadataValue;

/// A check without its identifier.
#[derive(Debug)]
pub(super) struct CheckTemplate {
    dimension: String,
    prefix: String,
    endpoint: String,
    /// Empty if the check has none.
    method: String,
    cost: u32,
    /// Whether identifiers are IP addresses.
    is_address: bool,
    /// The parts of the REST body before and after the number of the key.
    body: (String, String),
    pub(super) api_key: Option<HeaderValue>,
}

impl CheckTemplate {
    pub(super) fn new(
        dimension: &str,
        prefix: &str,
        endpoint: &str,
        method: Option<&str>,
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
        let named = method.map(|method| format!(r#","method":{}"#, text(method))).unwrap_or_default();
        let after = format!(r#"","endpoint":{}{named},"cost":{cost}}}"#, text(endpoint));
        let mut api_key = api_key
            .map(HeaderValue::from_str)
            .transpose()
            .ok()
            .context("--api-key: contains characters that are not allowed in a header")?;
        if let Some(secret) = &mut api_key {
            secret.set_sensitive(true);
        }
        Ok(Self {
            dimension: dimension.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: endpoint.to_owned(),
            method: method.unwrap_or_default().to_owned(),
            cost,
            is_address,
            body: (before, after),
            api_key,
        })
    }

    /// The part of the identifier that differs between keys.
    fn number(&self, key: u64) -> String {
        if self.is_address { Ipv4Addr::from_bits(key as u32).to_string() } else { key.to_string() }
    }

    /// The body of a REST request.
    pub(super) fn body(&self, key: u64) -> Bytes {
        let (before, after) = &self.body;
        format!("{before}{}{after}", self.number(key)).into()
    }

    /// The message of a gRPC request.
    pub(super) fn message(&self, key: u64) -> CheckRequest {
        CheckRequest {
            identifier: format!("{}{}", self.prefix, self.number(key)),
            custom_dimension: self.dimension.clone(),
            endpoint: self.endpoint.clone(),
            method: self.method.clone(),
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
    fn rest_and_grpc_send_the_same_check() {
        let template = CheckTemplate::new("us\"er", "a\\\"b-", "/x?\"", Some("PO\"ST"), 3, None).unwrap();
        let body: Value = serde_json::from_slice(&template.body(7)).unwrap();
        let message = template.message(7);
        assert_eq!(body["identifier"], "a\\\"b-7");
        assert_eq!(body["identifier"], message.identifier);
        assert_eq!(body["dimension"], message.custom_dimension);
        assert_eq!(body["endpoint"], message.endpoint);
        assert_eq!(body["method"], message.method);
        assert_eq!(body["cost"], message.cost);
        let without = CheckTemplate::new("user", "b-", "/", None, 1, None).unwrap();
        let body: Value = serde_json::from_slice(&without.body(7)).unwrap();
        assert_eq!((body.get("method"), without.message(7).method.as_str()), (None, ""));
    }
}
