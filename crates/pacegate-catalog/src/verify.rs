//! Verification: whether the audit trail and the tables match what changes wrote.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use sqlx::{AnyConnection, Connection};

use crate::audit::{Action, AuditRow, Trail};
use crate::audit_key::AuditKey;
use crate::catalog::Catalog;
use crate::change::Part;
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::record::{Actor, AuditCheck, AuditHead, AuditProblem, AuditRecord, RowChange};
use crate::seal::{PAGE, Sealed};
use crate::statement::{STATEMENT_TIMEOUT, Statement, bounded, column, micros};

/// Maximum number of problems that are listed.
const PROBLEMS_MAX: usize = 100;

impl Catalog {
    /// Verifies the audit trail and every row that changes wrote.
    ///
    /// With `expected`, also checks that this record, saved earlier, is still in the trail.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond, or the audit key cannot be read.
    pub async fn audit_verify(&self, expected: Option<&AuditHead>) -> Result<AuditCheck, CatalogError> {
        let mut lease = self.lease().await?;
        let begin = lease.connection().begin_with(self.kind.begin_snapshot());
        let mut snapshot = bounded(STATEMENT_TIMEOUT, begin).await?;
        let check = self.verify(&mut snapshot, expected).await?;
        bounded(STATEMENT_TIMEOUT, snapshot.rollback()).await?;
        lease.settle();
        Ok(check)
    }

    /// Accepts the current content of the tables: seals every row under the current key and
    /// verifies the trail from here on.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond, or the audit key cannot be used.
    pub async fn audit_seal(&self, actor: &Actor) -> Result<AuditHead, CatalogError> {
        self.change(actor, Part::Keys, (), |change, ()| Box::pin(change.reseal())).await
    }

    async fn verify(
        &self,
        connection: &mut AnyConnection,
        expected: Option<&AuditHead>,
    ) -> Result<AuditCheck, CatalogError> {
        let trail = Trail::load(connection, self.kind).await?;
        let key = self.audit_key.get()?;
        let mut verification = Verification {
            kind: self.kind,
            now: micros(self.clock.now()),
            check: AuditCheck {
                first: trail.removed.sequence + 1,
                records: 0,
                head: trail.head.clone(),
                problems: Vec::new(),
                unnamed: 0,
            },
            history: HashMap::new(),
            imported: 0,
        };
        match key {
            Some(key) if *key.id == *trail.key_id => {
                verification.keyed(connection, &trail, &key, expected).await?;
            }
            _ if trail.key_id.is_empty() => {
                let is_new = trail.head.sequence == 0 && verification.has_no_rows(connection).await?;
                if !is_new {
                    verification.found(AuditProblem::Unsealed);
                } else if self.audit_key.is_created_by_changes() && key.is_some() {
                    verification.found(AuditProblem::Emptied);
                }
                verification.expect(&trail, expected, None);
            }
            key => verification.found(AuditProblem::OtherKey {
                written_under: trail.key_id,
                given: key.map(|key| key.id.to_string()),
            }),
        }
        Ok(verification.check)
    }
}

/// The newest record about one row.
struct Last {
    sequence: i64,
    exists: bool,
    version: Option<i64>,
    expires_at: Option<i64>,
}

struct Verification {
    kind: crate::database::Kind,
    now: i64,
    check: AuditCheck,
    /// The newest record of each row, as far as the trail goes back.
    history: HashMap<(Sealed, String), Last>,
    /// The newest record of an import, which does not name its users.
    imported: i64,
}

impl Verification {
    fn found(&mut self, problem: AuditProblem) {
        if self.check.problems.len() < PROBLEMS_MAX {
            self.check.problems.push(problem);
        } else {
            self.check.unnamed += 1;
        }
    }

