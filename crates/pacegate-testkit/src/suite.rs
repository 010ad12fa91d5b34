//! The behaviour suite: one test for each behaviour of a store.

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "it runs inside tests, which print results and fail by panicking"
)]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, ChainDecision, Counter, Identity, Key, Limit, Timestamp};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, Store};
use proptest::strategy::{Strategy, ValueTree};

use crate::effort::effort;
use crate::history::{self, History};
use crate::replay::replay;
use crate::seed::Seed;

/// Defines one test per behaviour for the store that `$factory`, an async expression, yields as an
/// `Arc<dyn Store>`.
///
/// `histories` is the number of histories to replay per algorithm, with and without changing
/// limits, and for chains. The calling crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! store_suite {
    ($factory:expr, histories = $histories:expr) => {
        $crate::store_suite!(@parity $factory, $histories,
            token_bucket TokenBucket, leaky_bucket LeakyBucket, fixed_window FixedWindow,
            sliding_log SlidingLog, sliding_counter SlidingCounter, gcra Gcra);
        $crate::store_suite!(@behaviours $factory,
            replays_an_admission_for_five_minutes,
            separates_idempotency_keys_of_callers,
            does_not_replay_denials,
            rejects_an_idempotency_key_on_another_request,
            records_a_take_without_limits,
            peeks_at_an_admission_without_recording_one,
            replays_an_admission_under_other_limits,
            separates_adversarial_identifiers,
            applies_a_batch_in_order);

        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn concurrent_callers_are_admitted_exactly() {
            $crate::suite::concurrent_callers_are_admitted_exactly($factory.await).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn concurrent_chains_leak_nothing() {
            $crate::suite::concurrent_chains_leak_nothing($factory.await).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn concurrent_duplicates_are_charged_once() {
            $crate::suite::concurrent_duplicates_are_charged_once($factory.await).await;
        }

        #[tokio::test]
        async fn agrees_with_the_model_on_chains() {
            let store = $factory.await;
            $crate::suite::agrees_on_chains(&*store, $histories).await;
        }
    };
    (@parity $factory:expr, $histories:expr, $($name:ident $algorithm:ident),+) => {$(
        mod $name {
            use super::*;

            #[tokio::test]
            async fn agrees_with_the_model() {
                let store = $factory.await;
                $crate::suite::agrees(&*store, pacegate_core::Algorithm::$algorithm, $histories).await;
            }
        }
    )+};
    (@behaviours $factory:expr, $($name:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            let store = $factory.await;
            $crate::suite::$name(&*store).await;
        }
    )+};
}

/// Histories of one algorithm, half of them with changing limits, give the same answers as the
/// model.
pub async fn agrees(store: &dyn Store, algorithm: Algorithm, histories: usize) {
    let steady = replay_many(store, &history::of(algorithm), histories / 2, algorithm.name()).await;
    let name = format!("{algorithm}-changing");
    let changing =
        replay_many(store, &history::of_changing(algorithm), histories - histories / 2, &name).await;
    let operations = steady + changing;
    println!("PASS parity-{algorithm} seed=0..{histories} operations={operations} differences=0");
}

/// Histories of chains of mixed algorithms give the same answers as the model, and a denied chain
/// charges nothing.
pub async fn agrees_on_chains(store: &dyn Store, histories: usize) {
    let operations = replay_many(store, &history::of_chains(), histories, "chain").await;
    println!("PASS parity-chains seed=0..{histories} operations={operations} differences=0");
}

async fn replay_many(
    store: &dyn Store,
    strategy: &impl Strategy<Value = History>,
    histories: usize,
    name: &str,
) -> usize {
    let mut operations = 0;
    for seed in 0..histories as u64 {
        let tree = strategy.new_tree(&mut Seed(seed).runner()).expect("the strategy has no filters");
        let history = tree.current();
        match replay(store, &history, &format!("{name}-{seed}")).await {
            Ok(count) => operations += count,
            Err(difference) => {
                let mut cut = history;
                cut.operations.truncate(difference.operation + 1);
                panic!("seed {seed} of {name}: {difference}\n{cut:?}")
            }
        }
    }
    operations
}

