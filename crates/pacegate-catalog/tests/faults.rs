//! Errors during real outages of real database servers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use pacegate::{Limit, Rule};
use pacegate_catalog::{Actor, Catalog, CatalogError};
use pacegate_testkit::server::{DatabaseServer, Fault, FaultProxy};

macro_rules! on_both {
    ($($scenario:ident),+ $(,)?) => {
        mod mariadb {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    super::$scenario(pacegate_testkit::server::MariaDb::start()).await;
                }
            )+
        }
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    super::$scenario(pacegate_testkit::server::Postgres::start()).await;
                }
            )+
        }
    };
}

on_both!(
    wrong_password_is_a_permanent_error,
    killed_server_is_unavailable_until_restarted,
    frozen_server_times_out,
    lost_replies_neither_lose_nor_duplicate_changes,
);

fn actor() -> Actor {
    Actor { key_id: "operator".into(), ..Actor::default() }
}

fn rule(number: usize) -> Rule {
    Rule::new(&format!("rule {number}"), "user", Limit::per_minute(1).build().unwrap())
}

fn assert_hides_password(error: &CatalogError) {
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

async fn wrong_password_is_a_permanent_error(server: impl DatabaseServer) {
    let error = Catalog::open(&server.url().replace("secret", "secretx")).await.unwrap_err();
    assert!(error.is_permanent(), "{error:?}");
    assert_hides_password(&error);
    let error = Catalog::open(&server.url().replace("/pacegate", "/missing")).await.unwrap_err();
    assert!(error.is_permanent(), "{error:?}");
}

async fn killed_server_is_unavailable_until_restarted(mut server: impl DatabaseServer) {
    let catalog = Catalog::open(&server.url()).await.unwrap();
    assert!(!format!("{catalog:?}").contains("secret"));
    catalog.create_rule(&actor(), &rule(1), None).await.unwrap();
    server.kill();
    for error in [
        catalog.revision().await.unwrap_err(),
        catalog.create_rule(&actor(), &rule(2), None).await.unwrap_err(),
        Catalog::open(&server.url()).await.unwrap_err(),
    ] {
        assert!(error.is_unavailable() && !error.is_uncertain(), "{error:?}");
        assert_hides_password(&error);
    }
    server.restart();
    // Acknowledged changes are stored, failed ones are not.
    let list = catalog.rules().await.unwrap();
    assert_eq!((list.rules.len(), list.revision.all), (1, 1));
    catalog.create_rule(&actor(), &rule(2), None).await.unwrap();
}

async fn frozen_server_times_out(server: impl DatabaseServer) {
    let catalog = Catalog::open(&server.url()).await.unwrap();
    catalog.create_rule(&actor(), &rule(1), None).await.unwrap();
    server.freeze();
    let (by, rule) = (actor(), rule(2));
    let (read, list, change) =
        tokio::join!(catalog.revision(), catalog.rules(), catalog.create_rule(&by, &rule, None));
    server.thaw();
    for error in [read.unwrap_err(), list.unwrap_err(), change.unwrap_err()] {
        assert!(error.is_unavailable(), "{error:?}");
    }
    catalog.create_rule(&actor(), &rule, None).await.unwrap();
    assert_eq!(catalog.audit_verify(None).await.unwrap().records, 2);
}

/// Replies are lost at random, including those to COMMIT.
async fn lost_replies_neither_lose_nor_duplicate_changes(server: impl DatabaseServer) {
    let proxy = FaultProxy::start(SocketAddr::from(([127, 0, 0, 1], server.port()))).await;
    let url = server.url().replace(&server.port().to_string(), &proxy.address().port().to_string());
    let catalog = Catalog::open(&url).await.unwrap();
    proxy.set(Fault::CutReplies { one_in: 12, seed: 20_261_116 });
    let mut outcomes = Vec::new();
    for number in 0..300 {
        outcomes.push(catalog.create_rule(&actor(), &rule(number), None).await);
    }
    proxy.set(Fault::None);

    let direct = Catalog::open(&server.url()).await.unwrap();
    let (mut committed, mut rolled_back, mut uncertain) = (0, 0, 0);
    for (number, outcome) in outcomes.iter().enumerate() {
        let found = direct.rule_of_variant(&rule(number)).await.unwrap();
        match outcome {
            Ok(stored) => {
                assert_eq!(found.as_ref(), Some(stored));
                committed += 1;
            }
            Err(error) if error.is_uncertain() => uncertain += 1,
            Err(error) => {
                assert!(error.is_unavailable(), "{error:?}");
                assert_eq!(found, None, "{error:?}");
                rolled_back += 1;
            }
        }
    }
    assert!(
        committed > 0 && rolled_back > 0 && uncertain > 0,
        "{committed} committed, {rolled_back} rolled back, {uncertain} uncertain"
    );
    let list = direct.rules().await.unwrap();
    assert_eq!(i64::try_from(list.rules.len()).unwrap(), list.revision.all);
    let check = direct.audit_verify(None).await.unwrap();
    assert_eq!((check.records, check.first_broken()), (u64::try_from(list.rules.len()).unwrap(), None));
}
