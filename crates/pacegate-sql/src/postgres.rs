//! The statements of PostgreSQL.

use pacegate_store::StoreError;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, Postgres};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Row, query, raw_sql};

use crate::error::invalid_url;
use crate::ledger::Change;
use crate::session::{Locked, expires_minute};

/// All settings end with the transaction, because a pooler may then assign the server process to
/// another client.
///
/// Statements time out when their callers do. Every statement must use the primary key: the planner
/// would otherwise switch to sequential scans after many updates without fresh statistics, which
/// are ten times slower.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 80; SET LOCAL statement_timeout = 400; \
    SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; \
    SET LOCAL enable_mergejoin = off";
/// Locks the rows in key order. The time is read after the last lock, because counting the locked
/// rows requires all of them.
const LOCK: &str = "WITH locked AS MATERIALIZED (SELECT k, state FROM pacegate_state WHERE k = ANY($1) ORDER BY k FOR UPDATE) \
    SELECT locked.k, locked.state, clock.now FROM \
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now FROM (SELECT count(*) FROM locked) AS counted) AS clock \
    LEFT JOIN locked ON true";
/// The same, without the rows that other transactions have locked.
const LOCK_FREE: &str = "WITH locked AS MATERIALIZED (SELECT k, state FROM pacegate_state WHERE k = ANY($1) ORDER BY k FOR UPDATE SKIP LOCKED) \
    SELECT locked.k, locked.state, clock.now FROM \
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now FROM (SELECT count(*) FROM locked) AS counted) AS clock \
    LEFT JOIN locked ON true";
/// Number of times that two connections are compared before they count as unpooled.
const PROBES: u32 = 5;
const READ: &str = "SELECT k, state FROM pacegate_state WHERE k = ANY($1)";
const KEYS_BETWEEN: &str =
    "SELECT k FROM pacegate_state WHERE k > $1 AND k < $2 AND state <> ''::bytea ORDER BY k LIMIT 1000";
/// Inserts rows for new keys and locks all rows.
const CREATE: &str = "INSERT INTO pacegate_state (k, state, expires) SELECT k, ''::bytea, 0 FROM unnest($1::text[]) AS new (k) ORDER BY k COLLATE \"C\" \
    ON CONFLICT (k) DO UPDATE SET k = EXCLUDED.k";
const WRITE: &str = "UPDATE pacegate_state SET state = new.state, expires = new.expires \
    FROM unnest($1::text[], $2::bytea[], $3::integer[]) AS new (k, state, expires) WHERE pacegate_state.k = new.k";

/// The location of a PostgreSQL database.
#[derive(Clone, Debug)]
pub(crate) struct PgOptions {
    pub(crate) options: PgConnectOptions,
    /// Whether a pooler may assign each transaction to another server process. Prepared statements
    /// then do not outlive a transaction.
    pub(crate) is_pooled: bool,
}

impl PgOptions {
    /// Parses a URL. The parameter `pooling` is Pacegate's own.
    ///
    /// # Errors
    /// [`StoreError`], without the password, when the URL is invalid.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut is_pooled = false;
        let mut others = String::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("pooling", "transaction")) => is_pooled = true,
                Some(("pooling", "session")) => is_pooled = false,
                Some(("pooling", _)) => {
                    return Err(StoreError::rejected("pooling: expected `session` or `transaction`"));
                }
                _ => {
                    others.push(if others.is_empty() { '?' } else { '&' });
                    others.push_str(pair);
                }
            }
        }
        let options: PgConnectOptions = format!("{base}{others}").parse().map_err(invalid_url)?;
        // PgBouncer rejects this startup parameter unless configured to ignore it; no statement
        // reads a float.
        Ok(Self { options: options.extra_float_digits(None), is_pooled })
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct PgLink {
    pub(crate) connection: PgConnection,
    is_pooled: bool,
}

impl PgLink {
    fn query(&self, sql: &'static str) -> Query<'static, Postgres, PgArguments> {
        query(sql).persistent(!self.is_pooled)
    }

    async fn process_id(&mut self) -> Result<i64, sqlx::Error> {
        let row = raw_sql("SELECT pg_backend_pid()::text").fetch_one(&mut self.connection).await?;
        let text: String = row.try_get(0)?;
        text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }
}

pub(crate) async fn connect(options: &PgOptions) -> Result<PgLink, sqlx::Error> {
    let connection = options.options.clone().disable_statement_logging().connect().await?;
    Ok(PgLink { connection, is_pooled: options.is_pooled })
}

/// Whether a pooler moves connections between server processes, as far as a few transactions on two
/// connections show.
pub(crate) async fn moves(first: &mut PgLink, second: &mut PgLink) -> Result<bool, sqlx::Error> {
    for _ in 0..PROBES {
        let own = first.process_id().await?;
        begin(second).await?;
        // A pooler assigns the process that was released last.
        let moves = second.process_id().await? == own || first.process_id().await? != own;
        raw_sql("ROLLBACK").execute(&mut second.connection).await?;
        if moves {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) async fn begin(link: &mut PgLink) -> Result<(), sqlx::Error> {
    raw_sql(BEGIN).execute(&mut link.connection).await.map(drop)
}

pub(crate) async fn lock(link: &mut PgLink, keys: &[&str]) -> Result<Locked, sqlx::Error> {
    lock_once(link, LOCK, keys).await
}

/// Inserts the missing rows and locks all of them, in key order.
pub(crate) async fn create(link: &mut PgLink, keys: &[&str]) -> Result<(), sqlx::Error> {
    link.query(CREATE).bind(keys).execute(&mut link.connection).await.map(drop)
}

pub(crate) async fn lock_free(link: &mut PgLink, keys: &[&str]) -> Result<Locked, sqlx::Error> {
    lock_once(link, LOCK_FREE, keys).await
}

/// The last committed rows of these keys, whether or not they are locked.
pub(crate) async fn read(link: &mut PgLink, keys: &[&str]) -> Result<Vec<(String, Vec<u8>)>, sqlx::Error> {
    let found = link.query(READ).bind(keys).fetch_all(&mut link.connection).await?;
    found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

pub(crate) async fn keys_between(
    link: &mut PgLink,
    after: &str,
    before: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let select = link.query(KEYS_BETWEEN).bind(after.to_owned()).bind(before.to_owned());
    select.fetch_all(&mut link.connection).await?.iter().map(|row| row.try_get(0)).collect()
}

async fn lock_once(link: &mut PgLink, sql: &'static str, keys: &[&str]) -> Result<Locked, sqlx::Error> {
    let found = link.query(sql).bind(keys).fetch_all(&mut link.connection).await?;
    let mut locked = Locked::default();
    for row in found {
        locked.now_micros = row.try_get::<i64, _>(2)?;
        if let Some(key) = row.try_get::<Option<String>, _>(0)? {
            locked.rows.push((key, row.try_get(1)?));
        }
    }
    Ok(locked)
}

pub(crate) async fn write(link: &mut PgLink, changes: &[Change]) -> Result<(), sqlx::Error> {
    let keys: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
    let states: Vec<&[u8]> = changes.iter().map(|change| change.bytes.as_slice()).collect();
    let expires: Vec<i32> = changes.iter().map(|change| expires_minute(change.needed_until)).collect();
    let write = link.query(WRITE).bind(keys).bind(states).bind(expires);
    write.execute(&mut link.connection).await.map(drop)
}
