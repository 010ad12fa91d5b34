//! The state that all clones of a layer share: how requests are checked, and what happens with the
//! decision.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderValue, Response};
use pacegate::observe::{Observed, Observer};
use pacegate::{Check, CheckError, Cost, Decision, Limit, Limiter};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::body::ResponseBody;
use crate::check_parts::CheckParts;
use crate::error::Unresolved;
use crate::log_throttle::LogThrottle;
use crate::resolve::{Identity, RequestHead, Resolve};
use crate::response::{Caller, Denial, Responder, is_client_error, request_id};
use crate::shape::Shaping;

/// What happens to a request without a key: no address, no header, no user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MissingKey {
    /// It is rejected, and the response names what is missing: 401 if it identifies the client (an
    /// API key, a user), 500 if the server should have provided it (the peer address), 400
    /// otherwise.
    #[default]
    Deny,
    /// This key is ignored. A request without any key passes unchecked.
    Pass,
    /// It is counted under this identifier, together with all other requests without a key. Choose
    /// one that no client can have.
    Use(&'static str),
}

/// What happens to a request that could not be checked, for example because its plan is unknown or
/// the store is full.
///
/// An unavailable store is not such an error, because the failure mode of the limiter decides. An
/// invalid request is always rejected (400).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// It is rejected: 500, or 503 if a retry may help.
    #[default]
    Deny,
    /// It passes without headers. The error is logged.
    Pass,
}

