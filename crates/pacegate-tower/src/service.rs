//! The service that a [`PacegateLayer`](crate::PacegateLayer) makes of another one.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use pacegate::Decision;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::gate::Gate;
use crate::question::Question;
use crate::resolve::RequestHead;
use crate::response::{Caller, Denial};
use crate::shape::{Place, delay};

/// A service behind a rate limit.
///
/// It is ready when the inner service is. A request that is refused does not reach it.
#[derive(Clone, Debug)]
pub struct Pacegate<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S> Pacegate<S> {
    pub(crate) fn new(inner: S, gate: Arc<Gate>) -> Self {
        Self { inner, gate }
    }

    /// The service behind it.
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
        match judge(&self.gate, &RequestHead { ipv6_prefix, paths, ..RequestHead::of(&request) }) {
            Verdict::Pass(decision) => ResponseFuture::passing(self.inner.call(request), decision, families),
            Verdict::Refuse(response) => ResponseFuture::refused(*response),
            Verdict::Wait(waiter) => self.wait(request, *waiter),
        }
    }
}

/// What becomes of a request.
enum Verdict<B> {
    Pass(Option<Decision>),
    Refuse(Box<Response<B>>),
    Wait(Box<Waiter>),
}

/// A request that goes on later.
struct Waiter {
    question: Question<'static>,
    caller: Caller,
    /// If the limiter has answered, and it is a queue that the request waits in.
    decision: Option<Decision>,
}

#[inline(always)]
fn judge<B: ResponseBody>(gate: &Gate, request: &RequestHead<'_>) -> Verdict<B> {
    let refuse = |response| Verdict::Refuse(Box::new(response));
    let wait = |question: Question<'_>, decision| {
        let (question, caller) = (question.into_owned(), Caller::of(request));
        Verdict::Wait(Box::new(Waiter { question, caller, decision }))
    };
    let question = match gate.question(request) {
        Ok(Some(question)) => question,
        Ok(None) => return Verdict::Pass(None),
        Err(unresolved) => return refuse(gate.refuse_unresolved(&unresolved, &Caller::of(request))),
    };
    if !gate.in_process {
        return wait(question, None);
    }
    match gate.check_now(&question, request) {
        Ok(decision) if !decision.allowed() => refuse(gate.deny(&question, &decision, &Caller::of(request))),
        Ok(decision) if gate.shaping.is_some() && !delay(&decision).is_zero() => {
            wait(question, Some(decision))
        }
        Ok(decision) => Verdict::Pass(Some(decision)),
        Err(error) => match gate.refuse_failed(&error, &Caller::of(request)) {
            Some(response) => refuse(response),
            None => Verdict::Pass(None),
        },
    }
}

impl<S> Pacegate<S> {
    /// Goes on in a future of its own: the limiter has to be asked and answers later, or has answered that the request is to wait.
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
        // The one that is ready goes with the request; its clone will be asked before the next one.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let gate = self.gate.clone();
        let Waiter { question, caller, decision } = waiter;
        let serve = |mut inner: S, request| inner.call(request);
        ResponseFuture::waiting(Box::pin(async move {
            let decision = match decision {
                Some(decision) => decision,
                None => match gate.check(&question, &caller).await {
                    Ok(decision) => decision,
                    Err(error) => match gate.refuse_failed(&error, &caller) {
                        Some(response) => return Ok(response),
                        None => return serve(inner, request).await,
                    },
                },
            };
            if !decision.allowed() {
                return Ok(gate.deny(&question, &decision, &caller));
            }
            let decision = match hold_back(&gate, question, decision, &caller).await {
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

/// Waits until it is an admitted request's turn, if the layer shapes; or says why it may not wait.
async fn hold_back<B: ResponseBody>(
    gate: &Arc<Gate>,
    question: Question<'static>,
    decision: Decision,
    caller: &Caller,
) -> Result<Option<Decision>, Box<Response<B>>> {
    let delay = if gate.shaping.is_some() { delay(&decision) } else { std::time::Duration::ZERO };
    if delay.is_zero() {
        return Ok(Some(decision));
    }
    match Place::take(gate, question, decision, delay) {
        Ok(place) => {
            tokio::time::sleep(delay).await;
            Ok(place.leave())
        }
        Err(refused) => {
            let after = gate.give_back(&refused.question, &refused.decision).await;
            let decision = after.as_ref().unwrap_or(&refused.decision);
            let denial = Denial::queue_full(decision, refused.retry_after, caller);
            Err(Box::new(gate.responder.respond(&denial, caller)))
        }
    }
}