    async fn has_no_rows(&self, connection: &mut AnyConnection) -> Result<bool, CatalogError> {
        for sealed in Sealed::ALL {
            if sealed.rows(connection, self.kind).await? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn keyed(
        &mut self,
        connection: &mut AnyConnection,
        trail: &Trail,
        key: &AuditKey,
        expected: Option<&AuditHead>,
    ) -> Result<(), CatalogError> {
        if trail.mac != trail.expected_mac(key) {
            self.found(AuditProblem::State);
        }
        let is_whole = self.walk(connection, trail, key, expected).await?;
        if !is_whole {
            // Without the whole trail, nothing is known about the rows.
            self.history.clear();
        }
        for sealed in Sealed::ALL {
            self.rows(connection, trail, key, sealed).await?;
        }
        Ok(())
    }

    /// Walks the chain from the last removed record to the head. Returns whether all of it is
    /// intact.
    async fn walk(
        &mut self,
        connection: &mut AnyConnection,
        trail: &Trail,
        key: &AuditKey,
        expected: Option<&AuditHead>,
    ) -> Result<bool, CatalogError> {
        let (mut next, mut previous) = (self.check.first, trail.removed.hash.clone());
        let mut at_expected = None;
        let broken = 'walk: loop {
            if next > trail.head.sequence {
                break (previous != trail.head.hash).then_some(trail.head.sequence);
            }
            let page = AuditRow::select(self.kind, next, trail.head.sequence, PAGE);
            let rows = page.rows(connection).await?;
            if rows.is_empty() {
                break Some(next);
            }
            for row in &rows {
                let Ok(row) = AuditRow::read(row) else { break 'walk Some(next) };
                let record = &row.record;
                if record.sequence != next || row.expected_hash(key, &previous) != record.hash {
                    break 'walk Some(next);
                }
                if expected.is_some_and(|expected| expected.sequence == next) {
                    at_expected = Some(record.hash.clone());
                }
                previous.clone_from(&record.hash);
                next += 1;
                self.note(record);
            }
        };
        let broken = match broken {
            None => self.beyond(connection, trail).await?,
            broken => broken,
        };
        self.check.records = u64::try_from(broken.unwrap_or(next) - self.check.first).unwrap_or(0);
        if let Some(sequence) = broken {
            self.found(AuditProblem::Record(sequence));
        }
        self.expect(trail, expected, at_expected);
        Ok(broken.is_none())
    }

    /// Whether there is a record after the head.
    async fn beyond(
        &self,
        connection: &mut AnyConnection,
        trail: &Trail,
    ) -> Result<Option<i64>, CatalogError> {
        let sql = "SELECT sequence FROM pacegate_audit_log WHERE sequence > ? ORDER BY sequence LIMIT 1";
        let row = Statement::new(self.kind, sql).bind(trail.head.sequence).row(connection).await?;
        row.map(|row| column(&row, 0)).transpose()
    }

    /// Compares a head that was saved earlier with the trail, where `hash` is the current hash of
    /// that record.
    fn expect(&mut self, trail: &Trail, expected: Option<&AuditHead>, hash: Option<String>) {
        let Some(expected) = expected.filter(|expected| expected.sequence > 0) else { return };
        if expected.sequence < trail.removed.sequence {
            return self.found(AuditProblem::HeadTooOld(expected.clone()));
        }
        let hash =
            if expected.sequence == trail.removed.sequence { Some(trail.removed.hash.clone()) } else { hash };
        if hash.as_ref() != Some(&expected.hash) {
            self.found(AuditProblem::Head(expected.clone()));
        }
    }

    /// Saves what a record states about its row.
    fn note(&mut self, record: &AuditRecord) {
        let sequence = record.sequence;
        let action = Action::parse(&record.action);
        match action {
            Some(Action::AuditBroken) => self.found(AuditProblem::Noted(sequence)),
            // It names no users.
            Some(Action::UserImport) => return self.imported = sequence,
            _ => {}
        }
        let Some(sealed) = Sealed::of_action(&record.action) else { return };
        let read = |json: &Option<String>| -> Value {
            json.as_deref().and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
        };
        let after = read(&record.after);
        let version = match sealed {
            Sealed::Keys => Some(1 + i64::from(!after["revoked_at_micros"].is_null())),
            _ => after["version"].as_i64(),
        };
        let expires_at = after["expires_at_micros"].as_i64();
        let last = Last { sequence, exists: record.after.is_some(), version, expires_at };
        self.history.insert((sealed, record.subject.clone()), last);
        if action == Some(Action::UserDelete) {
            // Deleting a user deletes the user's overrides.
            let before = read(&record.before);
            for of in before["overrides"].as_array().into_iter().flatten() {
                let subject = of["override_id"].as_str().unwrap_or_default().to_owned();
                let gone = Last { sequence, exists: false, version: None, expires_at: None };
                self.history.insert((Sealed::Overrides, subject), gone);
            }
        }
    }

    /// Compares every row of a table with its seal and with its newest record.
    async fn rows(
        &mut self,
        connection: &mut AnyConnection,
        trail: &Trail,
        key: &AuditKey,
        sealed: Sealed,
    ) -> Result<(), CatalogError> {
        let (mut after, mut count) = (String::new(), 0);
        loop {
            let rows = sealed.page(connection, self.kind, key, &after).await?;
            let Some(last) = rows.last() else { break };
            after.clone_from(&last.key);
            count += rows.len() as i64;
            let seals: HashMap<String, String> =
                sealed.seals(connection, self.kind, &rows).await?.into_iter().collect();
            for row in rows {
                let last = self.history.remove(&(sealed, row.subject.clone()));
                // An expired override has no effect, and is removed without a record.
                if row.expires_at.is_some_and(|expires_at| expires_at <= self.now) {
                    continue;
                }
                let imported = if sealed == Sealed::Users { self.imported } else { 0 };
                let change = match (seals.get(&row.key), last) {
                    (None, _) => Some(RowChange::Added),
                    (Some(seal), _) if *seal != row.seal => Some(RowChange::Edited),
                    (_, Some(last)) if !last.exists && imported < last.sequence => Some(RowChange::Restored),
                    (_, Some(last)) if row.version < last.version => Some(RowChange::Outdated),
                    _ => None,
                };
                if let Some(change) = change {
                    self.found(AuditProblem::Row { kind: sealed.kind(), subject: row.subject, change });
                }
            }
        }
        self.gone(connection, sealed).await?;
        let mut expected = trail.rows;
        if let Some(expected) = sealed.count(&mut expected).map(|expected| *expected)
            && expected != count
        {
            self.found(AuditProblem::Rows { kind: sealed.kind(), expected, found: count });
        }
        Ok(())
    }

    /// Finds missing rows: those in the trail, and those with a seal.
    async fn gone(&mut self, connection: &mut AnyConnection, sealed: Sealed) -> Result<(), CatalogError> {
        let now = self.now;
        let mut subjects: Vec<String> = Vec::new();
        self.history.retain(|(own, subject), last| {
            if *own != sealed {
                return true;
            }
            if last.exists && last.expires_at.is_none_or(|expires_at| expires_at > now) {
                subjects.push(subject.clone());
            }
            false
        });
        subjects.sort();
        let is_hashed = matches!(sealed, Sealed::Plans | Sealed::Users);
        let mut named = HashSet::new();
        for subject in subjects {
            named.insert(if is_hashed { key_of(&subject) } else { subject.clone() });
            self.found(AuditProblem::Row { kind: sealed.kind(), subject, change: RowChange::Removed });
        }
        for key in sealed.orphans(connection, self.kind, PAGE).await? {
            if !named.contains(&key) {
                let change = RowChange::Removed;
                self.found(AuditProblem::Row { kind: sealed.kind(), subject: key, change });
            }
        }
        Ok(())
    }
}