/// 64 concurrent callers on one key of each algorithm: exactly the limit is admitted.
pub async fn concurrent_callers_are_admitted_exactly(store: Arc<dyn Store>) {
    for algorithm in Algorithm::ALL {
        for quota in [1, 7, 100] {
            let limit = Limit::try_new(algorithm, quota, Duration::from_secs(3_600)).expect("a valid limit");
            let limits = vec![(format!("exactly-{algorithm}-{quota}"), limit)];
            let admitted = admitted_of_64_callers(&store, vec![limits]).await;
            assert_eq!(admitted[0], quota, "{algorithm}");
        }
    }
}

/// Chains that share a wide limit and differ in a narrow one: an admission charges both, a denial
/// neither.
pub async fn concurrent_chains_leak_nothing(store: Arc<dyn Store>) {
    let limit = |quota| {
        Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(3_600)).expect("a valid limit")
    };
    let (wide, narrow) = (limit(1_000), limit(5));
    let chain = |name: &str| vec![("chain-wide".to_owned(), wide), (format!("chain-{name}"), narrow)];
    let mut reversed = chain("b");
    reversed.reverse();
    let admitted = admitted_of_64_callers(&store, vec![chain("a"), reversed]).await;
    assert_eq!(admitted, [5, 5]);
    let counter = Counter::new("chain-wide", "user", "");
    let charges = [Charge::new(Key::new(&counter, "everyone", "/"), &wide)];
    let outcome = store.apply(&Command::peek(&charges), Some(START)).await.expect("the store responds");
    assert_eq!(decided(outcome).remaining(), Some(990), "a denied chain charged nothing");
    println!("PASS chains seed=none requests={} leaked=0", 64 * attempts());
}

/// Eight concurrent callers with each idempotency key: it is charged once, and all get the same
/// decision.
pub async fn concurrent_duplicates_are_charged_once(store: Arc<dyn Store>) {
    let keys = effort(100, 10_000);
    let limit =
        Limit::try_new(Algorithm::FixedWindow, keys * 2, Duration::from_secs(3_600)).expect("a valid limit");
    let counter = Arc::new(Counter::new("duplicates", "user", ""));
    for key in 0..keys {
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let (store, counter) = (store.clone(), counter.clone());
                tokio::spawn(async move {
                    let charges = [Charge::new(Key::new(&counter, "everyone", "/"), &limit)];
                    let key = key.to_string();
                    let home = Some(Identity { dimension: "user", identifier: "everyone" });
                    let idempotency = Some(Idempotency {
                        caller: "caller",
                        key: &key,
                        fingerprint: [1; 16],
                        home,
                        sender: None,
                    });
                    let command = Command { action: Action::Take { idempotency }, charges: &charges };
                    decided(store.apply(&command, Some(START)).await.expect("the store responds"))
                })
            })
            .collect();
        let mut replayed = 0;
        for caller in callers {
            let decision = caller.await.expect("a caller does not panic");
            assert!(decision.allowed);
            assert_eq!(decision.remaining(), Some((keys * 2 - key - 1) as u32));
            replayed += u32::from(decision.replayed);
        }
        assert_eq!(replayed, 7, "one of eight duplicates is charged");
    }
    println!("PASS idempotency seed=none keys={keys} duplicates=8 charges={keys}");
}

fn attempts() -> usize {
    effort(10, 3_200)
}

