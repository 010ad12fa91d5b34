//! What happens to requests when something happens to the database: real servers, real signals, real locks.
//!
//! Each test says what was admitted, what was lost, and how long it took. `scripts/reliability` runs them for longer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, MySqlConnection, PgConnection, raw_sql};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, sleep};
use tollgate_core::{Algorithm, Limit};
use tollgate_memory::MemoryStore;
use tollgate_sql::{SqlOptions, SqlStore};
use tollgate_store::{GuardedStore, Store, StoreHealth};
use tollgate_testkit::effort;
use tollgate_testkit::load::{Fate, Load, Report};
use tollgate_testkit::server::{Fault, FaultProxy, MariaDb, Postgres};

/// Databases are slower than Redis.
const DEADLINE: Duration = Duration::from_millis(250);
/// What is allowed on top of the deadline, apart from what the machine's own timers are late by.
const GRACE: Duration = Duration::from_millis(10);
/// How soon a database that is back is used again.
const BACK_WITHIN: Duration = Duration::from_secs(3);
const SEED: u64 = 20_261_116;
/// Locks the row of the only identifier of [`Load::new`].
const LOCK: &str = "BEGIN; SELECT k FROM tollgate_state WHERE k = 'c:user:someone:load:' FOR UPDATE";

/// One fault at a time: they are measured, and the machine is small.
static TURN: Mutex<()> = Mutex::const_new(());

async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// What the tests need of a database server.
trait Server {
    const NAME: &'static str;
    /// A connection of somebody else, whose locks are gone with it.
    type Holder;
    fn start() -> Self;
    fn url(&self) -> String;
    fn port(&self) -> u16;
    fn kill(&mut self);
    fn restart(&mut self);
    fn freeze(&self);
    fn thaw(&self);
    async fn hold(&self) -> Self::Holder;
    async fn release(holder: Self::Holder);
}

macro_rules! server {
    ($server:ty, $name:literal, $connection:ty) => {
        impl Server for $server {
            const NAME: &'static str = $name;
            type Holder = $connection;

            fn start() -> Self {
                Self::start()
            }

            fn url(&self) -> String {
                self.url()
            }

            fn port(&self) -> u16 {
                self.port()
            }

            fn kill(&mut self) {
                self.kill();
            }

            fn restart(&mut self) {
                self.restart();
            }

            fn freeze(&self) {
                self.freeze();
            }

            fn thaw(&self) {
                self.thaw();
            }

            async fn hold(&self) -> $connection {
                let mut connection = <$connection>::connect(&self.url()).await.unwrap();
                let locked = raw_sql(LOCK).fetch_all(&mut connection).await.unwrap();
                assert_eq!(locked.len(), 1, "there is such a row");
                connection
            }

            async fn release(mut holder: $connection) {
                raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
                holder.close().await.unwrap();
            }
        }
    };
}

server!(MariaDb, "mariadb", MySqlConnection);
server!(Postgres, "postgres", PgConnection);

async fn connect(url: &str) -> Arc<GuardedStore> {
    let sql = Arc::new(SqlStore::connect(SqlOptions::new(url).unwrap()).await.unwrap());
    GuardedStore::new("default", sql, Arc::new(MemoryStore::default()), DEADLINE)
}

/// So much that nothing is denied for want of room, in one window that no test outlives.
fn plenty() -> Limit {
    Limit::try_new(Algorithm::FixedWindow, 100_000_000, Duration::from_secs(366 * 86_400)).unwrap()
}

fn figure(store: &dyn Store, name: &str) -> u64 {
    store.figures().into_iter().find(|(other, _)| *other == name).unwrap().1
}

fn punctual(report: &Report) {
    let slowest = report.slowest_of_ours();
    assert!(slowest <= DEADLINE + GRACE, "a request took {slowest:?} beyond {:?} of noise", report.lateness);
    assert_eq!(report.count(Fate::Failed), 0, "every request gets an answer");
}

/// What was counted without an answer: at most what was on its way when it happened, `times` times. Nothing that
/// was admitted is forgotten.
async fn uncertain(load: &Load, store: &dyn Store, report: &Report, times: u64) -> u64 {
    let (admitted, used) = (report.count(Fate::Admitted), load.used(store).await);
    assert!(used >= admitted, "{admitted} were admitted, {used} are counted");
    let uncertain = used - admitted;
    assert!(uncertain <= load.callers as u64 * times, "{uncertain} were counted without an answer");
    uncertain
}

/// How long it took until the store was relied on again.
async fn up_again(store: &GuardedStore, since: Instant) -> Duration {
    while store.health() != StoreHealth::Up && since.elapsed() < BACK_WITHIN {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.health(), StoreHealth::Up, "not up {:?} after it was back", since.elapsed());
    since.elapsed()
}

/// One line of figures; `scripts/reliability` collects them.
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
    punctual(&report);
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
    punctual(&report);
    assert!(report.count(Fate::Admitted) > 0);
    assert!(figure(&*store, "breaker_openings") >= 1);
    let uncertain = uncertain(&load, &*store, &report, 1).await;
    let back = report.healthy_after(thawed_at).unwrap().max(up);
    assert!(back <= BACK_WITHIN, "{back:?}");
    // Most answers while the breaker is open do not wait at all.
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