pub(crate) type CostOf = Box<dyn Fn(&RequestHead<'_>) -> Cost + Send + Sync>;
pub(crate) type Unless = Box<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;
pub(crate) type ChoosePlan = Box<dyn for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync>;

pub(crate) struct Gate {
    pub(crate) limiter: Limiter,
    /// Whether the limiter decides synchronously.
    pub(crate) in_process: bool,
    pub(crate) resolvers: Vec<Box<dyn Resolve>>,
    pub(crate) on_missing_key: MissingKey,
    pub(crate) plans: Vec<Box<str>>,
    pub(crate) choose_plan: Option<ChoosePlan>,
    pub(crate) limit: Option<Limit>,
    /// Whether the rules of the limiter apply.
    pub(crate) rules: bool,
    pub(crate) cost: Option<CostOf>,
    pub(crate) unless: Option<Unless>,
    pub(crate) on_error: OnError,
    pub(crate) shaping: Option<Shaping>,
    pub(crate) responder: Responder,
    pub(crate) log_throttle: LogThrottle,
    pub(crate) observer: Option<Box<dyn Observer>>,
}

impl Gate {
    /// Returns the check for a request; `None` if the request passes unchecked.
    #[inline]
    pub(crate) fn check_parts<'a>(
        &'a self,
        request: &RequestHead<'a>,
    ) -> Result<Option<CheckParts<'a>>, Unresolved> {
        if self.unless.as_ref().is_some_and(|unless| unless(request)) {
            return Ok(None);
        }
        let mut identities: SmallVec<[Identity<'a>; 1]> = SmallVec::new();
        for resolver in &self.resolvers {
            let identity = match resolver.resolve(request) {
                Ok(identity) => identity,
                Err(unresolved) => match self.on_missing_key {
                    MissingKey::Pass if unresolved.is_missing() => continue,
                    MissingKey::Use(identifier) if unresolved.is_missing() => {
                        Identity::new(resolver.dimension(), identifier)
                    }
                    _ => return Err(unresolved),
                },
            };
            // A fallback resolver may find the same identity as another one. It is counted once.
            if !identities.iter().any(|other| is_same(other, &identity)) {
                identities.push(identity);
            }
        }
        if identities.is_empty() {
            return Ok(None);
        }
        Ok(Some(CheckParts {
            identities,
            target: self
                .rules
                .then(|| (Cow::Borrowed(request.path()), Cow::Borrowed(request.method.as_str()))),
            plan: self.choose_plan.as_ref().and_then(|choose| choose(request)).map(Cow::Borrowed),
            cost: self.cost.as_ref().map_or(Cost::ONE, |cost| cost(request)),
        }))
    }

    /// Decides synchronously; only possible with a limiter in this process.
    #[inline]
    pub(crate) fn check_now(
        &self,
        parts: &CheckParts<'_>,
        request: &RequestHead<'_>,
    ) -> Result<Decision, CheckError> {
        // The most common layer: one identity and one plan.
        if let (CheckParts { identities, target: None, plan: None, cost }, [plan]) = (parts, &*self.plans)
            && let ([identity], None, None) = (&**identities, &self.limit, &self.observer)
            && let Some(decision) =
                self.limiter.check_known_now(identity.dimension(), identity.identifier(), plan, *cost)
        {
            return Ok(decision);
        }
        let check = parts.check(self).ok_or(CheckError::NoIdentity)?;
        match &self.observer {
            None => self.limiter.check_now(&check),
            Some(observer) => {
                let started = Instant::now();
                let decided = self.limiter.check_now(&check);
                observed(&**observer, &check, &decided, started, request_id(request.headers));
                decided
            }
        }
    }

    pub(crate) async fn check(
        &self,
        parts: &CheckParts<'_>,
        caller: &Caller,
    ) -> Result<Decision, CheckError> {
        let check = parts.check(self).ok_or(CheckError::NoIdentity)?;
        let started = Instant::now();
        let decided = self.limiter.check(&check).await;
        if let Some(observer) = &self.observer {
            observed(&**observer, &check, &decided, started, caller.request_id.as_ref());
        }
        decided
    }

    /// Refunds the charge of an allowed request.
    pub(crate) async fn refund(
        &self,
        parts: &CheckParts<'_>,
        decision: &Decision,
    ) -> Result<Decision, CheckError> {
        self.limiter.refund(&parts.check(self).ok_or(CheckError::NoIdentity)?, decision).await
    }

    /// The response to a request that the limiter denied.
    #[cold]
    pub(crate) fn deny<B: ResponseBody>(
        &self,
        parts: &CheckParts<'_>,
        decision: &Decision,
        caller: &Caller,
    ) -> Response<B> {
        // The `Debug` form of an identity is a hash.
        tracing::debug!(
            identities = ?parts.identities,
            rule = decision.binding_limit().map(|limit| &*limit.name),
            "request denied"
        );
        self.responder.respond(&Denial::decided(decision, caller), caller)
    }

    /// The response to a request without a key.
    #[cold]
    pub(crate) fn reject_unresolved<B: ResponseBody>(
        &self,
        unresolved: &Unresolved,
        caller: &Caller,
    ) -> Response<B> {
        if let Unresolved::NotProvided { .. } = unresolved
            && let Some(suppressed) = self.log_throttle.allow()
        {
            tracing::error!(error = %unresolved, suppressed, "request rejected: the identity is unknown");
        }
        self.responder.respond(&Denial::unresolved(unresolved, caller), caller)
    }

    /// The response to a request that could not be checked; `None` if it passes.
    #[cold]
    pub(crate) fn reject_failed<B: ResponseBody>(
        &self,
        error: &CheckError,
        caller: &Caller,
    ) -> Option<Response<B>> {
        let denial = Denial::failed(error, caller);
        if is_client_error(error) {
            return Some(self.responder.respond(&denial, caller));
        }
        let passes = self.on_error == OnError::Pass;
        if let Some(suppressed) = self.log_throttle.allow() {
            tracing::error!(%error, passes, suppressed, "request could not be checked");
        }
        (!passes).then(|| self.responder.respond(&denial, caller))
    }
}

fn observed(
    observer: &dyn Observer,
    check: &Check<'_>,
    decided: &Result<Decision, CheckError>,
    started: Instant,
    request_id: Option<&HeaderValue>,
) {
    let request_id = request_id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    observer.observe(&Observed::new(check, decided, started.elapsed()).of_request(request_id));
}

fn is_same(one: &Identity<'_>, other: &Identity<'_>) -> bool {
    one.dimension() == other.dimension() && one.identifier() == other.identifier()
}

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dimensions: Vec<&str> = self.resolvers.iter().map(|resolver| resolver.dimension()).collect();
        formatter
            .debug_struct("Gate")
            .field("dimensions", &dimensions)
            .field("plans", &self.plans)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
