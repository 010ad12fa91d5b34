//! Users, their limits and their overrides.

use std::collections::BTreeSet;
use std::time::Duration;

use pacegate::{Check, LimitOverride, Profile, Stores};
use pacegate_catalog::{
    AuditFilter, Changes, IMPORT_USERS_MAX, NewOverride, Registry, Revision, UserChange, UserOutcome,
};
use pacegate_config::Config;

use super::{TestDatabase, actor};

fn numbers(quota: u64) -> LimitOverride {
    LimitOverride { quota, window: None, burst: None }
}

fn exact() -> LimitOverride {
    LimitOverride { quota: 5_000, window: Some(Duration::from_micros(1_234_567)), burst: Some(7) }
}

fn new(database: &TestDatabase, rule: &str, quota: u64, seconds: u64) -> NewOverride {
    NewOverride {
        user_id: "u1".into(),
        rule: rule.into(),
        numbers: numbers(quota),
        reason: Some("because\n'it' is \"Friday\" 🎉".into()),
        expires_at: database.after(seconds),
    }
}

pub(crate) async fn user_is_created_replaced_and_deleted(database: &TestDatabase) {
    let catalog = database.open().await;
    assert_eq!(catalog.user("u1").await.unwrap(), None);
    assert_eq!(catalog.profile("u1", database.now()).await.unwrap(), (Profile::default(), None));
    let custom = vec![("per-minute".to_owned(), exact()), ("a".to_owned(), numbers(1))];
    let made =
        catalog.put_user(&actor(), "u1", UserChange::all(Some("premium"), &custom), None).await.unwrap();
    assert_eq!((made.tier.as_deref(), &made.custom_limits, made.version), (Some("premium"), &custom, 1));
    assert_eq!(catalog.user("u1").await.unwrap(), Some(made));
    let profile = Profile { tier: Some("premium".into()), custom_limits: custom, overrides: Vec::new() };
    assert_eq!(catalog.profile("u1", database.now()).await.unwrap(), (profile, None));
    let revision = catalog.revision().await.unwrap();
    assert_eq!((revision.all, revision.rules, revision.users), (1, 0, 1));

    let again = catalog.put_user(&actor(), "u1", UserChange::all(None, &[]), None).await.unwrap();
    assert_eq!((again.tier, again.custom_limits, again.version), (None, Vec::new(), 2));
    catalog.add_override(&actor(), new(database, "a", 1, 10)).await.unwrap();
    catalog.delete_user(&actor(), "u1").await.unwrap();
    assert_eq!(catalog.user("u1").await.unwrap(), None);
    assert_eq!(catalog.overrides("u1", database.now()).await.unwrap(), []);
    assert!(catalog.delete_user(&actor(), "u1").await.unwrap_err().is_not_found());
    // A user without a tier can have overrides.
    catalog.add_override(&actor(), new(database, "a", 1, 10)).await.unwrap();
    catalog.delete_user(&actor(), "u1").await.unwrap();
    assert_eq!(catalog.profile("u1", database.now()).await.unwrap(), (Profile::default(), None));
}

pub(crate) async fn overrides_apply_until_they_expire(database: &TestDatabase) {
    let catalog = database.open().await;
    let long = catalog
        .add_override(&actor(), NewOverride { numbers: exact(), reason: None, ..new(database, "a", 1, 100) })
        .await
        .unwrap();
    let short = catalog.add_override(&actor(), new(database, "b", 2, 10)).await.unwrap();
    assert_eq!(short.reason, new(database, "b", 2, 10).reason);
    assert_eq!(short.created_at, database.now());
    assert_eq!(catalog.overrides("u1", database.now()).await.unwrap(), [long.clone(), short.clone()]);
    let (profile, expires) = catalog.profile("u1", database.now()).await.unwrap();
    assert_eq!(profile.overrides, [("a".to_owned(), exact()), ("b".to_owned(), numbers(2))]);
    assert_eq!(expires, Some(short.expires_at));

    let last = pacegate::Timestamp::from_micros(short.expires_at.as_micros() - 1);
    assert_eq!(catalog.overrides("u1", last).await.unwrap().len(), 2);
    assert_eq!(catalog.overrides("u1", short.expires_at).await.unwrap(), std::slice::from_ref(&long));
    let (profile, expires) = catalog.profile("u1", short.expires_at).await.unwrap();
    assert_eq!((profile.overrides.len(), expires), (1, Some(long.expires_at)));
    assert_eq!(catalog.profile("u1", long.expires_at).await.unwrap(), (Profile::default(), None));
    assert_eq!(catalog.overrides("u2", database.now()).await.unwrap(), []);

    assert!(
        catalog.delete_override(&actor(), "u2", &long.override_id, None).await.unwrap_err().is_not_found()
    );
    assert!(catalog.delete_override(&actor(), "u1", "0190", None).await.unwrap_err().is_not_found());
    assert!(catalog.delete_override(&actor(), "u1", "\0", None).await.unwrap_err().is_not_found());
    catalog.delete_override(&actor(), "u1", &long.override_id, None).await.unwrap();
    assert!(
        catalog.delete_override(&actor(), "u1", &long.override_id, None).await.unwrap_err().is_not_found()
    );
    assert_eq!(catalog.overrides("u1", database.now()).await.unwrap(), [short]);
    assert_eq!(catalog.revision().await.unwrap().users, 3);
}

