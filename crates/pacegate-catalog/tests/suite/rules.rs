//! Rules.

use std::time::Duration;

use pacegate::{Algorithm, Cost, FailureMode, Limit, Methods, Mode, Pattern, Rule, Scope};
use pacegate_catalog::{Expected, PolicyDetail, UserChange};

use super::{TestDatabase, actor, rule};

fn full() -> Rule {
    Rule {
        name: "per-user minute".into(),
        dimension: "user".into(),
        identifier: Some("O'Brien \\ \"ü\" 🚦 ".into()),
        tier: Some("premium".into()),
        endpoint: Pattern::parse("/api/v1/orders/{id}").unwrap(),
        methods: Methods::try_new(["POST", "PUT"]).unwrap(),
        limit: Limit::try_new(Algorithm::LeakyBucket, 7, Duration::from_micros(1_500_001))
            .and_then(|limit| limit.with_burst(1_000_000_000))
            .unwrap(),
        unlimited: true,
        unit: Some("tokens".into()),
        cost: Some(Cost::try_new(5).unwrap()),
        overdraw: true,
        mode: Mode::Shadow,
        scope: Scope::Endpoint,
        store: Some("hot".into()),
        on_store_error: Some(FailureMode::Local),
    }
}

pub(crate) async fn stored_rule_equals_the_original(database: &TestDatabase) {
    let catalog = database.open().await;
    assert_eq!(catalog.rules().await.unwrap(), pacegate_catalog::RuleList::default());
    let policy = Some(PolicyDetail { refill_rate: u64::MAX, window_seconds: 60 });
    let mut stored = vec![catalog.create_rule(&actor(), &full(), policy).await.unwrap()];
    for algorithm in Algorithm::ALL {
        let limit = Limit::try_new(algorithm, 10, Duration::from_millis(1)).unwrap();
        stored.push(
            catalog.create_rule(&actor(), &Rule::new(algorithm.name(), "ip", limit), None).await.unwrap(),
        );
    }
    assert_eq!(stored[0].rule, full());
    assert_eq!((stored[0].version, stored[0].created_at, stored[0].policy), (1, database.now(), policy));
    assert!(stored.windows(2).all(|pair| pair[0].number < pair[1].number));

    let other = database.open().await;
    let list = other.rules().await.unwrap();
    assert_eq!(list.rules, stored);
    assert_eq!((list.revision.all, list.revision.rules, list.revision.users), (7, 7, 0));
    assert_eq!(list.unreadable, Vec::<String>::new());
    assert_eq!(other.rule(&stored[0].rule_id).await.unwrap().as_ref(), stored.first());
    assert_eq!(other.rule_of_variant(&full()).await.unwrap().as_ref(), stored.first());
    assert_eq!(other.rule_of_variant(&rule("other", 1)).await.unwrap(), None);
    let padded = format!("{} ", stored[0].rule_id);
    for unknown in ["", "x\0y", "0190", padded.as_str()] {
        assert_eq!(other.rule(unknown).await.unwrap(), None, "{unknown:?}");
    }
}