async fn locked_from_outside<S: Server>() {
    let _turn = turn().await;
    let server = S::start();
    let store = connect(&server.url()).await;
    // Each caller keeps to one identifier; some of them share the lane of the locked one, most do not.
    let load = Load { callers: 2, ..Load::new(plenty()) };
    let others =
        Load { identifiers: (0..8).map(|number| format!("other-{number}")).collect(), ..Load::new(plenty()) };
    let (running, others_running) = (load.clone().start(store.clone()), others.clone().start(store.clone()));
    sleep(Duration::from_millis(500)).await;
    let holder = server.hold().await;
    let locked_at = Instant::now();
    sleep(Duration::from_millis(effort(2_000, 20_000))).await;
    let released_at = Instant::now();
    S::release(holder).await;
    let report = running.stop_when_healthy(released_at, Duration::from_secs(5)).await;
    let others_report = others_running.stop().await;
    for report in [&report, &others_report] {
        punctual(report);
    }
    // One request of each caller may have been on its way when the row was locked.
    let meanwhile = |report: &Report, fate| {
        let sent = |at| at > locked_at && at + DEADLINE < released_at;
        report.records.iter().filter(|record| sent(record.sent) && record.fate == fate).count()
    };
    assert_eq!(meanwhile(&report, Fate::Admitted), 0, "nobody gets past the lock");
    assert!(meanwhile(&report, Fate::Degraded) > 0, "the failure mode answers");
    let served = meanwhile(&others_report, Fate::Admitted);
    assert!(served > 20, "only {served} requests of others were served meanwhile");
    let back = report.healthy_after(released_at).unwrap();
    assert!(back <= BACK_WITHIN, "{back:?}");
    assert_eq!(up_again(&store, Instant::now()).await.as_secs(), 0);
    // Whatever a lane retries until the lock is gone may be counted after its caller went away: one batch each time.
    let uncertain = uncertain(&load, &*store, &report, 1).await;
    let (admitted, used) = (others_report.count(Fate::Admitted), others.used(&*store).await);
    assert!(used >= admitted, "{admitted} others were admitted, {used} are counted");
    pass::<S>(
        "locked",
        &report,
        &format!(
            "lost=0 uncertain={uncertain} others_uncertain={} served_meanwhile={served} others_degraded={} breaker_openings={} back_ms={}",
            used - admitted,
            others_report.count(Fate::Degraded),
            figure(&*store, "breaker_openings"),
            back.as_millis()
        ),
    );
}

/// The network swallows answers; when it ends, connections that lost some are closed.
async fn replies_swallowed<S: Server>() {
    let _turn = turn().await;
    let server = S::start();
    let proxy = FaultProxy::start(format!("127.0.0.1:{}", server.port()).parse().unwrap()).await;
    let url = server.url().replace(&format!("127.0.0.1:{}", server.port()), &proxy.address().to_string());
    let store = connect(&url).await;
    let load = Load::new(plenty());
    let running = load.clone().start(store.clone());
    sleep(Duration::from_millis(500)).await;
    proxy.set(Fault::SwallowReplies);
    sleep(Duration::from_millis(effort(1_500, 10_000))).await;
    proxy.set(Fault::None);
    let back_at = Instant::now();
    let up = up_again(&store, back_at).await;
    let report = running.stop_when_healthy(back_at, Duration::from_secs(5)).await;
    punctual(&report);
    let (admitted, used) = (report.count(Fate::Admitted), load.used(&*store).await);
    assert!(used >= admitted && used <= report.records.len() as u64, "{admitted} {used}");
    let back = report.healthy_after(back_at).unwrap().max(up);
    assert!(back <= BACK_WITHIN, "{back:?}");
    pass::<S>("swallowed", &report, &format!("uncertain={} back_ms={}", used - admitted, back.as_millis()));
}

/// Passes connections on to a server until they are abandoned: those that exist then carry nothing more and are never
/// closed, as when a machine vanished or a firewall forgot them. New ones work.
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
                    // The server notices, so that its locks are gone; the client does not.
                    drop(server);
                    std::future::pending::<()>().await;
                    drop(client);
                });
            }
        });
        Self { address, abandon }
    }
}

/// Connections die without a word.
async fn connections_forgotten<S: Server>() {
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
    // Longer than it takes to notice, so that its end is not mistaken for the return.
    sleep(DEADLINE * 2).await;
    let up = up_again(&store, abandoned_at).await;
    let report = running.stop_when_healthy(abandoned_at + up, Duration::from_secs(5)).await;
    punctual(&report);
    let uncertain = uncertain(&load, &*store, &report, 1).await;
    let back = report.healthy_after(abandoned_at).unwrap().max(up);
    assert!(back <= BACK_WITHIN, "{back:?}");
    pass::<S>("forgotten", &report, &format!("lost=0 uncertain={uncertain} back_ms={}", back.as_millis()));
}

macro_rules! faults {
    ($($fault:ident),*) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fault() {
                super::$fault::<super::MariaDb>().await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fault() {
                super::$fault::<super::Postgres>().await;
            })*
        }
    };
}

faults!(killed_and_restarted, frozen, locked_from_outside, replies_swallowed, connections_forgotten);
