//! The store: lanes that decide a batch in one transaction each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pacegate_core::{Algorithm, Counter, Key, Limit, Timestamp};
use pacegate_store::{
    Action, ApplyFuture, BatchFuture, Batcher, Charge, Command, Figure, Figures, Gauge, Lane, Outcome,
    Present, Store, StoreError, Submitted,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::postgres::PgSslMode;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{
    TransactionError, before_commit, during_commit, invalid_url, locked, not_connected, pooled,
};
use crate::ledger::{Change, Ledger};
use crate::postgres::{self, PgOptions};
use crate::request::{Request, variants};
use crate::reset::reset_variants;
use crate::schema;
use crate::session::{Locked, Options, Session};
use crate::sweep::sweep_step;

/// Maximum number of rows in a transaction, unless one call alone needs more.
const BATCH_ROWS_MAX: usize = 128;
/// Maximum number of rows of a batch that shares a lane with single checks.
const SMALL_BATCH_ROWS_MAX: usize = 16;
/// Maximum number of rows of the commands that queue for a lane; further ones are rejected.
const QUEUE_ROWS_MAX: usize = 4_096;
/// Maximum number of retries of a transaction that was rolled back.
const RETRIES_MAX: u32 = 3;
/// Time after which a rolled back transaction is not retried: its callers have timed out, and
/// others queue behind it.
const RETRY_WITHIN: Duration = Duration::from_millis(200);
/// Maximum number of waits for a lock of another transaction, each up to the database's lock
/// timeout.
const LOCK_WAITS_MAX: u32 = 2;
/// Time for which a row that stayed locked is not waited for again.
const HELD_FOR: Duration = Duration::from_secs(1);
/// Average interval at which a node removes expired rows.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// Timeout of a transaction, longer than the database's timeouts for locks and statements.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of retries of a variants reset that waits for locked rows.
const RESET_RETRIES_MAX: u32 = 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Options of a [`SqlStore`].
#[derive(Clone, Debug)]
pub struct SqlOptions {
    pub(crate) options: Options,
    /// The PEM files that TLS needs.
    files: Vec<PathBuf>,
    /// Number of connections, each with its own lane. Large batches use one more, so that single
    /// checks do not wait for them.
    pub connections: usize,
}

impl SqlOptions {
    /// Default number of connections.
    pub const CONNECTIONS: usize = 3;
    /// Maximum number of connections.
    pub const CONNECTIONS_MAX: usize = 64;

    /// The default options for a `mysql://` or `postgres://` URL.
    ///
    /// # Errors
    /// [`StoreError`], without the password, when the URL is invalid.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let options = if url.starts_with("mysql://") || url.starts_with("mariadb://") {
            Options::MySql(Box::new(url.parse().map_err(invalid_url)?))
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            Options::Postgres(Box::new(PgOptions::parse(url)?))
        } else {
            return Err(StoreError::rejected("expected a URL that starts with mysql:// or postgres://"));
        };
        Ok(Self { options, files: Vec::new(), connections: Self::CONNECTIONS })
    }

    /// Trusts `authority` in addition to the public ones, verifies the server's name, and presents
    /// the client's certificate and key if given. All files are PEM.
    #[must_use]
    pub fn with_tls(mut self, authority: Option<&Path>, client: Option<(&Path, &Path)>) -> Self {
        let client_files = client.map(|(certificate, key)| [certificate, key]);
        self.files
            .extend(authority.into_iter().chain(client_files.into_iter().flatten()).map(Path::to_owned));
        match &mut self.options {
            Options::MySql(options) => {
                let mut with = MySqlConnectOptions::clone(options).ssl_mode(MySqlSslMode::VerifyIdentity);
                if let Some(authority) = authority {
                    with = with.ssl_ca(authority);
                }
                if let Some((certificate, key)) = client {
                    with = with.ssl_client_cert(certificate).ssl_client_key(key);
                }
                **options = with;
            }
            Options::Postgres(options) => {
                let mut with = options.options.clone().ssl_mode(PgSslMode::VerifyFull);
                if let Some(authority) = authority {
                    with = with.ssl_root_cert(authority);
                }
                if let Some((certificate, key)) = client {
                    with = with.ssl_client_cert(certificate).ssl_client_key(key);
                }
                options.options = with;
            }
        }
        self
    }
}

