//! The cost of API keys, users, the catalog and the decision log per check, and the time to start
//! with many rules and to delete old rows. Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::body::Body;
use axum::http::Request;
use pacegate::{Limit, MemoryStore, Rule, Stores, Timestamp};
use pacegate_bench::machine;
use pacegate_bench::stopwatch::{median, now, quantile};
use pacegate_bench::table::{Table, grouped};
use pacegate_catalog::{Actor, Catalog, DECISIONS_MAX, DecisionRecord, Retention, UserChange};
use pacegate_config::Config;
use pacegate_server::{AdminKey, App, Live};

const ROUNDS: usize = 5;
const CHECKS: usize = 40_000;
const USERS: usize = 1_000;
const OLD_ROWS: usize = 1_000_000;
const RULES: usize = 100_000;

fn main() -> Result<()> {
    println!("{}\n", machine::description());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        checks().await?;
        start().await?;
        retention().await
    })
}

/// A service, and the API key of its checks.
struct Variant {
    name: &'static str,
    app: App,
    key: Option<String>,
    nanoseconds: Vec<f64>,
    _directory: Option<tempfile::TempDir>,
}

impl Variant {
    async fn new(name: &'static str, yaml: &str, with_user: bool) -> Result<Self> {
        let config = Config::parse(yaml)?;
        let stores = Stores::memory(Arc::new(MemoryStore::default()));
        let directory = tempfile::tempdir()?;
        let catalog =
            Catalog::open(&format!("sqlite://{}", directory.path().join("catalog.db").display())).await?;
        let (_, secret) = catalog.create_key(&Actor::default(), "checker", "bench", None).await?;
        if with_user {
            catalog.put_user(&Actor::default(), "alice", UserChange::all(Some("gold"), &[]), None).await?;
        }
        let live = Live::start(config.clone(), stores, catalog).await?;
        tokio::spawn(live.clone().keep_logs());
        let app = App::managed(&config, live, None);
        let key = config.server.require_key.then_some(secret);
        Ok(Self { name, app, key, nanoseconds: Vec::new(), _directory: Some(directory) })
    }

    fn bare() -> Result<Self> {
        let config = Config::parse("")?;
        let app = App::new(&config, config.limiter()?, AdminKey::new("secret"));
        Ok(Self { name: "without a catalog", app, key: None, nanoseconds: Vec::new(), _directory: None })
    }

    async fn round(&mut self) -> Result<()> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let start = now();
        for number in 0..CHECKS {
            let body = format!(r#"{{"user_id":"user-{:05}","endpoint":"/api/v1/orders"}}"#, number % USERS);
            let mut request =
                Request::post("/v1/rate-limit/check").header("content-type", "application/json");
            if let Some(key) = &self.key {
                request = request.header("x-api-key", key);
            }
            let response = self.app.respond(request.body(Body::from(body))?, peer).await;
            ensure!([200, 429].contains(&response.status().as_u16()), "{}", response.status());
        }
        self.nanoseconds.push((now() - start).as_nanos() as f64 / CHECKS as f64);
        Ok(())
    }
}

/// Checks through the app, without sockets, one after the other.
async fn checks() -> Result<()> {
    let quiet = "decision_log: {allowed: 0, denied: 0}";
    let mut variants = [
        Variant::bare()?,
        Variant::new("with a catalog", quiet, false).await?,
        Variant::new("and users in it", quiet, true).await?,
        Variant::new("and a key for each check", &format!("server: {{require_key: true}}\n{quiet}"), false)
            .await?,
        Variant::new(
            "every decision logged",
            "decision_log: {rows_per_second: 1000000, queue: 1000000}",
            false,
        )
        .await?,
    ];
    for _ in 0..=ROUNDS {
        for variant in &mut variants {
            variant.round().await?;
        }
    }
    let mut table = Table::new([
        "a check through the app, no socket",
        "best ns",
        "median ns",
        "more than with a catalog, ns",
    ]);
    let catalog = median(variants[1].nanoseconds.iter().skip(1).copied());
    for variant in &variants {
        // The first round warms up.
        let rounds = || variant.nanoseconds.iter().skip(1).copied();
        let (best, middle) = (rounds().fold(f64::MAX, f64::min), median(rounds()));
        table.row([
            variant.name.into(),
            format!("{best:.0}"),
            format!("{middle:.0}"),
            format!("{:.0}", middle - catalog),
        ]);
    }
    println!("{table}");
    println!("Over HTTP a check takes about 12,000 ns of the server's processor time (see The service).\n");
    Ok(())
}

/// Measures the start of a service with many rules and users. Loading rules from a database is
/// measured by `--test scale` of the catalog.
async fn start() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite://{}", directory.path().join("catalog.db").display());
    let users = (0..1_000_000).map(|number| (format!("u{number}"), Some("gold".to_owned())));
    Catalog::open(&url).await?.import_users(&Actor::default(), users).await?;
    let mut config = Config::parse("")?;
    for number in 0..RULES {
        let mut rule = Rule::new("per-user", "user", Limit::per_minute(100).build()?);
        rule.identifier = Some(format!("user-{number:06}"));
        config.rules.push(rule);
    }
    let begin = now();
    let catalog = Catalog::open(&url).await?;
    let live = Live::start(config, Stores::default(), catalog).await?;
    let took = (now() - begin).as_millis();
    println!(
        "{} rules compiled beside 1,000,000 users in SQLite: {took} ms (goal: start in 3,000).\n",
        grouped(RULES as u64)
    );
    drop(live);
    Ok(())
}

/// Measures the deletion of old decisions, and how long other writes wait for it.
async fn retention() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let catalog =
        Catalog::open(&format!("sqlite://{}", directory.path().join("catalog.db").display())).await?;
    let record = DecisionRecord {
        at: Timestamp::from_micros(1),
        user_id: Some("user-00001".into()),
        dimension: "user".into(),
        identifier: "user-00001".into(),
        endpoint: "/api/v1/orders".into(),
        allowed: true,
        cost: 1,
        ..DecisionRecord::default()
    };
    let batch = vec![record.clone(); DECISIONS_MAX];
    for _ in 0..OLD_ROWS / DECISIONS_MAX {
        catalog.append_decisions(&batch).await?;
    }
    let never = Timestamp::default();
    let old = Timestamp::from_micros(2);
    let retention = Retention {
        audit: never,
        decisions: old,
        minutes: never,
        hours: never,
        usage_rows: u64::MAX,
        overrides: never,
    };
    let removing = tokio::spawn({
        let catalog = catalog.clone();
        async move { catalog.remove_old(retention).await }
    });
    let begin = now();
    let fresh = [DecisionRecord { at: Timestamp::from_micros(1_000_000), ..record }];
    let mut waits: Vec<Duration> = Vec::new();
    while !removing.is_finished() {
        let start = now();
        catalog.append_decisions(&fresh).await?;
        waits.push(now() - start);
    }
    let removed = removing.await??;
    waits.sort_unstable();
    println!(
        "{} old decisions removed in {:.1} s; {} writes beside it took {:.1} ms (p50), {:.1} ms (p99), {:.1} ms at most (goal: no lock above 50 ms).",
        grouped(removed.decisions),
        (now() - begin).as_secs_f64(),
        grouped(waits.len() as u64),
        quantile(&waits, 0.5).as_secs_f64() * 1e3,
        quantile(&waits, 0.99).as_secs_f64() * 1e3,
        waits.last().copied().unwrap_or_default().as_secs_f64() * 1e3,
    );
    Ok(())
}