/// Number of admissions of each chain, when 64 callers take from the chains in rotation.
async fn admitted_of_64_callers(store: &Arc<dyn Store>, chains: Vec<Vec<(String, Limit)>>) -> Vec<u64> {
    let mut callers = Vec::new();
    for caller in 0..64 {
        let (store, which) = (store.clone(), caller % chains.len());
        let chain = chains[which].clone();
        callers.push(tokio::spawn(async move {
            let counters: Vec<Counter> =
                chain.iter().map(|(rule, _)| Counter::new(rule, "user", "")).collect();
            let keys = counters.iter().map(|counter| Key::new(counter, "everyone", "/"));
            let charges: Vec<Charge<'_>> =
                keys.zip(&chain).map(|(key, (_, limit))| Charge::new(key, limit)).collect();
            let mut admitted = 0;
            for _ in 0..attempts() {
                let outcome =
                    store.apply(&Command::take(&charges), Some(START)).await.expect("the store responds");
                admitted += u64::from(decided(outcome).allowed);
            }
            (which, admitted)
        }));
    }
    let mut admitted = vec![0; chains.len()];
    for caller in callers {
        let (which, count) = caller.await.expect("a caller does not panic");
        admitted[which] += count;
    }
    admitted
}

const START: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

fn three_a_minute() -> Limit {
    Limit::try_new(Algorithm::FixedWindow, 3, Duration::from_secs(60)).expect("a valid limit")
}

fn idempotency<'a>(caller: &'a str, key: &'a str, body: u8) -> Action<'a> {
    Action::Take {
        idempotency: Some(Idempotency { caller, key, fingerprint: [body; 16], home: HOME, sender: None }),
    }
}

/// Records are stored with the counters of this identity, as a limiter does.
const HOME: Option<Identity<'static>> = Some(Identity { dimension: "user", identifier: "u" });

async fn apply(
    store: &dyn Store,
    action: Action<'_>,
    rule: &str,
    identifier: &str,
    now: Timestamp,
) -> Outcome {
    let (counter, limit) = (Counter::new(rule, "user", ""), three_a_minute());
    let charges = [Charge::new(Key::new(&counter, identifier, "/"), &limit)];
    store.apply(&Command { action, charges: &charges }, Some(now)).await.expect("the store responds")
}

fn decided(outcome: Outcome) -> ChainDecision {
    match outcome {
        Outcome::Decided(decision) => decision,
        other => panic!("expected a decision, got {other:?}"),
    }
}

/// A repeated take returns the first decision and charges nothing, until five minutes have passed.
pub async fn replays_an_admission_for_five_minutes(store: &dyn Store) {
    let take = idempotency("caller", "key", 1);
    let first = decided(apply(store, take, "repeat", "u", START).await);
    assert!(first.allowed && !first.replayed);
    let just_before = START.saturating_add(Idempotency::TTL - Duration::from_micros(1));
    for now in [START, just_before] {
        let mut again = decided(apply(store, take, "repeat", "u", now).await);
        assert!(again.replayed);
        again.replayed = false;
        assert_eq!(again, first);
    }
    let peek = decided(apply(store, Action::peek(), "repeat", "u", START).await);
    assert_eq!(peek.remaining(), Some(2), "three takes under one key charge once");
    let later = START.saturating_add(Idempotency::TTL);
    assert!(!decided(apply(store, take, "repeat", "u", later).await).replayed);
}

/// The same key from another caller is a different key.
pub async fn separates_idempotency_keys_of_callers(store: &dyn Store) {
    // The second pair would collide with the first if caller and key were simply concatenated.
    for (caller, key) in [("a", "bc"), ("ab", "c"), ("", "abc")] {
        let decision = decided(apply(store, idempotency(caller, key, 1), "apart", "u", START).await);
        assert!(!decision.replayed, "{caller}/{key} replayed the admission of another caller");
    }
    let peek = decided(apply(store, Action::peek(), "apart", "u", START).await);
    assert_eq!(peek.remaining(), Some(0));
}

