//! Large batches: decided in pieces with a deadline each, alternating with others, and never
//! counted against the store.

use std::time::Duration;

use pacegate_store::{
    Charge, Command, FailureMode, GuardedStore, Outcome, PIECE_KEYS_MAX, Store, StoreError, StoreHealth,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::setup::{Behaviour, DEADLINE, Rule, Setup, decided, named, per_hour, take_alone};

/// Just within the deadline.
const SLOW: Duration = Duration::from_millis(40);

fn rules(count: usize) -> Vec<Rule> {
    let rule =
        |number: usize| Rule { limit: per_hour(1_000), ..named(&number.to_string(), FailureMode::Open) };
    (0..count).map(rule).collect()
}

/// Takes once from each rule, in one call.
async fn take_each(
    guard: &GuardedStore,
    rules: &[Rule],
    at_most: Duration,
) -> Vec<Result<Outcome, StoreError>> {
    let charges: Vec<[Charge<'_>; 1]> = rules.iter().map(|rule| [rule.charge()]).collect();
    let commands: Vec<Command<'_>> = charges.iter().map(|charges| Command::take(charges)).collect();
    guard.apply_batch_within(&commands, None, at_most).await
}

fn degraded(results: Vec<Result<Outcome, StoreError>>) -> Vec<bool> {
    results.into_iter().map(|result| decided(result).degraded()).collect()
}

#[tokio::test(start_paused = true)]
async fn each_piece_of_a_batch_has_the_full_deadline() {
    let setup = Setup::new(Behaviour::AnswerAfter(SLOW));
    let start = Instant::now();
    let results = take_each(&setup.guard, &rules(5 * PIECE_KEYS_MAX), Duration::MAX).await;
    assert_eq!(degraded(results), vec![false; 5 * PIECE_KEYS_MAX]);
    assert_eq!(setup.store.calls(), 5);
    assert_eq!(start.elapsed(), SLOW * 5, "the batch takes longer than one deadline");
}

#[tokio::test(start_paused = true)]
async fn pieces_are_bounded_by_keys_not_by_commands() {
    let setup = Setup::new(Behaviour::Answer);
    let rules = rules(PIECE_KEYS_MAX / 2);
    let charges: Vec<Charge<'_>> = rules.iter().map(Rule::charge).collect();
    let command = Command::take(&charges);
    assert_eq!(degraded(setup.guard.apply_batch(&[command; 6], None).await), [false; 6]);
    assert_eq!(setup.store.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn single_checks_do_not_wait_for_the_pieces_of_batches() {
    let setup = Setup::new(Behaviour::AnswerAfter(SLOW));
    let mut batches = JoinSet::new();
    for _ in 0..20 {
        let guard = setup.guard.clone();
        batches.spawn(async move { take_each(&guard, &rules(4 * PIECE_KEYS_MAX), Duration::MAX).await });
    }
    tokio::time::sleep(SLOW / 2).await;
    assert_eq!(setup.store.calls(), 2, "two pieces are in progress");
    let start = Instant::now();
    assert!(!take_alone(&setup.guard).await.degraded());
    assert_eq!(start.elapsed(), SLOW);
    for results in batches.join_all().await {
        assert!(!degraded(results).contains(&true), "all batches are decided by the store");
    }
}

#[tokio::test(start_paused = true)]
async fn batches_alternate_piece_by_piece() {
    let setup = Setup::new(Behaviour::AnswerAfter(SLOW));
    let start = Instant::now();
    let mut large = JoinSet::new();
    for _ in 0..2 {
        let guard = setup.guard.clone();
        large.spawn(async move { take_each(&guard, &rules(20 * PIECE_KEYS_MAX), Duration::MAX).await });
    }
    tokio::time::sleep(SLOW / 2).await;
    let results = take_each(&setup.guard, &rules(2 * PIECE_KEYS_MAX), Duration::MAX).await;
    assert!(!degraded(results).contains(&true));
    assert!(start.elapsed() <= SLOW * 5, "a smaller batch does not wait for the end of the large ones");
    for results in large.join_all().await {
        assert!(!degraded(results).contains(&true));
    }
}

#[tokio::test(start_paused = true)]
async fn batch_ends_at_the_callers_deadline_with_an_outcome_for_every_command() {
    let setup = Setup::new(Behaviour::AnswerAfter(SLOW));
    let (start, at_most) = (Instant::now(), SLOW * 2 + SLOW / 2);
    let results = take_each(&setup.guard, &rules(5 * PIECE_KEYS_MAX), at_most).await;
    assert_eq!(start.elapsed(), at_most);
    let degraded = degraded(results);
    assert_eq!(degraded.iter().filter(|degraded| !**degraded).count(), 2 * PIECE_KEYS_MAX);
    assert_eq!(degraded.len(), 5 * PIECE_KEYS_MAX);
}

#[tokio::test(start_paused = true)]
async fn batch_queues_for_a_bounded_time() {
    let setup = Setup::with_deadline(Behaviour::Hang, Duration::from_secs(60));
    let mut hanging = JoinSet::new();
    for _ in 0..2 {
        let guard = setup.guard.clone();
        hanging.spawn(async move { take_each(&guard, &rules(2 * PIECE_KEYS_MAX), Duration::MAX).await });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let results = take_each(&setup.guard, &rules(2 * PIECE_KEYS_MAX), Duration::MAX).await;
    assert!(!degraded(results).contains(&false));
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn timeouts_of_large_or_impatient_calls_do_not_open_the_breaker() {
    let setup = Setup::new(Behaviour::AnswerAfter(SLOW));
    for _ in 0..30 {
        assert!(degraded(take_each(&setup.guard, &rules(1), SLOW / 2).await)[0], "its caller cannot wait");
    }
    // One command that touches more keys than a piece, like an all-or-nothing batch.
    setup.store.set(Behaviour::AnswerAfter(DEADLINE * 2));
    let rules = rules(PIECE_KEYS_MAX + 1);
    let charges: Vec<Charge<'_>> = rules.iter().map(Rule::charge).collect();
    let command = Command::take(&charges);
    for _ in 0..4 {
        assert!(decided(setup.guard.apply(&command, None).await).degraded());
    }
    assert_eq!(setup.guard.health(), StoreHealth::Up);
    assert_eq!(setup.figure("breaker_openings"), 0);
    setup.store.set(Behaviour::AnswerAfter(SLOW));
    assert!(!take_alone(&setup.guard).await.degraded(), "others are decided by the store");
}

#[tokio::test(start_paused = true)]
async fn pieces_with_the_full_deadline_open_the_breaker() {
    let setup = Setup::new(Behaviour::Hang);
    let start = Instant::now();
    let results = take_each(&setup.guard, &rules(20 * PIECE_KEYS_MAX), Duration::MAX).await;
    assert!(!degraded(results).contains(&false));
    assert_eq!(setup.store.calls(), 5);
    assert_eq!(start.elapsed(), DEADLINE * 5);
    assert_eq!(setup.guard.health(), StoreHealth::Down);
}
