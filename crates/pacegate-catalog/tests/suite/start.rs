//! Opening a catalog.

use pacegate_catalog::{Catalog, UserChange};
use tokio::task::JoinSet;

use super::{Place, actor, rule};

pub(crate) async fn many_nodes_start_at_once(place: &Place) {
    let mut starts = JoinSet::new();
    for number in 0..8 {
        let url = place.url.clone();
        starts.spawn(async move {
            let catalog = Catalog::open(&url).await.unwrap();
            catalog.create_rule(&actor(), &rule(&format!("rule {number}"), 1), None).await.unwrap();
        });
    }
    starts.join_all().await;
    assert_eq!(place.number("SELECT COUNT(*) FROM pacegate_catalog_schema").await, 4);
    assert_eq!(place.number("SELECT COUNT(*) FROM pacegate_catalog_state").await, 1);
    let catalog = place.open().await;
    assert_eq!(catalog.rules().await.unwrap().rules.len(), 8);
    assert_eq!(catalog.audit_verify(None).await.unwrap().records, 8);
}

pub(crate) async fn a_newer_schema_is_refused(place: &Place) {
    drop(place.open().await);
    place.tamper("INSERT INTO pacegate_catalog_schema (version) VALUES (7)").await;
    let error = Catalog::open(&place.url).await.unwrap_err();
    assert!(error.is_permanent(), "{error:?}");
    assert_eq!(
        error.to_string(),
        "the catalog's schema has version 7, newer than the 4 that this program knows"
    );
}

pub(crate) async fn an_interrupted_migration_is_finished(place: &Place) {
    drop(place.open().await);
    // As if the program had been killed in the middle of the step.
    for sql in [
        "DELETE FROM pacegate_catalog_schema",
        "DELETE FROM pacegate_catalog_state",
        "DROP TABLE pacegate_users",
        "DROP TABLE pacegate_usage_rollups",
    ] {
        place.tamper(sql).await;
    }
    let catalog = place.open().await;
    catalog.put_user(&actor(), "u", UserChange::all(Some("free"), &[]), None).await.unwrap();
    assert_eq!(place.number("SELECT COUNT(*) FROM pacegate_usage_rollups").await, 0);
    assert_eq!(place.number("SELECT COUNT(*) FROM pacegate_decision_log").await, 0);
}

pub(crate) async fn a_second_start_changes_nothing(place: &Place) {
    let catalog = place.open().await;
    catalog.ping().await.unwrap();
    catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    let list = catalog.rules().await.unwrap();
    let other = place.open().await;
    assert_eq!(other.rules().await.unwrap(), list);
    assert_eq!(other.revision().await.unwrap(), list.revision);
    assert_eq!(place.number("SELECT COUNT(*) FROM pacegate_catalog_schema").await, 4);
}
