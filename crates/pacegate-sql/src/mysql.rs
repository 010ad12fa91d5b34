//! The statements of MySQL and MariaDB.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Row, query, raw_sql};

use crate::ledger::Change;
use crate::session::{Locked, expires_minute};

/// Makes MariaDB stop waiting for a lock before the callers time out. To MySQL this is a comment:
/// its lock timeout is in whole seconds.
const LOCK_TIMEOUT: &str = "/*M! SET STATEMENT max_statement_time = 0.08 FOR */";
const NOW: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

const KEYS_BETWEEN: &str =
    "SELECT k FROM pacegate_state WHERE k > ? AND k < ? AND state <> '' ORDER BY k LIMIT 1000";

pub(crate) async fn connect(options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
    let mut connection = options.clone().disable_statement_logging().connect().await?;
    raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").execute(&mut connection).await?;
    // A transaction starts with its first statement.
    raw_sql("SET SESSION autocommit = 0").execute(&mut connection).await?;
    // The lock timeout is in whole seconds.
    raw_sql("SET SESSION innodb_lock_wait_timeout = 1").execute(&mut connection).await?;
    limit_statements(&mut connection, true).await?;
    Ok(connection)
}

/// Sets or clears the server's timeout for statements. Migrations run without it.
pub(crate) async fn limit_statements(
    connection: &mut MySqlConnection,
    limit: bool,
) -> Result<(), sqlx::Error> {
    let (mariadb, mysql) = if limit {
        ("SET SESSION max_statement_time = 0.4", "SET SESSION max_execution_time = 400")
    } else {
        ("SET SESSION max_statement_time = 0", "SET SESSION max_execution_time = 0")
    };
    match raw_sql(mariadb).execute(&mut *connection).await {
        // MySQL's name for the setting.
        Err(sqlx::Error::Database(_)) => raw_sql(mysql).execute(connection).await.map(drop),
        done => done.map(drop),
    }
}

pub(crate) async fn lock(connection: &mut MySqlConnection, keys: &[&str]) -> Result<Locked, sqlx::Error> {
    let locked = lock_once(connection, keys, "").await?;
    timed(connection, locked).await
}

/// Inserts the missing rows and locks all of them, in key order.
pub(crate) async fn create(connection: &mut MySqlConnection, keys: &[&str]) -> Result<(), sqlx::Error> {
    let count = padded(keys.len());
    // An insert that finds an existing row locks it. INSERT IGNORE would take a shared lock first
    // and deadlock on it.
    let sql = format!(
        "{LOCK_TIMEOUT} INSERT INTO pacegate_state (k, state, expires) VALUES {} ON DUPLICATE KEY UPDATE k = VALUES(k)",
        list("(?, '', 0)", count)
    );
    let mut create = query(AssertSqlSafe(sql));
    for key in pad(keys, count) {
        create = create.bind(key.as_bytes());
    }
    create.execute(connection).await.map(drop)
}

pub(crate) async fn lock_free(
    connection: &mut MySqlConnection,
    keys: &[&str],
) -> Result<Locked, sqlx::Error> {
    let locked = lock_once(connection, keys, " SKIP LOCKED").await?;
    timed(connection, locked).await
}

/// The rows of these keys as last committed, locked or not.
pub(crate) async fn read(
    connection: &mut MySqlConnection,
    keys: &[&str],
) -> Result<Vec<(String, Vec<u8>)>, sqlx::Error> {
    let count = padded(keys.len());
    let sql = format!("SELECT k, state FROM pacegate_state WHERE k IN ({})", list("?", count));
    let mut select = query(AssertSqlSafe(sql));
    for key in pad(keys, count) {
        select = select.bind(key.as_bytes());
    }
    select.fetch_all(connection).await?.iter().map(key_and_state).collect()
}

pub(crate) async fn keys_between(
    connection: &mut MySqlConnection,
    after: &str,
    before: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let select = query(KEYS_BETWEEN).bind(after.as_bytes()).bind(before.as_bytes());
    let found = select.fetch_all(connection).await?;
    let key = |row: &MySqlRow| Ok(String::from_utf8_lossy(&row.try_get::<Vec<u8>, _>(0)?).into_owned());
    found.iter().map(key).collect()
}

fn key_and_state(row: &MySqlRow) -> Result<(String, Vec<u8>), sqlx::Error> {
    let key: Vec<u8> = row.try_get(0)?;
    Ok((String::from_utf8_lossy(&key).into_owned(), row.try_get(1)?))
}

/// Reads the time with a statement of its own if there are no rows that contain it.
async fn timed(connection: &mut MySqlConnection, mut locked: Locked) -> Result<Locked, sqlx::Error> {
    if locked.rows.is_empty() {
        locked.now_micros = query(NOW).fetch_one(connection).await?.try_get(0)?;
    }
    Ok(locked)
}

/// Locks the rows in key order. The time is read with each row as it is locked, so the last one is
/// after all locks.
async fn lock_once(
    connection: &mut MySqlConnection,
    keys: &[&str],
    skip: &str,
) -> Result<Locked, sqlx::Error> {
    let mut locked = Locked::default();
    if keys.is_empty() {
        return Ok(locked);
    }
    let count = padded(keys.len());
    let lock_timeout = if skip.is_empty() { LOCK_TIMEOUT } else { "" };
    let sql = format!(
        "{lock_timeout} SELECT k, state, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) FROM pacegate_state WHERE k IN ({}) ORDER BY k FOR UPDATE{skip}",
        list("?", count)
    );
    let mut select = query(AssertSqlSafe(sql));
    for key in pad(keys, count) {
        select = select.bind(key.as_bytes());
    }
    for row in select.fetch_all(connection).await? {
        locked.now_micros = locked.now_micros.max(row.try_get::<i64, _>(2)?);
        locked.rows.push(key_and_state(&row)?);
    }
    Ok(locked)
}

pub(crate) async fn write(connection: &mut MySqlConnection, changes: &[Change]) -> Result<(), sqlx::Error> {
    let count = padded(changes.len());
    let sql = format!(
        "INSERT INTO pacegate_state (k, state, expires) VALUES {} ON DUPLICATE KEY UPDATE state = VALUES(state), expires = VALUES(expires)",
        list("(?, ?, ?)", count)
    );
    let mut insert = query(AssertSqlSafe(sql));
    let changes: Vec<&Change> = changes.iter().collect();
    for change in pad(&changes, count) {
        insert = insert
            .bind(change.key.as_bytes())
            .bind(change.bytes.as_slice())
            .bind(expires_minute(change.needed_until));
    }
    insert.execute(connection).await.map(drop)
}

/// Lists are padded to few lengths, to limit the number of prepared statements: 1, 2, 4, 8, then
/// multiples of 8.
fn padded(length: usize) -> usize {
    if length <= 8 { length.max(1).next_power_of_two() } else { length.next_multiple_of(8) }
}

fn pad<'a, T: ?Sized>(items: &'a [&'a T], count: usize) -> impl Iterator<Item = &'a T> {
    let last = items.last().copied();
    items.iter().copied().chain(std::iter::repeat_with(move || last).flatten()).take(count)
}

fn list(item: &str, count: usize) -> String {
    vec![item; count].join(", ")
}
