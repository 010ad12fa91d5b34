//! Many concurrent writers and readers, on one node and on several.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use pacegate::{Limit, Stores, Timestamp};
use pacegate_catalog::{AuditFilter, Expected, Registry, Retention, UserChange};
use pacegate_config::Config;
use tokio::task::JoinSet;

use super::{TestDatabase, actor, rule};

pub(crate) async fn one_of_32_writers_with_the_same_version_wins(database: &TestDatabase) {
    let nodes = [database.open().await, database.open().await];
    let made = nodes[0].create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    let mut writers = JoinSet::new();
    for number in 0..32 {
        let (node, id) = (nodes[number % 2].clone(), made.rule_id.clone());
        let wanted = rule("a", 100 + number as u64);
        writers.spawn(async move {
            node.replace_rule(&actor(), &id, Some(Expected::Version(1)), &wanted, None).await
        });
    }
    let results = writers.join_all().await;
    let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    assert!(lost.iter().all(|lost| lost.as_ref().unwrap_err().is_changed()), "{lost:?}");
    let stored = nodes[1].rule(&made.rule_id).await.unwrap();
    assert_eq!(stored.as_ref(), won[0].as_ref().ok());
    assert_eq!(nodes[0].revision().await.unwrap().all, 2, "rejected writers changed nothing");
}

pub(crate) async fn concurrent_writers_leave_no_gaps_in_the_trail(database: &TestDatabase) {
    let nodes = [database.open().await, database.open().await, database.open().await];
    let mut writers = JoinSet::new();
    for number in 0..100 {
        let node = nodes[number % 3].clone();
        let rule = rule(&format!("rule {number}"), 1);
        writers.spawn(async move { node.create_rule(&actor(), &rule, None).await.unwrap() });
    }
    let made: BTreeSet<i64> = writers.join_all().await.iter().map(|rule| rule.number).collect();
    assert_eq!(made, (1..=100).collect());
    let records = nodes[0].audit_page(AuditFilter::default(), None, 1_000).await.unwrap();
    let sequences: Vec<i64> = records.iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, (1..=100).rev().collect::<Vec<i64>>());
    assert_eq!(nodes[1].audit_verify(None).await.unwrap().records, 100);
    assert_eq!(nodes[2].rules().await.unwrap().rules.len(), 100);
}

/// Every change increments the revision and the version of the rule or plan.
pub(crate) async fn lists_match_their_revision(database: &TestDatabase) {
    let catalog = database.open().await;
    let limit = Limit::per_hour(1).build().unwrap();
    catalog.put_rule(&actor(), &rule("a", 1), None, None).await.unwrap();
    catalog.put_plan(&actor(), "p", &[limit.into()], None).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        let (node, done) = (database.open().await, done.clone());
        readers.spawn(async move {
            let mut seen = BTreeSet::new();
            while !done.load(Ordering::SeqCst) {
                let list = node.rules().await.unwrap();
                assert_eq!(list.rules[0].version + list.plans[0].version, list.revision.all);
                assert_eq!(list.revision.rules, list.revision.all);
                seen.insert(list.revision.all);
            }
            seen.len()
        });
    }
    for number in 1..=150 {
        catalog.put_rule(&actor(), &rule("a", number), None, None).await.unwrap();
        catalog.put_plan(&actor(), "p", &[limit.into()], None).await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let seen = readers.join_all().await;
    assert!(seen.iter().sum::<usize>() > 10, "readers ran during changes: {seen:?}");
}

/// A backup is restored while nodes run, then changed until its numbers equal those before.
pub(crate) async fn restored_catalog_is_reloaded(database: &TestDatabase) {
    let (node, other) = (database.open().await, database.open().await);
    let registry = Registry::start(Config::default(), Stores::default(), node.clone()).await.unwrap();
    let made = other.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    other.replace_rule(&actor(), &made.rule_id, None, &rule("a", 2), None).await.unwrap();
    let (before, changed) = registry.refresh().await.unwrap();
    assert!(changed && registry.refresh().await.unwrap() == (before, false));

    super::audit::truncate(database, 1).await;
    database.tamper("UPDATE pacegate_catalog_state SET revision = 1, rules_revision = 1").await;
    let (lower, changed) = registry.refresh().await.unwrap();
    assert!(changed && lower.rules == 1 && lower.epoch != before.epoch, "{before:?} {lower:?}");

    super::audit::truncate(database, 0).await;
    database.tamper("UPDATE pacegate_catalog_state SET revision = 0, rules_revision = 0").await;
    other.put_plan(&actor(), "gold", &[Limit::per_hour(5).build().unwrap().into()], None).await.unwrap();
    let (same, changed) = registry.refresh().await.unwrap();
    assert_eq!((same.all, same.rules), (lower.all, lower.rules));
    assert!(changed && same.epoch != lower.epoch, "equal numbers in another history are a different epoch");
    assert_eq!(registry.sources().catalog.plans.len(), 1);
}

pub(crate) async fn change_completes_after_its_caller_is_cancelled(database: &TestDatabase) {
    let catalog = database.open().await;
    for number in 0..20 {
        let (by, rule) = (actor(), rule(&format!("rule {number}"), 1));
        let mut call = pin!(catalog.create_rule(&by, &rule, None));
        // Polled once and dropped, whether or not the change has completed.
        poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_ready())).await;
    }
    // Changes that had not started never do; those that had complete before the next one.
    catalog.put_user(&actor(), "u", UserChange::all(None, &[]), None).await.unwrap();
    let list = catalog.rules().await.unwrap();
    assert!(!list.rules.is_empty(), "the first change had started");
    let rules = i64::try_from(list.rules.len()).unwrap();
    assert_eq!((list.revision.rules, list.revision.all), (rules, rules + 1));
    assert_eq!(catalog.audit_verify(None).await.unwrap().records, u64::try_from(rules + 1).unwrap());
}

pub(crate) async fn concurrent_keys_with_one_secret_are_created_once(database: &TestDatabase) {
    let nodes = [database.open().await, database.open().await];
    let mut starts = JoinSet::new();
    for number in 0..8 {
        let node = nodes[number % 2].clone();
        starts.spawn(async move {
            node.create_key_with_secret(&actor(), "secret", "admin", "PACEGATE_ADMIN_KEY").await.unwrap()
        });
    }
    let made = starts.join_all().await;
    assert_eq!(made.iter().filter(|(_, created)| *created).count(), 1);
    assert!(made.iter().all(|(key, _)| key.key_id == made[0].0.key_id));
    assert_eq!(nodes[0].revision().await.unwrap().all, 1);
}

pub(crate) async fn trail_stays_intact_during_retention(database: &TestDatabase) {
    let catalog = database.open().await;
    let count = 60;
    for _ in 0..count {
        catalog.put_user(&actor(), "u", UserChange::all(None, &[]), None).await.unwrap();
        database.clock.advance(Duration::from_secs(1));
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut watchers = JoinSet::new();
    for _ in 0..2 {
        let (node, done) = (database.open().await, done.clone());
        watchers.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                assert_eq!(node.audit_verify(None).await.unwrap().problems, []);
            }
        });
    }
    for seconds in (0..count).rev() {
        let before = Timestamp::from_micros(database.now().as_micros() - seconds * 1_000_000);
        let nothing = Timestamp::default();
        let retention = Retention {
            audit: before,
            decisions: nothing,
            minutes: nothing,
            hours: nothing,
            overrides: nothing,
            usage_rows: 10_000,
        };
        catalog.remove_old(retention).await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    watchers.join_all().await;
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_audit_log").await, 0);
    assert_eq!(catalog.audit_verify(None).await.unwrap().records, 0);
}
