//! The audit trail: who changed what, before and after, each record chained to the one before.

use pacegate::Timestamp;
use serde_json::Value;
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use crate::bounds::{PAGE_MAX, check_page};
use crate::catalog::Catalog;
use crate::database::Kind;
use crate::digest::{Digest, key_of};
use crate::error::CatalogError;
use crate::json::unreadable;
use crate::record::{Actor, AuditCheck, AuditFilter, AuditRecord};
use crate::statement::{Statement, column, micros, time};

/// The newest record.
pub(crate) struct Tail {
    pub(crate) sequence: i64,
    pub(crate) hash: String,
}

/// Where the trail begins and ends.
struct AuditState {
    /// The oldest record that was not removed because of its age.
    first: i64,
    /// Of the record before it.
    previous_hash: String,
    tail: Tail,
}

/// What a change did.
pub(crate) struct Entry<'e> {
    pub(crate) action: &'static str,
    pub(crate) subject: &'e str,
    pub(crate) user_id: Option<&'e str>,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

const COLUMNS: &str = "SELECT sequence, at, actor_id, actor_address, request_id, action, subject, user_id, before_json, after_json, hash FROM pacegate_audit_log";

/// Adds a record. Nobody else adds one meanwhile, because every change begins by locking the catalog's state.
pub(crate) async fn append(
    connection: &mut AnyConnection,
    kind: Kind,
    tail: &Tail,
    now: Timestamp,
    actor: &Actor,
    entry: Entry<'_>,
) -> Result<Tail, CatalogError> {
    let mut record = AuditRecord {
        sequence: tail.sequence + 1,
        at: now,
        actor: actor.clone(),
        action: entry.action.to_owned(),
        subject: entry.subject.to_owned(),
        user_id: entry.user_id.map(str::to_owned),
        before: entry.before.map(|value| value.to_string()),
        after: entry.after.map(|value| value.to_string()),
        hash: String::new(),
    };
    record.hash = hash(&tail.hash, &record);
    let sql = "INSERT INTO pacegate_audit_log (sequence, at, actor_key, actor_id, actor_address, request_id, action, subject, user_key, user_id, \
               before_json, after_json, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    Statement::new(kind, sql)
        .bind(record.sequence)
        .time(record.at)
        .bind(key_of(&record.actor.key_id))
        .bind(record.actor.key_id)
        .bind(record.actor.address)
        .bind(record.actor.request_id)
        .bind(record.action)
        .bind(record.subject)
        .bind(record.user_id.as_deref().map(key_of))
        .bind(record.user_id)
        .bind(record.before)
        .bind(record.after)
        .bind(record.hash.clone())
        .run(connection)
        .await?;
    let sql = "UPDATE pacegate_catalog_state SET audit_sequence = ?, audit_hash = ?";
    Statement::new(kind, sql).bind(record.sequence).bind(record.hash.clone()).run(connection).await?;
    Ok(Tail { sequence: record.sequence, hash: record.hash })
}

/// Of the record before and of every field of this one.
fn hash(previous: &str, record: &AuditRecord) -> String {
    Digest::new()
        .text(previous)
        .number(record.sequence)
        .number(micros(record.at))
        .text(&record.actor.key_id)
        .optional(record.actor.address.as_deref())
        .optional(record.actor.request_id.as_deref())
        .text(&record.action)
        .text(&record.subject)
        .optional(record.user_id.as_deref())
        .optional(record.before.as_deref())
        .optional(record.after.as_deref())
        .hexadecimal()
}

