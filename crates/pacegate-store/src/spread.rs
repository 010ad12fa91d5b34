//! Batches in which some commands have keys in several locations. Commands that share no key run
//! concurrently, so a batch takes as many round trips as its longest chain of dependent commands.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use futures_util::future::{join, join_all};
use pacegate_core::{Identity, Timestamp};
use smallvec::SmallVec;

use crate::error::StoreError;
use crate::parts::{Part, apply_in_parts};
use crate::pieces::first_piece;
use crate::store::{BatchFuture, Command, Outcome};

/// Maximum number of sequential round trips in one call.
const ROUND_TRIPS_MAX: usize = 16;

/// A store whose keys are in several locations and that can touch the keys of one location in one
/// step.
pub trait Spread: Sync {
    /// The number of locations of a command's keys.
    fn locations(&self, command: &Command<'_>) -> usize;

    /// The parts of a command with several locations, for [`apply_in_parts`].
    fn parts(&self, command: &Command<'_>) -> Vec<Part>;

    /// Applies commands with one location each, in order per location.
    fn apply_together<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a>;
}

/// Applies commands of which some may have several locations. Those that share an identity are
/// applied in order.
pub async fn apply_spread(
    store: &impl Spread,
    commands: &[Command<'_>],
    now: Option<Timestamp>,
) -> Vec<Result<Outcome, StoreError>> {
    let mut rounds: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    let mut order = Order::default();
    for (index, command) in commands.iter().enumerate() {
        let is_spread = store.locations(command) > 1;
        let round = order.round(command, is_spread);
        if rounds.len() <= round {
            rounds.resize_with(round + 1, Default::default);
        }
        let (together, apart) = &mut rounds[round];
        if is_spread { apart.push(index) } else { together.push(index) }
    }
    let mut results: Vec<Option<Result<Outcome, StoreError>>> = commands.iter().map(|_| None).collect();
    for (together, apart) in rounds {
        let single_location: Vec<Command<'_>> = together.iter().map(|index| commands[*index]).collect();
        let single_location = async {
            if single_location.is_empty() {
                Vec::new()
            } else {
                store.apply_together(&single_location, now).await
            }
        };
        let in_parts = apart.iter().map(|index| {
            let command = &commands[*index];
            apply_in_parts(store.parts(command), command, now)
        });
        let (single_location, in_parts) = join(single_location, join_all(in_parts)).await;
        let answered = together.into_iter().zip(single_location).chain(apart.into_iter().zip(in_parts));
        answered.for_each(|(index, result)| results[index] = Some(result));
    }
    results.into_iter().map(|result| result.unwrap_or_else(|| Err(StoreError::missing_outcome()))).collect()
}

/// Returns how many of `commands`, from the first on, [`apply_spread`] can apply within a deadline:
/// a piece as usual, but no more than take 16 sequential round trips.
pub fn spread_piece(store: &impl Spread, commands: &[Command<'_>]) -> usize {
    let piece = &commands[..first_piece(commands)];
    if piece.iter().all(|command| store.locations(command) < 2) {
        return piece.len();
    }
    let mut order = Order::default();
    // The largest number of locations of a command in each round: its parts are touched one after
    // another.
    let mut locations: SmallVec<[usize; 8]> = SmallVec::new();
    let fits = |command: &&Command<'_>| {
        let own = store.locations(command).max(1);
        let round = order.round(command, own > 1);
        if locations.len() <= round {
            locations.resize(round + 1, 1);
        }
        locations[round] = locations[round].max(own);
        locations.iter().sum::<usize>() <= ROUND_TRIPS_MAX
    };
    piece.iter().take_while(fits).count().max(1)
}

/// Assigns each command to a round: after all earlier commands that it shares something with.
/// Commands with a single location keep their order there, so they can share a round.
#[derive(Default)]
struct Order {
    /// The last round that touches an identity or a record, and whether a command with several
    /// locations does.
    last: HashMap<u64, (usize, bool)>,
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Order {
    fn round(&mut self, command: &Command<'_>, is_spread: bool) -> usize {
        // A hash collision only delays one of the commands.
        let identity = |own: Identity<'_>| self.hasher.hash_one((own.dimension, own.identifier));
        let mut touched: SmallVec<[u64; 4]> =
            command.charges.iter().map(|charge| identity(charge.key.identity())).collect();
        if let Some(idempotency) = command.idempotency() {
            touched.extend(idempotency.home.map(identity));
            touched.push(self.hasher.hash_one((idempotency.caller, idempotency.key)));
        }
        let after = touched.iter().filter_map(|hash| self.last.get(hash));
        let after = after.map(|(round, spread)| round + usize::from(*spread || is_spread));
        let round = after.max().unwrap_or_default();
        for hash in touched {
            let last = self.last.entry(hash).or_insert((round, is_spread));
            *last = if last.0 == round { (round, last.1 || is_spread) } else { (round, is_spread) };
        }
        round
    }
}
