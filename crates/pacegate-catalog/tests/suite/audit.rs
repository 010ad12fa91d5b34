//! The audit trail.

use std::time::Duration;

use pacegate::{Limit, Numbers, Rule};
use pacegate_catalog::{Actor, AuditCheck, AuditFilter, AuditRecord, Catalog, NewOverride, UserChange};

use super::{Place, actor, rule};

async fn everything(place: &Place, catalog: &Catalog) {
    let made = catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    catalog.replace_rule(&actor(), &made.rule_id, None, &rule("a", 2), None).await.unwrap();
    catalog.delete_rule(&actor(), &made.rule_id, None).await.unwrap();
    catalog.put_plan(&actor(), "gold", &[Limit::per_hour(5).unwrap()], None).await.unwrap();
    catalog.delete_plan(&actor(), "gold", None).await.unwrap();
    let numbers = Numbers { quota: 9, window: Some(Duration::from_millis(1_500)), burst: None };
    catalog
        .put_user(&actor(), "u1", UserChange::all(Some("free"), &[("a".into(), numbers)]), None)
        .await
        .unwrap();
    let expires_at = place.after(10);
    let new = NewOverride { user_id: "u1".into(), rule: "a".into(), numbers, reason: None, expires_at };
    let made = catalog.add_override(&actor(), new).await.unwrap();
    catalog.delete_override(&actor(), "u1", &made.override_id, None).await.unwrap();
    catalog.delete_user(&actor(), "u1").await.unwrap();
    let (key, _) = catalog.create_key(&actor(), "admin", "k", None).await.unwrap();
    catalog.revoke_key(&actor(), &key.key_id, None).await.unwrap();
}

async fn all(catalog: &Catalog) -> Vec<AuditRecord> {
    let mut records = catalog.audit_page(AuditFilter::default(), None, 1_000).await.unwrap();
    records.reverse();
    records
}