impl Catalog {
    /// The newest records that the filter lets through, newest first: those before the record `after`, if it is given.
    ///
    /// # Errors
    /// [`CatalogError`] when `limit` is not between 1 and 1,000, or the database does not answer.
    pub async fn audit_page(
        &self,
        filter: AuditFilter,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditRecord>, CatalogError> {
        let limit = check_page(limit)?;
        let mut sql = format!("{COLUMNS} WHERE sequence < ?");
        let conditions = [
            (filter.user.is_some(), " AND user_key = ?"),
            (filter.actor.is_some(), " AND actor_key = ?"),
            (filter.since.is_some(), " AND at >= ?"),
        ];
        sql.extend(conditions.iter().filter(|(wanted, _)| *wanted).map(|(_, condition)| *condition));
        sql.push_str(" ORDER BY sequence DESC LIMIT ?");
        let mut statement = self.statement(&sql).bind(after.unwrap_or(i64::MAX));
        for text in [filter.user, filter.actor].into_iter().flatten() {
            statement = statement.bind(key_of(&text));
        }
        if let Some(since) = filter.since {
            statement = statement.time(since);
        }
        self.rows(statement.bind(limit)).await?.iter().map(record).collect()
    }

    /// Walks along the whole trail and says whether every record is as it was written, and none is missing.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not answer.
    pub async fn audit_verify(&self) -> Result<AuditCheck, CatalogError> {
        loop {
            let (check, first) = self.walk_along_trail().await?;
            // Records that were removed meanwhile because of their age are not missing.
            if check.first_broken.is_none() || self.audit_state().await?.first == first {
                return Ok(check);
            }
        }
    }

    async fn audit_state(&self) -> Result<AuditState, CatalogError> {
        let sql = "SELECT audit_removed_sequence, audit_removed_hash, audit_sequence, audit_hash FROM pacegate_catalog_state";
        let row = self.row(self.statement(sql)).await?;
        let row = row.ok_or_else(|| CatalogError::permanent("the catalog's state is missing"))?;
        let first = column::<i64>(&row, 0)? + 1;
        let tail = Tail { sequence: column(&row, 2)?, hash: column(&row, 3)? };
        Ok(AuditState { first, previous_hash: column(&row, 1)?, tail })
    }

    /// What is found, and which record was the first one then.
    async fn walk_along_trail(&self) -> Result<(AuditCheck, i64), CatalogError> {
        let AuditState { first, previous_hash: mut hash, tail } = self.audit_state().await?;
        let mut sequence = first;
        // What is added meanwhile is none of this walk's business.
        while sequence <= tail.sequence {
            let sql = format!("{COLUMNS} WHERE sequence >= ? AND sequence <= ? ORDER BY sequence LIMIT ?");
            let page = i64::try_from(PAGE_MAX).map_err(unreadable)?;
            let rows = self.rows(self.statement(&sql).bind(sequence).bind(tail.sequence).bind(page)).await?;
            let next = follow(&rows, sequence, &mut hash);
            // A page that ends before its last record ends at a broken one.
            if next == sequence || next - sequence < i64::try_from(rows.len()).map_err(unreadable)? {
                return Ok((check(first, next, Some(next)), first));
            }
            sequence = next;
        }
        // The newest ones may be cut off; the state remembers the last.
        let broken = (hash != tail.hash).then_some(tail.sequence);
        Ok((check(first, broken.unwrap_or(sequence), broken), first))
    }
}

fn check(first: i64, next: i64, first_broken: Option<i64>) -> AuditCheck {
    AuditCheck { records: u64::try_from(next - first).unwrap_or(0), first_broken }
}

/// The sequence after the last record that follows from those before.
fn follow(rows: &[AnyRow], mut sequence: i64, previous: &mut String) -> i64 {
    for row in rows {
        match record(row) {
            Ok(record) if record.sequence == sequence && hash(previous, &record) == record.hash => {
                *previous = record.hash;
                sequence += 1;
            }
            _ => break,
        }
    }
    sequence
}

fn record(row: &AnyRow) -> Result<AuditRecord, CatalogError> {
    Ok(AuditRecord {
        sequence: column(row, 0)?,
        at: time(row, 1)?,
        actor: Actor { key_id: column(row, 2)?, address: column(row, 3)?, request_id: column(row, 4)? },
        action: column(row, 5)?,
        subject: column(row, 6)?,
        user_id: column(row, 7)?,
        before: column(row, 8)?,
        after: column(row, 9)?,
        hash: column(row, 10)?,
    })
}
