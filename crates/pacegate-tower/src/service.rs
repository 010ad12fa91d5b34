//! The service that a [`PacegateLayer`](crate::PacegateLayer) wraps around another one.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use pacegate::Decision;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::check_parts::CheckParts;
use crate::future::ResponseFuture;
use crate::gate::Gate;
use crate::resolve::RequestHead;
use crate::response::{Caller, Denial};
use crate::shape::{QueuePosition, delay};

/// A service behind a rate limit.
///
/// It is ready when the inner service is. Requests that do not pass never reach the inner service.
#[derive(Clone, Debug)]
pub struct Pacegate<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S> Pacegate<S> {
    pub(crate) fn new(inner: S, gate: Arc<Gate>) -> Self {
        Self { inner, gate }
    }

    /// Returns the inner service.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Pacegate<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: 'static,
    ReqBody: Send + 'static,
    ResBody: ResponseBody + Send + 'static,
{
    type Response = Response<ResBody>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, ResBody, S::Error>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let families = self.gate.responder.families;
        let (ipv6_prefix, paths) = (self.gate.limiter.ipv6_prefix(), self.gate.limiter.paths());
        match decide(&self.gate, &RequestHead { ipv6_prefix, paths, ..RequestHead::of(&request) }) {
            Verdict::Pass(decision) => ResponseFuture::passing(self.inner.call(request), decision, families),
            Verdict::Reject(response) => ResponseFuture::rejected(*response),
            Verdict::Wait(waiter) => self.wait(request, *waiter),
        }
    }
}

/// What to do with a request.
enum Verdict<B> {
    Pass(Option<Decision>),
    Reject(Box<Response<B>>),
    Wait(Box<Waiter>),
}

/// A request that continues later.
struct Waiter {
    parts: CheckParts<'static>,
    caller: Caller,
    /// Set if the limiter has decided, and the request waits in a queue.
    decision: Option<Decision>,
}

#[inline(always)]
fn decide<B: ResponseBody>(gate: &Gate, request: &RequestHead<'_>) -> Verdict<B> {
    let reject = |response| Verdict::Reject(Box::new(response));
    let wait = |parts: CheckParts<'_>, decision| {
        let (parts, caller) = (parts.into_owned(), Caller::of(request));
        Verdict::Wait(Box::new(Waiter { parts, caller, decision }))
    };
    let parts = match gate.check_parts(request) {
        Ok(Some(parts)) => parts,
        Ok(None) => return Verdict::Pass(None),
        Err(unresolved) => return reject(gate.reject_unresolved(&unresolved, &Caller::of(request))),
    };
    if !gate.in_process {
        return wait(parts, None);
    }
    match gate.check_now(&parts, request) {
        Ok(decision) if !decision.allowed() => reject(gate.deny(&parts, &decision, &Caller::of(request))),
        Ok(decision) if gate.shaping.is_some() && !delay(&decision).is_zero() => wait(parts, Some(decision)),
        // Without headers, nothing needs the decision any more.
        Ok(decision) => Verdict::Pass(Some(decision).filter(|_| !gate.responder.families.is_empty())),
        Err(error) => match gate.reject_failed(&error, &Caller::of(request)) {
            Some(response) => reject(response),
            None => Verdict::Pass(None),
        },
    }
}

impl<S> Pacegate<S> {
    /// Continues in a boxed future: either the limiter decides asynchronously, or it has decided
    /// that the request must wait.
    fn wait<ReqBody, ResBody>(
        &mut self,
        request: Request<ReqBody>,
        waiter: Waiter,
    ) -> ResponseFuture<S::Future, ResBody, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: 'static,
        ReqBody: Send + 'static,
        ResBody: ResponseBody + Send + 'static,
    {
        // Use the service that is ready for this request; its clone is polled before the next one.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let gate = self.gate.clone();
        let Waiter { parts, caller, decision } = waiter;
        let serve = |mut inner: S, request| inner.call(request);
        ResponseFuture::waiting(Box::pin(async move {
            let decision = match decision {
                Some(decision) => decision,
                None => match gate.check(&parts, &caller).await {
                    Ok(decision) => decision,
                    Err(error) => match gate.reject_failed(&error, &caller) {
                        Some(response) => return Ok(response),
                        None => return serve(inner, request).await,
                    },
                },
            };
            if !decision.allowed() {
                return Ok(gate.deny(&parts, &decision, &caller));
            }
            let decision = match wait_in_queue(&gate, parts, decision, &caller).await {
                Ok(decision) => decision,
                Err(response) => return Ok(*response),
            };
            let mut response = serve(inner, request).await?;
            if let Some(decision) = decision {
                gate.responder.families.write_if_absent(&decision, response.headers_mut());
            }
            Ok(response)
        }))
    }
}

/// Waits until it is the turn of an allowed request, if the layer has a queue; otherwise returns
/// the denial.
async fn wait_in_queue<B: ResponseBody>(
    gate: &Arc<Gate>,
    parts: CheckParts<'static>,
    decision: Decision,
    caller: &Caller,
) -> Result<Option<Decision>, Box<Response<B>>> {
    let delay = if gate.shaping.is_some() { delay(&decision) } else { std::time::Duration::ZERO };
    if delay.is_zero() {
        return Ok(Some(decision));
    }
    match QueuePosition::take(gate, parts, decision, delay) {
        Ok(position) => {
            tokio::time::sleep(delay).await;
            Ok(position.leave())
        }
        Err(rejected) => {
            let after = gate.refund(&rejected.parts, &rejected.decision).await;
            let decision = after.as_ref().unwrap_or(&rejected.decision);
            let denial = Denial::queue_full(decision, rejected.retry_after, caller);
            Err(Box::new(gate.responder.respond(&denial, caller)))
        }
    }
}
