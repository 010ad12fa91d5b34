//! The suite on SQLite files, and the behaviour specific to files and memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod suite;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pacegate::{Check, Rule, Stores, Timestamp};
use pacegate_catalog::{AuditProblem, Catalog, Period, RULES_MAX, Registry, UsageFilter, UsageRecord};
use pacegate_config::Config;
use suite::{TestDatabase, actor, rule};
use tokio::task::JoinSet;

fn file() -> TestDatabase {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("catalog.db").display());
    TestDatabase::new(url, directory)
}

catalog_suite!(file());

#[tokio::test]
async fn file_is_created_at_the_exact_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("100% of ünusual names #1.db");
    let url = format!("sqlite://{}", path.display());
    assert!(Catalog::open(&url).await.unwrap_err().is_permanent(), "a fragment is not part of a path");
    let path = directory.path().join("100% of ünusual names.db");
    let url = format!("sqlite://{}", path.display());
    let catalog = Catalog::open(&url).await.unwrap();
    catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    assert!(path.exists());
    drop(catalog);
    assert_eq!(Catalog::open(&url).await.unwrap().rules().await.unwrap().rules.len(), 1);
}

#[tokio::test]
async fn unusable_file_is_a_permanent_error() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("notes.txt");
    fs::write(&other, "not a database, but long enough to resemble a file with content".repeat(20)).unwrap();
    for path in [other.as_path(), directory.path(), &directory.path().join("missing/catalog.db")] {
        let error = Catalog::open(&format!("sqlite://{}", path.display())).await.unwrap_err();
        assert!(error.is_permanent(), "{}: {error:?}", path.display());
    }
    assert!(fs::read_to_string(other).unwrap().starts_with("not a database"), "the file is not modified");
}

#[tokio::test]
async fn clones_share_one_catalog_in_memory() {
    let (catalog, other) =
        (Catalog::open("sqlite::memory:").await.unwrap(), Catalog::open("sqlite::memory:").await.unwrap());
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let catalog = catalog.clone();
        tasks.spawn(async move {
            catalog.create_rule(&actor(), &rule(&format!("rule {number}"), 1), None).await.unwrap();
            catalog.rules().await.unwrap().rules.len()
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().max(), Some(40));
    assert_eq!(catalog.audit_verify(None).await.unwrap().records, 40);
    assert_eq!(other.revision().await.unwrap().all, 0);
}

#[tokio::test]
async fn rules_are_limited_to_100_000() {
    let database = file();
    let catalog = database.open().await;
    let first = catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    let row = |number: usize| format!("({}, '{number:064x}', '{number:064x}', '{{}}', 1, 0, 0)", number + 10);
    let rows: Vec<String> = (1..RULES_MAX - 1).map(row).collect();
    let columns = "number, rule_id, variant_key, definition_json, version, created_at, updated_at";
    database.tamper(&format!("INSERT INTO pacegate_rules ({columns}) VALUES {}", rows.join(", "))).await;

    catalog.create_rule(&actor(), &rule("last", 1), None).await.unwrap();
    let error = catalog.create_rule(&actor(), &rule("more", 1), None).await.unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("100000 rules, which is the maximum"),
        "{error}"
    );
    assert!(catalog.put_rule(&actor(), &rule("more", 1), None, None).await.unwrap_err().is_invalid());
    // Existing rules can still be changed, and one can be replaced by another.
    catalog.put_rule(&actor(), &rule("a", 2), None, None).await.unwrap();
    catalog.delete_rule(&actor(), &first.rule_id, None).await.unwrap();
    catalog.put_rule(&actor(), &rule("more", 1), None, None).await.unwrap();
}

#[tokio::test]
async fn cancelled_calls_do_not_drop_a_catalog_in_memory() {
    let catalog = Catalog::open("sqlite::memory:").await.unwrap();
    let before = catalog.revision().await.unwrap();
    // Cancels at every stage: before there is a connection, while it is tested, and during the
    // query.
    for round in 0..500 {
        let give_up = async {
            for _ in 0..round % 10 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            answer = catalog.ping() => answer.unwrap(),
            () = give_up => {}
        }
    }
    assert_eq!(catalog.revision().await.unwrap(), before);
}

fn key_file(directory: &std::path::Path) -> std::path::PathBuf {
    directory.join("catalog.db.audit-key")
}

#[tokio::test]
async fn audit_key_is_a_private_file_next_to_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("catalog.db").display());
    let catalog = Catalog::open(&url).await.unwrap();
    assert!(catalog.audit_verify(None).await.unwrap().is_intact());
    assert!(!key_file(directory.path()).exists(), "the first change creates the key");
    catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    let mode = fs::metadata(key_file(directory.path())).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(fs::read_to_string(key_file(directory.path())).unwrap().trim().len(), 64);

    // Without the file nothing can be verified, and reading does not create another one.
    let moved = directory.path().join("moved");
    fs::rename(key_file(directory.path()), &moved).unwrap();
    let other = Catalog::open(&url).await.unwrap();
    let found = other.audit_verify(None).await.unwrap().problems;
    assert!(matches!(&found[..], [AuditProblem::OtherKey { given: None, .. }]), "{found:?}");
    assert!(!key_file(directory.path()).exists());
    fs::rename(&moved, key_file(directory.path())).unwrap();
    assert!(other.audit_verify(None).await.unwrap().is_intact());
}