/// A denial is not recorded: once the limit allows it, the same idempotency key is admitted.
pub async fn does_not_replay_denials(store: &dyn Store) {
    for _ in 0..3 {
        assert!(decided(apply(store, Action::take(), "afresh", "u", START).await).allowed);
    }
    let take = idempotency("caller", "afresh", 1);
    assert!(!decided(apply(store, take, "afresh", "u", START).await).allowed);
    let later = START.saturating_add(Duration::from_secs(60));
    let decision = decided(apply(store, take, "afresh", "u", later).await);
    assert!(decision.allowed && !decision.replayed);
}

/// The same key on another request is rejected and charges nothing.
pub async fn rejects_an_idempotency_key_on_another_request(store: &dyn Store) {
    decided(apply(store, idempotency("caller", "other", 1), "mismatch", "u", START).await);
    let outcome = apply(store, idempotency("caller", "other", 2), "mismatch", "u", START).await;
    assert!(matches!(outcome, Outcome::Mismatch), "{outcome:?}");
    let peek = decided(apply(store, Action::peek(), "mismatch", "u", START).await);
    assert_eq!(peek.remaining(), Some(2));
}

/// A take without limits is admitted and its idempotency key is recorded: this claims the key of a
/// whole batch.
pub async fn records_a_take_without_limits(store: &dyn Store) {
    let command = |body| Command { action: idempotency("caller", "anchor", body), charges: &[] };
    let outcomes = store.apply_batch(&[command(1), command(1), command(2)], Some(START)).await;
    let outcomes: Vec<Outcome> =
        outcomes.into_iter().map(|outcome| outcome.expect("the store responds")).collect();
    assert!(matches!(&outcomes[0], Outcome::Decided(decision) if decision.allowed && !decision.replayed));
    assert!(matches!(&outcomes[1], Outcome::Decided(decision) if decision.replayed));
    assert!(matches!(&outcomes[2], Outcome::Mismatch));
}

/// A peek under an idempotency key finds the recorded admission, and records nothing itself.
pub async fn peeks_at_an_admission_without_recording_one(store: &dyn Store) {
    let take = idempotency("caller", "looked-up", 1);
    let peek = |body| Action::Peek {
        idempotency: Some(Idempotency {
            caller: "caller",
            key: "looked-up",
            fingerprint: [body; 16],
            home: HOME,
            sender: None,
        }),
    };
    let before = decided(apply(store, peek(1), "looked-up", "u", START).await);
    assert!(before.allowed && !before.replayed);
    let taken = decided(apply(store, take, "looked-up", "u", START).await);
    assert!(!taken.replayed, "a peek records nothing");
    let found = decided(apply(store, peek(1), "looked-up", "u", START).await);
    assert!(found.replayed);
    assert_eq!(found.answers, taken.answers);
    assert!(matches!(apply(store, peek(2), "looked-up", "u", START).await, Outcome::Mismatch));
}

/// A repeated request is admitted after its limits changed, charges nothing, and returns the values
/// of the limits in force.
pub async fn replays_an_admission_under_other_limits(store: &dyn Store) {
    let limit = |quota| {
        Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(60)).expect("a valid limit")
    };
    let counter = |rule| Counter::new(rule, "user", "");
    let (first, other) = (counter("replay-first"), counter("replay-other"));
    let (three, one) = (limit(3), limit(1));
    type Limits<'a> = &'a [(&'a Counter, &'a Limit)];
    let apply = async |action: Action<'_>, limits: Limits<'_>| {
        let charges: Vec<Charge<'_>> =
            limits.iter().map(|(counter, limit)| Charge::new(Key::new(counter, "u", "/"), limit)).collect();
        let command = Command { action, charges: &charges };
        decided(store.apply(&command, Some(START)).await.expect("the store responds"))
    };
    let take = idempotency("caller", "replay", 1);
    assert!(!apply(take, &[(&first, &three)]).await.replayed);
    assert!(apply(Action::take(), &[(&other, &one)]).await.allowed);
    // More limits, others, none, other values: the second one has nothing remaining.
    let in_force: [(Limits<'_>, &[u32]); 6] = [
        (&[(&first, &three), (&other, &one)], &[2, 0]),
        (&[(&other, &one), (&first, &three)], &[0, 2]),
        (&[(&other, &one)], &[0]),
        (&[(&other, &three)], &[2]),
        (&[], &[]),
        (&[(&first, &three)], &[2]),
    ];
    for (limits, left) in in_force {
        for action in [take, peek_of(take)] {
            let decision = apply(action, limits).await;
            assert!(decision.allowed && decision.replayed, "{limits:?}");
            assert!(decision.answers.iter().all(|answer| answer.allowed && answer.reason.is_none()));
            let remaining: Vec<u32> = decision.answers.iter().filter_map(|answer| answer.remaining).collect();
            assert_eq!(remaining, left, "{limits:?}");
        }
    }
}

