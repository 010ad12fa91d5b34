//! The behaviour of a catalog on every database. Each scenario starts with its own empty database.

pub(crate) mod audit;
pub(crate) mod concurrency;
pub(crate) mod keys;
pub(crate) mod logs;
pub(crate) mod plans;
pub(crate) mod rules;
pub(crate) mod start;
pub(crate) mod users;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use pacegate::{Limit, Rule, Timestamp};
use pacegate_catalog::{Actor, Catalog, CatalogOptions};
use pacegate_testkit::SimulatedClock;
use sqlx::any::install_default_drivers;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row, raw_sql};

/// An empty database.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    /// The URL of the database itself, when `url` is that of a pooler.
    direct: String,
    /// Kept alive as long as the database is used.
    _guard: Box<dyn Any + Send + Sync>,
    pub(crate) clock: Arc<SimulatedClock>,
}

impl TestDatabase {
    pub(crate) fn new(url: String, guard: impl Any + Send + Sync) -> Self {
        Self { direct: url.clone(), url, _guard: Box::new(guard), clock: Arc::default() }
    }

    /// The same database through a pooler at `url`.
    #[allow(dead_code, reason = "only one test binary uses a pooler")]
    pub(crate) fn through(self, url: String) -> Self {
        Self { url, ..self }
    }

    /// Opens a catalog with the scenario's clock; opening again adds another node.
    pub(crate) async fn open(&self) -> Catalog {
        self.open_keyed(None).await
    }

    /// Like [`open`](Self::open), with a configured audit key.
    pub(crate) async fn open_keyed(&self, audit_key: Option<&str>) -> Catalog {
        let audit_key = audit_key.map(str::to_owned);
        let options = CatalogOptions { clock: self.clock.clone(), audit_key };
        Catalog::open_with(&self.url, options).await.unwrap()
    }

    /// Edits the database outside the catalog.
    pub(crate) async fn tamper(&self, sql: &str) {
        let mut connection = self.connect().await;
        raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.connect().await;
        let row = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.unwrap();
        row.get(0)
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        self.column(sql, 0).await
    }

    pub(crate) async fn column(&self, sql: &str, index: usize) -> String {
        let mut connection = self.connect().await;
        let row = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.unwrap();
        row.get(index)
    }

    async fn connect(&self) -> AnyConnection {
        install_default_drivers();
        AnyConnection::connect(&self.direct).await.unwrap()
    }

    pub(crate) fn now(&self) -> Timestamp {
        pacegate::store::Clock::now(&*self.clock)
    }

    pub(crate) fn after(&self, seconds: u64) -> Timestamp {
        self.now().saturating_add(Duration::from_secs(seconds))
    }
}

pub(crate) fn actor() -> Actor {
    Actor { key_id: "operator".into(), address: Some("192.0.2.7".into()), request_id: Some("r-1".into()) }
}

pub(crate) fn rule(name: &str, quota: u64) -> Rule {
    Rule::new(name, "user", Limit::per_minute(quota).build().unwrap())
}

/// Defines one test for each scenario, on the database that `$database` creates.
#[macro_export]
macro_rules! catalog_suite {
    ($database:expr) => {
        $crate::catalog_suite!($database, audit: [
            every_change_is_recorded_with_before_and_after,
            pages_are_filtered_and_newest_first,
            trail_is_verified_across_pages,
            tampering_is_detected,
            truncated_or_emptied_trail_is_detected,
            table_edits_are_reported_by_row,
            edited_state_stays_reported_after_the_next_change,
            first_change_seals_a_catalog_of_an_earlier_version,
            another_audit_key_is_reported,
        ]);
        $crate::catalog_suite!($database, concurrency: [
            one_of_32_writers_with_the_same_version_wins,
            concurrent_writers_leave_no_gaps_in_the_trail,
            lists_match_their_revision,
            restored_catalog_is_reloaded,
            change_completes_after_its_caller_is_cancelled,
            concurrent_keys_with_one_secret_are_created_once,
            trail_stays_intact_during_retention,
        ]);
        $crate::catalog_suite!($database, keys: [
            only_the_hash_of_a_secret_is_stored,
            revoked_and_expired_keys_are_marked,
            chosen_secret_is_stored_once,
            invalid_keys_are_rejected,
        ]);
        $crate::catalog_suite!($database, logs: [
            decisions_are_stored_and_filtered,
            decisions_are_found_by_endpoint_key,
            rejected_decision_does_not_affect_other_rows,
            usage_is_summed_across_nodes,
            usage_pages_have_every_identifier_once,
            usage_above_the_maximum_is_removed_oldest_first,
            long_identifiers_are_found_by_their_full_text,
            retention_removes_old_rows_and_keeps_the_trail_verifiable,
        ]);
        $crate::catalog_suite!($database, plans: [
            plans_are_created_replaced_and_deleted,
            invalid_plans_are_rejected,
        ]);
        $crate::catalog_suite!($database, rules: [
            stored_rule_equals_the_original,
            rule_is_replaced_and_deleted,
            one_rule_per_variant,
            put_rule_creates_or_replaces,
            pages_have_every_rule_once,
            unreadable_row_is_skipped,
            failed_change_leaves_no_trace,
            invalid_rules_are_rejected,
            similar_texts_stay_distinct,
        ]);
        $crate::catalog_suite!($database, start: [
            many_nodes_start_at_once,
            newer_schema_is_rejected,
            interrupted_migration_is_completed,
            second_start_changes_nothing,
        ]);
        $crate::catalog_suite!($database, users: [
            user_is_created_replaced_and_deleted,
            overrides_apply_until_they_expire,
            override_of_an_address_applies_until_it_expires,
            newest_override_of_a_rule_wins,
            user_has_at_most_100_overrides,
            pages_have_every_user_once,
            similar_users_stay_distinct,
            invalid_users_are_rejected,
            import_creates_thousands_of_users,
            users_are_put_together_or_not_at_all,
            profiles_of_many_users_are_read_together,
            changes_name_their_users_and_keys,
        ]);
    };
    ($database:expr, $module:ident: [$($scenario:ident),+ $(,)?]) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    $crate::suite::$module::$scenario(&$database).await;
                }
            )+
        }
    };
}
