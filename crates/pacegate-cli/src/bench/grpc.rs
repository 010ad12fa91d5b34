//! Checks over gRPC: a call per check, or a stream per caller.

use std::error::Error;
use std::sync::Arc;

use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{CheckRequest, CheckResponse, CheckResult};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status, Streaming};

use super::load::Caller;
use super::record::{Decision, Fault, Verdict};
use super::shared::{Calls, SharedConnection};
use super::template::CheckTemplate;
use crate::client::Address;

/// A caller with one call per check.
pub(super) struct Unary {
    pub(super) connection: SharedConnection<Body>,
    pub(super) address: Arc<Address>,
    pub(super) template: Arc<CheckTemplate>,
}

/// A caller with one stream, which is reopened after it ends.
pub(super) struct Stream {
    pub(super) calls: Unary,
    pub(super) open: Option<(mpsc::Sender<CheckRequest>, Streaming<CheckResult>)>,
}

impl Unary {
    async fn client(&mut self) -> Result<RateLimiterClient<Calls<Body>>, Fault> {
        let sender = self.connection.sender().await?;
        let origin = self.address.whole("").map_err(super::rest::unreachable)?;
        Ok(RateLimiterClient::with_origin(Calls(sender), origin))
    }
}

impl Caller for Unary {
    async fn check(&mut self, key: u64) -> Result<Decision, Fault> {
        let mut client = self.client().await?;
        let request = self.template.request(self.template.message(key));
        let response = client.check_rate_limit(request).await.map_err(|status| fault(&status))?;
        Ok(decision(&response.into_inner()))
    }

    fn disconnect(&mut self) {
        // Only this call is cancelled; other callers use the connection.
    }
}

impl Stream {
    async fn next(&mut self, message: CheckRequest) -> Result<Option<CheckResult>, Fault> {
        if let Some((sender, results)) = &mut self.open {
            sender.send(message).await.map_err(|_| Fault::Lost)?;
            return results.message().await.map_err(|status| fault(&status));
        }
        let mut client = self.calls.client().await?;
        let (sender, receiver) = mpsc::channel(1);
        // The first check is queued before the call, because a service can wait for it.
        sender.send(message).await.map_err(|_| Fault::Lost)?;
        let request = self.calls.template.request(ReceiverStream::new(receiver));
        let results = client.check_stream(request).await.map_err(|status| fault(&status))?.into_inner();
        let (_, results) = self.open.insert((sender, results));
        results.message().await.map_err(|status| fault(&status))
    }
}

impl Caller for Stream {
    async fn check(&mut self, key: u64) -> Result<Decision, Fault> {
        let message = self.calls.template.message(key);
        let next = self.next(message).await;
        match next {
            Ok(Some(CheckResult { result: Some(Outcome::Response(response)) })) => Ok(decision(&response)),
            Ok(Some(CheckResult { result: Some(Outcome::Error(error)) })) => {
                Err(Fault::Rejected(format!("{}: {}", error.code, error.message)))
            }
            Ok(Some(CheckResult { result: None })) => Err(Fault::Unreadable),
            Ok(None) => {
                self.disconnect();
                Err(Fault::Lost)
            }
            Err(fault) => {
                self.disconnect();
                Err(fault)
            }
        }
    }

    fn disconnect(&mut self) {
        self.open = None;
    }
}

fn decision(response: &CheckResponse) -> Decision {
    let verdict = match (response.allowed, response.reason.as_str()) {
        (true, _) => Verdict::Allowed,
        (false, "FAIL_CLOSED") => Verdict::FailedClosed,
        (false, _) => Verdict::Blocked,
    };
    Decision { verdict, degraded: response.degraded }
}

/// Maps a status to a fault.
fn fault(status: &Status) -> Fault {
    // Only a broken connection has a source on this side.
    if status.source().is_some() {
        return Fault::Lost;
    }
    match status.code() {
        Code::Unauthenticated
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented
        | Code::NotFound => Fault::Rejected(format!("{}: {}", name(status.code()), status.message())),
        code => Fault::Status(name(code)),
    }
}

/// The name of a code in the protocol.
fn name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_maps_to_a_fault() {
        assert_eq!(
            fault(&Status::unauthenticated("wrong key")),
            Fault::Rejected("UNAUTHENTICATED: wrong key".into())
        );
        assert_eq!(fault(&Status::deadline_exceeded("x")), Fault::Status("DEADLINE_EXCEEDED".into()));
        assert_eq!(fault(&Status::unavailable("x")), Fault::Status("UNAVAILABLE".into()));
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(fault(&broken), Fault::Lost);
    }

    #[test]
    fn fail_closed_is_distinguished_from_a_denial() {
        let response = |reason: &str| CheckResponse { reason: reason.into(), ..CheckResponse::default() };
        assert_eq!(decision(&response("FAIL_CLOSED")).verdict, Verdict::FailedClosed);
        assert_eq!(decision(&response("LIMIT_EXCEEDED")).verdict, Verdict::Blocked);
    }
}