fn peek_of(take: Action<'_>) -> Action<'_> {
    match take {
        Action::Take { idempotency } => Action::Peek { idempotency },
        other => other,
    }
}

/// Identifiers that resemble another key, a separator, a hash tag or an escape have their own
/// counters.
pub async fn separates_adversarial_identifiers(store: &dyn Store) {
    let long = "x".repeat(600);
    let longer = "x".repeat(601);
    let identifiers = [
        "",
        " ",
        "a",
        "a:",
        ":a",
        "a:b",
        "a%3Ab",
        "a|b",
        "a|",
        "{a}",
        "{a",
        "a}",
        "{}",
        "a/b",
        "a\0",
        "a\0b",
        "\0",
        "\u{1}",
        "\u{1}a",
        "é",
        "e\u{301}",
        "\u{202e}a",
        "a\n",
        "a\r\n",
        "%",
        "%25",
        "rl:{user:a}",
        &long,
        &longer,
    ];
    let limit = Limit::try_new(Algorithm::FixedWindow, 1, Duration::from_secs(60)).expect("a valid limit");
    let counters = [
        Counter::new("plain", "user", ""),
        Counter::new("plain", "user", "a"),
        Counter::per_endpoint("plain", "user", ""),
    ];
    let endpoints = ["/", "/a", "a/", ""];
    let mut keys = 0;
    for counter in &counters {
        let endpoints = if counter.is_per_endpoint() { &endpoints[..] } else { &endpoints[..1] };
        for identifier in identifiers {
            for endpoint in endpoints {
                let charges = [Charge::new(Key::new(counter, identifier, endpoint), &limit)];
                let command = Command::take(&charges);
                let outcomes = store.apply_batch(&[command, command], Some(START)).await;
                let allowed: Vec<bool> = outcomes
                    .into_iter()
                    .map(|outcome| decided(outcome.expect("the store responds")).allowed)
                    .collect();
                assert_eq!(
                    allowed,
                    [true, false],
                    "{counter:?} {identifier:?} {endpoint:?} shares its counter"
                );
                keys += 1;
            }
        }
    }
    assert_eq!(keys, identifiers.len() * 6);
}

/// Commands of one batch that share a key take effect in order, and the results have the same
/// order.
pub async fn applies_a_batch_in_order(store: &dyn Store) {
    let (counter, limit) = (Counter::new("batch", "user", ""), three_a_minute());
    let charges = [Charge::new(Key::new(&counter, "u", "/"), &limit)];
    let command = |action| Command { action, charges: &charges };
    let (take, peek) = (Action::take(), Action::peek());
    let commands = [take, peek, take, Action::Refund, Action::Reset, take].map(command);
    let outcomes = store.apply_batch(&commands, Some(START)).await;
    let remaining: Vec<Option<u32>> = outcomes
        .into_iter()
        .map(|outcome| match outcome.expect("the store responds") {
            Outcome::Decided(decision) => decision.remaining(),
            _ => None,
        })
        .collect();
    assert_eq!(remaining, [Some(2), Some(2), Some(1), Some(2), None, Some(2)]);
}
