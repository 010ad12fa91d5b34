//! Requests during faults of the database: real servers, real signals, real locks.
//!
//! Each test prints what was admitted, what was lost, and how long it took. `scripts/reliability`
//! runs them for longer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints its results"
)]

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_memory::MemoryStore;
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Charge, Command, GuardedStore, Outcome, Store, StoreError, StoreHealth};
use pacegate_testkit::effort;
use pacegate_testkit::load::{Fate, Load, Record, Report};
use pacegate_testkit::server::{DatabaseServer, Fault, FaultProxy, MariaDb, Postgres};
use sqlx::{Connection, MySqlConnection, PgConnection, raw_sql};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, sleep};

/// Longer than for Redis, because databases are slower.
const DEADLINE: Duration = Duration::from_millis(250);
/// Time within which a database that is available again is used again.
const BACK_WITHIN: Duration = Duration::from_secs(3);
const SEED: u64 = 20_261_116;
/// Shorter than the store's first wait for a locked row.
const FIRST_LOCK_WAIT: Duration = Duration::from_millis(70);
/// Number of keys besides the locked one.
const OTHERS: usize = 32;
/// Locks the row of the only identifier of [`Load::new`].
const LOCK: &str = "BEGIN; SELECT k FROM pacegate_state WHERE k = 'c:user:user-1:load:' FOR UPDATE";

/// One test at a time: they measure, and the machine is small.
static TURN: Mutex<()> = Mutex::const_new(());

async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// The operations of a database server that the tests need.
trait Server: DatabaseServer {
    const NAME: &'static str;
    /// An unrelated connection; dropping it releases its locks.
    type Holder;
    fn start() -> Self;
    async fn hold(&self) -> Self::Holder;
    async fn release(holder: Self::Holder);
    /// Whether a transaction is waiting for a row lock.
    async fn has_lock_waiter(holder: &mut Self::Holder) -> bool;
}

macro_rules! server {
    ($server:ty, $name:literal, $connection:ty, $waiting:literal) => {
        impl Server for $server {
            const NAME: &'static str = $name;
            type Holder = $connection;

            fn start() -> Self {
                Self::start()
            }

            async fn hold(&self) -> $connection {
                let mut connection = <$connection>::connect(&self.url()).await.unwrap();
                let locked = raw_sql(LOCK).fetch_all(&mut connection).await.unwrap();
                assert_eq!(locked.len(), 1, "the row exists");
                connection
            }

            async fn release(mut holder: $connection) {
                raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
                holder.close().await.unwrap();
            }

            async fn has_lock_waiter(holder: &mut $connection) -> bool {
                !raw_sql($waiting).fetch_all(holder).await.unwrap().is_empty()
            }
        }
    };
}

server!(
    MariaDb,
    "mariadb",
    MySqlConnection,
    "SHOW GLOBAL STATUS WHERE variable_name = 'Innodb_row_lock_current_waits' AND value > 0"
);
server!(Postgres, "postgres", PgConnection, "SELECT 1 FROM pg_locks WHERE NOT granted");

async fn connect(url: &str) -> Arc<GuardedStore> {
    let sql = Arc::new(SqlStore::connect(SqlOptions::new(url).unwrap()).await.unwrap());
    GuardedStore::new("default", sql, Arc::new(MemoryStore::default()), DEADLINE)
}

/// A limit so large that nothing is denied.
fn plenty() -> Limit {
    limit(100_000_000)
}

/// A window longer than any test.
fn limit(capacity: u64) -> Limit {
    Limit::try_new(Algorithm::FixedWindow, capacity, Duration::from_secs(366 * 86_400)).unwrap()
}

fn figure(store: &dyn Store, name: &str) -> u64 {
    store.figures().into_iter().find(|(other, _)| *other == name).unwrap().1.value()
}

/// Number of requests that were counted without a response: at most those in flight when the fault
/// occurred, `times` times, or those that timed out, of which a busy machine may have more. No
/// admitted request may be missing.
async fn uncertain(load: &Load, store: &dyn Store, report: &Report, times: u64) -> u64 {
    let (admitted, used) = (report.count(Fate::Admitted), load.used(store).await);
    assert!(used >= admitted, "{admitted} were admitted, {used} were counted");
    let uncertain = used - admitted;
    let timed_out = report.timed_out(DEADLINE);
    let at_most = timed_out.max(load.callers as u64 * times);
    assert!(uncertain <= at_most, "{uncertain} were counted without a response, {timed_out} timed out");
    uncertain
}

