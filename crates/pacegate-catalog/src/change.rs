//! A change: a transaction that starts by locking the catalog's state and ends with its audit
//! record.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pacegate::Timestamp;
use sqlx::{Any, AnyConnection, Connection, Transaction};
use tokio::time::timeout;

use serde_json::json;

use crate::audit::{Action, Entry, Trail};
use crate::audit_key::{AuditKey, AuditKeySource};
use crate::catalog::Catalog;
use crate::database::Kind;
use crate::error::CatalogError;
use crate::record::{Actor, AuditHead};
use crate::seal::{self, Sealed};
use crate::statement::{STATEMENT_TIMEOUT, Statement, bounded, column};

/// Maximum number of retries of a change that was rolled back.
const RETRIES_MAX: u32 = 3;
/// Maximum time that a change waits for earlier ones of the same node.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// What a change affects, so that other nodes know what to reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Rules,
    Users,
    Keys,
    /// Only the audit trail.
    Counters,
}

/// An open transaction that holds the lock of the catalog's state.
pub(crate) struct Change<'c> {
    pub(crate) connection: &'c mut AnyConnection,
    pub(crate) kind: Kind,
    /// The revision that the change creates, greater than all earlier ones.
    pub(crate) revision: i64,
    pub(crate) now: Timestamp,
    /// Number of rules in the configuration file.
    pub(crate) file_rules: usize,
    actor: &'c Actor,
    key_source: &'c AuditKeySource,
    /// Known once something was sealed or recorded.
    key: Option<AuditKey>,
    trail: Trail,
    is_recorded: bool,
}

/// The work of a change, called once it holds the lock.
pub(crate) type Work<I, T> = for<'c> fn(&'c mut Change<'_>, &'c I) -> Step<'c, T>;
pub(crate) type Step<'c, T> = Pin<Box<dyn Future<Output = Result<T, CatalogError>> + Send + 'c>>;

impl Change<'_> {
    pub(crate) fn statement<'q>(&self, sql: &str) -> Statement<'q> {
        Statement::new(self.kind, sql)
    }

    /// Seals the rows that the change wrote, by their table's unique column, and drops the seals of
    /// those that it removed.
    pub(crate) async fn seal(&mut self, sealed: Sealed, keys: &[String]) -> Result<(), CatalogError> {
        let key = self.key().await?;
        sealed.seal(self.connection, self.kind, &key, &mut self.trail.rows, keys).await
    }

    /// Writes the audit record. A change without one is rolled back.
    pub(crate) async fn record(&mut self, entry: Entry<'_>) -> Result<(), CatalogError> {
        self.record_all(vec![entry]).await
    }

    /// Writes several audit records of one change.
    pub(crate) async fn record_all(&mut self, entries: Vec<Entry<'_>>) -> Result<(), CatalogError> {
        let key = self.key().await?;
        self.trail.append(self.connection, self.kind, &key, self.now, self.actor, entries).await?;
        self.is_recorded = true;
        Ok(())
    }

    /// Seals every row as it is and restarts verification from here.
    pub(crate) async fn reseal(&mut self) -> Result<AuditHead, CatalogError> {
        let key = self.key_source.get_or_create()?;
        self.key = Some(key.clone());
        self.trail.rows = seal::seal_all(self.connection, self.kind, &key).await?;
        self.trail.removed = self.trail.head.clone();
        let after = Some(json!({ "key_id": &*key.id, "rows": self.trail.rows.iter().sum::<i64>() }));
        let entry =
            Entry { action: Action::AuditSeal, subject: "catalog", user_id: None, before: None, after };
        self.append(&key, entry).await?;
        self.is_recorded = true;
        Ok(self.trail.head.clone())
    }

    async fn append(&mut self, key: &AuditKey, entry: Entry<'_>) -> Result<(), CatalogError> {
        self.trail.append(self.connection, self.kind, key, self.now, self.actor, vec![entry]).await
    }

    /// The audit key. Before its first use, the state of the trail is compared with its MAC:
    /// signing an edited state would hide the edit.
    async fn key(&mut self) -> Result<AuditKey, CatalogError> {
        if let Some(key) = &self.key {
            return Ok(key.clone());
        }
        let key = self.key_source.get_or_create()?;
        let before = self.trail.key_id.clone();
        let is_first = before.is_empty();
        if is_first && self.trail.head.sequence > 0 {
            // Written by an earlier version of the program, which had no key.
            self.reseal().await?;
            return Ok(key);
        }
        self.key = Some(key.clone());
        let note = |action, before: Option<serde_json::Value>, after| Entry {
            action,
            subject: "catalog",
            user_id: None,
            before,
            after,
        };
        if !is_first && *key.id != *before {
            tracing::error!(
                before,
                now = &*key.id,
                "the audit trail was written under a different audit key; earlier records cannot be verified with the new one"
            );
            let (before, after) = (json!({ "key_id": before }), json!({ "key_id": &*key.id }));
            self.append(&key, note(Action::AuditKey, Some(before), Some(after))).await?;
        } else if !is_first && self.trail.mac != self.trail.expected_mac(&key) {
            tracing::error!("the state of the audit trail was changed outside Pacegate");
            self.append(&key, note(Action::AuditBroken, None, None)).await?;
        }
        Ok(key)
    }
}

