//! Rules in the catalog.

use pacegate::{Rule, rules::RULES_MAX};
use sqlx::Connection;
use sqlx::any::AnyRow;
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use crate::audit::{Action, Entry};
use crate::bounds::{check_page, check_rule, is_id};
use crate::catalog::Catalog;
use crate::change::{Change, Part};
use crate::error::CatalogError;
use crate::precondition::{Expected, RuleRef};
use crate::record::{Actor, PolicyDetail, RuleList, StoredRule};
use crate::seal::Sealed;
use crate::statement::{STATEMENT_TIMEOUT, Statement, bounded, column};
use crate::{overrides, plans, rule_row};

/// Number of rules that are read at a time.
const LOAD_PAGE: i64 = 5_000;

impl Catalog {
    /// All rules (by number) and all plans, at one revision.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond. Rows that cannot be read are skipped
    /// and named.
    pub async fn rules(&self) -> Result<RuleList, CatalogError> {
        // Read before the snapshot: a restore in between is found by the next read of the revision.
        let epoch = self.epoch().await;
        let mut lease = self.lease().await?;
        let begin = lease.connection().begin_with(self.kind.begin_snapshot());
        let mut snapshot = bounded(STATEMENT_TIMEOUT, begin).await?;
        let revision = self.revision_in(&mut snapshot, epoch).await?;
        let mut list = RuleList { revision, ..RuleList::default() };
        // In pages, because rows take far more memory than the rules in them. One page is decoded
        // while the next one is fetched.
        let sql = format!("{} WHERE number > ? ORDER BY number LIMIT ?", rule_row::SELECT);
        let mut after: Option<i64> = Some(-1);
        let mut reading = None;
        while let Some(number) = after {
            let page = self.statement(&sql).bind(number).bind(LOAD_PAGE).bulk();
            let rows = page.rows(&mut snapshot).await?;
            after = rows.last().and_then(|last| column(last, 0).ok());
            if let Some(read) = reading.replace(spawn_blocking(move || read_all(&rows))) {
                take_in(&mut list, read).await?;
            }
        }
        let plan_rows = plans::select_all(self.kind).rows(&mut snapshot).await?;
        let override_rows = overrides::select_identities(self.kind, self.clock.now());
        let override_rows = override_rows.rows(&mut snapshot).await?;
        bounded(STATEMENT_TIMEOUT, snapshot.rollback()).await?;
        lease.settle();
        if let Some(read) = reading {
            take_in(&mut list, read).await?;
        }
        for row in plan_rows {
            match plans::read(&row) {
                Ok(plan) => list.plans.push(plan),
                Err(error) => list.unreadable.push(error.to_string()),
            }
        }
        for row in override_rows {
            match overrides::read(&row) {
                Ok(of) => list.overrides.push(of),
                Err(error) => list.unreadable.push(error.to_string()),
            }
        }
        list.plans.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(list)
    }

    /// One page of rules by number; only those after the number `after`, if it is set. Rows that
    /// cannot be read are skipped.
    ///
    /// # Errors
    /// [`CatalogError`] when `limit` is not between 1 and 1,000, or the database does not respond.
    pub async fn rule_page(&self, after: Option<i64>, limit: usize) -> Result<Vec<StoredRule>, CatalogError> {
        let page = check_page(limit)?;
        let mut after = after.unwrap_or(-1);
        let mut rules = Vec::new();
        // An empty page means the end, so skipped rows are made up for by further ones.
        loop {
            let sql = format!("{} WHERE number > ? ORDER BY number LIMIT ?", rule_row::SELECT);
            let rows = self.rows(self.statement(&sql).bind(after).bind(page)).await?;
            rules.extend(rows.iter().filter_map(|row| rule_row::read(row).ok()));
            match rows.last() {
                Some(last) if rows.len() == limit && rules.len() < limit => after = column(last, 0)?,
                _ => break,
            }
        }
        rules.truncate(limit);
        Ok(rules)
    }