/// How long it took until the store was available again.
async fn up_again(store: &GuardedStore, since: Instant) -> Duration {
    while store.health() != StoreHealth::Up && since.elapsed() < BACK_WITHIN {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        store.health(),
        StoreHealth::Up,
        "not up {:?} after the server was available",
        since.elapsed()
    );
    since.elapsed()
}

/// Prints one line of figures, which `scripts/reliability` collects.
fn pass<S: Server>(name: &str, report: &Report, figures: &str) {
    println!(
        "PASS {}-{name} seed={SEED} requests={} admitted={} degraded={} degraded_ms={} slowest_ms={} noise_ms={} {figures}",
        S::NAME,
        report.records.len(),
        report.count(Fate::Admitted),
        report.count(Fate::Degraded),
        report.degraded_for().as_millis(),
        report.slowest().as_millis(),
        report.lateness.as_millis(),
    );
}

async fn killed_and_restarted<S: Server>() {
    let _turn = turn().await;
    let mut server = S::start();
    let store = connect(&server.url()).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    let rounds = effort(1, 10);
    let (mut back_at, mut slowest_return) = (Instant::now(), Duration::ZERO);
    for _ in 0..rounds {
        sleep(Duration::from_millis(500)).await;
        server.kill();
        sleep(Duration::from_millis(effort(700, 3_000))).await;
        server.restart();
        back_at = Instant::now();
        slowest_return = slowest_return.max(up_again(&store, back_at).await);
    }
    let report = running.stop_when_healthy(back_at, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    assert!(report.count(Fate::Admitted) > 0 && report.count(Fate::Degraded) > 0);
    let uncertain = uncertain(&load, &*store, &report, rounds).await;
    let back = report.healthy_after(back_at).unwrap().max(slowest_return);
    assert!(back <= BACK_WITHIN, "{back:?}");
    pass::<S>("killed", &report, &format!("lost=0 uncertain={uncertain} back_ms={}", back.as_millis()));
}

async fn frozen<S: Server>() {
    let _turn = turn().await;
    let server = S::start();
    let store = connect(&server.url()).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(500)).await;
    server.freeze();
    sleep(Duration::from_millis(effort(1_500, 30_000))).await;
    server.thaw();
    let thawed_at = Instant::now();
    let up = up_again(&store, thawed_at).await;
    let report = running.stop_when_healthy(thawed_at, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    assert!(report.count(Fate::Admitted) > 0);
    assert!(figure(&*store, "breaker_openings") >= 1);
    let uncertain = uncertain(&load, &*store, &report, 1).await;
    let back = report.healthy_after(thawed_at).unwrap().max(up);
    assert!(back <= BACK_WITHIN, "{back:?}");
    // While the breaker is open, most requests do not wait at all.
    let median = report.percentile(Fate::Degraded, 0.5);
    assert!(median <= Duration::from_millis(3) + report.lateness, "{median:?}");
    pass::<S>(
        "frozen",
        &report,
        &format!(
            "lost=0 uncertain={uncertain} back_ms={} open_median_us={}",
            back.as_millis(),
            median.as_micros()
        ),
    );
}

/// A long transaction of another client holds one row: its key waits, and all other keys are
/// served.
async fn locked_by_another_client<S: Server>() {
    let _turn = turn().await;
    let server = S::start();
    let store = connect(&server.url()).await;
    // Equal request rates, so that the locked key is only one of many for the breaker.
    let pause = Duration::from_millis(10);
    let locked = Load { callers: 2, pause, ..Load::new(plenty()) };
    // Enough keys for several in every lane; their limits are reached during the test.
    let others: Vec<Load> = (0..OTHERS)
        .map(|number| Load {
            callers: 1,
            pause,
            identifiers: vec![format!("other-{number}")],
            ..Load::new(limit(effort(100, 1_000)))
        })
        .collect();
    let running = locked.clone().start(store.clone());
    let others_running: Vec<_> = others.iter().map(|load| load.clone().start(store.clone())).collect();
    sleep(Duration::from_millis(500)).await;
    let holder = server.hold().await;
    let locked_at = Instant::now();
    sleep(Duration::from_millis(effort(4_000, 20_000))).await;
    let released_at = Instant::now();
    S::release(holder).await;
    let report = running.stop_when_healthy(released_at, Duration::from_secs(5)).await;
    let mut reports = Vec::new();
    for running in others_running {
        reports.push(running.stop().await);
    }
    reports.iter().chain([&report]).for_each(|report| report.assert_punctual(DEADLINE));

    // One request of each caller may have been in flight when the row was locked.
    let count_while_locked = |report: &Report, fates: &[Fate]| {
        let sent = |at| at > locked_at && at + DEADLINE < released_at;
        report.records.iter().filter(|record| sent(record.sent) && fates.contains(&record.fate)).count()
    };
    let (by_store, by_failure_mode) = ([Fate::Admitted, Fate::Denied], [Fate::Degraded]);
    assert_eq!(count_while_locked(&report, &by_store), 0, "no request passes the lock");
    assert!(count_while_locked(&report, &by_failure_mode) > 0, "the failure mode decides");
    let served: Vec<usize> = reports.iter().map(|report| count_while_locked(report, &by_store)).collect();
    let degraded: usize = reports.iter().map(|report| count_while_locked(report, &by_failure_mode)).sum();
    let fewest = served.iter().min().copied().unwrap_or_default();
    let served: usize = served.iter().sum();
    assert!(fewest > 0, "every other key is served, also in the lane of the locked one");
    // All of them are served, unless the machine stalls long enough to open the breaker for a
    // second.
    let (openings, noise) = (figure(&*store, "breaker_openings"), report.lateness);
    let context = format!("{openings} openings of the breaker, {noise:?} of noise");
    assert!(
        served > degraded,
        "{served} requests for other keys were served, {degraded} were not; {context}"
    );

    let back = report.healthy_after(released_at).unwrap();
    assert!(back <= BACK_WITHIN, "{back:?}");
    assert_eq!(up_again(&store, Instant::now()).await.as_secs(), 0);
    let mut late = unanswered(&locked, &*store, &report).await;
    let mut others_admitted = 0;
    for (load, report) in others.iter().zip(&reports) {
        let (admitted, capacity) = (report.count(Fate::Admitted), u64::from(load.limits[0].1.capacity()));
        assert!(admitted <= capacity, "{admitted} were admitted, the capacity is {capacity}");
        others_admitted += admitted;
        late += unanswered(load, &*store, report).await;
    }
    pass::<S>(
        "locked",
        &report,
        &format!(
            "lost=0 uncertain={late} others={OTHERS} others_served={served} others_fewest={fewest} others_degraded={degraded} others_admitted={others_admitted} breaker_openings={openings} back_ms={}",
            back.as_millis()
        ),
    );
}

/// Number of requests that were counted without a response: only those that timed out in flight.
async fn unanswered(load: &Load, store: &dyn Store, report: &Report) -> u64 {
    let reached = |record: &&Record| record.fate == Fate::Degraded && record.took >= DEADLINE;
    let late = report.records.iter().filter(reached).count() as u64;
    let (admitted, used) = (report.count(Fate::Admitted), load.used(store).await);
    assert!(
        (admitted..=admitted + late).contains(&used),
        "expected {admitted} plus at most {late}, {used} were counted"
    );
    used - admitted
}

/// Takes one token of [`plenty`], as [`Load::new`] does.
async fn take(store: &SqlStore, identifier: &str) -> Result<Outcome, StoreError> {
    let (counter, limit) = (Counter::new("load", "user", ""), plenty());
    let charges = [Charge::new(Key::new(&counter, identifier, ""), &limit)];
    let command = Command::take(&charges);
    store.apply(&command, None).await
}

/// Two requests share a batch that is rolled back because one of them needs a locked row. The other
/// one's caller is cancelled in between.
async fn cancelled_callers_are_not_charged<S: Server>() {
    let _turn = turn().await;
    let server = S::start();
    let mut options = SqlOptions::new(&server.url()).unwrap();
    options.connections = 1;
    let store = SqlStore::connect(options).await.unwrap();
    let gone = Load { identifiers: vec!["cancelled".into()], ..Load::new(plenty()) };
    // An attempt in which the machine stalls at the wrong moment is inconclusive.
    for attempt in 1..=20 {
        for identifier in ["cancelled", "user-1"] {
            take(&store, identifier).await.unwrap();
        }
        let used = gone.used(&store).await;
        let mut holder = server.hold().await;
        let (sent, mut leaves) = (Instant::now(), Box::pin(take(&store, "cancelled")));
        let mut stays = Box::pin(take(&store, "user-1"));
        // Both are queued before the lane, which runs on this thread, takes its batch.
        assert!(is_pending(&mut leaves).await && is_pending(&mut stays).await);
        while !S::has_lock_waiter(&mut holder).await && sent.elapsed() < FIRST_LOCK_WAIT {}
        let (pending, elapsed) = (is_pending(&mut leaves).await, sent.elapsed());
        drop(leaves);
        let rejected = stays.await;
        S::release(holder).await;
        if pending && elapsed < FIRST_LOCK_WAIT {
            assert!(rejected.unwrap_err().is_retryable(), "the row stays locked");
            take(&store, "user-1").await.unwrap();
            assert_eq!(
                gone.used(&store).await,
                used,
                "a caller that is cancelled before the retry is not charged"
            );
            println!("PASS {}-cancelled attempts={attempt} charged=0", S::NAME);
            return;
        }
    }
    panic!("the machine is too slow to cancel the caller in time");
}

/// Polls a future once and returns whether it is pending.
async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
}

