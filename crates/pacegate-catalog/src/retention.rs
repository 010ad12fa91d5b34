//! Retention: removes old rows in small steps, so that changes do not have to wait for it.

use pacegate::Timestamp;
use sqlx::Connection;

use crate::audit::Trail;
use crate::catalog::Catalog;
use crate::error::CatalogError;
use crate::record::AuditHead;
use crate::statement::{STATEMENT_TIMEOUT, bounded, column, time, unsigned};
use crate::usage::{Period, seconds};

/// Number of rows that are removed at a time, few enough that other statements do not wait.
const STEP: i64 = 500;

/// Number of the newest minutes that are removed last: lists of recent usage are made from them.
const MINUTES_LISTED: usize = 6 * 60;

const OVERRIDES: &str = "pacegate_overrides";

/// Cutoff times: rows before them are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Audit records made before this time.
    pub audit: Timestamp,
    /// Decisions made before this time.
    pub decisions: Timestamp,
    /// Minutes of usage that started before this time.
    pub minutes: Timestamp,
    /// Hours of usage that started before this time.
    pub hours: Timestamp,
    /// Maximum number of usage rows, whatever their age.
    pub usage_rows: u64,
    /// Overrides that expired before this time.
    pub overrides: Timestamp,
}

/// Numbers of removed rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Audit records.
    pub audit: u64,
    /// Decisions.
    pub decisions: u64,
    /// Minutes and hours of usage that were too old.
    pub usage: u64,
    /// Minutes and hours of usage above the maximum number of rows.
    pub usage_beyond: u64,
    /// Overrides.
    pub overrides: u64,
}

impl Catalog {
    /// Removes old rows. The audit trail stores the hash of its last removed record, so that the
    /// rest can still be verified.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond; rows removed until then stay removed.
    pub async fn remove_old(&self, retention: Retention) -> Result<Removed, CatalogError> {
        let mut removed = Removed::default();
        loop {
            let rows = self.remove_audit_step(retention.audit).await?;
            removed.audit += rows;
            if rows == 0 {
                break;
            }
        }
        removed.decisions = self.remove_numbered("pacegate_decision_log", "at", retention.decisions).await?;
        removed.overrides = self.remove_numbered(OVERRIDES, "expires_at", retention.overrides).await?;
        for (period, before) in [(Period::Minute, retention.minutes), (Period::Hour, retention.hours)] {
            removed.usage += self.remove_usage(period, before).await?;
        }
        removed.usage_beyond = self.bound_usage(retention.usage_rows).await?;
        Ok(removed)
    }

    /// Removes the oldest usage until at most `rows_max` rows are left. Minutes go first, because
    /// the hours include them.
    async fn bound_usage(&self, rows_max: u64) -> Result<u64, CatalogError> {
        let sql = "SELECT period_seconds, period_start, COUNT(*) FROM pacegate_usage_rollups GROUP BY period_seconds, period_start ORDER BY period_start";
        let mut lease = self.begin().await?;
        let rows = self.statement(sql).bulk().rows(lease.connection()).await?;
        lease.commit().await?;
        let (mut minutes, mut hours, mut total) = (Vec::new(), Vec::new(), 0);
        for row in &rows {
            let (start, count) = (time(row, 1)?, unsigned(column(row, 2)?)?);
            total += count;
            let is_hour = column::<i64>(row, 0)? == seconds(Period::Hour);
            if is_hour { &mut hours } else { &mut minutes }.push((start, count));
        }
        let old_minutes = minutes.len().saturating_sub(MINUTES_LISTED);
        let (old, recent) = minutes.split_at(old_minutes);
        let oldest = [(Period::Minute, old), (Period::Hour, &*hours), (Period::Minute, recent)];
        let mut removed = 0;
        for (period, periods) in oldest {
            let mut before = None;
            for (start, count) in periods {
                if total <= rows_max {
                    break;
                }
                total -= count;
                before = Some(start.saturating_add(period.length()));
            }
            if let Some(before) = before {
                removed += self.remove_usage(period, before).await?;
            }
        }
        Ok(removed)
    }