    /// The rule with this id.
    ///
    /// # Errors
    /// [`CatalogError`] when its row cannot be read, or the database does not respond.
    pub async fn rule(&self, rule_id: &str) -> Result<Option<StoredRule>, CatalogError> {
        if !is_id(rule_id) {
            return Ok(None);
        }
        let sql = format!("{} WHERE rule_id = ?", rule_row::SELECT);
        let row = self.row(self.statement(&sql).bind(rule_id.to_owned())).await?;
        row.as_ref().map(rule_row::read).transpose()
    }

    /// The rule with the same name, dimension, identifier, tier, endpoint and method.
    ///
    /// # Errors
    /// As for [`rule`](Self::rule).
    pub async fn rule_of_variant(&self, rule: &Rule) -> Result<Option<StoredRule>, CatalogError> {
        let sql = format!("{} WHERE variant_key = ?", rule_row::SELECT);
        let row = self.row(self.statement(&sql).bind(rule.variant_key())).await?;
        row.as_ref().map(rule_row::read).transpose()
    }

    /// Creates a rule.
    ///
    /// # Errors
    /// [`CatalogError`]: a conflict when a rule of the same variant exists, invalid when a value is
    /// invalid or there are too many rules.
    pub async fn create_rule(
        &self,
        actor: &Actor,
        rule: &Rule,
        policy: Option<PolicyDetail>,
    ) -> Result<StoredRule, CatalogError> {
        let rule = &*check_rule(rule)?;
        self.change(actor, Part::Rules, (rule.clone(), policy), |change, (rule, policy)| {
            Box::pin(async move {
                reject_variant(change, rule, None).await?;
                create(change, rule, *policy).await
            })
        })
        .await
    }

    /// Replaces a rule if `expected` holds. With `policy`, only the limit changes; without it, the
    /// stored policy stays.
    ///
    /// # Errors
    /// [`CatalogError`]: not found, changed by a concurrent request, a conflict when another rule
    /// has the new variant, or an invalid value.
    pub async fn replace_rule(
        &self,
        actor: &Actor,
        which: impl Into<RuleRef<'_>>,
        expected: Option<Expected>,
        rule: &Rule,
        policy: Option<PolicyDetail>,
    ) -> Result<StoredRule, CatalogError> {
        let rule = &*check_rule(rule)?;
        let input = (Lookup::of(which.into()), expected, rule.clone(), policy);
        self.change(actor, Part::Rules, input, |change, (lookup, expected, rule, policy)| {
            Box::pin(async move {
                let before = expect(change, lookup, *expected).await?;
                reject_variant(change, rule, Some(&before.rule_id)).await?;
                let rule = if policy.is_some() { with_numbers_of(&before.rule, rule) } else { rule.clone() };
                let policy = policy.or(before.policy);
                replace(change, before, &rule, policy).await
            })
        })
        .await
    }

    /// Creates a rule, or replaces the limit of the one of the same variant if `expected` holds.
    /// Returns whether it was created.
    ///
    /// # Errors
    /// [`CatalogError`]: changed by a concurrent request, an invalid value, or too many rules.
    pub async fn put_rule(
        &self,
        actor: &Actor,
        rule: &Rule,
        policy: Option<PolicyDetail>,
        expected: Option<Expected>,
    ) -> Result<(StoredRule, bool), CatalogError> {
        let rule = &*check_rule(rule)?;
        let input = (rule.clone(), policy, expected);
        self.change(actor, Part::Rules, input, |change, (rule, policy, expected)| {
            Box::pin(async move {
                let before = find(change, &Lookup::of(RuleRef::Variant(rule))).await?;
                Expected::check(*expected, before.as_ref().map(|before| before.version), "rule")?;
                match before {
                    None => Ok((create(change, rule, *policy).await?, true)),
                    Some(before) => {
                        let (rule, policy) = (with_numbers_of(&before.rule, rule), policy.or(before.policy));
                        Ok((replace(change, before, &rule, policy).await?, false))
                    }
                }
            })
        })
        .await
    }