pub(crate) async fn rule_is_replaced_and_deleted(database: &TestDatabase) {
    let catalog = database.open().await;
    let made = catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    database.clock.advance(Duration::from_secs(5));

    let replaced = catalog
        .replace_rule(&actor(), &made.rule_id, Some(Expected::Version(1)), &full(), None)
        .await
        .unwrap();
    assert_eq!((replaced.version, &replaced.rule), (2, &full()));
    assert_eq!((replaced.number, replaced.created_at), (made.number, made.created_at));
    assert_eq!(replaced.updated_at, database.now());
    assert_eq!(catalog.rule(&made.rule_id).await.unwrap(), Some(replaced));
    assert_eq!(catalog.rule_of_variant(&rule("a", 1)).await.unwrap(), None);

    let revision = catalog.revision().await.unwrap();
    let stale = catalog
        .replace_rule(&actor(), &made.rule_id, Some(Expected::Version(1)), &rule("a", 2), None)
        .await
        .unwrap_err();
    assert!(stale.is_changed() && stale.to_string().contains("version 2"), "{stale}");
    assert!(
        catalog
            .delete_rule(&actor(), &made.rule_id, Some(Expected::Version(1)))
            .await
            .unwrap_err()
            .is_changed()
    );
    let unknown = "0190f5a0-0000-7000-8000-000000000000";
    assert!(catalog.replace_rule(&actor(), unknown, None, &full(), None).await.unwrap_err().is_not_found());
    assert!(catalog.delete_rule(&actor(), unknown, None).await.unwrap_err().is_not_found());
    assert!(catalog.delete_rule(&actor(), "a\0", None).await.unwrap_err().is_not_found());
    assert_eq!(catalog.revision().await.unwrap(), revision);

    catalog.replace_rule(&actor(), &made.rule_id, None, &rule("b", 2), None).await.unwrap();
    catalog.delete_rule(&actor(), &made.rule_id, Some(Expected::Version(3))).await.unwrap();
    assert_eq!(catalog.rule(&made.rule_id).await.unwrap(), None);
    assert_eq!(catalog.rules().await.unwrap().rules, []);
    assert_eq!(catalog.revision().await.unwrap().rules, 4);
    let next = catalog.create_rule(&actor(), &rule("c", 1), None).await.unwrap();
    assert!(next.number > made.number, "numbers are not reused");
}

pub(crate) async fn one_rule_per_variant(database: &TestDatabase) {
    let catalog = database.open().await;
    let mut first = rule("a", 1);
    first.endpoint = Pattern::parse("/x/{id}").unwrap();
    let made = catalog.create_rule(&actor(), &first, None).await.unwrap();

    let same = Rule { endpoint: Pattern::parse("/x/{name}").unwrap(), mode: Mode::Shadow, ..rule("a", 99) };
    let conflict = catalog.create_rule(&actor(), &same, None).await.unwrap_err();
    assert!(conflict.is_conflict() && conflict.to_string().contains(&made.rule_id), "{conflict}");
    assert_eq!(conflict.existing(), Some(made.rule_id.as_str()));

    let variants = [
        Rule { identifier: Some("u1".into()), ..first.clone() },
        Rule { tier: Some("u1".into()), ..first.clone() },
        Rule { methods: Methods::try_new(["GET"]).unwrap(), ..first.clone() },
        Rule { dimension: "ip".into(), ..first.clone() },
        Rule { endpoint: Pattern::all(), ..first.clone() },
        Rule { name: "A".into(), ..first.clone() },
    ];
    for variant in &variants {
        let other = catalog.create_rule(&actor(), variant, None).await.unwrap();
        // A rule cannot take another rule's variant, but can keep its own.
        let conflict = catalog.replace_rule(&actor(), &other.rule_id, None, &same, None).await.unwrap_err();
        assert_eq!(conflict.existing(), Some(made.rule_id.as_str()));
        catalog
            .replace_rule(&actor(), &other.rule_id, Some(Expected::Version(1)), variant, None)
            .await
            .unwrap();
    }
    assert_eq!(catalog.rules().await.unwrap().rules.len(), 7);
}

pub(crate) async fn put_rule_creates_or_replaces(database: &TestDatabase) {
    let catalog = database.open().await;
    let (made, created) = catalog.put_rule(&actor(), &rule("a", 1), None, None).await.unwrap();
    assert!(created);
    let policy = Some(PolicyDetail { refill_rate: 1, window_seconds: 2 });
    let (again, created) = catalog.put_rule(&actor(), &rule("a", 2), policy, None).await.unwrap();
    assert!(!created);
    assert_eq!((again.rule_id.clone(), again.version, again.policy), (made.rule_id, 2, policy));
    assert_eq!(catalog.rules().await.unwrap().rules, [again]);
}

