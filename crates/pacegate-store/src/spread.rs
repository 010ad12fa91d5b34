//! Batches in which some commands have their keys in several places: what shares no key runs at the same time, so that a batch takes as
//! many round trips as its longest chain of commands that depend on each other, not as many as it has commands.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use futures_util::future::{join, join_all};
use pacegate_core::{Identity, Timestamp};
use smallvec::SmallVec;

use crate::error::StoreError;
use crate::parts::{Part, apply_in_parts};
use crate::pieces::first_piece;
use crate::store::{BatchFuture, Command, Outcome};

/// The most round trips, one after the other, that one call should take.
const ROUND_TRIPS_MAX: usize = 16;

/// A store that keeps its keys in several places and can touch those of one place in one step.
pub trait Spread: Sync {
    /// In how many places the keys of a command are.
    fn places(&self, command: &Command<'_>) -> usize;

    /// The parts of a command that is in several places, for [`apply_in_parts`].
    fn parts(&self, command: &Command<'_>) -> Vec<Part>;

    /// Applies commands that are in one place each, those of one place in their order.
    fn apply_together<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a>;
}

/// Applies commands of which some may be in several places. Those that share an identity are applied in their order.
pub async fn apply_spread(
    store: &impl Spread,
    commands: &[Command<'_>],
    now: Option<Timestamp>,
) -> Vec<Result<Outcome, StoreError>> {
    let mut rounds: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    let mut order = Order::default();
    for (index, command) in commands.iter().enumerate() {
        let is_spread = store.places(command) > 1;
        let round = order.round(command, is_spread);
        if rounds.len() <= round {
            rounds.resize_with(round + 1, Default::default);
        }
        let (together, apart) = &mut rounds[round];
        if is_spread { apart.push(index) } else { together.push(index) }
    }
    let mut results: Vec<Option<Result<Outcome, StoreError>>> = commands.iter().map(|_| None).collect();
    for (together, apart) in rounds {
        let in_one_place: Vec<Command<'_>> = together.iter().map(|index| commands[*index]).collect();
        let in_one_place = async {
            if in_one_place.is_empty() { Vec::new() } else { store.apply_together(&in_one_place, now).await }
        };
        let in_parts = apart.iter().map(|index| {
            let command = &commands[*index];
            apply_in_parts(store.parts(command), command, now)
        });
        let (in_one_place, in_parts) = join(in_one_place, join_all(in_parts)).await;
        let answered = together.into_iter().zip(in_one_place).chain(apart.into_iter().zip(in_parts));
        answered.for_each(|(index, result)| results[index] = Some(result));
    }
    results.into_iter().map(|result| result.unwrap_or_else(|| Err(StoreError::unanswered()))).collect()
}

/// How many of `commands`, from the first on, [`apply_spread`] can apply within a deadline: as many as a piece has otherwise, and no more than
/// take [a few](ROUND_TRIPS_MAX) round trips one after the other.
pub fn spread_piece(store: &impl Spread, commands: &[Command<'_>]) -> usize {
    let piece = &commands[..first_piece(commands)];
    if piece.iter().all(|command| store.places(command) < 2) {
        return piece.len();
    }
    let mut order = Order::default();
    // The most places of a command in each round: its parts are touched one after the other.
    let mut places: SmallVec<[usize; 8]> = SmallVec::new();
    let fits = |command: &&Command<'_>| {
        let own = store.places(command).max(1);
        let round = order.round(command, own > 1);
        if places.len() <= round {
            places.resize(round + 1, 1);
        }
        places[round] = places[round].max(own);
        places.iter().sum::<usize>() <= ROUND_TRIPS_MAX
    };
    piece.iter().take_while(fits).count().max(1)
}

/// In which round each command can run: after all commands before it with which it shares something. Commands that are in one place each
/// keep their order there, so that they can share a round.
#[derive(Default)]
struct Order {
    /// The last round that touches an identity or a record, and whether a command in several places does.
    last: HashMap<u64, (usize, bool)>,
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Order {
    fn round(&mut self, command: &Command<'_>, is_spread: bool) -> usize {
        // Equal hashes of different things only make one of them wait.
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