pub(crate) async fn override_of_an_address_applies_until_it_expires(database: &TestDatabase) {
    let catalog = database.open().await;
    let rules = "rules: [{name: a, dimension: ip, algorithm: fixed_window, limit: 2, window: 1d}]";
    let registry = Registry::start(Config::parse(rules).unwrap(), Stores::default(), catalog.clone());
    let registry = registry.await.unwrap();
    let limit = async |address: &str| {
        let check = Check::new("ip", address).endpoint("/");
        registry.limiter().peek(&check).await.unwrap().remaining()
    };
    let address = "203.0.113.9";
    let of_address = NewOverride { user_id: address.into(), ..new(database, "a", 500, 10) };
    let made = catalog.add_override_for(&actor(), "IP", of_address.clone()).await.unwrap();
    assert_eq!((made.dimension.as_str(), made.user_id.as_str()), ("ip", address));
    assert!(registry.refresh().await.unwrap().1, "the override is compiled with the rules");
    assert_eq!((limit(address).await, limit("203.0.113.8").await), (Some(500), Some(2)));
    // A user of the same name is another identity.
    assert_eq!(catalog.overrides(address, database.now()).await.unwrap(), []);
    assert_eq!(
        catalog.overrides_of("ip", address, database.now()).await.unwrap(),
        std::slice::from_ref(&made)
    );
    let records = catalog.audit_page(AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!((records[0].action.as_str(), records[0].user_id.as_deref()), ("override.create", None));
    assert!(records[0].after.as_deref().unwrap().contains(address));
    assert!(catalog.audit_verify(None).await.unwrap().is_intact());

    database.clock.advance(Duration::from_secs(10));
    assert!(registry.refresh().await.unwrap().1, "nothing changed but the time");
    assert_eq!(limit(address).await, Some(2));
    assert!(!registry.refresh().await.unwrap().1);

    let again = NewOverride { expires_at: database.after(10), ..of_address };
    let made = catalog.add_override_for(&actor(), "ip", again).await.unwrap();
    let by = actor();
    let delete = |dimension| catalog.delete_override_of(&by, dimension, address, &made.override_id, None);
    assert!(delete("user").await.unwrap_err().is_not_found());
    delete("ip").await.unwrap();
    registry.refresh().await.unwrap();
    assert_eq!(limit(address).await, Some(2));
}

pub(crate) async fn newest_override_of_a_rule_wins(database: &TestDatabase) {
    let catalog = database.open().await;
    for (quota, seconds) in [(1, 1_000), (2, 10), (3, 100)] {
        catalog.add_override(&actor(), new(database, "a", quota, seconds)).await.unwrap();
    }
    let at = |seconds| catalog.profile("u1", database.after(seconds));
    assert_eq!(at(0).await.unwrap().0.overrides, [("a".to_owned(), numbers(3))]);
    assert_eq!(at(0).await.unwrap().1, Some(database.after(100)));
    // The previous override applies again once the newest has expired.
    assert_eq!(at(100).await.unwrap().0.overrides, [("a".to_owned(), numbers(1))]);
    assert_eq!(at(100).await.unwrap().1, Some(database.after(1_000)));
}

pub(crate) async fn user_has_at_most_100_overrides(database: &TestDatabase) {
    let catalog = database.open().await;
    for number in 0..100 {
        catalog
            .add_override(&actor(), new(database, &format!("rule {number}"), 1, 10 + number))
            .await
            .unwrap();
    }
    let error = catalog.add_override(&actor(), new(database, "more", 1, 10)).await.unwrap_err();
    assert!(error.is_invalid() && error.field() == Some("overrides"), "{error}");
    let other = NewOverride { user_id: "u2".into(), ..new(database, "more", 1, 10) };
    catalog.add_override(&actor(), other).await.unwrap();
    // Expired overrides do not count, and are deleted.
    database.clock.advance(Duration::from_secs(12));
    catalog.add_override(&actor(), new(database, "more", 1, 10)).await.unwrap();
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_overrides").await, 100 - 3 + 1 + 1);
}

pub(crate) async fn pages_have_every_user_once(database: &TestDatabase) {
    let catalog = database.open().await;
    let ids: BTreeSet<String> = (0..21).map(|number| format!("user {number}")).collect();
    let users: Vec<_> = ids.iter().map(|id| (id.clone(), Some("free".to_owned()))).collect();
    assert_eq!(catalog.import_users(&actor(), users).await.unwrap(), 21);
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let (page, next) = catalog.user_page(after, 7).await.unwrap();
        seen.extend(page.into_iter().map(|user| user.user_id));
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 21);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), ids);
    for (after, limit, field) in
        [(None, 0, "limit"), (None, 1_001, "limit"), (Some("\0".to_owned()), 1, "cursor")]
    {
        let error = catalog.user_page(after, limit).await.unwrap_err();
        assert!(error.is_invalid() && error.field() == Some(field), "{error}");
    }
}

