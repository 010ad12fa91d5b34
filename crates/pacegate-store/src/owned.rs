//! Charges that own their data, for work that may outlive its caller.

use pacegate_core::{Cost, Counter, Fit, Identity, Key, Limit, Timestamp};

use crate::failure::FailureMode;
use crate::store::{Charge, Idempotency};

/// A [`Charge`] that owns its key and limit.
#[derive(Clone, Debug)]
pub struct OwnedCharge {
    counter: Counter,
    identifier: Box<str>,
    endpoint: Box<str>,
    limit: Limit,
    cost: Cost,
    fit: Fit,
    taken_at: Option<Timestamp>,
    shadow: bool,
    on_store_error: FailureMode,
}

impl OwnedCharge {
    /// Borrows it as a [`Charge`].
    pub fn as_charge(&self) -> Charge<'_> {
        Charge {
            key: Key::new(&self.counter, &self.identifier, &self.endpoint),
            limit: &self.limit,
            cost: self.cost,
            fit: self.fit,
            taken_at: self.taken_at,
            shadow: self.shadow,
            on_store_error: self.on_store_error,
        }
    }
}

impl From<&Charge<'_>> for OwnedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        Self {
            counter: charge.key.counter().clone(),
            identifier: charge.key.identifier().into(),
            endpoint: charge.key.endpoint().unwrap_or_default().into(),
            limit: *charge.limit,
            cost: charge.cost,
            fit: charge.fit,
            taken_at: charge.taken_at,
            shadow: charge.shadow,
            on_store_error: charge.on_store_error,
        }
    }
}

/// An [`Idempotency`] that owns its strings.
#[derive(Debug)]
pub(crate) struct OwnedIdempotency {
    caller: Box<str>,
    key: Box<str>,
    fingerprint: [u8; 16],
    home: Option<(Box<str>, Box<str>)>,
    sender: Option<Box<str>>,
}

impl OwnedIdempotency {
    pub(crate) fn as_idempotency(&self) -> Idempotency<'_> {
        let home = self.home.as_ref().map(|(dimension, identifier)| Identity { dimension, identifier });
        let (fingerprint, sender) = (self.fingerprint, self.sender.as_deref());
        Idempotency { caller: &self.caller, key: &self.key, fingerprint, home, sender }
    }
}

impl From<Idempotency<'_>> for OwnedIdempotency {
    fn from(idempotency: Idempotency<'_>) -> Self {
        Self {
            caller: idempotency.caller.into(),
            key: idempotency.key.into(),
            fingerprint: idempotency.fingerprint,
            home: idempotency.home.map(|home| (home.dimension.into(), home.identifier.into())),
            sender: idempotency.sender.map(Into::into),
        }
    }
}