impl Catalog {
    /// Checks that the database accepts writes, by committing a transaction that rewrites the state
    /// row.
    ///
    /// While a change of this node is under way, that change reports the result instead. A SQLite
    /// file also writes as much as a change may need, because a nearly full disk can still accept
    /// one page.
    ///
    /// # Errors
    /// [`CatalogError`] when it does not, because of missing space or privileges.
    pub async fn probe_write(&self) -> Result<(), CatalogError> {
        let Ok(_turn) = self.turn.clone().try_lock_owned() else { return Ok(()) };
        let mut lease = self.lease().await?;
        let begin = lease.connection().begin_with(self.kind.begin_change());
        let mut transaction = bounded(STATEMENT_TIMEOUT, begin).await?;
        let sql = "UPDATE pacegate_catalog_state SET revision = revision";
        self.statement(sql).run(&mut transaction).await?;
        if self.kind == Kind::Sqlite {
            let sql = "CREATE TABLE IF NOT EXISTS pacegate_write_probe (id INTEGER PRIMARY KEY, filler BLOB)";
            self.statement(sql).run(&mut transaction).await?;
            let sql = "INSERT OR REPLACE INTO pacegate_write_probe VALUES (1, zeroblob(32768))";
            self.statement(sql).run(&mut transaction).await?;
        }
        commit(transaction).await?;
        if self.kind == Kind::Sqlite {
            // Frees the space for the next probe.
            self.statement("DELETE FROM pacegate_write_probe").run(lease.connection()).await?;
        }
        lease.settle();
        Ok(())
    }

    /// Runs `work` in a transaction, and retries it when the database rolled it back. It runs to
    /// completion even if the caller is cancelled.
    pub(crate) async fn change<I, T>(
        &self,
        actor: &Actor,
        part: Part,
        input: I,
        work: Work<I, T>,
    ) -> Result<T, CatalogError>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let turn = timeout(TURN_TIMEOUT, self.turn.clone().lock_owned()).await;
        let turn =
            turn.map_err(|_| CatalogError::unavailable("timed out waiting for earlier catalog changes"))?;
        let (catalog, actor) = (self.clone(), actor.clone());
        let changed = tokio::spawn(async move {
            let mut retries = 0;
            let changed = loop {
                match catalog.change_once(&actor, part, &input, work).await {
                    Err(error) if error.is_rolled_back() && retries < RETRIES_MAX => retries += 1,
                    changed => break changed,
                }
            };
            drop(turn);
            changed
        });
        let lost =
            |_| CatalogError::uncertain("unknown whether the change was committed: it was interrupted");
        changed.await.map_err(lost)?
    }

    async fn change_once<I, T>(
        &self,
        actor: &Actor,
        part: Part,
        input: &I,
        work: Work<I, T>,
    ) -> Result<T, CatalogError> {
        let mut lease = self.lease().await?;
        let begin = lease.connection().begin_with(self.kind.begin_change());
        let mut transaction = bounded(STATEMENT_TIMEOUT, begin).await?;
        let done = self.work(&mut transaction, actor, part, input, work).await;
        let ended = match &done {
            Ok((_, true)) => commit(transaction).await,
            // A broken connection is dropped without a rollback; losing it undoes everything.
            Err(error) if error.is_unavailable() && !error.is_rolled_back() => return Err(error.clone()),
            _ => bounded(STATEMENT_TIMEOUT, transaction.rollback()).await,
        };
        if ended.is_ok() {
            lease.settle();
        }
        let (result, _) = done?;
        ended.map(|()| result)
    }

    /// Returns whether there is something to commit.
    async fn work<I, T>(
        &self,
        connection: &mut AnyConnection,
        actor: &Actor,
        part: Part,
        input: &I,
        work: Work<I, T>,
    ) -> Result<(T, bool), CatalogError> {
        let (revision, trail) = take_turn(connection, self.kind, part).await?;
        let mut change = Change {
            connection,
            kind: self.kind,
            revision,
            now: self.clock.now(),
            file_rules: self.file_rules.load(Ordering::Relaxed),
            actor,
            key_source: &self.audit_key,
            key: None,
            trail,
            is_recorded: false,
        };
        let result = work(&mut change, input).await?;
        Ok((result, change.is_recorded))
    }
}

async fn commit(transaction: Transaction<'_, Any>) -> Result<(), CatalogError> {
    match timeout(STATEMENT_TIMEOUT, transaction.commit()).await {
        Ok(committed) => committed.map_err(|error| CatalogError::during_commit(&error)),
        Err(_) => Err(CatalogError::uncertain(
            "unknown whether the change was committed: the database did not respond in time",
        )),
    }
}

/// Locks the row that every change starts with. The transaction then sees all earlier changes, and
/// no other change runs until it ends.
async fn take_turn(
    connection: &mut AnyConnection,
    kind: Kind,
    part: Part,
) -> Result<(i64, Trail), CatalogError> {
    // MySQL evaluates assignments from left to right, with the values already assigned.
    let sql = match part {
        Part::Rules => {
            "UPDATE pacegate_catalog_state SET rules_revision = revision + 1, revision = revision + 1"
        }
        Part::Users => {
            "UPDATE pacegate_catalog_state SET users_revision = revision + 1, revision = revision + 1"
        }
        Part::Keys | Part::Counters => "UPDATE pacegate_catalog_state SET revision = revision + 1",
    };
    Statement::new(kind, sql).run(connection).await?;
    let row = Statement::new(kind, "SELECT revision FROM pacegate_catalog_state").row(connection).await?;
    let row = row.ok_or_else(|| CatalogError::permanent("the catalog's state row is missing"))?;
    Ok((column(&row, 0)?, Trail::load(connection, kind).await?))
}
