//! Opening a catalog.

use pacegate_catalog::{Catalog, UserChange};
use tokio::task::JoinSet;

use super::{TestDatabase, actor, rule};

pub(crate) async fn many_nodes_start_at_once(database: &TestDatabase) {
    let mut starts = JoinSet::new();
    for number in 0..8 {
        let url = database.url.clone();
        starts.spawn(async move {
            let catalog = Catalog::open(&url).await.unwrap();
            catalog.create_rule(&actor(), &rule(&format!("rule {number}"), 1), None).await.unwrap();
        });
    }
    starts.join_all().await;
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_catalog_schema").await, 4);
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_catalog_state").await, 1);
    let catalog = database.open().await;
    assert_eq!(catalog.rules().await.unwrap().rules.len(), 8);
    assert_eq!(catalog.audit_verify(None).await.unwrap().records, 8);
}

pub(crate) async fn newer_schema_is_rejected(database: &TestDatabase) {
    drop(database.open().await);
    database.tamper("INSERT INTO pacegate_catalog_schema (version) VALUES (7)").await;
    let error = Catalog::open(&database.url).await.unwrap_err();
    assert!(error.is_permanent(), "{error:?}");
    assert_eq!(error.to_string(), "the catalog schema has version 7; this program supports versions up to 4");
}

pub(crate) async fn interrupted_migration_is_completed(database: &TestDatabase) {
    drop(database.open().await);
    // As if the program had been killed during the step.
    for sql in [
        "DELETE FROM pacegate_catalog_schema",
        "DELETE FROM pacegate_catalog_state",
        "DROP TABLE pacegate_users",
        "DROP TABLE pacegate_usage_rollups",
    ] {
        database.tamper(sql).await;
    }
    let catalog = database.open().await;
    catalog.put_user(&actor(), "u", UserChange::all(Some("free"), &[]), None).await.unwrap();
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_usage_rollups").await, 0);
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_decision_log").await, 0);
}

pub(crate) async fn second_start_changes_nothing(database: &TestDatabase) {
    let catalog = database.open().await;
    catalog.ping().await.unwrap();
    catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    let list = catalog.rules().await.unwrap();
    let other = database.open().await;
    assert_eq!(other.rules().await.unwrap(), list);
    assert_eq!(other.revision().await.unwrap(), list.revision);
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_catalog_schema").await, 4);
}
