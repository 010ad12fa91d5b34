//! Loads, pages and searches a catalog with many rules and users, and prints how long that takes.
//! At full size, which takes minutes:
//! `PACEGATE_EFFORT=full cargo test --release -p pacegate-catalog --test scale -- --nocapture
//! --test-threads 1`

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and this one prints measurements"
)]

use std::time::Instant;

use pacegate::{Limit, Rule, Timestamp};
use pacegate_catalog::{Actor, Catalog, RULES_MAX};
use pacegate_testkit::effort;
use pacegate_testkit::server::{MariaDb, Postgres};
use sha2::{Digest, Sha256};
use sqlx::any::install_default_drivers;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, raw_sql};

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of rules, one below the maximum.
fn rules_count() -> usize {
    effort(5_000, RULES_MAX - 1)
}

fn users_count() -> usize {
    effort(5_000, 1_000_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let directory = tempfile::tempdir().unwrap();
    measure("SQLite", &format!("sqlite://{}", directory.path().join("catalog.db").display())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let server = MariaDb::start();
    measure("MariaDB", &server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let server = Postgres::start();
    measure("PostgreSQL", &server.url()).await;
}

async fn measure(name: &str, url: &str) {
    let catalog = Catalog::open(url).await.unwrap();
    fill(url).await;
    let actor = Actor { key_id: "operator".into(), ..Actor::default() };
    for _ in 0..3 {
        let start = Instant::now();
        let list = catalog.rules().await.unwrap();
        let took = start.elapsed();
        assert_eq!((list.rules.len(), list.unreadable.len()), (rules_count(), 0));
        println!("{name}: {} rules loaded in {took:?}", list.rules.len());
    }
    let start = Instant::now();
    let rule = Rule::new("one more", "user", Limit::per_minute(1).build().unwrap());
    catalog.create_rule(&actor, &rule, None).await.unwrap();
    println!("{name}: one more rule created in {:?}", start.elapsed());

    let start = Instant::now();
    let users = (0..users_count()).map(|number| (format!("user-{number}"), Some("premium".to_owned())));
    catalog.import_users(&actor, users).await.unwrap();
    println!("{name}: {} users imported in {:?}", users_count(), start.elapsed());
    let start = Instant::now();
    let lookups = effort(200, 2_000);
    for number in 0..lookups {
        let user = format!("user-{}", (number * 499) % users_count());
        let (profile, _) = catalog.profile(&user, Timestamp::default()).await.unwrap();
        assert_eq!(profile.tier.as_deref(), Some("premium"));
    }
    println!(
        "{name}: a profile among {} read in {:?}",
        users_count(),
        start.elapsed() / u32::try_from(lookups).unwrap()
    );
}

/// Inserts rows directly, because the catalog would need one transaction each.
async fn fill(url: &str) {
    install_default_drivers();
    let mut connection = AnyConnection::connect(url).await.unwrap();
    let columns = "number, rule_id, variant_key, definition_json, version, created_at, updated_at";
    let row = |number: usize| {
        let user = format!("user-{number}");
        let identity =
            format!(r#""name":"per-user","dimension":"user","identifier":"{user}","tier":"premium""#);
        let endpoint = r#""endpoint":"/api/v1/orders/{id}/items","method":"POST","store":"hot","mode":"enforce","counter":"pattern""#;
        let limit = r#""algorithm":"token_bucket","quota":1000,"window_micros":60000000,"burst":5000"#;
        let variant = variant_key(&["per-user", "user", &user, "premium", "/api/v1/orders/{}/items", "POST"]);
        format!("({number}, '{number:032x}', '{variant}', '{{{identity},{endpoint},{limit}}}', 1, 0, 0)")
    };
    let mut transaction = connection.begin().await.unwrap();
    let last = rules_count() + 1;
    for first in (1..last).step_by(1_000) {
        let rows: Vec<String> = (first..(first + 1_000).min(last)).map(row).collect();
        let sql = format!("INSERT INTO pacegate_rules ({columns}) VALUES {}", rows.join(", "));
        raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await.unwrap();
    }
    let state = format!("UPDATE pacegate_catalog_state SET revision = {RULES_MAX}");
    raw_sql(AssertSqlSafe(state)).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
}

/// The catalog's variant key: each field is marked as present and prefixed with its length.
fn variant_key(fields: &[&str]) -> String {
    let mut hash = Sha256::new();
    for field in fields {
        hash.update([1]);
        hash.update((field.len() as u64).to_be_bytes());
        hash.update(field);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
