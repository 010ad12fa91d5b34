//! The audit trail.

use std::time::Duration;

use pacegate::{Limit, LimitOverride, Rule};
use pacegate_catalog::{
    Actor, AuditFilter, AuditHead, AuditProblem, AuditRecord, Catalog, CatalogOptions, NewOverride,
    Retention, RowChange, UserChange,
};

use super::{TestDatabase, actor, rule};

async fn make_every_change(database: &TestDatabase, catalog: &Catalog) {
    let made = catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    catalog.replace_rule(&actor(), &made.rule_id, None, &rule("a", 2), None).await.unwrap();
    catalog.delete_rule(&actor(), &made.rule_id, None).await.unwrap();
    catalog.put_plan(&actor(), "gold", &[Limit::per_hour(5).build().unwrap().into()], None).await.unwrap();
    catalog.delete_plan(&actor(), "gold", None).await.unwrap();
    let numbers = LimitOverride { quota: 9, window: Some(Duration::from_millis(1_500)), burst: None };
    catalog
        .put_user(&actor(), "u1", UserChange::all(Some("free"), &[("a".into(), numbers)]), None)
        .await
        .unwrap();
    let expires_at = database.after(10);
    let new = NewOverride { user_id: "u1".into(), rule: "a".into(), numbers, reason: None, expires_at };
    let made = catalog.add_override(&actor(), new).await.unwrap();
    catalog.delete_override(&actor(), "u1", &made.override_id, None).await.unwrap();
    catalog.delete_user(&actor(), "u1").await.unwrap();
    let (key, _) = catalog.create_key(&actor(), "admin", "k", None).await.unwrap();
    catalog.revoke_key(&actor(), &key.key_id, None).await.unwrap();
}

/// Number of intact records, and the problems that were found.
async fn verified(catalog: &Catalog) -> (u64, Vec<AuditProblem>) {
    let check = catalog.audit_verify(None).await.unwrap();
    assert_eq!(check.is_intact(), check.problems.is_empty());
    (check.records, check.problems)
}

async fn all(catalog: &Catalog) -> Vec<AuditRecord> {
    let mut records = catalog.audit_page(AuditFilter::default(), None, 1_000).await.unwrap();
    records.reverse();
    records
}

pub(crate) async fn every_change_is_recorded_with_before_and_after(database: &TestDatabase) {
    let catalog = database.open().await;
    make_every_change(database, &catalog).await;
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
        assert_eq!((record.action.as_str(), &record.actor, record.at), (action, &actor(), database.now()));
        assert_eq!(record.user_id.as_deref(), about_user.then_some("u1"), "{action}");
        assert_eq!(record.before.is_some(), before.is_some(), "{action}");
        assert_eq!(record.after.is_some(), !after.is_empty(), "{action}");
        assert!(record.before.as_deref().unwrap_or("").contains(before.unwrap_or("")), "{record:?}");
        assert!(record.after.as_deref().unwrap_or("").contains(after), "{record:?}");
        assert!(!record.subject.is_empty());
    }
    assert_eq!(records[0].subject, records[2].subject);
    assert_eq!((records[3].subject.as_str(), records[5].subject.as_str()), ("gold", "u1"));
    assert_eq!(verified(&catalog).await, (11, vec![]));
}

