//! The statements of PostgreSQL.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row, query, query_as, raw_sql};

use crate::ledger::Change;
use crate::session::{Locked, expires_minute};

/// Every statement reaches its few rows through the primary key. Left to itself the planner changes over to reading the whole table when it has seen
/// many updates and few statistics, ten times slower, in the middle of the day.
const PLAN: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// The rows are locked in the order of their keys; the time is read after the last lock is there, because counting the locked rows needs them all.
const LOCK: &str = "WITH locked AS MATERIALIZED (SELECT k, state FROM pacegate_state WHERE k = ANY($1) ORDER BY k FOR UPDATE) \
    SELECT locked.k, locked.state, clock.now FROM \
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now FROM (SELECT count(*) FROM locked) AS counted) AS clock \
    LEFT JOIN locked ON true";
/// The same for those rows that nobody else has locked.
const LOCK_FREE: &str = "WITH locked AS MATERIALIZED (SELECT k, state FROM pacegate_state WHERE k = ANY($1) ORDER BY k FOR UPDATE SKIP LOCKED) \
    SELECT locked.k, locked.state, clock.now FROM \
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now FROM (SELECT count(*) FROM locked) AS counted) AS clock \
    LEFT JOIN locked ON true";
const READ: &str = "SELECT k, state FROM pacegate_state WHERE k = ANY($1)";
/// Makes rows for new keys and locks them, and locks those that exist.
const CREATE: &str = "INSERT INTO pacegate_state (k, state, expires) SELECT k, ''::bytea, 0 FROM unnest($1::text[]) AS new (k) ORDER BY k COLLATE \"C\" \
    ON CONFLICT (k) DO UPDATE SET k = EXCLUDED.k";
const WRITE: &str = "UPDATE pacegate_state SET state = new.state, expires = new.expires \
    FROM unnest($1::text[], $2::bytea[], $3::integer[]) AS new (k, state, expires) WHERE pacegate_state.k = new.k";

pub(crate) async fn connect(
    options: &PgConnectOptions,
    lock_timeout_ms: u64,
) -> Result<PgConnection, sqlx::Error> {
    let mut connection = options.clone().disable_statement_logging().connect().await?;
    // Statements are given up when their callers have gone.
    let limits = format!(
        "SET client_min_messages = warning; SET lock_timeout = {lock_timeout_ms}; SET statement_timeout = {}; {PLAN}",
        lock_timeout_ms * 5
    );
    raw_sql(AssertSqlSafe(limits)).execute(&mut connection).await?;
    Ok(connection)
}

pub(crate) async fn begin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    raw_sql(BEGIN).execute(connection).await.map(drop)
}

pub(crate) async fn lock(connection: &mut PgConnection, keys: &[&str]) -> Result<Locked, sqlx::Error> {
    lock_once(connection, LOCK, keys).await
}

/// Makes the rows that are missing and locks all of them, in the order of the keys.
pub(crate) async fn create(connection: &mut PgConnection, keys: &[&str]) -> Result<(), sqlx::Error> {
    query(CREATE).bind(keys).execute(connection).await.map(drop)
}

pub(crate) async fn lock_free(connection: &mut PgConnection, keys: &[&str]) -> Result<Locked, sqlx::Error> {
    lock_once(connection, LOCK_FREE, keys).await
}

/// The rows of these keys as last committed, locked or not.
pub(crate) async fn read(
    connection: &mut PgConnection,
    keys: &[&str],
) -> Result<Vec<(String, Vec<u8>)>, sqlx::Error> {
    query_as(READ).bind(keys).fetch_all(connection).await
}

async fn lock_once(
    connection: &mut PgConnection,
    sql: &'static str,
    keys: &[&str],
) -> Result<Locked, sqlx::Error> {
    let found = query(sql).bind(keys).fetch_all(connection).await?;
    let mut locked = Locked::default();
    for row in found {
        locked.now_micros = row.try_get::<i64, _>(2)?;
        if let Some(key) = row.try_get::<Option<String>, _>(0)? {
            locked.rows.push((key, row.try_get(1)?));
        }
    }
    Ok(locked)
}

pub(crate) async fn write(connection: &mut PgConnection, changes: &[Change]) -> Result<(), sqlx::Error> {
    let keys: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
    let states: Vec<&[u8]> = changes.iter().map(|change| change.bytes.as_slice()).collect();
    let expires: Vec<i32> = changes.iter().map(|change| expires_minute(change.needed_until)).collect();
    query(WRITE).bind(keys).bind(states).bind(expires).execute(connection).await.map(drop)
}
