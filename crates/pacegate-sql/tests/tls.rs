//! TLS on real servers that accept nothing else: trusted authorities, server names and client
//! certificates.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Charge, Command, Outcome, Store, StoreError};
use pacegate_testkit::server::{Certificates, MariaDb, Postgres};

/// The operations of a database server that the tests need.
trait Server: Sized {
    fn start_tls(client_certificate: bool) -> (Self, Certificates);
    fn url(&self) -> String;
    /// The same, without TLS.
    fn plain_url(&self) -> String;
    fn query(&self, sql: &str) -> String;
}

impl Server for MariaDb {
    fn start_tls(client_certificate: bool) -> (Self, Certificates) {
        Self::start_tls(client_certificate)
    }

    fn url(&self) -> String {
        self.url()
    }

    fn plain_url(&self) -> String {
        format!("{}?ssl-mode=DISABLED", self.url())
    }

    fn query(&self, sql: &str) -> String {
        self.query(sql)
    }
}

impl Server for Postgres {
    fn start_tls(client_certificate: bool) -> (Self, Certificates) {
        Self::start_tls(client_certificate)
    }

    fn url(&self) -> String {
        self.url()
    }

    fn plain_url(&self) -> String {
        format!("{}?sslmode=disable", self.url())
    }

    fn query(&self, sql: &str) -> String {
        self.query(sql)
    }
}

fn client(certificates: &Certificates) -> Option<(&Path, &Path)> {
    Some((&certificates.client_certificate, &certificates.client_key))
}

/// Connects with a trusted authority, with or without a client certificate.
async fn connect(
    url: &str,
    authority: &Path,
    client: Option<(&Path, &Path)>,
) -> Result<SqlStore, StoreError> {
    SqlStore::connect(SqlOptions::new(url).unwrap().with_tls(Some(authority), client)).await
}

/// Takes from a limit of one.
async fn take(store: &SqlStore, identifier: &str) -> bool {
    let counter = Counter::new("rule", "user", "");
    let limit = Limit::try_new(Algorithm::FixedWindow, 1, Duration::from_secs(366 * 86_400)).unwrap();
    let charges = [Charge::new(Key::new(&counter, identifier, ""), &limit)];
    let command = Command::take(&charges);
    match store.apply(&command, None).await.unwrap() {
        Outcome::Decided(decision) => decision.allowed,
        other => panic!("{other:?}"),
    }
}

/// Enough keys for every connection of the store.
async fn takes_work(store: &SqlStore) {
    for number in 0..32 {
        let identifier = format!("user-{number}");
        assert!(take(store, &identifier).await);
        assert!(!take(store, &identifier).await);
    }
}

/// The error is permanent, and the database is unchanged.
fn rejected<S: Server>(server: &S, connected: Result<SqlStore, StoreError>) {
    let error = connection_fails(server, connected);
    assert!(error.is_permanent(), "{error}");
}

fn connection_fails<S: Server>(server: &S, connected: Result<SqlStore, StoreError>) -> StoreError {
    let error = connected.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'pacegate%'";
    assert_eq!(server.query(tables), "0", "nothing is created: {error}");
    error
}

async fn server_of_the_given_authority_is_trusted<S: Server>() {
    let (server, certificates) = S::start_tls(false);
    // The server rejects connections without TLS, so an accepted one is encrypted.
    rejected(&server, SqlStore::connect(SqlOptions::new(&server.plain_url()).unwrap()).await);
    let store = connect(&server.url(), &certificates.authority, None).await.unwrap();
    takes_work(&store).await;
    assert_eq!(server.query("SELECT COUNT(*) FROM pacegate_state"), "32");
}

async fn server_of_another_authority_is_rejected<S: Server>() {
    let ((server, _), (other, others)) = (S::start_tls(false), S::start_tls(false));
    rejected(&server, connect(&server.url(), &others.authority, None).await);
    drop(connect(&other.url(), &others.authority, None).await.unwrap());
}

async fn server_with_another_name_is_rejected<S: Server>() {
    let (server, certificates) = S::start_tls(false);
    // The same address in a notation that is not among the certificate's names.
    let url = server.url().replacen("@127.0.0.1:", "@0x7f000001:", 1);
    rejected(&server, connect(&url, &certificates.authority, None).await);
    let unverified = SqlStore::connect(SqlOptions::new(&url).unwrap()).await;
    assert!(unverified.is_ok(), "without name verification the connection succeeds: {:?}", unverified.err());
}

async fn client_certificate_is_presented_on_request<S: Server>() {
    let ((server, certificates), (_other, others)) = (S::start_tls(true), S::start_tls(true));
    rejected(&server, connect(&server.url(), &certificates.authority, None).await);
    // Signed by an authority that the server does not trust. The server may close the connection
    // before its reason is read.
    connection_fails(&server, connect(&server.url(), &certificates.authority, client(&others)).await);
    let store = connect(&server.url(), &certificates.authority, client(&certificates)).await.unwrap();
    takes_work(&store).await;
}

async fn server_without_tls_is_rejected<S: Server>(server: S) {
    let (_other, certificates) = S::start_tls(false);
    rejected(&server, connect(&server.url(), &certificates.authority, None).await);
}

async fn unreadable_file_is_a_permanent_error<S: Server>() {
    let (server, certificates) = S::start_tls(false);
    let nowhere = certificates.authority.with_file_name("nowhere.pem");
    rejected(&server, connect(&server.url(), &nowhere, None).await);
    // A key is not a certificate.
    rejected(&server, connect(&server.url(), &certificates.client_key, None).await);
    let client = Some((certificates.client_certificate.as_path(), nowhere.as_path()));
    rejected(&server, connect(&server.url(), &certificates.authority, client).await);
}

macro_rules! on_both {
    ($($test:ident),*) => {
        mod mariadb {
            $(#[tokio::test]
            async fn $test() {
                super::$test::<super::MariaDb>().await;
            })*

            #[tokio::test]
            async fn server_without_tls_is_rejected() {
                super::server_without_tls_is_rejected(super::MariaDb::start()).await;
            }
        }

        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test::<super::Postgres>().await;
            })*

            #[tokio::test]
            async fn server_without_tls_is_rejected() {
                super::server_without_tls_is_rejected(super::Postgres::start()).await;
            }
        }
    };
}

on_both!(
    server_of_the_given_authority_is_trusted,
    server_of_another_authority_is_rejected,
    server_with_another_name_is_rejected,
    client_certificate_is_presented_on_request,
    unreadable_file_is_a_permanent_error
);