/// Counters in a database. See the crate documentation.
#[derive(Debug)]
pub struct SqlStore {
    batcher: Batcher<Job, Answer>,
    /// The index of the lane for large batches, which follows those for single checks.
    large_batches: usize,
    hasher: RandomState,
    options: Options,
    connections: Gauge,
    connects: Arc<AtomicU64>,
    sweeper: AbortHandle,
}

/// A command, and its explicit time if it has one.
#[derive(Debug)]
struct Job {
    request: Request,
    now: Option<Timestamp>,
}

impl Job {
    /// The keys of all rows that the job touches.
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.request.keys()
    }
}

impl SqlStore {
    /// Connects, and migrates the schema.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be reached, or rejects the connection;
    /// [`StoreError::is_permanent`] distinguishes the two.
    pub async fn connect(options: SqlOptions) -> Result<Self, StoreError> {
        for path in &options.files {
            // Checked here, because a later failure would look like an unreachable database.
            let unreadable =
                |error| StoreError::rejected(format!("TLS: cannot read {}: {error}", path.display()));
            File::open(path).map_err(unreadable)?;
        }
        let mut session = connect(&options.options).await?;
        reject_unknown_pooler(&options.options, &mut session).await?;
        schema::migrate(&mut session).await?;
        let mut sessions = vec![Some(session)];
        let connections_max = options.connections.clamp(1, SqlOptions::CONNECTIONS_MAX);
        sessions.resize_with(connections_max + 1, || None);
        // One connection was already made, for the migration.
        let (connections, connects) = (Gauge::default(), Arc::new(AtomicU64::new(1)));
        let lane = |session: Option<Session>| Worker {
            options: options.options.clone(),
            session: session.map(|session| (session, connections.enter())),
            connections: connections.clone(),
            connects: connects.clone(),
            held: LockedRows::default(),
        };
        let lanes: Vec<Worker> = sessions.into_iter().map(lane).collect();
        let batcher = Batcher::start(lanes, BATCH_ROWS_MAX, QUEUE_ROWS_MAX);
        let sweeper = tokio::spawn(sweep_forever(options.options.clone())).abort_handle();
        let store = Self {
            batcher,
            large_batches: connections_max,
            hasher: RandomState::new(),
            options: options.options,
            connections,
            connects,
            sweeper,
        };
        store.check_privileges().await?;
        Ok(store)
    }

    /// Takes twice, refunds and resets a private counter, so that a missing privilege to insert,
    /// lock, update or delete rows is detected at startup. The identifier is random, so that nodes
    /// that start at the same time do not wait for each other.
    async fn check_privileges(&self) -> Result<(), StoreError> {
        let limit = Limit::try_new(Algorithm::FixedWindow, 2, Duration::from_secs(60));
        let limit = limit.map_err(|error| StoreError::rejected(error.to_string()))?;
        let counter = Counter::new("window", "pacegate", "start");
        let identifier = fastrand::u64(..).to_string();
        let charges = [Charge::new(Key::new(&counter, &identifier, ""), &limit)];
        for action in [Action::take(), Action::take(), Action::Refund, Action::Reset] {
            self.apply(&Command { action, charges: &charges }, None).await?;
        }
        // Otherwise only the sweeper deletes rows, which needs the same privilege.
        let request = Request::new(&Command { action: Action::Reset, charges: &charges });
        let mut session = connect(&self.options).await?;
        let denied = |error: sqlx::Error| before_commit(&error).into_error();
        session.run("BEGIN").await.map_err(denied)?;
        for key in request.keys() {
            let delete = format!("DELETE FROM pacegate_state WHERE k = '{key}'");
            session.run_text(delete).await.map_err(denied)?;
        }
        session.run("COMMIT").await.map_err(denied)?;
        Ok(())
    }

    /// Removes expired rows and returns their number. This also happens in the background.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be reached.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        sweep(&self.options).await
    }
}

impl SqlStore {
    /// Requests for the same key use the same lane, so that they do not wait for each other's
    /// locks.
    fn lane(&self, request: &Request) -> usize {
        let hash = self.hasher.hash_one(request.keys().next().unwrap_or_default());
        (hash % self.large_batches as u64) as usize
    }

    async fn submit(&self, lane: usize, request: Request, now: Option<Timestamp>) -> Answer {
        let rows = request.keys().count();
        self.batcher.submit(lane, Job { request, now }, rows).await?
    }