    /// Removes rows of a table with a numeric primary key.
    async fn remove_numbered(
        &self,
        table: &str,
        column_of_time: &str,
        before: Timestamp,
    ) -> Result<u64, CatalogError> {
        let mut removed = 0;
        loop {
            let sql = format!(
                "SELECT number FROM {table} WHERE {column_of_time} < ? ORDER BY {column_of_time} LIMIT ?"
            );
            let found = self.rows(self.statement(&sql).time(before).bind(STEP)).await?;
            let numbers: Vec<String> = found
                .iter()
                .map(|row| column::<i64>(row, 0).map(|number| number.to_string()))
                .collect::<Result<_, _>>()?;
            if numbers.is_empty() {
                return Ok(removed);
            }
            // By a list of keys, because a subquery would lock the rows that it scans.
            let numbers = numbers.join(", ");
            let sql = format!("DELETE FROM {table} WHERE number IN ({numbers})");
            let mut lease = self.begin().await?;
            if table == OVERRIDES {
                // Seals first: an expired override without a seal is not reported, a seal without a
                // row is.
                let seals = format!(
                    "DELETE FROM pacegate_seals WHERE kind = 'override' AND subject_key IN \
                     (SELECT override_id FROM pacegate_overrides WHERE number IN ({numbers}))"
                );
                self.statement(&seals).run(lease.connection()).await?;
            }
            removed += self.statement(&sql).run(lease.connection()).await?;
            lease.commit().await?;
        }
    }

    async fn remove_usage(&self, period: Period, before: Timestamp) -> Result<u64, CatalogError> {
        let mut removed = 0;
        loop {
            let sql = "SELECT period_start, identifier_key FROM pacegate_usage_rollups WHERE period_seconds = ? AND period_start < ? \
                       ORDER BY period_start, identifier_key LIMIT ?";
            let statement = self.statement(sql).bind(seconds(period)).time(before).bind(STEP);
            let found = self.rows(statement).await?;
            let Some(first) = found.first() else { return Ok(removed) };
            let start: i64 = column(first, 0)?;
            // One period at a time; later steps remove the others.
            let mut keys: Vec<String> = Vec::new();
            for row in &found {
                if column::<i64>(row, 0)? == start {
                    keys.push(column(row, 1)?);
                }
            }
            let placeholders = vec!["?"; keys.len()].join(", ");
            let sql = format!(
                "DELETE FROM pacegate_usage_rollups WHERE period_seconds = ? AND period_start = ? AND identifier_key IN ({placeholders})"
            );
            let mut statement = self.statement(&sql).bind(seconds(period)).bind(start);
            for key in keys {
                statement = statement.bind(key);
            }
            removed += self.run(statement).await?;
        }
    }

    /// Removes the oldest records, in a transaction that holds the lock of the catalog's state.
    async fn remove_audit_step(&self, before: Timestamp) -> Result<u64, CatalogError> {
        let sql = "SELECT sequence FROM pacegate_audit_log WHERE at < ? ORDER BY sequence LIMIT 1";
        if self.row(self.statement(sql).time(before)).await?.is_none() {
            return Ok(0);
        }
        let _turn = self.turn.lock().await;
        let mut lease = self.lease().await?;
        let begin = lease.connection().begin_with(self.kind.begin_change());
        let mut transaction = bounded(STATEMENT_TIMEOUT, begin).await?;
        // Locks the row that every change starts with.
        let lock = "UPDATE pacegate_catalog_state SET audit_removed_sequence = audit_removed_sequence";
        self.statement(lock).run(&mut transaction).await?;
        let mut trail = Trail::load(&mut transaction, self.kind).await?;
        let key = self.audit_key.get()?;
        // Only the owner of the key can move the start, and only of an intact trail.
        let Some(key) = key.filter(|key| trail.mac == trail.expected_mac(key)) else {
            bounded(STATEMENT_TIMEOUT, transaction.rollback()).await?;
            lease.settle();
            return Err(CatalogError::permanent(
                "old audit records not removed: the audit trail was changed outside Pacegate; run `pacegate audit verify`",
            ));
        };
        let sql = "SELECT sequence, at, hash FROM pacegate_audit_log ORDER BY sequence LIMIT ?";
        let rows = self.statement(sql).bind(STEP).rows(&mut transaction).await?;
        // Stops at the first record that is recent enough, so that the trail stays contiguous.
        let mut last = None;
        for row in &rows {
            if column::<i64>(row, 1)? >= crate::statement::micros(before) {
                break;
            }
            last = Some((column::<i64>(row, 0)?, column::<String>(row, 2)?));
        }
        let Some((sequence, hash)) = last else {
            bounded(STATEMENT_TIMEOUT, transaction.rollback()).await?;
            lease.settle();
            return Ok(0);
        };
        let delete = self.statement("DELETE FROM pacegate_audit_log WHERE sequence <= ?").bind(sequence);
        let removed = delete.run(&mut transaction).await?;
        // Records before the last sealing are not verified, so the start never moves back.
        if sequence > trail.removed.sequence {
            trail.removed = AuditHead { sequence, hash };
            trail.store(&mut transaction, self.kind, &key).await?;
        }
        bounded(STATEMENT_TIMEOUT, transaction.commit()).await?;
        lease.settle();
        Ok(removed)
    }
}
