//! The pipeline of every check, for all protocols: build the [`Check`], look up the profile, decide
//! and observe.
//!
//! Before it, an adapter admits the caller and parses its message; after it, the adapter renders
//! the decision.

pub(crate) mod batch;
pub(crate) mod batches;

use std::pin::pin;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::HeaderName;
use pacegate::{Check, CheckError, Decision, Profile, Timestamp};
use pacegate_catalog::Actor;
use pacegate_config::AdHocCallers;

use crate::app::Shared;
use crate::peer::Peer;
use crate::respond::ApiError;

/// The headers that carry an idempotency key: the IETF's header and its predecessor.
pub(crate) const IDEMPOTENCY_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("idempotency-key"), HeaderName::from_static("x-idempotency-key")];
/// Their names in errors.
const IDEMPOTENCY_HEADER_NAMES: [&str; 2] = ["Idempotency-Key", "X-Idempotency-Key"];

/// The message of a client, in the form of its protocol.
pub(crate) trait CheckMessage {
    /// Returns the message as a check, with identities in canonical form.
    fn check(&self, shared: &Shared) -> Result<Check<'_>, ApiError>;

    /// Returns the idempotency key in the message itself.
    fn idempotency_key(&self) -> Option<&str>;

    /// Returns the client's clock, if it was sent.
    fn timestamp(&self) -> Option<i64>;

    /// Converts an error, naming the field of the message that caused it.
    fn explain(&self, error: CheckError) -> ApiError;
}

/// A message that could not be parsed returns its error.
impl<Q: CheckMessage> CheckMessage for Result<Q, ApiError> {
    fn check(&self, shared: &Shared) -> Result<Check<'_>, ApiError> {
        self.as_ref().map_err(Clone::clone)?.check(shared)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.as_ref().ok().and_then(CheckMessage::idempotency_key)
    }

    fn timestamp(&self) -> Option<i64> {
        self.as_ref().ok().and_then(CheckMessage::timestamp)
    }

    fn explain(&self, error: CheckError) -> ApiError {
        match self {
            Ok(message) => message.explain(error),
            Err(_) => error.into(),
        }
    }
}

/// The caller of a request: its headers and its peer.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: Option<&'a Peer>,
}

impl Shared {
    /// Decides a check and charges it.
    pub(crate) async fn decide(
        &self,
        message: &impl CheckMessage,
        caller: Caller<'_>,
    ) -> Result<Decision, ApiError> {
        let key = idempotency_key(message.idempotency_key(), caller.headers)?;
        let check = message.check(self)?;
        self.permit(&check, caller).await?;
        let sender = key.map(|_| self.gate.sender(caller.headers, caller.peer));
        let profile = self.profile(check.user()).await;
        let mut check = check.profile(profile.as_deref());
        if let Some(key) = key {
            let identity = check.identity();
            check = check.idempotency(identity, key).sender(sender.as_deref());
        }
        let deciding = pin!(self.limiter.check(&check));
        let (decided, deciding) = self.observer.time(caller.headers, deciding).await;
        self.observer.skew.observe(message.timestamp());
        match decided {
            Ok(decision) => {
                deciding.record(&decision);
                let check = std::slice::from_ref(&check);
                self.observer.note(check, deciding.request_id, &decision, deciding.took);
                Ok(decision)
            }
            Err(error) => {
                self.observer.note_error(&error, deciding.took);
                Err(message.explain(error))
            }
        }
    }

    /// Decides like [`decide`](Self::decide), but charges nothing.
    pub(crate) async fn peek(
        &self,
        message: &impl CheckMessage,
        caller: Caller<'_>,
    ) -> Result<Decision, ApiError> {
        let check = message.check(self)?;
        self.permit(&check, caller).await?;
        let profile = self.profile(check.user()).await;
        let decision = self.limiter.peek(&check.profile(profile.as_deref())).await;
        decision.map_err(|error| message.explain(error))
    }

    /// Resets the counters of a check, and returns the time of the reset.
    pub(crate) async fn reset(
        &self,
        message: &impl CheckMessage,
        actor: &Actor,
    ) -> Result<Timestamp, ApiError> {
        let check = message.check(self)?;
        self.limiter.validate(&check).map_err(|error| message.explain(error))?;
        self.record_reset(actor, &check).await?;
        self.limiter.reset(&check).await.map_err(|error| message.explain(error))
    }

    /// Records who resets the counters of a check, before the reset: none may happen without a
    /// record.
    pub(crate) async fn record_reset(&self, actor: &Actor, check: &Check<'_>) -> Result<(), ApiError> {
        let Some(live) = &self.live else {
            tracing::info!(key_id = actor.key_id, "counters reset");
            return Ok(());
        };
        let identities = check.identities().iter().map(|(dimension, identifier)| (*dimension, &**identifier));
        let identities: Vec<(&str, &str)> = identities.collect();
        Ok(live.catalog.record_reset(actor, &identities, check.endpoint).await?)
    }

    /// Rejects a check with an ad-hoc limit from a caller that may not send one.
    #[inline]
    async fn permit(&self, check: &Check<'_>, caller: Caller<'_>) -> Result<(), ApiError> {
        if check.own_limit().is_none() || self.ad_hoc.allow == AdHocCallers::Always {
            return Ok(());
        }
        // Boxed, because it is rare and would make the future of every check larger.
        Box::pin(self.gate.permit_ad_hoc(self.ad_hoc.allow, caller.headers, caller.peer)).await
    }

    /// Returns the profile of a user, if there is one.
    pub(crate) async fn profile(&self, user_id: Option<&str>) -> Option<Arc<Profile>> {
        let (profiles, user_id) = (&self.live.as_ref()?.profiles, user_id?);
        match profiles.known(user_id) {
            Some(known) => known,
            // Boxed, because it is rare and would make the future of every check larger.
            None => Box::pin(profiles.get(user_id)).await,
        }
    }
}

/// Returns the idempotency key of a request, from its body or its headers, which must agree.
pub(crate) fn idempotency_key<'a>(
    body: Option<&'a str>,
    headers: &'a HeaderMap,
) -> Result<Option<&'a str>, ApiError> {
    let mut key = body;
    for (header, name) in IDEMPOTENCY_HEADERS.iter().zip(IDEMPOTENCY_HEADER_NAMES) {
        let Some(header) = headers.get(header) else { continue };
        let header = header.to_str().map_err(|_| ApiError::input(name, "must be visible ASCII"))?;
        if key.is_some_and(|key| key != header) {
            let (field, other) =
                if body.is_some() { ("idempotency_key", name) } else { (name, IDEMPOTENCY_HEADER_NAMES[0]) };
            return Err(ApiError::input(field, format!("must equal the header {other}")));
        }
        key = Some(header);
    }
    Ok(key)
}