    /// Resets the variants of a command's counters over a separate connection, because it is slow
    /// and rare.
    async fn reset_variants(&self, command: &Command<'_>) -> Result<(), StoreError> {
        let identities = variants(command);
        if identities.is_empty() {
            return Ok(());
        }
        let mut session = connect(&self.options).await?;
        for (identity, variants) in &identities {
            let mut retries = 0;
            while let Err(error) = reset_variants(&mut session, identity, variants).await {
                match before_commit(&error) {
                    TransactionError::RolledBack(_) | TransactionError::Locked(_)
                        if retries < RESET_RETRIES_MAX =>
                    {
                        retries += 1
                    }
                    error => return Err(error.into_error()),
                }
                session.rollback().await.map_err(|error| not_connected(&error))?;
            }
        }
        Ok(())
    }
}

impl Store for SqlStore {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            if matches!(command.action, Action::ResetVariants) {
                self.reset_variants(command).await?;
            }
            let request = Request::new(command);
            let lane = self.lane(&request);
            self.submit(lane, request, now).await
        })
    }

    /// All commands go to one lane together, so that they share a transaction.
    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            let mut requests = Vec::with_capacity(commands.len());
            for command in commands {
                let reset = match command.action {
                    Action::ResetVariants => self.reset_variants(command).await,
                    _ => Ok(()),
                };
                requests.push(reset.map(|()| Request::new(command)));
            }
            let rows: usize = requests.iter().flatten().map(|request| request.keys().count()).sum();
            let first = requests.iter().flatten().next();
            let lane = match first.filter(|_| rows <= SMALL_BATCH_ROWS_MAX) {
                Some(first) => self.lane(first),
                None => self.large_batches,
            };
            join_all(requests.into_iter().map(async |request| self.submit(lane, request?, now).await)).await
        })
    }

    fn figures(&self) -> Figures {
        let mut figures = self.batcher.figures();
        figures.push(("connections", self.connections.level()));
        figures.push(("connects", Figure::Count(self.connects.load(Ordering::Relaxed))));
        figures
    }
}

impl Drop for SqlStore {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

async fn sweep_forever(options: Options) {
    loop {
        // Random intervals spread the sweeps of a fleet.
        sleep(SWEEP_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        match sweep(&options).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "expired rows removed"),
            Err(error) => tracing::debug!(%error, "removal of expired rows failed"),
        }
    }
}

async fn sweep(options: &Options) -> Result<u64, StoreError> {
    let mut session = connect(options).await?;
    // No caller waits for a sweep, and it skips locked rows.
    schema::limit_statements(&mut session, false).await?;
    let mut removed = 0;
    loop {
        let (rows, more) = sweep_step(&mut session).await.map_err(|error| not_connected(&error))?;
        removed += rows;
        if !more {
            return Ok(removed);
        }
    }
}

type Answer = Result<Outcome, StoreError>;

/// One connection and the batches that it processes.
struct Worker {
    options: Options,
    session: Option<(Session, Present)>,
    connections: Gauge,
    connects: Arc<AtomicU64>,
    held: LockedRows,
}

/// The result of a transaction.
#[derive(Debug)]
struct Done {
    /// One entry per job, in order; `None` for jobs with rows that could not be locked.
    answers: Vec<Option<Answer>>,
    /// Rows that other transactions have locked.
    held: BTreeSet<String>,
}

impl Lane<Job, Answer> for Worker {
    fn work<'a>(
        &'a mut self,
        batch: &'a mut Vec<Submitted<Job, Answer>>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if let Err(error) = self.decide(batch).await {
                fail(batch, |_| true, &error);
            }
        })
    }
}

