//! Two nodes on one database: hot keys in different orders, and concurrent inserts of new keys.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints its results"
)]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Action, Charge, Command, Outcome, Store};
use pacegate_testkit::effort;
use pacegate_testkit::server::{MariaDb, Postgres};
use tokio::sync::{Barrier, Mutex};
use tokio::time::Instant;

const SEED: u64 = 20_261_116;

/// One test at a time: on a small machine, concurrent tests would exceed the lock timeout.
static TURN: Mutex<()> = Mutex::const_new(());

/// The operations of a database server that the tests need.
trait Server {
    const NAME: &'static str;
    /// Starts it with default settings.
    fn start() -> Self;
    /// Starts it so that every deadlock is counted.
    fn start_counting() -> Self;
    fn url(&self) -> String;
    /// Number of deadlocks that it has resolved since it started.
    fn deadlocks(&self) -> u64;
}

impl Server for MariaDb {
    const NAME: &'static str = "mariadb";

    fn start() -> Self {
        Self::start()
    }

    fn start_counting() -> Self {
        Self::start()
    }

    fn url(&self) -> String {
        self.url()
    }

    fn deadlocks(&self) -> u64 {
        let status = self.query("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
        status.split('\t').nth(1).unwrap().parse().unwrap()
    }
}

impl Server for Postgres {
    const NAME: &'static str = "postgres";

    fn start() -> Self {
        Self::start()
    }

    /// Detects deadlocks before a lock times out; by default they look like lock timeouts.
    fn start_counting() -> Self {
        Self::start_with(&["-c", "deadlock_timeout=20ms"])
    }

    fn url(&self) -> String {
        self.url()
    }

    /// Sessions report with a delay of up to a second, and when they end.
    fn deadlocks(&self) -> u64 {
        std::thread::sleep(Duration::from_millis(1_200));
        self.query("SELECT deadlocks FROM pg_stat_database WHERE datname = 'pacegate'").parse().unwrap()
    }
}

async fn two_nodes(server: &impl Server) -> [Arc<SqlStore>; 2] {
    let node = async || Arc::new(SqlStore::connect(SqlOptions::new(&server.url()).unwrap()).await.unwrap());
    [node().await, node().await]
}

/// A window longer than any test.
fn limit(capacity: u64) -> Limit {
    Limit::try_new(Algorithm::FixedWindow, capacity, Duration::from_secs(366 * 86_400)).unwrap()
}

/// Applies commands with one charge per key and returns which were admitted. No error may surface.
async fn apply(
    store: &SqlStore,
    chains: &[Vec<Charge<'_>>],
    action: Action<'_>,
) -> Vec<pacegate_core::ChainDecision> {
    let commands: Vec<Command<'_>> = chains.iter().map(|charges| Command { action, charges }).collect();
    let outcomes = store.apply_batch(&commands, None).await;
    assert_eq!(outcomes.len(), chains.len());
    let decided = outcomes.into_iter().map(|outcome| match outcome {
        Ok(Outcome::Decided(decision)) => decision,
        other => panic!("an error surfaced: {other:?}"),
    });
    decided.collect()
}

/// Every chain has the tightest limit and one to four of the others, in random order.
async fn chains_over_hot_keys<S: Server>() {
    let _turn = TURN.lock().await;
    let server = S::start_counting();
    let nodes = two_nodes(&server).await;
    let (tasks, each) = (32_usize, effort(40, 400));
    let tightest = tasks as u64 * each / 3;
    let names = ["m-tightest", "a", "b", "n", "y", "z"];
    let hot: Arc<Vec<(Counter, Limit)>> = Arc::new(
        names
            .iter()
            .enumerate()
            .map(|(place, name)| {
                (Counter::new(name, "user", ""), limit(if place == 0 { tightest } else { 1_000_000 }))
            })
            .collect(),
    );
    let start = Arc::new(Barrier::new(tasks));
    let since = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (node, hot, start) = (nodes[task % 2].clone(), hot.clone(), start.clone());
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(SEED + task as u64);
                let mut charged = vec![0_u64; hot.len()];
                let mut slowest = Duration::ZERO;
                start.wait().await;
                for _ in 0..each {
                    let mut places: Vec<usize> = (1..hot.len()).collect();
                    random.shuffle(&mut places);
                    places.truncate(random.usize(1..=4));
                    places.push(0);
                    random.shuffle(&mut places);
                    let chain = places
                        .iter()
                        .map(|&place| Charge::new(Key::new(&hot[place].0, "hot", ""), &hot[place].1));
                    let started = Instant::now();
                    let decision = apply(&node, &[chain.collect()], Action::take()).await.remove(0);
                    slowest = slowest.max(started.elapsed());
                    for place in places.into_iter().filter(|_| decision.allowed) {
                        charged[place] += 1;
                    }
                }
                (charged, slowest)
            })
        })
        .collect();
    let (mut charged, mut slowest) = (vec![0_u64; hot.len()], Duration::ZERO);
    for task in running {
        let (own, took) = task.await.unwrap();
        charged.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        slowest = slowest.max(took);
    }
    let took = since.elapsed();
    let admitted = charged[0];
    assert_eq!(admitted, tightest, "exactly the tightest limit is admitted");
    let mut leaked = 0;
    for ((counter, limit), charged) in hot.iter().zip(charged) {
        let charges = vec![Charge::new(Key::new(counter, "hot", ""), limit)];
        for node in &nodes {
            let decision = apply(node, std::slice::from_ref(&charges), Action::peek()).await.remove(0);
            let used = u64::from(limit.capacity() - decision.remaining().unwrap());
            leaked += used.abs_diff(charged);
            assert_eq!(used, charged, "{counter:?} is charged exactly as often as it was admitted");
        }
    }
    drop(nodes);
    println!(
        "PASS {}-hot-chains seed={SEED} requests={} admitted={admitted} leaked={leaked} errors=0 deadlocks={} took_ms={} slowest_ms={}",
        S::NAME,
        tasks as u64 * each,
        server.deadlocks(),
        took.as_millis(),
        slowest.as_millis(),
    );
}