pub(crate) async fn pages_have_every_rule_once(database: &TestDatabase) {
    let catalog = database.open().await;
    // Numbers exceed 32 bits.
    database.tamper("UPDATE pacegate_catalog_state SET revision = 5000000000").await;
    for number in 0..25 {
        catalog.create_rule(&actor(), &rule(&format!("rule {number}"), 1), None).await.unwrap();
    }
    let all = catalog.rules().await.unwrap().rules;
    catalog.delete_rule(&actor(), &all[7].rule_id, None).await.unwrap();
    // A page of unreadable rows only is not the end.
    let broken: Vec<String> = all[10..14].iter().map(|rule| format!("'{}'", rule.rule_id)).collect();
    database
        .tamper(&format!(
            "UPDATE pacegate_rules SET definition_json = '' WHERE rule_id IN ({})",
            broken.join(", ")
        ))
        .await;

    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = catalog.rule_page(after, 4).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 4);
        after = Some(last.number);
        seen.extend(page);
    }
    let mut expected = all;
    expected.drain(10..14);
    expected.remove(7);
    assert_eq!(seen, expected);
    for limit in [0, 1_001] {
        let error = catalog.rule_page(None, limit).await.unwrap_err();
        assert!(error.is_invalid() && error.field() == Some("limit"), "{error}");
    }
}