pub(crate) async fn pages_are_filtered_and_newest_first(database: &TestDatabase) {
    let catalog = database.open().await;
    let other = Actor { key_id: "Operator".into(), ..Actor::default() };
    for number in 0..9 {
        let by = if number % 3 == 0 { &other } else { &actor() };
        let user = if number % 2 == 0 { "u1" } else { "U1" };
        catalog.put_user(by, user, UserChange::all(None, &[]), None).await.unwrap();
        database.clock.advance(Duration::from_secs(1));
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
    // A rule for one user is recorded for that user.
    let user = || AuditFilter { user: Some("u1".into()), ..any() };
    assert_eq!(sequences(user(), None, 10).await, [10, 9, 7, 5, 3, 1]);
    assert_eq!(sequences(user(), Some(7), 2).await, [5, 3]);
    let by = AuditFilter { actor: Some("Operator".into()), ..any() };
    assert_eq!(sequences(by.clone(), None, 10).await, [7, 4, 1]);
    let recent = AuditFilter {
        since: Some(pacegate::Timestamp::from_micros(database.now().as_micros() - 3_000_000)),
        ..any()
    };
    assert_eq!(sequences(recent.clone(), None, 10).await, [10, 9, 8, 7]);
    let all = AuditFilter { user: Some("u1".into()), actor: by.actor, since: recent.since };
    assert_eq!(sequences(all, None, 10).await, [7]);
    assert!(sequences(AuditFilter { user: Some("unknown".into()), ..any() }, None, 10).await.is_empty());
    let error = catalog.audit_page(any(), None, 1_001).await.unwrap_err();
    assert!(error.is_invalid() && error.field() == Some("limit"));
}

pub(crate) async fn trail_is_verified_across_pages(database: &TestDatabase) {
    let catalog = database.open().await;
    assert_eq!(verified(&catalog).await, (0, vec![]));
    let count: u64 = 1_003;
    for _ in 0..count {
        catalog.put_user(&actor(), "u", UserChange::all(None, &[]), None).await.unwrap();
    }
    assert_eq!(verified(&catalog).await, (count, vec![]));
    for broken in [1_001, 1_000, 1] {
        database
            .tamper(&format!("UPDATE pacegate_audit_log SET subject = 'v' WHERE sequence = {broken}"))
            .await;
        let found = vec![AuditProblem::Record(broken)];
        assert_eq!(verified(&catalog).await, (u64::try_from(broken).unwrap() - 1, found));
    }
}

pub(crate) async fn tampering_is_detected(database: &TestDatabase) {
    let catalog = database.open().await;
    make_every_change(database, &catalog).await;
    // Every column of a record about a user, with and without a value.
    let columns = [
        ("at", "at + 1", "at - 1"),
        ("actor_key", "'x'", ""),
        ("actor_id", "'x'", ""),
        ("actor_address", "NULL", ""),
        ("request_id", "''", ""),
        ("action", "'user.delete'", ""),
        ("subject", "'u2'", ""),
        ("user_key", "NULL", ""),
        ("user_key", "actor_key", ""),
        ("user_id", "'u2'", ""),
        ("before_json", "'{}'", "NULL"),
        ("after_json", "NULL", ""),
        ("hash", "actor_key", ""),
    ];
    for (column, wrong, right) in columns {
        let set =
            |value: &str| format!("UPDATE pacegate_audit_log SET {column} = {value} WHERE sequence = 6");
        let right = if right.is_empty() {
            let sql = format!("SELECT {column} FROM pacegate_audit_log WHERE sequence = 6");
            format!("'{}'", database.text(&sql).await)
        } else {
            right.to_owned()
        };
        database.tamper(&set(wrong)).await;
        assert_eq!(verified(&catalog).await, (5, vec![AuditProblem::Record(6)]), "{column}");
        database.tamper(&set(&right)).await;
        assert_eq!(verified(&catalog).await, (11, vec![]), "{column}");
    }

    // A forged record after the newest one.
    let copied = "at, actor_key, actor_id, actor_address, request_id, action, subject, user_key, user_id, before_json, after_json, hash";
    database
        .tamper(&format!("INSERT INTO pacegate_audit_log (sequence, {copied}) SELECT 12, {copied} FROM pacegate_audit_log WHERE sequence = 11"))
        .await;
    assert_eq!(verified(&catalog).await, (11, vec![AuditProblem::Record(12)]));
    database.tamper("DELETE FROM pacegate_audit_log WHERE sequence = 12").await;

    // The newest record deleted, one in the middle, and the oldest one.
    for (deleted, intact) in [(11, 10), (6, 5), (1, 0)] {
        database.tamper(&format!("DELETE FROM pacegate_audit_log WHERE sequence = {deleted}")).await;
        assert_eq!(verified(&catalog).await, (intact, vec![AuditProblem::Record(deleted)]));
    }
}

/// Deletes the newest record and reverts the state to the one before it.
pub(super) async fn truncate(database: &TestDatabase, last: i64) {
    let hash = match last {
        0 => String::new(),
        _ => database.text(&format!("SELECT hash FROM pacegate_audit_log WHERE sequence = {last}")).await,
    };
    database.tamper(&format!("DELETE FROM pacegate_audit_log WHERE sequence > {last}")).await;
    let state = format!("UPDATE pacegate_catalog_state SET audit_sequence = {last}, audit_hash = '{hash}'");
    database.tamper(&state).await;
}

pub(crate) async fn truncated_or_emptied_trail_is_detected(database: &TestDatabase) {
    let catalog = database.open().await;
    make_every_change(database, &catalog).await;
    let head = catalog.audit_verify(None).await.unwrap().head;
    assert_eq!((head.sequence, &head.hash), (11, &all(&catalog).await[10].hash));
    let noted: AuditHead = head.to_string().parse().unwrap();
    assert!(catalog.audit_verify(Some(&noted)).await.unwrap().is_intact());

    truncate(database, 10).await;
    let check = catalog.audit_verify(Some(&noted)).await.unwrap();
    assert!(check.problems.contains(&AuditProblem::State), "{:?}", check.problems);
    assert!(check.problems.contains(&AuditProblem::Head(noted.clone())), "{:?}", check.problems);

    // Everything deleted, and the state of a new catalog.
    for sql in [
        "DELETE FROM pacegate_audit_log",
        "UPDATE pacegate_catalog_state SET audit_sequence = 0, audit_hash = '', audit_removed_sequence = 0, audit_removed_hash = ''",
    ] {
        database.tamper(sql).await;
    }
    assert!(catalog.audit_verify(None).await.unwrap().problems.contains(&AuditProblem::State));
    database.tamper("UPDATE pacegate_audit_state SET key_id = '', mac = ''").await;
    let check = catalog.audit_verify(Some(&noted)).await.unwrap();
    assert!(check.problems.contains(&AuditProblem::Unsealed), "{:?}", check.problems);
    assert!(check.problems.contains(&AuditProblem::Head(noted)), "{:?}", check.problems);
}

pub(crate) async fn table_edits_are_reported_by_row(database: &TestDatabase) {
    let catalog = database.open().await;
    let made = catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    let removed = catalog.create_rule(&actor(), &rule("b", 1), None).await.unwrap();
    catalog.put_plan(&actor(), "gold", &[Limit::per_hour(5).build().unwrap().into()], None).await.unwrap();
    catalog.put_user(&actor(), "u1", UserChange::all(Some("free"), &[]), None).await.unwrap();
    let users = (0..1_100).map(|number| (format!("imported {number}"), Some("free".to_owned())));
    catalog.import_users(&actor(), users).await.unwrap();
    let numbers = LimitOverride { quota: 9, window: None, burst: None };
    let expires_at = database.after(10);
    let new = NewOverride { user_id: "u1".into(), rule: "a".into(), numbers, reason: None, expires_at };
    let of = catalog.add_override(&actor(), new).await.unwrap();
    let (key, _) = catalog.create_key(&actor(), "reader", "k", None).await.unwrap();
    catalog.note_key_use(&key.key_id, database.after(1)).await.unwrap();
    assert_eq!(verified(&catalog).await.1, []);

    let row = |kind, subject: &str, change| AuditProblem::Row { kind, subject: subject.to_owned(), change };
    let edited = RowChange::Edited;
    let edits = [
        (
            "pacegate_rules SET definition_json = REPLACE(definition_json, '\"quota\":1,', '\"quota\":9,') WHERE version = 1 AND number = 1",
            row("rule", &made.rule_id, edited),
        ),
        ("pacegate_plans SET limits_json = REPLACE(limits_json, '5', '6')", row("plan", "gold", edited)),
        ("pacegate_users SET tier = 'premium' WHERE user_id = 'u1'", row("user", "u1", edited)),
        (
            "pacegate_users SET tier = 'premium' WHERE user_id = 'imported 1099'",
            row("user", "imported 1099", edited),
        ),
        ("pacegate_overrides SET expires_at = expires_at + 1", row("override", &of.override_id, edited)),
        ("pacegate_api_keys SET role = 'admin'", row("key", &key.key_id, edited)),
    ];
    for (number, (sql, _)) in edits.iter().enumerate() {
        database.tamper(&format!("UPDATE {sql}")).await;
        let found = verified(&catalog).await.1;
        assert_eq!(found.len(), number + 1, "{sql}: {found:?}");
    }
    let found = verified(&catalog).await.1;
    for (sql, problem) in &edits {
        assert!(found.contains(problem), "{sql}: {found:?}");
    }
    catalog.audit_seal(&actor()).await.unwrap();
    assert_eq!(verified(&catalog).await, (1, vec![]), "sealing accepts the current content");

    // A row added, a row deleted, and a row reverted together with its old seal.
    let columns = "number, rule_id, variant_key, definition_json, version, created_at, updated_at";
    database
        .tamper(&format!(
            "INSERT INTO pacegate_rules ({columns}) VALUES (1000, 'f00d', 'f00d', '{{}}', 1, 0, 0)"
        ))
        .await;
    database.tamper(&format!("DELETE FROM pacegate_rules WHERE rule_id = '{}'", removed.rule_id)).await;
    let seal = format!("SELECT seal FROM pacegate_seals WHERE subject_key = '{}'", made.rule_id);
    let definition = format!("SELECT definition_json FROM pacegate_rules WHERE rule_id = '{}'", made.rule_id);
    let updated_at = format!("SELECT updated_at FROM pacegate_rules WHERE rule_id = '{}'", made.rule_id);
    let (old_seal, old) = (database.text(&seal).await, database.text(&definition).await);
    let old_time = database.number(&updated_at).await;
    catalog.replace_rule(&actor(), &made.rule_id, None, &rule("a", 5), None).await.unwrap();
    database
        .tamper(&format!(
            "UPDATE pacegate_rules SET definition_json = '{old}', version = 1, updated_at = {old_time} WHERE rule_id = '{}'",
            made.rule_id
        ))
        .await;
    database
        .tamper(&format!(
            "UPDATE pacegate_seals SET seal = '{old_seal}' WHERE subject_key = '{}'",
            made.rule_id
        ))
        .await;
    let (_, found) = verified(&catalog).await;
    let expected = [
        row("rule", "f00d", RowChange::Added),
        row("rule", &made.rule_id, RowChange::Outdated),
        row("rule", &removed.rule_id, RowChange::Removed),
    ];
    assert!(expected.iter().all(|problem| found.contains(problem)), "{found:?}");
    assert_eq!(found.len(), 3, "{found:?}");
    // Without its seal, only the number of rows reveals it.
    database.tamper("DELETE FROM pacegate_users WHERE user_id = 'imported 7'").await;
    database
        .tamper("DELETE FROM pacegate_seals WHERE kind = 'user' AND subject_key NOT IN (SELECT user_key FROM pacegate_users)")
        .await;
    let (_, found) = verified(&catalog).await;
    assert!(found.contains(&AuditProblem::Rows { kind: "user", expected: 1_101, found: 1_100 }), "{found:?}");
}

pub(crate) async fn edited_state_stays_reported_after_the_next_change(database: &TestDatabase) {
    let catalog = database.open().await;
    make_every_change(database, &catalog).await;
    truncate(database, 10).await;
    catalog.create_rule(&actor(), &rule("later", 1), None).await.unwrap();
    catalog.create_rule(&actor(), &rule("even later", 1), None).await.unwrap();
    let (records, found) = verified(&catalog).await;
    assert_eq!((records, found.contains(&AuditProblem::Noted(11))), (13, true), "{found:?}");
    // Retention does not move the start of a trail with an edited state.
    database.tamper("UPDATE pacegate_catalog_state SET audit_removed_sequence = 1").await;
    let now = database.after(100);
    let all = Retention {
        audit: now,
        decisions: now,
        minutes: now,
        hours: now,
        overrides: now,
        usage_rows: 10_000,
    };
    assert!(catalog.remove_old(all).await.unwrap_err().is_permanent());
    assert!(verified(&catalog).await.1.contains(&AuditProblem::State));
}

pub(crate) async fn first_change_seals_a_catalog_of_an_earlier_version(database: &TestDatabase) {
    let catalog = database.open().await;
    make_every_change(database, &catalog).await;
    catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    // The first version of the schema.
    for sql in [
        "DELETE FROM pacegate_catalog_schema WHERE version > 1",
        "DROP TABLE pacegate_audit_state",
        "DROP TABLE pacegate_seals",
    ] {
        database.tamper(sql).await;
    }
    drop(catalog);
    let catalog = database.open().await;
    assert_eq!(verified(&catalog).await.1, [AuditProblem::Unsealed]);
    catalog.create_rule(&actor(), &rule("b", 1), None).await.unwrap();
    let check = catalog.audit_verify(None).await.unwrap();
    assert_eq!((check.first, check.records, check.problems), (13, 2, vec![]));
    assert_eq!(all(&catalog).await[12].action, "audit.seal");
}

pub(crate) async fn another_audit_key_is_reported(database: &TestDatabase) {
    let (first, second) = ("a secret of at least thirty-two bytes", "another secret, just as long as that");
    let catalog = database.open_keyed(Some(first)).await;
    make_every_change(database, &catalog).await;
    assert_eq!(verified(&catalog).await, (11, vec![]));
    assert_eq!(verified(&database.open_keyed(Some(first)).await).await, (11, vec![]));
    let other = database.open_keyed(Some(second)).await;
    let (records, found) = verified(&other).await;
    assert!(matches!((records, &found[..]), (0, [AuditProblem::OtherKey { .. }])), "{found:?}");

    // A change under another key succeeds and reports it; the operator decides when the new key
    // applies.
    other.create_rule(&actor(), &rule("later", 1), None).await.unwrap();
    assert_eq!(all(&other).await[11].action, "audit.key");
    assert!(verified(&other).await.1.contains(&AuditProblem::Record(1)));
    other.audit_seal(&actor()).await.unwrap();
    assert_eq!(verified(&other).await, (1, vec![]));

    let options = CatalogOptions { audit_key: Some("too short".into()), ..CatalogOptions::default() };
    let error = Catalog::open_with(&database.url, options).await.unwrap_err();
    assert!(error.is_permanent() && error.to_string().contains("at least 32 bytes"), "{error}");
}
