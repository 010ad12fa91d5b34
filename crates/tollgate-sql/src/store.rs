//! The store: lanes that decide whole batches in one transaction each.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tollgate_core::Timestamp;
use tollgate_store::{ApplyFuture, Asked, Batcher, Command, Lane, Outcome, Store, StoreError};

use crate::error::{Trouble, before_commit, during_commit, not_connected};
use crate::ledger::Ledger;
use crate::request::Request;
use crate::schema;
use crate::session::{Options, Session};
use crate::sweep::sweep_step;

/// How many commands share a transaction.
const BATCH_MAX: usize = 100;
/// How many requests wait for a lane; more are refused.
const QUEUE_MAX: usize = 4_096;
/// How often a transaction that was rolled back is tried again.
const RETRIES_MAX: u32 = 3;
/// Callers do not wait for longer than this, and others wait behind them.
const RETRY_WITHIN: Duration = Duration::from_millis(200);
/// How often a node looks for rows that are not needed any more, on average.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// Longer than the database waits for a lock or works on a statement.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How to use a database.
#[derive(Clone, Debug)]
pub struct SqlOptions {
    pub(crate) options: Options,
    /// How many connections there are, each with a lane of batches of its own.
    pub connections: usize,
}

impl SqlOptions {
    /// How many there are unless told otherwise.
    pub const CONNECTIONS: usize = 3;
    /// The most connections.
    pub const CONNECTIONS_MAX: usize = 64;

    /// The usual options for a `mysql://` or `postgres://` URL.
    ///
    /// # Errors
    /// [`StoreError`], without the password, when the URL is not valid.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let invalid = |_: sqlx::Error| {
            StoreError::rejected("is not a URL like postgres://user:password@host:5432/database")
        };
        let options = if url.starts_with("mysql://") || url.starts_with("mariadb://") {
            Options::MySql(Box::new(url.parse().map_err(invalid)?))
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            Options::Postgres(Box::new(url.parse().map_err(invalid)?))
        } else {
            return Err(StoreError::rejected("a database's URL starts with mysql:// or postgres://"));
        };
        Ok(Self { options, connections: Self::CONNECTIONS })
    }

    /// Trusts `authority` alone, checks the server's name, and shows the client's certificate and key if there are any. Files in PEM.
    #[must_use]
    pub fn with_tls(mut self, authority: Option<&Path>, client: Option<(&Path, &Path)>) -> Self {
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
                let mut with = PgConnectOptions::clone(options).ssl_mode(PgSslMode::VerifyFull);
                if let Some(authority) = authority {
                    with = with.ssl_root_cert(authority);
                }
                if let Some((certificate, key)) = client {
                    with = with.ssl_client_cert(certificate).ssl_client_key(key);
                }
                **options = with;
            }
        }
        self
    }
}

/// Counters in a database. See the crate documentation.
#[derive(Debug)]
pub struct SqlStore {
    batcher: Batcher<Job, Vec<Result<Outcome, StoreError>>>,
    hasher: RandomState,
    options: Options,
    sweeper: AbortHandle,
}

/// The commands of one call, which stay together and in order.
#[derive(Debug)]
struct Job {
    requests: Vec<Request>,
    now: Option<Timestamp>,
}

impl SqlStore {
    /// Connects, and brings the schema up to date.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be reached, or refuses us; [`StoreError::is_permanent`] tells these apart.
    pub async fn connect(options: SqlOptions) -> Result<Self, StoreError> {
        let mut session = connect(&options.options).await?;
        schema::migrate(&mut session).await?;
        let mut sessions = vec![Some(session)];
        sessions.resize_with(options.connections.clamp(1, SqlOptions::CONNECTIONS_MAX), || None);
        let lanes: Vec<Worker> = sessions
            .into_iter()
            .map(|session| Worker { options: options.options.clone(), session })
            .collect();
        let batcher = Batcher::start(lanes, BATCH_MAX, QUEUE_MAX);
        let sweeper = tokio::spawn(sweep_for_ever(options.options.clone())).abort_handle();
        Ok(Self { batcher, hasher: RandomState::new(), options: options.options, sweeper })
    }

    /// Removes the rows that are not needed any more; says how many. It also happens by itself, now and then.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be reached.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        sweep(&self.options).await
    }
}

impl Store for SqlStore {
    fn apply<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            let requests: Vec<Request> = commands.iter().map(Request::new).collect();
            let first = requests.iter().find_map(|request| request.keys().next()).unwrap_or_default();
            // Requests for the same key meet in one lane instead of waiting for each other's locks.
            let hash = self.hasher.hash_one(first);
            match self.batcher.ask(hash, Job { requests, now }).await {
                Ok(outcomes) => outcomes,
                Err(error) => commands.iter().map(|_| Err(error.again())).collect(),
            }
        })
    }
}

