//! Checks over gRPC: a call for each, or a stream of them for each caller.

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
use super::question::Question;
use super::record::{Answer, Fault, Verdict};
use super::shared::{Calls, SharedConnection};
use crate::client::Place;

/// Asks with one call for each check.
pub(super) struct Unary {
    pub(super) connection: SharedConnection<Body>,
    pub(super) place: Arc<Place>,
    pub(super) question: Arc<Question>,
}

/// Asks on one stream, for as long as that holds.
pub(super) struct Stream {
    pub(super) calls: Unary,
    pub(super) open: Option<(mpsc::Sender<CheckRequest>, Streaming<CheckResult>)>,
}

impl Unary {
    async fn client(&mut self) -> Result<RateLimiterClient<Calls<Body>>, Fault> {
        let sender = self.connection.sender().await?;
        let origin = self.place.whole("").map_err(super::rest::unreachable)?;
        Ok(RateLimiterClient::with_origin(Calls(sender), origin))
    }
}

impl Caller for Unary {
    async fn ask(&mut self, key: u64) -> Result<Answer, Fault> {
        let mut client = self.client().await?;
        let request = self.question.request(self.question.message(key));
        let response = client.check_rate_limit(request).await.map_err(|status| fault(&status))?;
        Ok(answer(&response.into_inner()))
    }

    fn hang_up(&mut self) {
        // The others go on; only this call is given up.
    }
}

impl Stream {
    async fn next(&mut self, message: CheckRequest) -> Result<Option<CheckResult>, Fault> {
        if let Some((sender, answers)) = &mut self.open {
            sender.send(message).await.map_err(|_| Fault::Lost)?;
            return answers.message().await.map_err(|status| fault(&status));
        }
        let mut client = self.calls.client().await?;
        let (sender, receiver) = mpsc::channel(1);
        // The first check is there before the call is made: a service may wait for it.
        sender.send(message).await.map_err(|_| Fault::Lost)?;
        let request = self.calls.question.request(ReceiverStream::new(receiver));
        let answers = client.check_stream(request).await.map_err(|status| fault(&status))?.into_inner();
        let (_, answers) = self.open.insert((sender, answers));
        answers.message().await.map_err(|status| fault(&status))
    }
}

impl Caller for Stream {
    async fn ask(&mut self, key: u64) -> Result<Answer, Fault> {
        let message = self.calls.question.message(key);
        let next = self.next(message).await;
        match next {
            Ok(Some(CheckResult { result: Some(Outcome::Response(response)) })) => Ok(answer(&response)),
            Ok(Some(CheckResult { result: Some(Outcome::Error(error)) })) => {
                Err(Fault::Refused(format!("{}: {}", error.code, error.message)))
            }
            Ok(Some(CheckResult { result: None })) => Err(Fault::Unreadable),
            Ok(None) => {
                self.hang_up();
                Err(Fault::Lost)
            }
            Err(fault) => {
                self.hang_up();
                Err(fault)
            }
        }
    }

    fn hang_up(&mut self) {
        self.open = None;
    }
}

fn answer(response: &CheckResponse) -> Answer {
    let verdict = match (response.allowed, response.reason.as_str()) {
        (true, _) => Verdict::Allowed,
        (false, "FAIL_CLOSED") => Verdict::FailedClosed,
        (false, _) => Verdict::Blocked,
    };
    Answer { verdict, degraded: response.degraded }
}

/// What a status means for the next requests.
fn fault(status: &Status) -> Fault {
    // What the service said has no cause on this side; a broken connection has.
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
        | Code::NotFound => Fault::Refused(format!("{}: {}", name(status.code()), status.message())),
        code => Fault::Status(name(code)),
    }
}

/// A code as the protocol writes it.
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
    fn a_status_is_a_refusal_an_error_or_a_broken_connection() {
        assert_eq!(
            fault(&Status::unauthenticated("wrong key")),
            Fault::Refused("UNAUTHENTICATED: wrong key".into())
        );
        assert_eq!(fault(&Status::deadline_exceeded("x")), Fault::Status("DEADLINE_EXCEEDED".into()));
        assert_eq!(fault(&Status::unavailable("x")), Fault::Status("UNAVAILABLE".into()));
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(fault(&broken), Fault::Lost);
    }

    #[test]
    fn a_denial_by_a_failing_store_is_not_a_limit_reached() {
        let response = |reason: &str| CheckResponse { reason: reason.into(), ..CheckResponse::default() };
        assert_eq!(answer(&response("FAIL_CLOSED")).verdict, Verdict::FailedClosed);
        assert_eq!(answer(&response("LIMIT_EXCEEDED")).verdict, Verdict::Blocked);
    }
}
