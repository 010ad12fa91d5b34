//! The database servers behave as tests rely on: they respond, are killed, keep committed data and
//! freeze.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;

use pacegate_testkit::server::{MariaDb, Postgres};

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether a signal has stopped the process.
fn is_stopped(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ")
}

/// Runs a program and returns whether it succeeded, with its output.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The same tests for both servers, which have the same methods.
macro_rules! database_tests {
    ($module:ident, $Server:ident, $scheme:literal, $as_user:expr, $sleep:literal, $sleeping:literal) => {
        mod $module {
            use super::*;

            #[test]
            fn responds_to_the_administrator_and_the_user_of_its_url() {
                let server = $Server::start();
                let port = server.port();
                assert_eq!(server.url(), format!("{}://pacegate:secret@127.0.0.1:{port}/pacegate", $scheme));
                assert_eq!(
                    server.query("SELECT 1, 'a b' UNION ALL SELECT 2, 'c' ORDER BY 1"),
                    "1\ta b\n2\tc"
                );
                let as_user: fn(u16, &str, &str) -> (bool, String) = $as_user;
                let sql = "CREATE TABLE mine (a int); INSERT INTO mine VALUES (7); SELECT a FROM mine";
                assert_eq!(as_user(port, "secret", sql), (true, "7".to_owned()));
                assert_eq!(server.query("SELECT a FROM mine"), "7");
                assert!(!as_user(port, "wrong", "SELECT 1").0);
            }

            #[test]
            fn killed_server_restarts_with_committed_data() {
                let mut server = $Server::start();
                let (port, pid) = (server.port(), server.pid());
                server.query("CREATE TABLE kept (a int)");
                server.query("INSERT INTO kept VALUES (1)");

                server.kill();
                server.kill();
                assert!(!exists(pid));
                let refused = TcpStream::connect(("127.0.0.1", port)).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

                server.restart();
                assert_eq!(server.port(), port);
                assert_ne!(server.pid(), pid);
                assert_eq!(server.query("SELECT a FROM kept"), "1");
                let second = server.pid();
                server.restart();
                assert!(!exists(second));
                assert_eq!(server.query("SELECT a FROM kept"), "1");

                let third = server.pid();
                server.freeze();
                drop(server);
                assert!(!exists(third));
            }

            #[test]
            fn frozen_server_does_not_respond_until_thawed() {
                let server = $Server::start();
                thread::scope(|scope| {
                    let old = scope.spawn(|| server.query($sleep));
                    while server.query($sleeping) != "1" {
                        assert!(!old.is_finished());
                    }
                    server.freeze();
                    server.freeze();
                    let new = scope.spawn(|| server.query("SELECT 'answer'"));
                    // A stopped process does not respond, however long the clients wait.
                    assert!(is_stopped(server.pid()));
                    assert!(!old.is_finished() && !new.is_finished());
                    server.thaw();
                    assert!(!is_stopped(server.pid()));
                    assert_eq!(new.join().unwrap(), "answer");
                    old.join().unwrap();
                });
            }
        }
    };
}

database_tests!(
    mariadb,
    MariaDb,
    "mysql",
    |port, password, sql| {
        let (port, password) = (format!("--port={port}"), format!("--password={password}"));
        let connection = ["--no-defaults", "--host=127.0.0.1", "--user=pacegate", &port, &password];
        run(
            "mariadb",
            &[&connection[..], &["--batch", "--skip-column-names", "--execute", sql, "pacegate"]].concat(),
        )
    },
    "SELECT SLEEP(1)",
    "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT SLEEP%'"
);

database_tests!(
    postgres,
    Postgres,
    "postgres",
    |port, password, sql| {
        let url = format!("postgres://pacegate:{password}@127.0.0.1:{port}/pacegate");
        run("psql", &["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command", sql, &url])
    },
    "SELECT pg_sleep(1)",
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
);

#[test]
fn additional_arguments_reach_the_server() {
    let settings = "SELECT @@max_connections, @@innodb_flush_log_at_trx_commit";
    assert_eq!(MariaDb::start_with(&["--max-connections=23"]).query(settings), "23\t2");
    let durable = MariaDb::start_with(MariaDb::DURABLE);
    assert_eq!(durable.query("SELECT @@innodb_flush_log_at_trx_commit"), "1");
    let settings = "SELECT current_setting('max_connections'), current_setting('fsync')";
    assert_eq!(Postgres::start_with(&["-c", "max_connections=23"]).query(settings), "23\toff");
    assert_eq!(Postgres::start_with(Postgres::DURABLE).query(settings), "100\ton");
}

/// Child processes of a server freeze and end with it.
#[test]
fn postgres_child_processes_freeze_and_end_with_it() {
    let server = Postgres::start();
    let others = server.query("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE '%writer'");
    let others: Vec<u32> = others.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(others.len() >= 2, "{others:?}");
    let stat = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    server.freeze();
    assert!(others.iter().all(|pid| stat(pid).contains(") T ")));
    server.thaw();
    assert!(!others.iter().any(|pid| stat(pid).contains(") T ")));
    drop(server);
    // The process that adopts them may not have reaped them yet.
    assert!(others.iter().all(|pid| stat(pid).is_empty() || stat(pid).contains(") Z ")));
}