impl Worker {
    /// Decides all jobs in one transaction and sends their results.
    ///
    /// A transaction that the database rolled back is retried for the callers that still wait. If a
    /// row stays locked by another transaction, jobs that do not need it go first; jobs that do are
    /// rejected if it is still locked the next time.
    ///
    /// # Errors
    /// An error applies to all jobs that are left in the batch.
    async fn decide(&mut self, batch: &mut Vec<Submitted<Job, Answer>>) -> Result<(), StoreError> {
        let (started, mut retries, mut lock_waits) = (Instant::now(), 0, 0);
        let mut wait = !self.held.any(batch.iter().flat_map(|(job, _)| job.keys()));
        while !batch.is_empty() {
            let ((mut session, present), idle) = match self.session.take() {
                Some(session) => (session, true),
                None => {
                    let session = connect(&self.options).await?;
                    self.connects.fetch_add(1, Ordering::Relaxed);
                    ((session, self.connections.enter()), false)
                }
            };
            let jobs: Vec<&Job> = batch.iter().map(|(job, _)| job).collect();
            let done = timeout(TRANSACTION_TIMEOUT, transaction(&mut session, &jobs, wait)).await;
            // The connection is dropped, because its reply is not awaited any more.
            let done = done.unwrap_or_else(|_| {
                let message =
                    format!("the database did not finish a transaction within {TRANSACTION_TIMEOUT:?}");
                Err(TransactionError::Uncertain(StoreError::uncertain(message)))
            });
            match done {
                Ok(done) => {
                    self.session = Some((session, present));
                    self.answer(batch, done, lock_waits >= LOCK_WAITS_MAX);
                    wait = true;
                }
                Err(TransactionError::Locked(error)) => {
                    self.roll_back(session, present).await;
                    lock_waits += 1;
                    if lock_waits > LOCK_WAITS_MAX {
                        return Err(error);
                    }
                    wait = false;
                }
                Err(TransactionError::RolledBack(error)) => {
                    self.roll_back(session, present).await;
                    if retries == RETRIES_MAX || started.elapsed() > RETRY_WITHIN {
                        return Err(error);
                    }
                    retries += 1;
                }
                // A connection that was closed while idle fails on first use. Nothing was
                // committed.
                Err(TransactionError::NotRun(error)) if idle && error.is_retryable() => {}
                // The connection is dropped, which undoes everything that was not committed.
                Err(error) => return Err(error.into_error()),
            }
            batch.retain(|(_, answer)| !answer.is_closed());
        }
        Ok(())
    }

    async fn roll_back(&mut self, mut session: Session, present: Present) {
        if matches!(timeout(TRANSACTION_TIMEOUT, session.rollback()).await, Ok(Ok(()))) {
            self.session = Some((session, present));
        }
    }

    /// Sends the results of decided jobs, and rejects jobs that need a row that stayed locked. The
    /// others stay in the batch.
    fn answer(&mut self, batch: &mut Vec<Submitted<Job, Answer>>, done: Done, waited: bool) {
        let mut left = Vec::new();
        for ((job, answer), outcome) in batch.drain(..).zip(done.answers) {
            let Some(outcome) = outcome else {
                left.push((job, answer));
                continue;
            };
            self.held.free(job.keys());
            // The caller may have stopped waiting.
            let _ = answer.send(outcome);
        }
        *batch = left;
        let mut blocked: BTreeSet<String> = done.held;
        blocked.retain(|key| waited || self.held.any([key.as_str()].into_iter()));
        fail(batch, |job| job.keys().any(|key| blocked.contains(key)), &locked());
        self.held.add(blocked);
    }
}

/// Fails the selected jobs and removes them from the batch.
fn fail(batch: &mut Vec<Submitted<Job, Answer>>, which: impl Fn(&Job) -> bool, error: &StoreError) {
    let (failed, left) = batch.drain(..).partition(|(job, _)| which(job));
    *batch = left;
    let failed: Vec<Submitted<Job, Answer>> = failed;
    for (_, answer) in failed {
        let _ = answer.send(Err(error.without_source()));
    }
}

/// Rows that other transactions keep locked. They are not waited for again until they were seen
/// free, or a while has passed.
#[derive(Debug, Default)]
struct LockedRows(BTreeMap<String, Instant>);

impl LockedRows {
    fn any<'a>(&mut self, mut keys: impl Iterator<Item = &'a str>) -> bool {
        self.0.retain(|_, seen| seen.elapsed() < HELD_FOR);
        !self.0.is_empty() && keys.any(|key| self.0.contains_key(key))
    }

    fn add(&mut self, keys: BTreeSet<String>) {
        let now = Instant::now();
        self.0.extend(keys.into_iter().map(|key| (key, now)));
    }

    fn free<'a>(&mut self, keys: impl Iterator<Item = &'a str>) {
        if !self.0.is_empty() {
            for key in keys {
                self.0.remove(key);
            }
        }
    }
}