pub(crate) async fn every_change_is_recorded_with_before_and_after(place: &Place) {
    let catalog = place.open().await;
    everything(place, &catalog).await;
    let records = all(&catalog).await;
    let rows = [
        ("rule.create", None, r#""limit":1,"#, false),
        ("rule.update", Some(r#""limit":1,"#), r#""limit":2,"#, false),
        ("rule.delete", Some(r#""version":2"#), "", false),
        ("plan.put", None, r#""window_seconds":3600"#, false),
        ("plan.delete", Some(r#""name":"gold""#), "", false),
        ("user.put", None, r#""window_seconds":1.5"#, true),
        ("override.create", None, r#""rule":"a""#, true),
        ("override.delete", Some(r#""rule":"a""#), "", true),
        ("user.delete", Some(r#""tier":"free""#), "", true),
        ("key.create", None, r#""role":"admin""#, false),
        ("key.revoke", Some(r#""revoked_at_micros":null"#), r#""revoked_at_micros":17"#, false),
    ];
    assert_eq!(records.len(), rows.len());
    for (index, (record, (action, before, after, about_user))) in records.iter().zip(rows).enumerate() {
        assert_eq!(record.sequence, i64::try_from(index).unwrap() + 1);
        assert_eq!((record.action.as_str(), &record.actor, record.at), (action, &actor(), place.now()));
        assert_eq!(record.user_id.as_deref(), about_user.then_some("u1"), "{action}");
        assert_eq!(record.before.is_some(), before.is_some(), "{action}");
        assert_eq!(record.after.is_some(), !after.is_empty(), "{action}");
        assert!(record.before.as_deref().unwrap_or("").contains(before.unwrap_or("")), "{record:?}");
        assert!(record.after.as_deref().unwrap_or("").contains(after), "{record:?}");
        assert!(!record.subject.is_empty());
    }
    assert_eq!(records[0].subject, records[2].subject);
    assert_eq!((records[3].subject.as_str(), records[5].subject.as_str()), ("gold", "u1"));
    assert_eq!(catalog.audit_verify().await.unwrap(), AuditCheck { records: 11, first_broken: None });
}

pub(crate) async fn pages_are_filtered_and_newest_first(place: &Place) {
    let catalog = place.open().await;
    let other = Actor { key_id: "Somebody".into(), ..Actor::default() };
    for number in 0..9 {
        let by = if number % 3 == 0 { &other } else { &actor() };
        let user = if number % 2 == 0 { "u1" } else { "U1" };
        catalog.put_user(by, user, UserChange::all(None, &[]), None).await.unwrap();
        place.clock.advance(Duration::from_secs(1));
    }
    let about = Rule { identifier: Some("u1".into()), ..rule("a", 1) };
    catalog.create_rule(&actor(), &about, None).await.unwrap();
    let sequences = async |filter: AuditFilter, after, limit| -> Vec<i64> {
        let page = catalog.audit_page(filter, after, limit).await.unwrap();
        page.iter().map(|record| record.sequence).collect()
    };
    let any = AuditFilter::default;
    assert_eq!(sequences(any(), None, 3).await, [10, 9, 8]);
    assert_eq!(sequences(any(), Some(8), 3).await, [7, 6, 5]);
    assert!(sequences(any(), Some(1), 3).await.is_empty());
    // A rule for one user is about that user.
    let user = || AuditFilter { user: Some("u1".into()), ..any() };
    assert_eq!(sequences(user(), None, 10).await, [10, 9, 7, 5, 3, 1]);
    assert_eq!(sequences(user(), Some(7), 2).await, [5, 3]);
    let by = AuditFilter { actor: Some("Somebody".into()), ..any() };
    assert_eq!(sequences(by.clone(), None, 10).await, [7, 4, 1]);
    let recent = AuditFilter {
        since: Some(pacegate::Timestamp::from_micros(place.now().as_micros() - 3_000_000)),
        ..any()
    };
    assert_eq!(sequences(recent.clone(), None, 10).await, [10, 9, 8, 7]);
    let all = AuditFilter { user: Some("u1".into()), actor: by.actor, since: recent.since };
    assert_eq!(sequences(all, None, 10).await, [7]);
    assert!(sequences(AuditFilter { user: Some("nobody".into()), ..any() }, None, 10).await.is_empty());
    let error = catalog.audit_page(any(), None, 1_001).await.unwrap_err();
    assert!(error.is_invalid() && error.field() == Some("limit"));
}

pub(crate) async fn the_trail_is_verified_across_pages(place: &Place) {
    let catalog = place.open().await;
    assert_eq!(catalog.audit_verify().await.unwrap(), AuditCheck { records: 0, first_broken: None });
    let count: u64 = 1_003;
    for _ in 0..count {
        catalog.put_user(&actor(), "u", UserChange::all(None, &[]), None).await.unwrap();
    }
    assert_eq!(catalog.audit_verify().await.unwrap(), AuditCheck { records: count, first_broken: None });
    for broken in [1_001, 1_000, 1] {
        place.tamper(&format!("UPDATE pacegate_audit_log SET subject = 'v' WHERE sequence = {broken}")).await;
        let check = AuditCheck { records: u64::try_from(broken).unwrap() - 1, first_broken: Some(broken) };
        assert_eq!(catalog.audit_verify().await.unwrap(), check);
    }
}

pub(crate) async fn tampering_is_found(place: &Place) {
    let catalog = place.open().await;
    everything(place, &catalog).await;
    let whole = AuditCheck { records: 11, first_broken: None };
    let columns = [
        ("at", "at + 1", "at - 1"),
        ("actor_id", "'x'", "'somebody'"),
        ("actor_address", "NULL", "'192.0.2.7'"),
        ("request_id", "''", "'r-1'"),
        ("action", "'rule.delete'", "'rule.update'"),
        ("after_json", "NULL", ""),
    ];
    for (column, wrong, right) in columns {
        let before = all(&catalog).await[1].clone();
        let set =
            |value: &str| format!("UPDATE pacegate_audit_log SET {column} = {value} WHERE sequence = 2");
        place.tamper(&set(wrong)).await;
        let check = AuditCheck { records: 1, first_broken: Some(2) };
        assert_eq!(catalog.audit_verify().await.unwrap(), check, "{column}");
        let after = format!("'{}'", before.after.unwrap());
        place.tamper(&set(if right.is_empty() { &after } else { right })).await;
        assert_eq!(catalog.audit_verify().await.unwrap(), whole, "{column}");
    }

    // The newest records cut off, one in the middle missing, and the oldest ones missing.
    place.tamper("DELETE FROM pacegate_audit_log WHERE sequence = 11").await;
    assert_eq!(catalog.audit_verify().await.unwrap(), AuditCheck { records: 10, first_broken: Some(11) });
    place.tamper("DELETE FROM pacegate_audit_log WHERE sequence = 6").await;
    assert_eq!(catalog.audit_verify().await.unwrap(), AuditCheck { records: 5, first_broken: Some(6) });
    place.tamper("DELETE FROM pacegate_audit_log WHERE sequence = 1").await;
    assert_eq!(catalog.audit_verify().await.unwrap(), AuditCheck { records: 0, first_broken: Some(1) });
}
