//! Several stores of one kind as one: each identity lives in one of them, which spreads the load.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::join_all;
use pacegate_core::{Key, Timestamp};
use smallvec::SmallVec;

use crate::error::StoreError;
use crate::figure::Figures;
use crate::parts::{Part, apply_in_parts};
use crate::spread::{Spread, apply_spread, spread_piece};
use crate::store::{ApplyFuture, BatchFuture, Command, ProbeFuture, Store};

/// Stores among which identities are distributed by consistent hashing. Their number and order must
/// be the same on every node. A store added at the end takes its share of identities from all
/// others; the counters of identities that move are reset.
#[derive(Debug)]
pub struct ShardedStore {
    shards: Vec<Arc<dyn Store>>,
}

impl ShardedStore {
    /// Creates a store over `shards`, in this order.
    ///
    /// # Errors
    /// [`StoreError`] if there are none.
    pub fn try_new(shards: Vec<Arc<dyn Store>>) -> Result<Self, StoreError> {
        if shards.is_empty() {
            Err(StoreError::rejected("no shards configured"))
        } else {
            Ok(Self { shards })
        }
    }

    /// The index of the shard that holds a key.
    pub fn shard_of(&self, key: &Key<'_>) -> usize {
        jump(key.identity_hash(), self.shards.len())
    }

    /// The shard of each charge.
    fn charges_at(&self, command: &Command<'_>) -> SmallVec<[usize; 4]> {
        command.charges.iter().map(|charge| self.shard_of(&charge.key)).collect()
    }

    /// The shard of the record of the command's idempotency key.
    fn record_at(&self, command: &Command<'_>) -> Option<usize> {
        let home = command.idempotency()?.home;
        Some(home.map_or(0, |home| jump(home.hash(), self.shards.len())))
    }

    /// All shards that a command needs.
    fn shards_of(&self, command: &Command<'_>) -> SmallVec<[usize; 4]> {
        let mut shards = self.charges_at(command);
        shards.extend(self.record_at(command));
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

impl Spread for ShardedStore {
    fn locations(&self, command: &Command<'_>) -> usize {
        self.shards_of(command).len()
    }

    fn parts(&self, command: &Command<'_>) -> Vec<Part> {
        let (charges, record) = (self.charges_at(command), self.record_at(command));
        let mut parts: Vec<Part> = Vec::new();
        for (shard, store) in self.shards.iter().enumerate() {
            let own: SmallVec<[usize; 4]> =
                (0..charges.len()).filter(|charge| charges[*charge] == shard).collect();
            if !own.is_empty() {
                parts.push(Part { store: store.clone(), charges: own });
            }
        }
        let last = charges.iter().max().copied();
        if let Some(record) = record.filter(|record| last != Some(*record)) {
            parts.push(Part { store: self.shards[record].clone(), charges: SmallVec::new() });
        }
        parts
    }

    fn apply_together<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            let mut of_shards: Vec<Vec<usize>> = vec![Vec::new(); self.shards.len()];
            for (index, command) in commands.iter().enumerate() {
                of_shards[self.shards_of(command).first().copied().unwrap_or_default()].push(index);
            }
            let calls = of_shards.iter().zip(&self.shards).filter(|(own, _)| !own.is_empty());
            let calls = calls.map(async |(own, shard)| {
                let own_commands: Vec<Command<'_>> = own.iter().map(|index| commands[*index]).collect();
                (own, shard.apply_batch(&own_commands, now).await)
            });
            let mut results: Vec<_> = commands.iter().map(|_| Err(StoreError::missing_outcome())).collect();
            for (own, answers) in join_all(calls).await {
                own.iter().zip(answers).for_each(|(index, answer)| results[*index] = answer);
            }
            results
        })
    }
}

impl Store for ShardedStore {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        match *self.shards_of(command) {
            [] => self.shards[0].apply(command, now),
            [only] => self.shards[only].apply(command, now),
            _ => Box::pin(apply_in_parts(self.parts(command), command, now)),
        }
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            // All keys are in one shard: one call.
            let mut shards = commands.iter().flat_map(|command| self.shards_of(command));
            let first = shards.next().unwrap_or_default();
            if shards.all(|shard| shard == first) {
                return self.shards[first].apply_batch(commands, now).await;
            }
            apply_spread(self, commands, now).await
        })
    }

    fn piece(&self, commands: &[Command<'_>]) -> usize {
        spread_piece(self, commands)
    }

    /// Succeeds as soon as one shard responds: a failing shard affects its own identities only.
    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(first_success(self.shards.iter().map(|shard| shard.probe()).collect()))
    }

    fn figures(&self) -> Figures {
        let mut sums = Figures::new();
        for (name, figure) in self.shards.iter().flat_map(|shard| shard.figures()) {
            match sums.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => *sum += figure,
                None => sums.push((name, figure)),
            }
        }
        sums
    }
}

/// Runs all probes concurrently and succeeds as soon as one of them does; fails when all have
/// failed.
pub async fn first_success(mut probes: Vec<ProbeFuture<'_>>) -> Result<(), StoreError> {
    let mut failure = StoreError::unavailable("no servers to probe");
    poll_fn(|context| {
        let mut succeeded = false;
        probes.retain_mut(|probe| match probe.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => {
                succeeded = true;
                false
            }
            Poll::Ready(Err(error)) => {
                failure = error;
                false
            }
        });
        if succeeded {
            Poll::Ready(Ok(()))
        } else if probes.is_empty() {
            Poll::Ready(Err(failure.without_source()))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Jump consistent hashing (Lamping and Veach, 2014): a bucket that is added takes its share of the
/// keys from all others, and no key moves between those. It uses integers only, so the result is
/// the same on every machine.
fn jump(mut key: u64, buckets: usize) -> usize {
    let (mut bucket, mut next) = (0, 0_u64);
    while next < buckets as u64 {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) << 31) / ((key >> 33) + 1);
    }
    bucket as usize
}

#[cfg(test)]
mod tests {
    use pacegate_core::Counter;

    use super::*;

    const IDENTITIES: usize = 20_000;

    fn hashes() -> impl Iterator<Item = u64> {
        let counter = Counter::new("rule", "user", "");
        (0..IDENTITIES).map(move |number| Key::new(&counter, &format!("user-{number}"), "").identity_hash())
    }

    #[test]
    fn new_shard_takes_a_fair_share_and_nothing_else_moves() {
        for old in 1..=16 {
            let mut moved = 0;
            for hash in hashes() {
                let (before, after) = (jump(hash, old), jump(hash, old + 1));
                assert!(after == before || after == old, "{before} to {after} of {}", old + 1);
                moved += usize::from(after != before);
            }
            let share = IDENTITIES / (old + 1);
            assert!(
                moved.abs_diff(share) < share / 5,
                "{old} to {}: {moved} moved, {share} is fair",
                old + 1
            );
        }
    }

    #[test]
    fn identities_are_spread_evenly() {
        let mut counts = [0_usize; 5];
        hashes().for_each(|hash| counts[jump(hash, 5)] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(IDENTITIES / 5) < IDENTITIES / 50), "{counts:?}");
    }

    #[test]
    fn shard_of_an_identity_is_stable() {
        // Another value would reset every counter.
        let shards: Vec<usize> = hashes().take(12).map(|hash| jump(hash, 4)).collect();
        assert_eq!(shards, [0, 2, 3, 1, 3, 1, 3, 1, 2, 1, 3, 2]);
    }
}