pub(crate) async fn similar_users_stay_distinct(database: &TestDatabase) {
    let catalog = database.open().await;
    let longest = "x".repeat(1_023);
    let (long_a, long_b) = (format!("{longest}a"), format!("{longest}b"));
    let ids =
        ["u", "U", "u ", "ü", "u\u{308}", "🚦", "🚧", "'", "\"", "\\", "%", long_a.as_str(), long_b.as_str()];
    for (number, id) in ids.iter().enumerate() {
        catalog
            .put_user(&actor(), id, UserChange::all(Some(&format!("tier {number}")), &[]), None)
            .await
            .unwrap();
    }
    for (number, id) in ids.iter().enumerate() {
        let user = catalog.user(id).await.unwrap().unwrap();
        assert_eq!((user.user_id.as_str(), user.tier), (*id, Some(format!("tier {number}"))));
        assert_eq!(user.version, 1);
    }
}

pub(crate) async fn invalid_users_are_rejected(database: &TestDatabase) {
    let catalog = database.open().await;
    let twice = [("a".to_owned(), numbers(1)), ("a".to_owned(), numbers(2))];
    let zero = [("a".to_owned(), numbers(0))];
    let long = "u".repeat(1_025);
    for (field, id, tier, custom) in [
        ("user_id", "", None, [].as_slice()),
        ("user_id", long.as_str(), None, &[]),
        ("user_id", "a\0", None, &[]),
        ("tier", "u", Some(""), &[]),
        ("custom_limits", "u", None, &twice),
        ("limit", "u", None, &zero),
    ] {
        let error = catalog.put_user(&actor(), id, UserChange::all(tier, custom), None).await.unwrap_err();
        assert!(error.is_invalid() && error.field() == Some(field), "{error}");
    }
    let good = new(database, "a", 1, 10);
    for (field, bad) in [
        ("user_id", NewOverride { user_id: String::new(), ..good.clone() }),
        ("rule", NewOverride { rule: "r".repeat(129), ..good.clone() }),
        ("limit", NewOverride { numbers: numbers(0), ..good.clone() }),
        ("burst", NewOverride { numbers: LimitOverride { burst: Some(0), ..numbers(1) }, ..good.clone() }),
        (
            "window",
            NewOverride {
                numbers: LimitOverride { window: Some(Duration::ZERO), ..numbers(1) },
                ..good.clone()
            },
        ),
        ("reason", NewOverride { reason: Some("r".repeat(1_025)), ..good.clone() }),
        ("expires_at", NewOverride { expires_at: database.now(), ..good.clone() }),
    ] {
        let error = catalog.add_override(&actor(), bad).await.unwrap_err();
        assert!(error.is_invalid() && error.field() == Some(field), "{error}");
    }
    assert_eq!(catalog.revision().await.unwrap().all, 0);
}