/// Runs the jobs in a transaction. With `wait`, every job is decided; without it, jobs that would
/// have to wait for another transaction's lock or that need new rows are left out.
async fn transaction(session: &mut Session, jobs: &[&Job], wait: bool) -> Result<Done, TransactionError> {
    let keys: BTreeSet<&str> = jobs.iter().flat_map(|job| job.keys()).collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    session.begin().await.map_err(|error| before_commit(&error))?;
    if !wait {
        let locked = session.lock_free(&keys).await.map_err(|error| before_commit(&error))?;
        let (answers, changes) = decide(jobs, locked.rows, locked.now_micros, false);
        end(session, &changes).await?;
        return Ok(Done { answers, held: locked.held });
    }
    // Denials, peeks and resets of absent keys must not write rows, so a row is inserted only once
    // the batch is known to write it. This set only grows, so there are few iterations.
    let mut needed: BTreeSet<String> = BTreeSet::new();
    loop {
        let mut locked = lock(session, &keys, &needed).await.map_err(|error| before_commit(&error))?;
        let own: BTreeSet<String> = locked.rows.iter().map(|(key, _)| key.clone()).collect();
        let absent = locked.absent(&keys);
        if !own.is_empty() && !absent.is_empty() {
            // During a wait for a lock, its holder may have inserted rows that the statement did
            // not see.
            let read = session.read(&absent).await.map_err(|error| before_commit(&error))?;
            locked.rows.extend(read);
        }
        let (answers, changes) = decide(jobs, locked.rows, locked.now_micros, true);
        let unlocked: Vec<&Change> = changes.iter().filter(|change| !own.contains(&change.key)).collect();
        if unlocked.is_empty() {
            end(session, &changes).await?;
            return Ok(Done { answers, held: BTreeSet::new() });
        }
        needed.extend(unlocked.into_iter().map(|change| change.key.clone()));
        if !own.is_empty() {
            // Inserting rows while others are locked would violate the lock order.
            session.begin_again().await.map_err(|error| before_commit(&error))?;
            needed.extend(own);
        }
    }
}

/// Locks the existing rows of `keys`; if there are `needed` ones, locks only these and inserts the
/// missing ones.
async fn lock(
    session: &mut Session,
    keys: &[&str],
    needed: &BTreeSet<String>,
) -> Result<Locked, sqlx::Error> {
    if needed.is_empty() {
        return session.lock(keys).await;
    }
    let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
    session.create(&needed).await?;
    session.lock(&needed).await
}

/// Decides the jobs in order on these rows; every other key has no state. Without `complete`, jobs
/// with keys without a row are left out, and so are later jobs that share a key with them.
fn decide(
    jobs: &[&Job],
    rows: Vec<(String, Vec<u8>)>,
    now_micros: i64,
    complete: bool,
) -> (Vec<Option<Answer>>, Vec<Change>) {
    let now = Timestamp::from_micros(u64::try_from(now_micros).unwrap_or_default());
    let mut ledger = Ledger::new(rows.into_iter());
    if jobs.iter().any(|job| job.now.is_some()) {
        ledger.keep();
    }
    let mut left_out: BTreeSet<&str> = BTreeSet::new();
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        let is_locked = |key: &str| ledger.has(key) && !left_out.contains(key);
        if complete || job.keys().all(is_locked) {
            answers.push(Some(ledger.apply(&job.request, job.now.unwrap_or(now))));
        } else {
            left_out.extend(job.keys());
            answers.push(None);
        }
    }
    (answers, ledger.changes())
}

/// Writes and commits the changes. Without changes, nothing has to be flushed to disk.
async fn end(session: &mut Session, changes: &[Change]) -> Result<(), TransactionError> {
    if changes.is_empty() {
        return session.rollback().await.map_err(|error| before_commit(&error));
    }
    session.write(changes).await.map_err(|error| before_commit(&error))?;
    session.commit().await.map_err(|error| during_commit(&error))
}

/// Rejects an undeclared pooler in transaction mode. Prepared statements do not work through one,
/// and may even run another client's statement.
async fn reject_unknown_pooler(options: &Options, session: &mut Session) -> Result<(), StoreError> {
    let (Session::Postgres(first), Options::Postgres(postgres)) = (session, options) else { return Ok(()) };
    if postgres.is_pooled {
        return Ok(());
    }
    let Session::Postgres(mut second) = connect(options).await? else { return Ok(()) };
    match timeout(CONNECT_TIMEOUT, postgres::moves(first, &mut second)).await {
        Ok(Ok(false)) => Ok(()),
        Ok(Ok(true)) => Err(pooled()),
        Ok(Err(error)) => Err(not_connected(&error)),
        Err(_) => Err(connect_timed_out()),
    }
}

async fn connect(options: &Options) -> Result<Session, StoreError> {
    match timeout(CONNECT_TIMEOUT, Session::connect(options)).await {
        Ok(session) => session.map_err(|error| not_connected(&error)),
        Err(_) => Err(connect_timed_out()),
    }
}

fn connect_timed_out() -> StoreError {
    StoreError::unavailable(format!("the database did not respond within {CONNECT_TIMEOUT:?}"))
}
