//! A command that owns its data, so that it can wait in a queue for its batch.

use std::collections::BTreeMap;

use pacegate_core::{AsDemand, Cost, Demand, Fit, Key, Limit, Timestamp, Variants, hexadecimal};
use pacegate_store::{Action, Charge, Command, Idempotency};
use smallvec::SmallVec;

use sha2::{Digest, Sha256};

/// The prefixes of the keys of counters and of idempotency records.
const COUNTER: &str = "c:";
const RECORD: &str = "i:";

/// The action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Take,
    Peek,
    Reset,
    Refund,
}

/// One limit that a request is checked against.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    pub(crate) key: String,
    pub(crate) rule: Box<str>,
    limit: Limit,
    cost: Cost,
    fit: Fit,
    taken_at: Option<Timestamp>,
    shadow: bool,
}

impl AsDemand for OwnedCharge {
    fn demand(&self) -> Demand<'_> {
        let Self { limit, cost, fit, taken_at, shadow, .. } = self;
        Demand { limit, cost: *cost, fit: *fit, taken_at: *taken_at, shadow: *shadow }
    }
}

/// The idempotency key of a request.
#[derive(Clone, Debug)]
pub(crate) struct OwnedRecord {
    pub(crate) key: String,
    pub(crate) fingerprint: [u8; 16],
    /// A digest of the limits of the request.
    pub(crate) limits: [u8; 8],
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) act: Act,
    pub(crate) charges: SmallVec<[OwnedCharge; 1]>,
    pub(crate) record: Option<OwnedRecord>,
}

impl Request {
    pub(crate) fn new(command: &Command<'_>) -> Self {
        let (act, idempotency) = match &command.action {
            Action::Take { idempotency } => (Act::Take, idempotency.as_ref()),
            Action::Peek { idempotency } => (Act::Peek, idempotency.as_ref()),
            Action::Refund => (Act::Refund, None),
            // Resets, and actions without an answer.
            _ => (Act::Reset, None),
        };
        // The other variants are reset separately.
        let searched = |charge: &Charge<'_>| {
            matches!(command.action, Action::ResetVariants) && charge.key.counter().has_variants()
        };
        let charges = command.charges.iter().filter(|charge| !searched(charge)).map(|charge| OwnedCharge {
            key: counter_key(&charge.key),
            rule: charge.key.counter().rule().into(),
            limit: *charge.limit,
            cost: charge.cost,
            fit: charge.fit,
            taken_at: charge.taken_at,
            shadow: charge.shadow,
        });
        let record = idempotency.map(|own| OwnedRecord {
            key: record_key(own),
            fingerprint: own.fingerprint,
            limits: command.limits_digest(),
        });
        Self { act, charges: charges.collect(), record }
    }

    /// The keys of all rows that the request touches.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        let counters = self.charges.iter().map(|charge| charge.key.as_str());
        counters.chain(self.record.iter().map(|record| record.key.as_str()))
    }

    /// Whether the key is that of an idempotency record.
    pub(crate) fn is_record(key: &str) -> bool {
        key.starts_with(RECORD)
    }
}

fn counter_key(key: &Key<'_>) -> String {
    let mut text = identity(key);
    key.write_counter(&mut text);
    text
}

/// The variants of a command's counters, grouped by the key prefix of their identity.
pub(crate) fn variants(command: &Command<'_>) -> BTreeMap<String, Vec<Variants>> {
    let mut found: BTreeMap<String, Vec<Variants>> = BTreeMap::new();
    for charge in command.charges {
        if let Some(mut variants) = charge.key.variants() {
            let identity = identity(&charge.key);
            variants.before.insert_str(0, &identity);
            found.entry(identity).or_default().push(variants);
        }
    }
    found
}

/// The key prefix of all counters of an identity.
fn identity(key: &Key<'_>) -> String {
    let mut text = String::from(COUNTER);
    key.write_identity(&mut text);
    text.push(':');
    text
}

/// A hash, because the caller chooses the key: it may be long and contain any character.
fn record_key(idempotency: &Idempotency<'_>) -> String {
    let mut hasher = Sha256::new();
    hasher.update((idempotency.caller.len() as u64).to_le_bytes());
    hasher.update(idempotency.caller.as_bytes());
    hasher.update(idempotency.key.as_bytes());
    format!("{RECORD}{}", hexadecimal(&hasher.finalize()))
}