pub(crate) async fn import_creates_thousands_of_users(database: &TestDatabase) {
    let catalog = database.open().await;
    let custom = [("a".to_owned(), numbers(3))];
    catalog.put_user(&actor(), "user 5", UserChange::all(Some("old"), &custom), None).await.unwrap();
    let users = (0..2_500).map(|number| (format!("user {number}"), Some("free".to_owned())));
    // The last entry of a user wins, also within one batch.
    let users =
        users.chain([("user 2499".to_owned(), None), ("user 2498".to_owned(), Some("gold".to_owned()))]);
    assert_eq!(catalog.import_users(&actor(), users).await.unwrap(), 2_502);

    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_users").await, 2_500);
    let five = catalog.user("user 5").await.unwrap().unwrap();
    assert_eq!((five.tier.as_deref(), five.custom_limits.len(), five.version), (Some("free"), 1, 2));
    assert_eq!(catalog.user("user 2499").await.unwrap().unwrap().tier, None);
    assert_eq!(catalog.user("user 2498").await.unwrap().unwrap().tier.as_deref(), Some("gold"));
    let records = catalog.audit_page(AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!(records.len(), 4);
    assert_eq!(records[0].after.as_deref(), Some(r#"{"users":500}"#));
    assert_eq!((records[0].action.as_str(), catalog.revision().await.unwrap().users), ("user.import", 4));
}

pub(crate) async fn users_are_put_together_or_not_at_all(database: &TestDatabase) {
    let catalog = database.open().await;
    let custom = [("a".to_owned(), numbers(3)), ("b".to_owned(), numbers(4))];
    catalog.put_user(&actor(), "user 1", UserChange::all(Some("gold"), &custom), None).await.unwrap();
    catalog.put_user(&actor(), "user 2", UserChange::all(Some("free"), &custom), None).await.unwrap();
    let start = catalog.revision().await.unwrap();
    let tier = |tier: &str| UserChange { tier: Some(Some(tier.to_owned())), custom_limits: None };
    let mut users: Vec<_> = (1..=1_200).map(|number| (format!("user {number}"), tier("gold"))).collect();
    // The same limits in another order are no change.
    users[0].1.custom_limits = Some(custom.iter().rev().cloned().collect());
    let mut expected = vec![UserOutcome::Created; users.len()];
    expected[0] = UserOutcome::Unchanged;
    expected[1] = UserOutcome::Updated;

    assert_eq!(catalog.put_users(&actor(), users.clone(), true).await.unwrap(), expected);
    let mut invalid = users.clone();
    invalid[1_199].1 = tier("");
    assert!(catalog.put_users(&actor(), invalid, false).await.unwrap_err().is_invalid());
    let twice = vec![("u".to_owned(), tier("gold")), ("u".to_owned(), tier("free"))];
    let error = catalog.put_users(&actor(), twice, false).await.unwrap_err();
    assert!(error.to_string().contains("duplicate user `u`"), "{error}");
    let many = vec![("u".to_owned(), tier("gold")); IMPORT_USERS_MAX + 1];
    let error = catalog.put_users(&actor(), many, false).await.unwrap_err();
    assert!(error.to_string().contains("must be at most 10000, got 10001"), "{error}");
    assert_eq!(catalog.revision().await.unwrap(), start, "nothing was changed so far");

    assert_eq!(catalog.put_users(&actor(), users.clone(), false).await.unwrap(), expected);
    let revision = catalog.revision().await.unwrap();
    assert_eq!(revision.all, start.all + 1, "it is one change");
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_users").await, 1_200);
    let [one, two] = ["user 1", "user 2"].map(|user_id| catalog.user(user_id));
    let (one, two) = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    assert_eq!((one.version, one.custom_limits.len()), (1, 2));
    assert_eq!((two.version, two.tier.as_deref(), two.custom_limits.len()), (2, Some("gold"), 2));
    let filter = AuditFilter { user: Some("user 2".into()), ..AuditFilter::default() };
    let records = catalog.audit_page(filter, None, 10).await.unwrap();
    assert_eq!(records.len(), 2);
    assert!(records[0].before.as_deref().unwrap().contains(r#""tier":"free""#), "{records:?}");
    assert!(records[0].after.as_deref().unwrap().contains(r#""tier":"gold""#), "{records:?}");
    let check = catalog.audit_verify(None).await.unwrap();
    assert_eq!((check.records, check.problems), (1_201, Vec::new()));

    let again = catalog.put_users(&actor(), users, false).await.unwrap();
    assert_eq!(again, vec![UserOutcome::Unchanged; 1_200]);
    assert_eq!(catalog.revision().await.unwrap(), revision, "without a difference there is no change");
}

pub(crate) async fn profiles_of_many_users_are_read_together(database: &TestDatabase) {
    let catalog = database.open().await;
    let users = (0..100).map(|number| (format!("user {number}"), Some(format!("tier {}", number % 7))));
    catalog.import_users(&actor(), users).await.unwrap();
    for user_id in ["user 3", "only overrides"] {
        let own = NewOverride { user_id: user_id.into(), ..new(database, "a", 9, 10) };
        catalog.add_override(&actor(), own).await.unwrap();
    }
    let user_ids: Vec<String> = (0..150).rev().map(|number| format!("user {number}")).collect();
    let mut user_ids: Vec<&str> = user_ids.iter().map(String::as_str).collect();
    user_ids.extend(["only overrides", "USER 3"]);
    let found = catalog.profiles(&user_ids, database.now()).await.unwrap();
    assert_eq!(found.len(), user_ids.len());
    for (user_id, found) in user_ids.iter().zip(found) {
        let alone = catalog.profile(user_id, database.now()).await.unwrap();
        assert_eq!(found.unwrap(), alone, "{user_id}");
        let number: Option<u32> = user_id.strip_prefix("user ").map(|number| number.parse().unwrap());
        let tier = number.filter(|number| *number < 100).map(|number| format!("tier {}", number % 7));
        assert_eq!(alone.0.tier, tier, "{user_id}");
        assert_eq!(alone.1.is_some(), ["user 3", "only overrides"].contains(user_id), "{user_id}");
    }
    // An unreadable row affects only its own user.
    database.tamper("UPDATE pacegate_users SET custom_limits_json = 'x' WHERE user_id = 'user 5'").await;
    let found = catalog.profiles(&["user 4", "user 5", "user 6"], database.now()).await.unwrap();
    assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(catalog.profiles(&[], database.now()).await.unwrap().is_empty());
}

pub(crate) async fn changes_name_their_users_and_keys(database: &TestDatabase) {
    let catalog = database.open().await;
    let start = catalog.revision().await.unwrap();
    catalog.put_user(&actor(), "a", UserChange::all(Some("gold"), &[]), None).await.unwrap();
    catalog.create_rule(&actor(), &super::rule("r", 1), None).await.unwrap();
    let own = NewOverride { user_id: "b".into(), ..new(database, "r", 8, 20) };
    let made = catalog.add_override(&actor(), own).await.unwrap();
    let users = catalog.revision().await.unwrap();
    let changes = catalog.changes(start, users).await.unwrap().unwrap();
    assert_eq!((changes.users, changes.keys), (vec!["a".to_owned(), "b".to_owned()], false));
    catalog.create_key(&actor(), "reader", "k", None).await.unwrap();
    catalog.delete_override(&actor(), "b", &made.override_id, None).await.unwrap();
    catalog.delete_user(&actor(), "a").await.unwrap();
    let keys = catalog.revision().await.unwrap();
    let changes = catalog.changes(users, keys).await.unwrap().unwrap();
    assert_eq!((changes.users, changes.keys), (vec!["b".to_owned(), "a".to_owned()], true));
    assert_eq!(catalog.changes(keys, keys).await.unwrap(), Some(Changes::default()));
    // Unknown: an import, records removed by retention, and another history.
    catalog.import_users(&actor(), [("c".to_owned(), None)]).await.unwrap();
    let import = catalog.revision().await.unwrap();
    assert_eq!(catalog.changes(keys, import).await.unwrap(), None);
    assert_eq!(catalog.changes(import, keys).await.unwrap(), None);
    let restored = Revision { epoch: 1, ..keys };
    assert_eq!(catalog.changes(users, restored).await.unwrap(), None);
    database.tamper("DELETE FROM pacegate_audit_log WHERE sequence = 1").await;
    assert_eq!(catalog.changes(start, users).await.unwrap(), None);
}