#[tokio::test]
async fn restored_copy_is_detected_by_a_saved_head() {
    let directory = tempfile::tempdir().unwrap();
    let (file, copy) = (directory.path().join("catalog.db"), directory.path().join("copy.db"));
    let url = format!("sqlite://{}", file.display());
    let catalog = Catalog::open(&url).await.unwrap();
    catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    let copying = format!("VACUUM INTO '{}'", copy.display());
    TestDatabase::new(url.clone(), ()).tamper(&copying).await;
    catalog.create_rule(&actor(), &rule("b", 1), None).await.unwrap();
    let noted = catalog.audit_verify(None).await.unwrap().head;
    drop(catalog);
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{suffix}", file.display()));
    }
    fs::rename(copy, file).unwrap();
    let catalog = Catalog::open(&url).await.unwrap();
    assert!(catalog.audit_verify(None).await.unwrap().is_intact(), "the copy itself is intact");
    let found = catalog.audit_verify(Some(&noted)).await.unwrap().problems;
    assert_eq!(found, [AuditProblem::Head(noted)]);
}

#[tokio::test]
async fn emptied_database_next_to_its_key_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("catalog.db");
    let url = format!("sqlite://{}", file.display());
    let catalog = Catalog::open(&url).await.unwrap();
    catalog.create_rule(&actor(), &rule("a", 1), None).await.unwrap();
    drop(catalog);
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{suffix}", file.display()));
    }
    let catalog = Catalog::open(&url).await.unwrap();
    assert_eq!(catalog.audit_verify(None).await.unwrap().problems, [AuditProblem::Emptied]);
}

#[tokio::test]
async fn decisions_by_endpoint_use_the_index() {
    let database = file();
    drop(database.open().await);
    let plan = "EXPLAIN QUERY PLAN SELECT number FROM pacegate_decision_log WHERE number < 9 AND endpoint_key = 'a' ORDER BY number DESC LIMIT 5";
    let detail = database.column(plan, 3).await;
    assert!(
        detail.contains("USING")
            && detail.contains("pacegate_decision_log_by_endpoint (endpoint_key=? AND number<?)"),
        "{detail}"
    );
}

#[tokio::test]
async fn file_rules_count_against_the_maximum() {
    let database = file();
    let catalog = database.open().await;
    let config = |count: usize| {
        let rules = (0..count)
            .map(|number| Rule { identifier: Some(format!("x{number}")), ..rule("of the file", 1) })
            .collect();
        Config { rules, ..Config::default() }
    };
    let registry = Registry::start(config(RULES_MAX - 2), Stores::default(), catalog.clone()).await.unwrap();
    catalog.create_rule(&actor(), &rule("first", 1), None).await.unwrap();
    catalog.create_rule(&actor(), &rule("second", 1), None).await.unwrap();
    for error in [
        catalog.create_rule(&actor(), &rule("third", 1), None).await.unwrap_err(),
        catalog.put_rule(&actor(), &rule("third", 1), None, None).await.unwrap_err(),
    ] {
        assert!(error.is_invalid() && error.field() == Some("rules"), "{error}");
        assert!(
            error.to_string().contains("99998 in the configuration file and 2 in the catalog"),
            "{error}"
        );
    }
    registry.refresh().await.unwrap();
    // A growing file displaces only the newest rules of the catalog.
    registry.reload(config(RULES_MAX - 1)).await.unwrap();
    let decision = registry.limiter().check(&Check::new("user", "u1").endpoint("/")).await.unwrap();
    let names: Vec<&str> = decision.limits().iter().map(|limit| &*limit.name).collect();
    assert_eq!(names, ["first"]);
    assert!(registry.reload(config(RULES_MAX + 1)).await.is_err());
    registry.reload(config(1)).await.unwrap();
    catalog.create_rule(&actor(), &rule("third", 1), None).await.unwrap();
}

/// The figure from the operating guide: 10,000 users over some hours.
#[tokio::test]
async fn usage_row_takes_about_230_bytes() {
    let database = file();
    let catalog = database.open().await;
    let pages = database.number("PRAGMA page_count").await;
    let (hours, users) = (2, 10_000);
    for hour in 0..hours {
        let row = |number| UsageRecord {
            start: database.after(hour * 3_600),
            dimension: "user".into(),
            identifier: format!("user-{number:06}"),
            allowed: 1_000,
            blocked: 10,
        };
        let rows: Vec<UsageRecord> = (0..users).map(row).collect();
        catalog.add_usage(Period::Hour, &rows).await.unwrap();
    }
    let grown =
        (database.number("PRAGMA page_count").await - pages) * database.number("PRAGMA page_size").await;
    let each = grown / i64::try_from(hours * users).unwrap();
    assert!((180..=260).contains(&each), "{each} bytes");
}

/// Before lists had their own connections, a statement behind eight lists waited for at least five.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_do_not_delay_other_statements() {
    let database = file();
    let catalog = database.open().await;
    let fill = "INSERT INTO pacegate_usage_rollups (period_seconds, period_start, identifier_key, dimension, identifier, allowed, blocked) \
                WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) \
                SELECT 60, 60000000 * (i % 10), 'key-' || i, 'user', 'user-' || i, 1, 0 FROM n";
    database.tamper(fill).await;
    let (started, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut lists = JoinSet::new();
    for _ in 0..8 {
        let (catalog, started, done) = (catalog.clone(), started.clone(), done.clone());
        lists.spawn(async move {
            started.fetch_add(1, Ordering::SeqCst);
            let any = UsageFilter::default();
            // A list that waited too long reports a timeout.
            let list = catalog.usage(Period::Minute, any, Timestamp::default(), 10).await;
            assert!(list.is_ok_and(|list| list.len() == 10) || done.load(Ordering::SeqCst) > 0);
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    while started.load(Ordering::SeqCst) < 8 {
        tokio::task::yield_now().await;
    }
    catalog.ping().await.unwrap();
    let done_by_then = done.load(Ordering::SeqCst);
    assert!(done_by_then <= 2, "{done_by_then} lists finished first");
    lists.join_all().await;
}
