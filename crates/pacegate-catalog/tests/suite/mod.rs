//! What a catalog does on every database. Each scenario has a database of its own, empty at first.

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
pub(crate) struct Place {
    pub(crate) url: String,
    /// The database itself, where `url` is that of a pooler in front of it.
    direct: String,
    /// What has to live as long as the database is used.
    _guard: Box<dyn Any + Send + Sync>,
    pub(crate) clock: Arc<SimulatedClock>,
}

impl Place {
    pub(crate) fn new(url: String, guard: impl Any + Send + Sync) -> Self {
        Self { direct: url.clone(), url, _guard: Box::new(guard), clock: Arc::default() }
    }

    /// The same database through a pooler at `url`.
    #[allow(dead_code, reason = "one database of several has a pooler")]
    pub(crate) fn through(self, url: String) -> Self {
        Self { url, ..self }
    }

    /// A catalog with the scenario's clock: another node, if there is one already.
    pub(crate) async fn open(&self) -> Catalog {
        self.open_keyed(None).await
    }

    /// As [`open`](Self::open), with an audit key of the operator's.
    pub(crate) async fn open_keyed(&self, audit_key: Option<&str>) -> Catalog {
        let audit_key = audit_key.map(str::to_owned);
        let options = CatalogOptions { clock: self.clock.clone(), audit_key };
        Catalog::open_with(&self.url, options).await.unwrap()
    }

    /// Does what no catalog would do.
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
    Actor { key_id: "somebody".into(), address: Some("192.0.2.7".into()), request_id: Some("r-1".into()) }
}

pub(crate) fn rule(name: &str, quota: u64) -> Rule {
    Rule::new(name, "user", Limit::per_minute(quota).build().unwrap())
}

/// Every scenario as a test of its own on the database that `$place` makes.
#[macro_export]
macro_rules! catalog_suite {
    ($place:expr) => {
        $crate::catalog_suite!($place, audit: [
            every_change_is_recorded_with_before_and_after,
            pages_are_filtered_and_newest_first,
            the_trail_is_verified_across_pages,
            tampering_is_found,
            a_trail_that_is_cut_off_or_emptied_is_found,
            edits_of_the_tables_are_named,
            a_changed_state_stays_known_after_the_next_change,
            a_catalog_from_before_seals_is_sealed_by_its_first_change,
            another_audit_key_is_reported,
        ]);
        $crate::catalog_suite!($place, concurrency: [
            one_of_32_writers_with_the_same_version_wins,
            a_hundred_writers_leave_a_trail_without_gaps,
            lists_belong_to_their_revision,
            a_restored_catalog_is_read_again,
            a_change_outlives_its_caller,
            keys_with_one_secret_are_made_once,
            the_trail_is_whole_while_old_records_go,
        ]);
        $crate::catalog_suite!($place, keys: [
            only_the_hash_of_a_secret_is_kept,
            revoked_and_expired_keys_say_so,
            a_chosen_secret_is_kept_once,
            keys_that_cannot_be_made,
        ]);
        $crate::catalog_suite!($place, logs: [
            decisions_are_kept_and_filtered,
            decisions_are_found_by_the_key_of_their_endpoint,
            refused_decision_costs_no_other_row,
            usage_adds_up,
            usage_pages_have_every_identifier_once,
            usage_beyond_its_rows_is_removed_oldest_first,
            long_identifiers_are_found_as_they_were_sent,
            what_is_too_old_is_removed_and_the_trail_stays_verifiable,
        ]);
        $crate::catalog_suite!($place, plans: [
            plans_are_made_replaced_and_removed,
            plans_that_cannot_be_kept,
        ]);
        $crate::catalog_suite!($place, rules: [
            a_rule_comes_back_as_it_was_given,
            a_rule_is_replaced_and_removed,
            one_rule_per_variant,
            putting_a_rule_makes_or_replaces_it,
            pages_have_every_rule_once,
            a_row_that_somebody_edited_is_left_out,
            a_change_that_fails_leaves_nothing,
            rules_that_cannot_be_kept,
            similar_texts_stay_apart,
        ]);
        $crate::catalog_suite!($place, start: [
            many_nodes_start_at_once,
            a_newer_schema_is_refused,
            an_interrupted_migration_is_finished,
            a_second_start_changes_nothing,
        ]);
        $crate::catalog_suite!($place, users: [
            a_user_is_kept_replaced_and_removed,
            overrides_hold_until_they_expire,
            override_of_an_address_applies_until_it_expires,
            the_newest_override_of_a_rule_wins,
            a_user_has_at_most_a_hundred_overrides,
            pages_have_every_user_once,
            users_that_differ_a_little_stay_apart,
            users_that_cannot_be_kept,
            thousands_are_imported_at_once,
            profiles_of_many_users_are_read_together,
            changes_name_their_users_and_keys,
        ]);
    };
    ($place:expr, $module:ident: [$($scenario:ident),+ $(,)?]) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    $crate::suite::$module::$scenario(&$place).await;
                }
            )+
        }
    };
}
