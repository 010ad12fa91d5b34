//! The response future of [`Pacegate`](crate::Pacegate).

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use pacegate::Decision;
use pin_project_lite::pin_project;

use pacegate_http::headers::Families;

pub(crate) type Waiting<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

pin_project! {
    /// Resolves to the response of the service with rate limit headers, or to a denial.
    pub struct ResponseFuture<F, B, E> {
        #[pin]
        state: State<F, B, E>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, B, E> {
        Passing { #[pin] future: F, decision: Option<Decision>, families: Families },
        Rejected { response: Option<Response<B>> },
        Waiting { future: Waiting<B, E> },
    }
}

impl<F, B, E> ResponseFuture<F, B, E> {
    /// The response of the service, with headers for `decision`.
    #[inline]
    pub(crate) fn passing(future: F, decision: Option<Decision>, families: Families) -> Self {
        Self { state: State::Passing { future, decision, families } }
    }

    pub(crate) fn rejected(response: Response<B>) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }

    pub(crate) fn waiting(future: Waiting<B, E>) -> Self {
        Self { state: State::Waiting { future } }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<B>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Passing { future, decision, families } => {
                let mut result = ready!(future.poll(context));
                if let (Ok(response), Some(decision)) = (&mut result, decision) {
                    families.write_if_absent(decision, response.headers_mut());
                }
                Poll::Ready(result)
            }
            StateProjection::Rejected { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                // Polled again after completion, the future stays pending.
                None => Poll::Pending,
            },
            StateProjection::Waiting { future } => future.as_mut().poll(context),
        }
    }
}

impl<F, B, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Passing { .. } => "passing",
            State::Rejected { .. } => "rejected",
            State::Waiting { .. } => "waiting",
        };
        formatter.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
