//! Several stores of one kind as one: each identity lives in one of them, so that what one cannot carry is spread.

use std::sync::Arc;

use pacegate_core::Timestamp;
use smallvec::SmallVec;

use crate::error::StoreError;
use crate::figure::Figures;
use crate::parts::{Part, apply_in_parts};
use crate::store::{ApplyFuture, Command, Outcome, Store};

/// Stores that share the identities among them by a stable hash. Their number and order must be the same on every node, and must not change while
/// counters are worth keeping.
#[derive(Debug)]
pub struct ShardedStore {
    shards: Vec<Arc<dyn Store>>,
}

impl ShardedStore {
    /// `shards` in their order; there is at least one.
    ///
    /// # Errors
    /// [`StoreError`] when there is none.
    pub fn try_new(shards: Vec<Arc<dyn Store>>) -> Result<Self, StoreError> {
        if shards.is_empty() { Err(StoreError::rejected("there is no shard")) } else { Ok(Self { shards }) }
    }

    /// The shard of each charge.
    fn places(&self, command: &Command<'_>) -> SmallVec<[usize; 4]> {
        let shard = |hash: u64| (hash % self.shards.len() as u64) as usize;
        command.charges.iter().map(|charge| shard(charge.key.identity_hash())).collect()
    }

    async fn apply_one(&self, command: &Command<'_>, now: Option<Timestamp>) -> Result<Outcome, StoreError> {
        let places = self.places(command);
        let first = places.first().copied().unwrap_or_default();
        if places.iter().all(|place| *place == first) {
            let outcome = self.shards[first].apply(std::slice::from_ref(command), now).await.pop();
            return outcome.unwrap_or_else(|| Err(StoreError::unanswered()));
        }
        let mut parts: Vec<Part> = Vec::new();
        for (shard, store) in self.shards.iter().enumerate() {
            let own: SmallVec<[usize; 4]> =
                (0..places.len()).filter(|charge| places[*charge] == shard).collect();
            if !own.is_empty() {
                parts.push(Part { store: store.clone(), places: own });
            }
        }
        apply_in_parts(parts, command, now).await
    }
}

impl Store for ShardedStore {
    fn apply<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            // All of one shard, as single checks are: one call.
            let shards: Vec<SmallVec<[usize; 4]>> =
                commands.iter().map(|command| self.places(command)).collect();
            let first = shards.iter().flatten().next().copied().unwrap_or_default();
            if shards.iter().flatten().all(|shard| *shard == first) {
                return self.shards[first].apply(commands, now).await;
            }
            let mut outcomes = Vec::with_capacity(commands.len());
            for command in commands {
                outcomes.push(self.apply_one(command, now).await);
            }
            outcomes
        })
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
