//! Recorded admissions: for five minutes, a repetition under the same key returns the first one.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use pacegate_core::{ChainDecision, Timestamp};
use pacegate_store::Idempotency;
use sha2::{Digest, Sha256};

/// Maximum number of records of a sender as a multiple of the free slots, so that each sender
/// leaves some to others: one sender gets three quarters of them, ten get 3/31 each.
const SLOTS_PER_FREE_SLOT: usize = 3;

/// The admissions of one shard of idempotency keys, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Admissions {
    by_key: HashMap<[u8; 16], Admission>,
    /// In order of admission, which is the order of expiry.
    order: VecDeque<(Timestamp, [u8; 16])>,
    /// The number of records of each sender, by a hash of it.
    by_sender: HashMap<u64, usize>,
}

#[derive(Debug)]
struct Admission {
    fingerprint: [u8; 16],
    /// The digest of the limits it was admitted under.
    limits: [u8; 8],
    at: Timestamp,
    sender: Option<u64>,
    decision: ChainDecision,
}

/// What is recorded under an idempotency key.
pub(crate) enum Earlier {
    /// Nothing: the take may proceed.
    None,
    /// The same request was admitted.
    Admitted(ChainDecision),
    /// The same request was admitted under other limits.
    AdmittedOtherwise,
    /// Another request was admitted.
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

    /// Whether one more record of this sender fits among `max`.
    pub(crate) fn has_slot(&self, sender: Option<u64>, max: usize) -> bool {
        let free = max.saturating_sub(self.by_key.len());
        let own = sender.and_then(|sender| self.by_sender.get(&sender)).copied().unwrap_or_default();
        free > 0 && own < free.saturating_mul(SLOTS_PER_FREE_SLOT)
    }

    pub(crate) fn record(
        &mut self,
        key: [u8; 16],
        fingerprint: [u8; 16],
        limits: [u8; 8],
        sender: Option<u64>,
        decision: &ChainDecision,
    ) {
        let (at, decision) = (decision.at, decision.clone());
        self.by_key.insert(key, Admission { fingerprint, limits, at, sender, decision });
        self.order.push_back((at, key));
        if let Some(sender) = sender {
            *self.by_sender.entry(sender).or_default() += 1;
        }
    }

    fn drop_expired(&mut self, now: Timestamp) {
        while let Some((at, key)) = self.order.front().copied() {
            if now < at.saturating_add(Idempotency::TTL) {
                return;
            }
            self.order.pop_front();
            // The key may have been admitted again since, with a later entry in the order.
            if self.by_key.get(&key).is_some_and(|admission| admission.at == at)
                && let Some(Admission { sender: Some(sender), .. }) = self.by_key.remove(&key)
                && let Entry::Occupied(mut own) = self.by_sender.entry(sender)
            {
                *own.get_mut() -= 1;
                if *own.get() == 0 {
                    own.remove();
                }
            }
        }
    }
}

/// The caller and its key as one value; the lengths keep one caller from imitating another.
pub(crate) fn digest(idempotency: &Idempotency<'_>) -> [u8; 16] {
    let mut hasher = Sha256::new();
    hasher.update((idempotency.caller.len() as u64).to_le_bytes());
    hasher.update(idempotency.caller.as_bytes());
    hasher.update(idempotency.key.as_bytes());
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize()[..16]);
    digest
}
