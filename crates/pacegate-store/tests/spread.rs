//! Batches over several shards: only dependent commands need extra round trips, and decisions equal
//! those of one store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pacegate_core::{Algorithm, Cost, Counter, Key, Limit, Timestamp};
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{
    Action, ApplyFuture, BatchFuture, Charge, Command, Idempotency, Outcome, PIECE_KEYS_MAX, ShardedStore,
    Store, StoreError,
};
use pacegate_testkit::{Seed, SimulatedClock};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use tokio::time::{Instant, sleep};

const ROUND_TRIP: Duration = Duration::from_millis(1);

/// A shard that is one round trip away.
#[derive(Debug)]
struct Remote {
    memory: MemoryStore,
    calls: AtomicUsize,
}

impl Store for Remote {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            sleep(ROUND_TRIP).await;
            self.memory.apply_now(command, now)
        })
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            sleep(ROUND_TRIP).await;
            commands.iter().map(|command| self.memory.apply_now(command, now)).collect()
        })
    }
}

fn memory(clock: &Arc<SimulatedClock>) -> MemoryStore {
    MemoryStore::with_clock(MemoryOptions::default(), clock.clone())
}

fn shards(clock: &Arc<SimulatedClock>) -> (ShardedStore, [Arc<Remote>; 3]) {
    let remotes = [(); 3].map(|()| Arc::new(Remote { memory: memory(clock), calls: AtomicUsize::new(0) }));
    let shards = remotes.iter().map(|remote| remote.clone() as Arc<dyn Store>).collect();
    (ShardedStore::try_new(shards).unwrap(), remotes)
}

/// The identities that a check of a batch charges (user and address, of which one may be missing)
/// and its cost.
type Item = (Option<usize>, Option<usize>, u64);

struct Rules {
    counters: [Counter; 2],
    limit: Limit,
    names: Vec<String>,
}

impl Rules {
    fn new(quota: u64) -> Self {
        let limit = Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(60)).unwrap();
        let counters = ["user", "ip"].map(|dimension| Counter::new("rule", dimension, "*"));
        Self { counters, limit, names: (0..1_000).map(|number| number.to_string()).collect() }
    }

    fn charges(&self, (user, address, cost): Item) -> Vec<Charge<'_>> {
        let cost = Cost::try_new(cost).unwrap();
        let charge = |(counter, number): (_, Option<usize>)| {
            let key = Key::new(counter, &self.names[number?], "");
            Some(Charge { cost, ..Charge::new(key, &self.limit) })
        };
        self.counters.iter().zip([user, address]).filter_map(charge).collect()
    }

    async fn take(&self, store: &dyn Store, items: &[Item]) -> Vec<Result<Outcome, StoreError>> {
        let charges: Vec<Vec<Charge<'_>>> = items.iter().map(|item| self.charges(*item)).collect();
        let commands: Vec<Command<'_>> = charges.iter().map(|charges| Command::take(charges)).collect();
        store.apply_batch(&commands, None).await
    }
}

fn allowed(results: Vec<Result<Outcome, StoreError>>) -> Vec<bool> {
    let allowed = |result| match result {
        Ok(Outcome::Decided(decision)) => decision.allowed,
        other => panic!("{other:?}"),
    };
    results.into_iter().map(allowed).collect()
}

#[tokio::test(start_paused = true)]
async fn independent_commands_run_concurrently() {
    let (store, remotes) = shards(&Arc::default());
    let rules = Rules::new(10);
    let items: Vec<Item> = (0..30).map(|number| (Some(number), Some(number + 100), 1)).collect();
    let start = Instant::now();
    assert_eq!(allowed(rules.take(&store, &items).await), [true; 30]);
    assert_eq!(start.elapsed(), ROUND_TRIP * 2, "one round trip for each of two shards");
    // Commands with a single shard share its calls.
    let before: usize = remotes.iter().map(|remote| remote.calls.load(Ordering::Relaxed)).sum();
    let items: Vec<Item> = (0..30).map(|number| (Some(number + 200), None, 1)).collect();
    let start = Instant::now();
    assert_eq!(allowed(rules.take(&store, &items).await), [true; 30]);
    assert_eq!(start.elapsed(), ROUND_TRIP);
    let after: usize = remotes.iter().map(|remote| remote.calls.load(Ordering::Relaxed)).sum();
    assert_eq!(after - before, 3);
}

#[tokio::test(start_paused = true)]
async fn commands_that_share_an_identity_are_applied_in_order() {
    let (store, _) = shards(&Arc::default());
    let rules = Rules::new(3);
    let items: Vec<Item> = (0..6).map(|number| (Some(number), Some(100), 1)).collect();
    assert_eq!(allowed(rules.take(&store, &items).await), [true, true, true, false, false, false]);
    let items = [(Some(7), None, 2), (Some(7), Some(7), 1), (Some(7), None, 1)];
    assert_eq!(allowed(rules.take(&store, &items).await), [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn decisions_equal_those_of_one_store() {
    let item = (prop::option::of(0_usize..4), prop::option::of(0_usize..3), 1_u64..4);
    let batches = prop::collection::vec(prop::collection::vec(item, 1..40), 1..4);
    let mut runner = Seed(17).runner();
    for _ in 0..200 {
        let batches = batches.new_tree(&mut runner).unwrap().current();
        let clock = Arc::new(SimulatedClock::default());
        let ((sharded, _), one, rules) = (shards(&clock), memory(&clock), Rules::new(12));
        for items in batches {
            let expected = allowed(rules.take(&one, &items).await);
            assert_eq!(allowed(rules.take(&sharded, &items).await), expected, "{items:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn repetition_within_a_batch_is_recognised() {
    let (store, _) = shards(&Arc::default());
    let rules = Rules::new(10);
    let charges = rules.charges((Some(1), Some(2), 1));
    let idempotency =
        Some(Idempotency { caller: "c", key: "k", fingerprint: [0; 16], home: None, sender: None });
    let command = Command { action: Action::Take { idempotency }, charges: &charges };
    let replayed = store.apply_batch(&[command; 3], None).await.into_iter().map(|result| match result {
        Ok(Outcome::Decided(decision)) => decision.replayed,
        other => panic!("{other:?}"),
    });
    assert_eq!(replayed.collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn pieces_are_bounded_by_keys_and_by_round_trips() {
    let (store, _) = shards(&Arc::default());
    let rules = Rules::new(10);
    let piece = |items: Vec<Item>| {
        let charges: Vec<Vec<Charge<'_>>> = items.iter().map(|item| rules.charges(*item)).collect();
        let commands: Vec<Command<'_>> = charges.iter().map(|charges| Command::take(charges)).collect();
        store.piece(&commands)
    };
    assert_eq!(piece((0..500).map(|number| (Some(number), None, 1)).collect()), PIECE_KEYS_MAX);
    assert_eq!(piece((0..500).map(|number| (Some(number), Some(number), 1)).collect()), PIECE_KEYS_MAX / 2);
    assert_eq!(piece((0..500).map(|_| (Some(1), None, 1)).collect()), PIECE_KEYS_MAX);
    // These depend on each other, and most of them are on two shards.
    let chained = piece((0..500).map(|number| (Some(number), Some(1), 1)).collect());
    assert!((8..=16).contains(&chained), "{chained}");
}