impl Drop for SqlStore {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

async fn sweep_for_ever(options: Options) {
    loop {
        // The nodes of a fleet take turns by chance.
        sleep(SWEEP_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        match sweep(&options).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "removed rows that are not needed any more"),
            Err(error) => tracing::debug!(%error, "could not remove rows that are not needed any more"),
        }
    }
}

async fn sweep(options: &Options) -> Result<u64, StoreError> {
    let mut session = connect(options).await?;
    let mut removed = 0;
    loop {
        let (rows, more) = sweep_step(&mut session).await.map_err(|error| not_connected(&error))?;
        removed += rows;
        if !more {
            return Ok(removed);
        }
    }
}

/// One connection and the batches that go over it.
struct Worker {
    options: Options,
    session: Option<Session>,
}

type Answered = Vec<Vec<Result<Outcome, StoreError>>>;

impl Lane<Job, Vec<Result<Outcome, StoreError>>> for Worker {
    fn work<'a>(
        &'a mut self,
        batch: &'a mut Vec<Asked<Job, Vec<Result<Outcome, StoreError>>>>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let answers = match self.decide(batch).await {
                Ok(answers) => answers,
                Err(error) => batch
                    .iter()
                    .map(|(job, _)| job.requests.iter().map(|_| Err(error.again())).collect())
                    .collect(),
            };
            for ((_, answer), outcomes) in batch.drain(..).zip(answers) {
                // Nobody may be waiting any more.
                let _ = answer.send(outcomes);
            }
        })
    }
}

impl Worker {
    /// Decides on all jobs in one transaction. It is tried again when the database rolled it back, for those who still wait.
    async fn decide(
        &mut self,
        batch: &mut Vec<Asked<Job, Vec<Result<Outcome, StoreError>>>>,
    ) -> Result<Answered, StoreError> {
        let (started, mut retries) = (Instant::now(), 0);
        loop {
            let (mut session, idle) = match self.session.take() {
                Some(session) => (session, true),
                None => (connect(&self.options).await?, false),
            };
            let jobs: Vec<&Job> = batch.iter().map(|(job, _)| job).collect();
            let done = timeout(TRANSACTION_TIMEOUT, transaction(&mut session, &jobs)).await;
            // A connection that nobody listens to any more is dropped.
            let done = done.unwrap_or_else(|_| {
                let message =
                    format!("the database did not finish a transaction within {TRANSACTION_TIMEOUT:?}");
                Err(Trouble::Uncertain(StoreError::uncertain(message)))
            });
            match done {
                Ok(answers) => {
                    self.session = Some(session);
                    return Ok(answers);
                }
                Err(Trouble::RolledBack(error)) => {
                    if matches!(timeout(TRANSACTION_TIMEOUT, session.rollback()).await, Ok(Ok(()))) {
                        self.session = Some(session);
                    }
                    if retries == RETRIES_MAX || started.elapsed() > RETRY_WITHIN {
                        return Err(error);
                    }
                    retries += 1;
                }
                // A connection that was closed while it was idle says so when it is used. Whatever was not committed did not happen.
                Err(Trouble::NotRun(error)) if idle && error.is_retryable() => {}
                // The connection is dropped, and with it everything that was not committed.
                Err(trouble) => return Err(trouble.into_error()),
            }
            batch.retain(|(_, answer)| !answer.is_closed());
        }
    }
}

async fn transaction(session: &mut Session, jobs: &[&Job]) -> Result<Answered, Trouble> {
    let keys: BTreeSet<&str> = jobs.iter().flat_map(|job| &job.requests).flat_map(Request::keys).collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    session.begin().await.map_err(|error| before_commit(&error))?;
    let locked = session.lock(&keys).await.map_err(|error| before_commit(&error))?;
    let now = Timestamp::from_micros(u64::try_from(locked.now_micros).unwrap_or_default());
    let mut ledger = Ledger::new(locked.rows.into_iter());
    if jobs.iter().any(|job| job.now.is_some()) {
        ledger.keep();
    }
    let answers = jobs
        .iter()
        .map(|job| job.requests.iter().map(|request| ledger.apply(request, job.now.unwrap_or(now))).collect())
        .collect();
    let changes = ledger.changes();
    if !changes.is_empty() {
        session.write(&changes).await.map_err(|error| before_commit(&error))?;
    }
    session.commit().await.map_err(|error| during_commit(&error))?;
    Ok(answers)
}

async fn connect(options: &Options) -> Result<Session, StoreError> {
    match timeout(CONNECT_TIMEOUT, Session::connect(options)).await {
        Ok(session) => session.map_err(|error| not_connected(&error)),
        Err(_) => {
            Err(StoreError::unavailable(format!("the database does not answer within {CONNECT_TIMEOUT:?}")))
        }
    }
}
