//! Admissions that can be repeated: the first one under a key is answered again for five minutes.

use std::collections::{HashMap, VecDeque};

use pacegate_core::{Decision, Timestamp};
use pacegate_store::{Idempotency, StoreError};
use sha2::{Digest, Sha256};

/// The admissions of one shard of idempotency keys, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Admissions {
    by_key: HashMap<[u8; 16], Admission>,
    /// In order of admission, which is the order of expiry.
    order: VecDeque<(Timestamp, [u8; 16])>,
}

#[derive(Debug)]
struct Admission {
    fingerprint: [u8; 16],
    /// Under which limits.
    limits: [u8; 8],
    at: Timestamp,
    decision: Decision,
}

/// What is known about an idempotency key.
pub(crate) enum Earlier {
    /// Nothing: the take may go ahead.
    None,
    /// The same request was admitted.
    Admitted(Decision),
    /// The same request was admitted under other limits.
    AdmittedOtherwise,
    /// Another request was.
    Mismatch,
}

impl Admissions {
    pub(crate) fn look_up(
        &mut self,
        key: &[u8; 16],
        fingerprint: &[u8; 16],
        limits: [u8; 8],
        now: Timestamp,
    ) -> Earlier {
        self.drop_expired(now);
        match self.by_key.get(key) {
            None => Earlier::None,
            Some(admission) if admission.fingerprint != *fingerprint => Earlier::Mismatch,
            Some(admission) if admission.limits != limits => Earlier::AdmittedOtherwise,
            Some(admission) => {
                let mut decision = admission.decision.clone();
                decision.replayed = true;
                Earlier::Admitted(decision)
            }
        }
    }

    /// Whether one more fits; asked before anything is charged.
    pub(crate) fn reserve(&self, max: usize) -> Result<(), StoreError> {
        if self.by_key.len() < max { Ok(()) } else { Err(StoreError::overloaded()) }
    }

    pub(crate) fn record(
        &mut self,
        key: [u8; 16],
        fingerprint: [u8; 16],
        limits: [u8; 8],
        decision: &Decision,
    ) {
        let admission = Admission { fingerprint, limits, at: decision.at, decision: decision.clone() };
        self.by_key.insert(key, admission);
        self.order.push_back((decision.at, key));
    }

    fn drop_expired(&mut self, now: Timestamp) {
        while let Some((at, key)) = self.order.front().copied() {
            if now < at.saturating_add(Idempotency::KEPT_FOR) {
                return;
            }
            self.order.pop_front();
            // The key may have been admitted again since, at a later place in the order.
            if self.by_key.get(&key).is_some_and(|admission| admission.at == at) {
                self.by_key.remove(&key);
            }
        }
    }
}

/// The caller and its key as one value; lengths keep one caller from spelling another's.
pub(crate) fn digest(idempotency: &Idempotency<'_>) -> [u8; 16] {
    let mut hasher = Sha256::new();
    hasher.update((idempotency.caller.len() as u64).to_le_bytes());
    hasher.update(idempotency.caller.as_bytes());
    hasher.update(idempotency.key.as_bytes());
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize()[..16]);
    digest
}