    /// Removes a rule if `expected` holds.
    ///
    /// # Errors
    /// [`CatalogError`]: not found, or changed by a concurrent request.
    pub async fn delete_rule(
        &self,
        actor: &Actor,
        which: impl Into<RuleRef<'_>>,
        expected: Option<Expected>,
    ) -> Result<(), CatalogError> {
        let input = (Lookup::of(which.into()), expected);
        self.change(actor, Part::Rules, input, |change, (lookup, expected)| {
            Box::pin(async move {
                let before = expect(change, lookup, *expected).await?;
                let delete = change.statement("DELETE FROM pacegate_rules WHERE rule_id = ?");
                delete.bind(before.rule_id.clone()).run(change.connection).await?;
                change.seal(Sealed::Rules, std::slice::from_ref(&before.rule_id)).await?;
                record(change, Action::RuleDelete, Some(&before), None).await
            })
        })
        .await
    }
}

/// The rules, and the errors of unreadable ones. Decoding 100,000 rules takes long enough to block
/// other tasks of the thread.
fn read_all(rows: &[AnyRow]) -> (Vec<StoredRule>, Vec<String>) {
    let (mut rules, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match rule_row::read(row) {
            Ok(rule) => rules.push(rule),
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    (rules, unreadable)
}

async fn take_in(
    list: &mut RuleList,
    read: JoinHandle<(Vec<StoredRule>, Vec<String>)>,
) -> Result<(), CatalogError> {
    let interrupted = |_| CatalogError::unavailable("loading the rules was interrupted");
    let (rules, unreadable) = read.await.map_err(interrupted)?;
    list.rules.extend(rules);
    list.unreadable.extend(unreadable);
    Ok(())
}

/// The unique column to find a rule by, and its value.
struct Lookup {
    column: &'static str,
    value: String,
}

impl Lookup {
    fn of(which: RuleRef<'_>) -> Self {
        match which {
            RuleRef::Id(rule_id) => Self { column: "rule_id", value: rule_id.to_owned() },
            RuleRef::Variant(rule) => Self { column: "variant_key", value: rule.variant_key() },
        }
    }
}

async fn find(change: &mut Change<'_>, lookup: &Lookup) -> Result<Option<StoredRule>, CatalogError> {
    if !is_id(&lookup.value) {
        return Ok(None);
    }
    let statement = change.statement(&format!("{} WHERE {} = ?", rule_row::SELECT, lookup.column));
    let row = statement.bind(lookup.value.clone()).row(change.connection).await?;
    row.as_ref().map(rule_row::read).transpose()
}

/// The stored rule, which must exist and meet `expected`.
async fn expect(
    change: &mut Change<'_>,
    lookup: &Lookup,
    expected: Option<Expected>,
) -> Result<StoredRule, CatalogError> {
    let rule = find(change, lookup).await?;
    let rule = rule.ok_or_else(|| CatalogError::not_found("unknown rule"))?;
    Expected::check(expected, Some(rule.version), "rule")?;
    Ok(rule)
}

/// Rejects a variant that a rule other than `rule_id` has.
async fn reject_variant(
    change: &mut Change<'_>,
    rule: &Rule,
    rule_id: Option<&str>,
) -> Result<(), CatalogError> {
    let statement = change.statement("SELECT rule_id FROM pacegate_rules WHERE variant_key = ?");
    let row = statement.bind(rule.variant_key()).row(change.connection).await?;
    match row.map(|row| column::<String>(&row, 0)).transpose()? {
        Some(existing) if Some(existing.as_str()) != rule_id => {
            let message = format!(
                "rule {existing} has the same name, dimension, identifier, tier, endpoint and method"
            );
            Err(CatalogError::conflict(message, &existing))
        }
        _ => Ok(()),
    }
}

async fn create(
    change: &mut Change<'_>,
    rule: &Rule,
    policy: Option<PolicyDetail>,
) -> Result<StoredRule, CatalogError> {
    let count = change.statement("SELECT COUNT(*) FROM pacegate_rules").row(change.connection).await?;
    let count: i64 = count.map_or(Ok(0), |row| column(&row, 0))?;
    let total = usize::try_from(count).unwrap_or(usize::MAX).saturating_add(change.file_rules);
    if total >= RULES_MAX {
        let message = match change.file_rules {
            0 => format!("the catalog has {count} rules, which is the maximum"),
            of_file => format!(
                "there are {total} rules, {of_file} in the configuration file and {count} in the catalog; the maximum is {RULES_MAX}"
            ),
        };
        return Err(CatalogError::invalid("rules", message));
    }
    let stored = StoredRule {
        // Each revision creates at most one rule.
        number: change.revision,
        rule_id: Uuid::now_v7().to_string(),
        rule: rule.clone(),
        policy,
        version: 1,
        created_at: change.now,
        updated_at: change.now,
    };
    let sql = "INSERT INTO pacegate_rules (variant_key, definition_json, version, updated_at, number, rule_id, created_at) \
               VALUES (?, ?, ?, ?, ?, ?, ?)";
    let statement = bind(change.statement(sql), &stored)?.bind(stored.number);
    statement.bind(stored.rule_id.clone()).time(stored.created_at).run(change.connection).await?;
    change.seal(Sealed::Rules, std::slice::from_ref(&stored.rule_id)).await?;
    record(change, Action::RuleCreate, None, Some(&stored)).await?;
    Ok(stored)
}

/// The rule `before` with the limit of `numbers`, another rule of its variant.
fn with_numbers_of(before: &Rule, numbers: &Rule) -> Rule {
    Rule { limit: numbers.limit, endpoint: numbers.endpoint.clone(), ..before.clone() }
}

async fn replace(
    change: &mut Change<'_>,
    before: StoredRule,
    rule: &Rule,
    policy: Option<PolicyDetail>,
) -> Result<StoredRule, CatalogError> {
    let version = before.version + 1;
    let after = StoredRule { rule: rule.clone(), policy, version, updated_at: change.now, ..before.clone() };
    let sql = "UPDATE pacegate_rules SET variant_key = ?, definition_json = ?, version = ?, updated_at = ? WHERE rule_id = ?";
    let statement = bind(change.statement(sql), &after)?;
    statement.bind(after.rule_id.clone()).run(change.connection).await?;
    change.seal(Sealed::Rules, std::slice::from_ref(&after.rule_id)).await?;
    record(change, Action::RuleUpdate, Some(&before), Some(&after)).await?;
    Ok(after)
}

/// Binds the columns that can change.
fn bind<'q>(statement: Statement<'q>, rule: &StoredRule) -> Result<Statement<'q>, CatalogError> {
    let definition = rule_row::write(&rule.rule, rule.policy)?;
    let statement = statement.bind(rule.rule.variant_key()).bind(definition);
    Ok(statement.bind(rule.version).time(rule.updated_at))
}

async fn record(
    change: &mut Change<'_>,
    action: Action,
    before: Option<&StoredRule>,
    after: Option<&StoredRule>,
) -> Result<(), CatalogError> {
    let subject = before.or(after).map_or("", |rule| &rule.rule_id);
    // A record about the rule of one user can be found by that user.
    let user =
        |rule: &StoredRule| (rule.rule.dimension == "user").then(|| rule.rule.identifier.clone()).flatten();
    let user_id = after.or(before).and_then(user);
    let (before, after) = (before.map(rule_row::shown), after.map(rule_row::shown));
    change.record(Entry { action, subject, user_id: user_id.as_deref(), before, after }).await
}
