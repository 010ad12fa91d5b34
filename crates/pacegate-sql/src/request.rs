//! A command that owns what it needs, so that it can wait in a queue for its batch.

use std::collections::BTreeMap;

use pacegate_core::{AsDemand, Cost, Demand, Fit, Key, Limit, Timestamp, Variants, hexadecimal};
use pacegate_store::{Action, Charge, Command, Idempotency};
use smallvec::SmallVec;

use sha2::{Digest, Sha256};

/// The start of the keys of counters, and of the records of idempotency keys.
const COUNTER: &str = "c:";
const RECORD: &str = "i:";

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Take,
    Peek,
    Reset,
    Refund,
}

/// One limit that a request concerns.
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
    /// The limits it comes with.
    pub(crate) limits: [u8; 8],
}

/// See the module.
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
            // Resets, and whatever has no answer of its own.
            _ => (Act::Reset, None),
        };
        // Variants are searched for apart.
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

    /// Every row it touches.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        let counters = self.charges.iter().map(|charge| charge.key.as_str());
        counters.chain(self.record.iter().map(|record| record.key.as_str()))
    }

    /// Whether a row holds the record of an idempotency key.
    pub(crate) fn is_record(key: &str) -> bool {
        key.starts_with(RECORD)
    }
}

fn counter_key(key: &Key<'_>) -> String {
    let mut text = identity(key);
    key.write_counter(&mut text);
    text
}

/// The keys of all variants of a command's counters, by what the keys of each identity start with.
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

/// What the keys of all counters of an identity start with.
fn identity(key: &Key<'_>) -> String {
    let mut text = String::from(COUNTER);
    key.write_identity(&mut text);
    text.push(':');
    text
}

/// A hash, because callers' keys may be long and hold anything.
fn record_key(idempotency: &Idempotency<'_>) -> String {
    let mut hasher = Sha256::new();
    hasher.update((idempotency.caller.len() as u64).to_le_bytes());
    hasher.update(idempotency.caller.as_bytes());
    hasher.update(idempotency.key.as_bytes());
    format!("{RECORD}{}", hexadecimal(&hasher.finalize()))
}
