//! The audit trail: who changed what, with the state before and after. Each record is chained to
//! the previous one under the audit key.

use pacegate::Timestamp;
use pacegate_core::named;
use serde_json::Value;
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use crate::audit_key::AuditKey;
use crate::bounds::check_page;
use crate::catalog::Catalog;
use crate::database::Kind;
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::record::{Actor, AuditFilter, AuditHead, AuditRecord, Revision};
use crate::seal::Counts;
use crate::statement::{Statement, column, micros, time};

/// Maximum number of changes that are examined one by one; with more, anything may have changed.
const CHANGES_MAX: i64 = 1_000;

/// The state of the trail: both ends, and the number of rows that changes left in each table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trail {
    /// The newest record.
    pub(crate) head: AuditHead,
    /// The last record that retention removed; verification starts after it.
    pub(crate) removed: AuditHead,
    pub(crate) rows: Counts,
    /// The id of the key that the trail is written under; empty before the first change.
    pub(crate) key_id: String,
    /// The MAC of all fields above.
    pub(crate) mac: String,
}

/// The action of a change. The part before the dot is the kind of rows that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    RuleCreate,
    RuleUpdate,
    RuleDelete,
    PlanPut,
    PlanDelete,
    UserPut,
    UserDelete,
    UserImport,
    KeyCreate,
    KeyRevoke,
    OverrideCreate,
    OverrideDelete,
    CountersReset,
    AuditSeal,
    AuditKey,
    AuditBroken,
}

named!(Action {
    RuleCreate => "rule.create",
    RuleUpdate => "rule.update",
    RuleDelete => "rule.delete",
    PlanPut => "plan.put",
    PlanDelete => "plan.delete",
    UserPut => "user.put",
    UserDelete => "user.delete",
    UserImport => "user.import",
    KeyCreate => "key.create",
    KeyRevoke => "key.revoke",
    OverrideCreate => "override.create",
    OverrideDelete => "override.delete",
    CountersReset => "counters.reset",
    AuditSeal => "audit.seal",
    AuditKey => "audit.key",
    AuditBroken => "audit.broken",
});

/// The content of an audit record.
pub(crate) struct Entry<'e> {
    pub(crate) action: Action,
    pub(crate) subject: &'e str,
    pub(crate) user_id: Option<&'e str>,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

const COLUMNS: &str = "SELECT sequence, at, actor_id, actor_address, request_id, action, subject, user_id, before_json, after_json, hash, actor_key, user_key \
    FROM pacegate_audit_log";

impl Trail {
    pub(crate) async fn load(connection: &mut AnyConnection, kind: Kind) -> Result<Self, CatalogError> {
        let sql = "SELECT audit_sequence, audit_hash, audit_removed_sequence, audit_removed_hash, rule_rows, plan_rows, user_rows, key_rows, key_id, mac \
                   FROM pacegate_catalog_state, pacegate_audit_state";
        let row = Statement::new(kind, sql).row(connection).await?;
        let row = row.ok_or_else(|| CatalogError::permanent("the catalog's state row is missing"))?;
        Ok(Self {
            head: AuditHead { sequence: column(&row, 0)?, hash: column(&row, 1)? },
            removed: AuditHead { sequence: column(&row, 2)?, hash: column(&row, 3)? },
            rows: [column(&row, 4)?, column(&row, 5)?, column(&row, 6)?, column(&row, 7)?],
            key_id: column(&row, 8)?,
            mac: column(&row, 9)?,
        })
    }

    /// Writes the state with its MAC. The caller holds the lock of the catalog's state, so no other
    /// change runs.
    pub(crate) async fn store(
        &mut self,
        connection: &mut AnyConnection,
        kind: Kind,
        key: &AuditKey,
    ) -> Result<(), CatalogError> {
        self.key_id = key.id.to_string();
        self.mac = self.expected_mac(key);
        let sql = "UPDATE pacegate_catalog_state SET audit_sequence = ?, audit_hash = ?, audit_removed_sequence = ?, audit_removed_hash = ?";
        let statement = Statement::new(kind, sql).bind(self.head.sequence).bind(self.head.hash.clone());
        statement.bind(self.removed.sequence).bind(self.removed.hash.clone()).run(connection).await?;
        let sql = "UPDATE pacegate_audit_state SET key_id = ?, mac = ?, rule_rows = ?, plan_rows = ?, user_rows = ?, key_rows = ?";
        let mut statement = Statement::new(kind, sql).bind(self.key_id.clone()).bind(self.mac.clone());
        for count in self.rows {
            statement = statement.bind(count);
        }
        statement.run(connection).await.map(drop)
    }