pub(crate) async fn unreadable_row_is_skipped(database: &TestDatabase) {
    let catalog = database.open().await;
    let edits = [
        (r#""quota":1,"#, r#""quota":0,"#),
        (r#""quota":1,"#, r#""quota":"1","#),
        (r#""window_micros":6"#, r#""window_micros":-6"#),
        (r#""algorithm":"token"#, r#""algorithm":"guess"#),
        (r#""endpoint":"*""#, r#""endpoint":"/{""#),
        (r#""mode":"enforce""#, r#""mode":"maybe""#),
        (r#""counter":"pattern""#, r#""counter":"""#),
        (r#""burst":1"#, r#""burst":1,"on_store_error":"panic""#),
        (r#""burst":1"#, r#""burst":1,"unknown":"field""#),
        (r#""dimension":"user""#, r#""dimension":"""#),
        (r#""name":"bad 10""#, r#""name":"good""#),
        ("{", ""),
    ];
    let good = catalog.create_rule(&actor(), &rule("good", 1), None).await.unwrap();
    for (number, (right, wrong)) in edits.iter().enumerate() {
        let made = catalog.create_rule(&actor(), &rule(&format!("bad {number}"), 1), None).await.unwrap();
        let set = format!("SET definition_json = REPLACE(definition_json, '{right}', '{wrong}')");
        database.tamper(&format!("UPDATE pacegate_rules {set} WHERE rule_id = '{}'", made.rule_id)).await;
        let error = catalog.rule(&made.rule_id).await.unwrap_err();
        assert!(error.is_permanent() && error.to_string().contains(&made.rule_id), "{wrong}: {error}");
        let list = catalog.rules().await.unwrap();
        assert_eq!((list.rules.len(), list.unreadable.len()), (1, number + 1), "{wrong}");
        assert!(list.unreadable[number].contains(&made.rule_id), "{wrong}: {:?}", list.unreadable);
    }
    database
        .tamper(&format!("UPDATE pacegate_rules SET created_at = -5 WHERE rule_id = '{}'", good.rule_id))
        .await;
    assert_eq!(catalog.rules().await.unwrap().unreadable.len(), edits.len() + 1);
    let micros = good.created_at.as_micros();
    database
        .tamper(&format!(
            "UPDATE pacegate_rules SET created_at = {micros} WHERE rule_id = '{}'",
            good.rule_id
        ))
        .await;
    assert_eq!(catalog.rules().await.unwrap().rules, [good]);
}

pub(crate) async fn failed_change_leaves_no_trace(database: &TestDatabase) {
    let catalog = database.open().await;
    let kept = catalog.create_rule(&actor(), &rule("kept", 1), None).await.unwrap();
    catalog.put_user(&actor(), "u1", UserChange::all(Some("gold"), &[]), None).await.unwrap();
    let (list, user) = (catalog.rules().await.unwrap(), catalog.user("u1").await.unwrap());
    // The audit record is written last; its sequence is already taken.
    database
        .tamper(
            "INSERT INTO pacegate_audit_log (sequence, at, actor_key, actor_id, action, subject, hash) \
             VALUES (3, 0, '', '', '', '', '')",
        )
        .await;

    catalog.create_rule(&actor(), &rule("new", 1), None).await.unwrap_err();
    catalog.replace_rule(&actor(), &kept.rule_id, None, &rule("kept", 2), None).await.unwrap_err();
    catalog.delete_rule(&actor(), &kept.rule_id, None).await.unwrap_err();
    catalog
        .put_plan(&actor(), "gold", &[Limit::per_hour(1).build().unwrap().into()], None)
        .await
        .unwrap_err();
    catalog.put_user(&actor(), "u1", UserChange::all(None, &[]), None).await.unwrap_err();
    catalog.delete_user(&actor(), "u1").await.unwrap_err();
    catalog.create_key(&actor(), "admin", "key", None).await.unwrap_err();
    catalog.import_users(&actor(), [("u2".to_owned(), None)]).await.unwrap_err();

    assert_eq!(catalog.rules().await.unwrap(), list);
    assert_eq!(catalog.user("u1").await.unwrap(), user);
    assert_eq!(catalog.user("u2").await.unwrap(), None);
    assert_eq!(catalog.keys().await.unwrap(), []);

    database.tamper("DELETE FROM pacegate_audit_log WHERE sequence = 3").await;
    let made = catalog.create_rule(&actor(), &rule("new", 1), None).await.unwrap();
    assert_eq!(made.number, list.revision.all + 1, "failed changes do not raise the revision");
    assert_eq!(catalog.audit_verify(None).await.unwrap().first_broken(), None);
}

pub(crate) async fn invalid_rules_are_rejected(database: &TestDatabase) {
    let catalog = database.open().await;
    let rows = [
        ("name", Rule { name: String::new(), ..rule("a", 1) }),
        ("name", Rule { name: "n".repeat(129), ..rule("a", 1) }),
        ("name", Rule { name: "\"".into(), ..rule("a", 1) }),
        ("dimension", Rule { dimension: "a b".into(), ..rule("a", 1) }),
        ("identifier", Rule { identifier: Some(String::new()), ..rule("a", 1) }),
        ("identifier", Rule { identifier: Some("a\0".into()), ..rule("a", 1) }),
        ("identifier", Rule { identifier: Some("i".repeat(1_025)), ..rule("a", 1) }),
        ("tier", Rule { tier: Some("t".repeat(129)), ..rule("a", 1) }),
        ("dimension", Rule { dimension: "Tenant".into(), ..rule("a", 1) }),
        ("identifier", Rule { dimension: "ip".into(), identifier: Some("office".into()), ..rule("a", 1) }),
        ("unit", Rule { unit: Some("Tokens".into()), ..rule("a", 1) }),
        ("store", Rule { store: Some(String::new()), ..rule("a", 1) }),
    ];
    for (field, rule) in rows {
        for error in [
            catalog.create_rule(&actor(), &rule, None).await.unwrap_err(),
            catalog.put_rule(&actor(), &rule, None, None).await.unwrap_err(),
            catalog.replace_rule(&actor(), "0190", None, &rule, None).await.unwrap_err(),
        ] {
            assert!(error.is_invalid() && error.field() == Some(field), "{rule:?}: {error}");
        }
    }
    assert_eq!(catalog.revision().await.unwrap().all, 0);
    let longest = Rule { identifier: Some("ü".repeat(512)), name: "n".repeat(128), ..rule("a", 1) };
    let made = catalog.create_rule(&actor(), &longest, None).await.unwrap();
    assert_eq!(catalog.rule(&made.rule_id).await.unwrap().unwrap().rule, longest);
}

pub(crate) async fn similar_texts_stay_distinct(database: &TestDatabase) {
    let catalog = database.open().await;
    let identifiers = [
        "a",
        "A",
        "a ",
        " a",
        "ä",
        "a\u{308}",
        "\u{c5}",
        "\u{212b}",
        "🚦",
        "🚧",
        "'; DROP TABLE x; --",
        "%",
        "_",
        "ss",
        "ß",
    ];
    let mut ids = Vec::new();
    for identifier in identifiers {
        let rule = Rule { identifier: Some(identifier.into()), ..rule("r", 1) };
        ids.push(catalog.create_rule(&actor(), &rule, None).await.unwrap().rule_id);
    }
    for (identifier, id) in identifiers.iter().zip(&ids) {
        let rule = Rule { identifier: Some((*identifier).into()), ..rule("r", 2) };
        let found = catalog.rule_of_variant(&rule).await.unwrap().unwrap();
        assert_eq!((&found.rule_id, found.rule.identifier.as_deref()), (id, Some(*identifier)));
    }
}
