//! TLS on real servers that answer nothing else: who is trusted, and who is let in.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Charge, Command, Outcome, Store, StoreError};
use pacegate_testkit::server::{Certificates, MariaDb, Postgres};

/// What the tests need of a database server.
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

/// Trusts an authority, with a certificate of the client's own or without.
async fn connect(
    url: &str,
    authority: &Path,
    client: Option<(&Path, &Path)>,
) -> Result<SqlStore, StoreError> {
    SqlStore::connect(SqlOptions::new(url).unwrap().with_tls(Some(authority), client)).await
}

/// Of a limit of one.
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

/// Enough keys that every connection of the store has some.
async fn takes_work(store: &SqlStore) {
    for number in 0..32 {
        let identifier = format!("user-{number}");
        assert!(take(store, &identifier).await);
        assert!(!take(store, &identifier).await);
    }
}

/// Somebody has to change something, and the database is as it was.
fn refused<S: Server>(server: &S, connected: Result<SqlStore, StoreError>) {
    let error = not_let_in(server, connected);
    assert!(error.is_permanent(), "{error}");
}

fn not_let_in<S: Server>(server: &S, connected: Result<SqlStore, StoreError>) -> StoreError {
    let error = connected.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'pacegate%'";
    assert_eq!(server.query(tables), "0", "nothing is created: {error}");
    error
}

async fn a_server_of_the_given_authority_is_trusted<S: Server>() {
    let (server, certificates) = S::start_tls(false);
    // The server lets nobody in without TLS, so whoever is let in is encrypted.
    refused(&server, SqlStore::connect(SqlOptions::new(&server.plain_url()).unwrap()).await);
    let store = connect(&server.url(), &certificates.authority, None).await.unwrap();
    takes_work(&store).await;
    assert_eq!(server.query("SELECT COUNT(*) FROM pacegate_state"), "32");
}

async fn a_server_of_another_authority_is_refused<S: Server>() {
    let ((server, _), (other, others)) = (S::start_tls(false), S::start_tls(false));
    refused(&server, connect(&server.url(), &others.authority, None).await);
    drop(connect(&other.url(), &others.authority, None).await.unwrap());
}

async fn a_server_of_another_name_is_refused<S: Server>() {
    let (server, certificates) = S::start_tls(false);
    // The same address in a notation that is none of the certificate's names.
    let url = server.url().replacen("@127.0.0.1:", "@0x7f000001:", 1);
    refused(&server, connect(&url, &certificates.authority, None).await);
    let anybody = SqlStore::connect(SqlOptions::new(&url).unwrap()).await;
    assert!(anybody.is_ok(), "there it is, for those who check no name: {:?}", anybody.err());
}

async fn a_server_that_wants_a_certificate_gets_it<S: Server>() {
    let ((server, certificates), (_other, others)) = (S::start_tls(true), S::start_tls(true));
    refused(&server, connect(&server.url(), &certificates.authority, None).await);
    // Signed by somebody whom the server does not know. It may hang up before its reason is read.
    not_let_in(&server, connect(&server.url(), &certificates.authority, client(&others)).await);
    let store = connect(&server.url(), &certificates.authority, client(&certificates)).await.unwrap();
    takes_work(&store).await;
}

async fn a_server_without_tls_is_refused<S: Server>(server: S) {
    let (_other, certificates) = S::start_tls(false);
    refused(&server, connect(&server.url(), &certificates.authority, None).await);
}

async fn a_file_that_cannot_be_read_is_permanent<S: Server>() {
    let (server, certificates) = S::start_tls(false);
    let nowhere = certificates.authority.with_file_name("nowhere.pem");
    refused(&server, connect(&server.url(), &nowhere, None).await);
    // A key is no certificate.
    refused(&server, connect(&server.url(), &certificates.client_key, None).await);
    let client = Some((certificates.client_certificate.as_path(), nowhere.as_path()));
    refused(&server, connect(&server.url(), &certificates.authority, client).await);
}

macro_rules! on_both {
    ($($test:ident),*) => {
        mod mariadb {
            $(#[tokio::test]
            async fn $test() {
                super::$test::<super::MariaDb>().await;
            })*

            #[tokio::test]
            async fn a_server_without_tls_is_refused() {
                super::a_server_without_tls_is_refused(super::MariaDb::start()).await;
            }
        }

        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test::<super::Postgres>().await;
            })*

            #[tokio::test]
            async fn a_server_without_tls_is_refused() {
                super::a_server_without_tls_is_refused(super::Postgres::start()).await;
            }
        }
    };
}

on_both!(
    a_server_of_the_given_authority_is_trusted,
    a_server_of_another_authority_is_refused,
    a_server_of_another_name_is_refused,
    a_server_that_wants_a_certificate_gets_it,
    a_file_that_cannot_be_read_is_permanent
);