    /// Appends records.
    pub(crate) async fn append(
        &mut self,
        connection: &mut AnyConnection,
        kind: Kind,
        key: &AuditKey,
        now: Timestamp,
        actor: &Actor,
        entries: Vec<Entry<'_>>,
    ) -> Result<(), CatalogError> {
        let mut sql = String::from(
            "INSERT INTO pacegate_audit_log (sequence, at, actor_key, actor_id, actor_address, request_id, action, subject, user_key, user_id, \
             before_json, after_json, hash) VALUES ",
        );
        sql.push_str(&vec!["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"; entries.len()].join(", "));
        let mut statement = Statement::new(kind, &sql);
        for entry in entries {
            let AuditRow { record, actor_key, user_key } = self.next_row(key, now, actor, entry);
            statement = statement
                .bind(record.sequence)
                .time(record.at)
                .bind(actor_key)
                .bind(record.actor.key_id)
                .bind(record.actor.address)
                .bind(record.actor.request_id)
                .bind(record.action)
                .bind(record.subject)
                .bind(user_key)
                .bind(record.user_id)
                .bind(record.before)
                .bind(record.after)
                .bind(record.hash);
        }
        statement.run(connection).await?;
        self.store(connection, kind, key).await
    }

    /// The record after the newest one, which it becomes.
    fn next_row(&mut self, key: &AuditKey, now: Timestamp, actor: &Actor, entry: Entry<'_>) -> AuditRow {
        let record = AuditRecord {
            sequence: self.head.sequence + 1,
            at: now,
            actor: actor.clone(),
            action: entry.action.name().to_owned(),
            subject: entry.subject.to_owned(),
            user_id: entry.user_id.map(str::to_owned),
            before: entry.before.map(|value| value.to_string()),
            after: entry.after.map(|value| value.to_string()),
            hash: String::new(),
        };
        let mut row = AuditRow {
            actor_key: key_of(&record.actor.key_id),
            user_key: record.user_id.as_deref().map(key_of),
            record,
        };
        row.record.hash = row.expected_hash(key, &self.head.hash);
        self.head = AuditHead { sequence: row.record.sequence, hash: row.record.hash.clone() };
        row
    }

    pub(crate) fn expected_mac(&self, key: &AuditKey) -> String {
        let ends = [&self.head, &self.removed];
        let fields = ends
            .into_iter()
            .fold(key.fields("trail"), |fields, end| fields.number(end.sequence).text(&end.hash));
        self.rows.iter().fold(fields, |fields, count| fields.number(*count)).text(&self.key_id).hexadecimal()
    }
}

/// A record with its lookup columns.
pub(crate) struct AuditRow {
    pub(crate) record: AuditRecord,
    actor_key: String,
    user_key: Option<String>,
}

impl AuditRow {
    /// The hash of the previous record's hash and every column of this one.
    pub(crate) fn expected_hash(&self, key: &AuditKey, previous: &str) -> String {
        let record = &self.record;
        key.fields("record")
            .text(previous)
            .number(record.sequence)
            .number(micros(record.at))
            .text(&self.actor_key)
            .text(&record.actor.key_id)
            .optional(record.actor.address.as_deref())
            .optional(record.actor.request_id.as_deref())
            .text(&record.action)
            .text(&record.subject)
            .optional(self.user_key.as_deref())
            .optional(record.user_id.as_deref())
            .optional(record.before.as_deref())
            .optional(record.after.as_deref())
            .hexadecimal()
    }

    pub(crate) fn read(row: &AnyRow) -> Result<Self, CatalogError> {
        Ok(Self { record: read(row)?, actor_key: column(row, 11)?, user_key: column(row, 12)? })
    }

    /// Records from `first` to `last`, oldest first.
    pub(crate) fn select<'q>(kind: Kind, first: i64, last: i64, limit: i64) -> Statement<'q> {
        let sql = format!("{COLUMNS} WHERE sequence >= ? AND sequence <= ? ORDER BY sequence LIMIT ?");
        Statement::new(kind, &sql).bind(first).bind(last).bind(limit)
    }
}

/// What changed between two revisions, of the data that nodes cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The users with a changed tier, limits or overrides.
    pub users: Vec<String>,
    /// Whether API keys changed.
    pub keys: bool,
}

impl Catalog {
    /// What changed from one revision to a later one; `None` when that is unknown and anything may
    /// have changed.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn changes(&self, from: Revision, to: Revision) -> Result<Option<Changes>, CatalogError> {
        let count = to.audit.saturating_sub(from.audit);
        if from == to {
            return Ok(Some(Changes::default()));
        }
        if from.epoch != to.epoch || !(1..=CHANGES_MAX).contains(&count) {
            return Ok(None);
        }
        let sql = "SELECT action, user_id FROM pacegate_audit_log WHERE sequence > ? AND sequence <= ?";
        let rows = self.rows(self.statement(sql).bind(from.audit).bind(to.audit)).await?;
        // Retention may have removed some of them.
        if i64::try_from(rows.len()) != Ok(count) {
            return Ok(None);
        }
        let mut changes = Changes::default();
        for row in &rows {
            let (action, user_id): (String, Option<String>) = (column(row, 0)?, column(row, 1)?);
            match (action.split('.').next(), user_id) {
                (Some("key"), _) => changes.keys = true,
                (Some("user" | "override"), Some(user_id)) => changes.users.push(user_id),
                // An import does not name its users.
                (Some("user"), None) => return Ok(None),
                _ => {}
            }
        }
        Ok(Some(changes))
    }

    /// The newest records that match the filter, newest first; only those before the record
    /// `after`, if it is set.
    ///
    /// # Errors
    /// [`CatalogError`] when `limit` is not between 1 and 1,000, or the database does not respond.
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
        self.read(statement.bind(limit)).await?.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<AuditRecord, CatalogError> {
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