/// The network drops replies; afterwards, the affected connections are closed.
async fn replies_dropped<S: Server>() {
    let _turn = turn().await;
    let server = S::start();
    let proxy = FaultProxy::start(format!("127.0.0.1:{}", server.port()).parse().unwrap()).await;
    let url = server.url().replace(&format!("127.0.0.1:{}", server.port()), &proxy.address().to_string());
    let store = connect(&url).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(500)).await;
    proxy.set(Fault::DropReplies);
    sleep(Duration::from_millis(effort(1_500, 10_000))).await;
    proxy.set(Fault::None);
    let back_at = Instant::now();
    let up = up_again(&store, back_at).await;
    let report = running.stop_when_healthy(back_at, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    assert!(used >= admitted && used <= report.records.len() as u64, "{admitted} {used}");
    let back = report.healthy_after(back_at).unwrap().max(up);
    assert!(back <= BACK_WITHIN, "{back:?}");
    pass::<S>("dropped", &report, &format!("uncertain={} back_ms={}", used - admitted, back.as_millis()));
}

/// Forwards connections to a server until they are abandoned. Abandoned connections transfer
/// nothing and are never closed, as when a machine fails or a firewall drops its state. New
/// connections work.
struct Firewall {
    address: SocketAddr,
    abandon: watch::Sender<()>,
}