/// Half of the tasks request all keys in one call, the others one by one, each in its own order.
async fn new_keys_race<S: Server>() {
    let _turn = TURN.lock().await;
    new_keys_race_on(S::start(), "new-keys").await;
}

/// The same, with deadlocks detected at once and counted.
async fn new_keys_race_counted<S: Server>() {
    let _turn = TURN.lock().await;
    new_keys_race_on(S::start_counting(), "new-keys-counted").await;
}

async fn new_keys_race_on<S: Server>(server: S, name: &str) {
    let nodes = two_nodes(&server).await;
    let (tasks, keys, rounds) = (64_usize, 50_usize, effort(3, 30));
    let since = Instant::now();
    for round in 0..rounds {
        let start = Arc::new(Barrier::new(tasks));
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let (node, start) = (nodes[task % 2].clone(), start.clone());
                tokio::spawn(async move {
                    let mut random = fastrand::Rng::with_seed(SEED + (round * tasks + task) as u64);
                    let mut order: Vec<usize> = (0..keys).collect();
                    random.shuffle(&mut order);
                    let (counter, once) = (Counter::new("once", "user", ""), limit(1));
                    let names: Vec<String> = order.iter().map(|key| format!("{round}-{key}")).collect();
                    let chains: Vec<Vec<Charge<'_>>> = names
                        .iter()
                        .map(|name| vec![Charge::new(Key::new(&counter, name, ""), &once)])
                        .collect();
                    start.wait().await;
                    let at_once = if task % 4 < 2 { keys } else { 1 };
                    let mut admitted = Vec::new();
                    for (chains, order) in chains.chunks(at_once).zip(order.chunks(at_once)) {
                        let decisions = apply(&node, chains, Action::take()).await;
                        let own = decisions.iter().zip(order).filter(|(decision, _)| decision.allowed);
                        admitted.extend(own.map(|(_, key)| *key));
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted = Vec::new();
        for task in running {
            admitted.extend(task.await.unwrap());
        }
        admitted.sort_unstable();
        assert_eq!(admitted, (0..keys).collect::<Vec<_>>(), "every key is admitted exactly once");
    }
    let took = since.elapsed();
    drop(nodes);
    println!(
        "PASS {}-{name} seed={SEED} rounds={rounds} tasks={tasks} requests={} admitted={} errors=0 deadlocks={} took_ms={}",
        S::NAME,
        rounds * tasks * keys,
        rounds * keys,
        server.deadlocks(),
        took.as_millis(),
    );
}

/// Two batches above the size that shares a lane with single checks: both use the connection that
/// is reserved for large batches.
async fn large_batches_have_a_connection_of_their_own<S: Server>() {
    let _turn = TURN.lock().await;
    let server = S::start();
    let mut options = SqlOptions::new(&server.url()).unwrap();
    options.connections = 1;
    let store = SqlStore::connect(options).await.unwrap();
    let connects = || store.figures().into_iter().find(|(name, _)| *name == "connects").unwrap().1.value();
    let (counter, limit) = (Counter::new("window", "user", ""), limit(1_000));
    let identifiers: Vec<String> = (0..64).map(|identifier| identifier.to_string()).collect();
    let charge = |identifier| vec![Charge::new(Key::new(&counter, identifier, ""), &limit)];
    let chains: Vec<Vec<Charge<'_>>> = identifiers.iter().map(|identifier| charge(identifier)).collect();

    apply(&store, &chains[..1], Action::take()).await;
    let single = connects();
    for _ in 0..2 {
        apply(&store, &chains, Action::take()).await;
        assert_eq!(connects(), single + 1);
    }
}

macro_rules! on_both {
    ($($test:ident),*) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test::<super::MariaDb>().await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test::<super::Postgres>().await;
            })*
        }
    };
}

on_both!(
    chains_over_hot_keys,
    large_batches_have_a_connection_of_their_own,
    new_keys_race,
    new_keys_race_counted
);