impl Firewall {
    async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (abandon, abandoned) = watch::channel(());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut abandoned = abandoned.clone();
                abandoned.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        _ = abandoned.changed() => {}
                    }
                    // The server sees the disconnect, so that its locks are released; the client
                    // does not.
                    drop(server);
                    std::future::pending::<()>().await;
                    drop(client);
                });
            }
        });
        Self { address, abandon }
    }
}

/// Connections stop working without being closed.
async fn connections_abandoned<S: Server>() {
    let _turn = turn().await;
    let server = S::start();
    let firewall = Firewall::start(server.port()).await;
    let url = server.url().replace(&format!("127.0.0.1:{}", server.port()), &firewall.address.to_string());
    let store = connect(&url).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(500)).await;
    firewall.abandon.send_replace(());
    let abandoned_at = Instant::now();
    // Longer than the detection takes, so that its end is not mistaken for the recovery.
    sleep(DEADLINE * 2).await;
    let up = up_again(&store, abandoned_at).await;
    let report = running.stop_when_healthy(abandoned_at + up, Duration::from_secs(5)).await;
    report.assert_punctual(DEADLINE);
    let uncertain = uncertain(&load, &*store, &report, 1).await;
    let back = report.healthy_after(abandoned_at).unwrap().max(up);
    assert!(back <= BACK_WITHIN, "{back:?}");
    pass::<S>("abandoned", &report, &format!("lost=0 uncertain={uncertain} back_ms={}", back.as_millis()));
}

macro_rules! faults {
    ($($fault:ident),*) => {
        mod mariadb {
            #[tokio::test]
            async fn cancelled_callers_are_not_charged() {
                super::cancelled_callers_are_not_charged::<super::MariaDb>().await;
            }

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fault() {
                super::$fault::<super::MariaDb>().await;
            })*
        }

        mod postgres {
            #[tokio::test]
            async fn cancelled_callers_are_not_charged() {
                super::cancelled_callers_are_not_charged::<super::Postgres>().await;
            }

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fault() {
                super::$fault::<super::Postgres>().await;
            })*
        }
    };
}

faults!(killed_and_restarted, frozen, locked_by_another_client, replies_dropped, connections_abandoned);
